// Any bytes either are a template that renders or are refused by a TemplateError, within the budget. With markers and
// values of the fuzzer's: what a value spells never becomes markup.
#include <cstdint>
#include <cstdlib>

#include "text/chat_template.h"
#include "text/jinja.h"

namespace {

using weir::jinja::Origin;
using weir::jinja::Value;

// A value for every kind, all strings of which hold one letter that templates can't make: U+2603 is replaced in
// sources.
Value value_of(int kind) {
  const boost::json::value json = {
      {"role", "user"},
      {"content", " \xE2\x98\x83 a\n"},
      {"tool_calls", {{{"id", "1"}, {"function", {{"name", "f"}, {"arguments", {{"k", 1.5}}}}}}}},
      {"list", {1, nullptr, true, "x", {{"y", "\xE2\x98\x83"}}}}};
  return kind == 0 ? weir::jinja::from_json(boost::json::array{json, json}) : weir::jinja::from_json(json);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const weir::jinja::Limits limits{
      .source_bytes = 1 << 16, .steps = 50'000, .depth = 640, .output_bytes = 1 << 20, .string_bytes = 8 << 20};
  std::string source(reinterpret_cast<const char*>(data), size);
  for (size_t at; (at = source.find("\xE2\x98\x83")) != std::string::npos;) source.replace(at, 3, "?");
  try {
    const auto compiled = weir::jinja::Template::compile("fuzz", source, limits);
    const weir::jinja::Text text = compiled.render({{"messages", value_of(0)},
                                                    {"m", value_of(1)},
                                                    {"n", Value(3)},
                                                    {"bos_token", weir::jinja::make_text("<s>", Origin::kTemplate)}},
                                                   std::tm{});
    // The snowman came with the request, unless an escape wrote it.
    if (source.find('\\') != std::string::npos) return 0;
    text.for_each_run(0, text.size(), [&](std::string_view run, Origin origin) {
      if (origin == Origin::kTemplate && run.find("\xE2\x98\x83") != run.npos) std::abort();
    });
  } catch (const weir::jinja::TemplateError&) {}
  return 0;
}
