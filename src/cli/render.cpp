// weir render: a conversation as the prompt that a model sees.
#include <boost/json.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "engine/model_text.h"
#include "formats/json.h"

namespace weir::cli {
namespace {

struct RenderOptions {
  std::vector<std::string> files;  // [MODEL] FILE
  std::string template_file;
  bool json = false;
};

void render(const RenderOptions& options) {
  const bool with_model = options.template_file.empty();
  const std::string& file = options.files.back();
  const ModelText text = with_model ? ModelText::open(options.files.front())  //
                                    : ModelText::of_template(options.template_file);
  const RenderedPrompt prompt =
      text.render(parse_chat_request(parse_json(read_input(file, JsonLimits{}.max_bytes), file), file));
  if (!options.json) {
    std::fwrite(prompt.text.data(), 1, prompt.text.size(), stdout);
    return;
  }
  boost::json::object out;
  out["text"] = prompt.text;
  boost::json::array segments;
  for (const Segment& segment : prompt.segments) {
    segments.push_back(boost::json::array{segment.text, segment.markup ? 1 : 0});
  }
  out["segments"] = std::move(segments);
  out["ids"] = nullptr;
  if (text.has_tokenizer()) {
    const std::vector<int32_t> ids = text.encode(prompt);
    out["ids"] = boost::json::array(ids.begin(), ids.end());
  }
  std::printf("%s\n", boost::json::serialize(out).c_str());
}

}  // namespace

void add_render(CLI::App& app) {
  CLI::App* command = app.add_subcommand("render", "a conversation as the prompt that a model sees");
  const auto options = std::make_shared<RenderOptions>();
  auto* from = command->add_option("--template", options->template_file, "Jinja template, instead of MODEL");
  command
      ->add_option("FILES", options->files,
                   "MODEL FILE: folder or GGUF file of a model or tokenizer; JSON file (-: standard input): an array "
                   "of messages, or {messages, "
                   "tools, add_generation_prompt, options}")
      ->required();
  command->add_flag("--json", options->json,
                    "print {text, segments, ids}; a segment is [text, 1 where special tokens count, else 0]");
  command->callback([options, from, command] {
    const size_t expected = from->count() > 0 ? 1 : 2;
    if (options->files.size() != expected) {
      throw CLI::ValidationError(command->get_name(), expected == 1 ? "expected FILE after --template TEMPLATE"
                                                                    : "expected MODEL FILE, or --template and FILE");
    }
    render(*options);
  });
}

}  // namespace weir::cli
