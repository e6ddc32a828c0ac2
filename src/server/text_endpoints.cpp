#include "server/text_endpoints.h"

#include <boost/json/array.hpp>

#include "formats/json.h"

namespace weir {
namespace {

namespace json = boost::json;
using openai::Refusal;

constexpr const char* kPlace = "request";

RenderedPrompt rendered(const json::object& body, const openai::Served& served) {
  return served.text->render(openai::parse_body(openai::Endpoint::kChat, body).chat);
}

std::vector<int32_t> ids_of(const json::object& body, const openai::Served& served) {
  if (body.contains("messages")) return served.text->encode(rendered(body, served));
  const JsonObject fields(kPlace, "", body);
  const char* name = fields.has("prompt") ? "prompt" : "content";
  if (!fields.has(name)) throw Refusal("request: expected prompt, content or messages, found none of them", "prompt");
  const bool special = fields.boolean_or("add_special_tokens", true);
  return served.text->tokenizer().encode(fields.string(name), SpecialTokens::kParse, special);
}

template <class Work>
json::object refusing(const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw Refusal::of(error);
  }
}

}  // namespace

json::object tokenize(const json::object& body, const openai::Served& served) {
  return refusing([&]() -> json::object {
    const std::vector<int32_t> ids = ids_of(body, served);
    return {{"count", ids.size()}, {"max_model_len", served.context}, {"tokens", json::array(ids.begin(), ids.end())}};
  });
}

json::object detokenize(const json::object& body, const openai::Served& served) {
  return refusing([&]() -> json::object {
    const JsonObject fields(kPlace, "", body);
    std::vector<int32_t> ids;
    for (const int64_t id : fields.integers("tokens", 0, served.text->tokenizer().vocab_size() - 1)) {
      ids.push_back(static_cast<int32_t>(id));
    }
    const std::string text = served.text->tokenizer().decode(ids, false);
    return {{"prompt", text}, {"content", text}};
  });
}

json::object apply_template(const json::object& body, const openai::Served& served) {
  return refusing([&]() -> json::object { return {{"prompt", rendered(body, served).text}}; });
}

}  // namespace weir
