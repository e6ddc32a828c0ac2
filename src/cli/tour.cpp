// weir tour: what a model does, shown without anybody who types.
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/chat_session.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/statistics.h"
#include "models/builtin.h"

namespace weir::cli {
namespace {

namespace json = boost::json;

constexpr int64_t kMostTokens = 400;  // of an answer

json::array weather_tool() {
  const json::object city{{"type", "string"}, {"description", "Name of the city."}};
  return {{{"type", "function"},
           {"function",
            {{"name", "get_weather"},
             {"description", "Get the weather of a city."},
             {"parameters", {{"type", "object"}, {"properties", {{"city", city}}}, {"required", {"city"}}}}}}}};
}

class Tour {
 public:
  explicit Tour(const ModelOptions& options) : loaded_(load_with_text(options.model, Words::kNeeded)) {
    EngineOptions wanted = options.engine_options();
    wanted.max_logit_rows = 1;
    wanted.max_tokens = std::min<int64_t>(8192, loaded_.model->spec.max_positions);
    engine_ = std::make_unique<Engine>(*loaded_.model, wanted);
    roof_ = weight_read_bandwidth(*engine_);
  }

  void run() {
    ask("Tell me a story about a fox.");
    messages_.clear();
    ask("What is 27 + 48?");
    messages_.clear();
    tools_ = weather_tool();
    const ParsedMessage called = ask("What is the weather in Lisbon?");
    if (!called.tool_calls.empty()) give_results(called);
    std::fprintf(stderr, "%s\n", statistics_.c_str());
  }

 private:
  ParsedMessage ask(const std::string& question) {
    std::printf("%s> %s%s\n", std::string(style_.dim()).c_str(), question.c_str(), std::string(style_.plain()).c_str());
    messages_.push_back({{"role", "user"}, {"content", question}});
    return answer();
  }

  void give_results(const ParsedMessage& called) {
    messages_.push_back(assistant_message(called));
    const std::string result = R"({"city": "Lisbon", "temperature": 21, "sky": "sunny"})";
    for (const ParsedToolCall& call : called.tool_calls) {
      std::printf("%s> %s gives %s%s\n", std::string(style_.dim()).c_str(), call.name.c_str(), result.c_str(),
                  std::string(style_.plain()).c_str());
      messages_.push_back({{"role", "tool"}, {"tool_call_id", call.id}, {"content", result}});
    }
    answer();
  }

  ParsedMessage answer() {
    ChatRequest request = chat_request("", messages_, {});
    if (!tools_.empty()) request.tools = tools_;
    const ChatPrompt prompt = chat_prompt(loaded_, request);
    ShownAnswer answer(loaded_.text.answer(prompt.rendered, "call_", &tools_),
                       AnswerPrinter(style_, ReasoningShown::kYes));
    GenerateOptions options{.max_tokens = kMostTokens};
    options.stop_tokens = loaded_.text.stop_tokens(loaded_.model->spec.stop_tokens);
    options.on_token = [&](int32_t token) { answer.push(token); };
    const Completion completion = generate(*engine_, prompt.ids, options);
    answer.end(completion);
    std::printf("\n");
    flush_output();
    statistics_ = statistics_line(*engine_, completion, roof_);
    return answer.message();
  }

  LoadedModel loaded_;
  std::unique_ptr<Engine> engine_;
  double roof_ = 0;
  Style style_{STDOUT_FILENO};
  json::array messages_, tools_;
  std::string statistics_;
};

}  // namespace

void add_tour(CLI::App& app) {
  CLI::App* command = app.add_subcommand("tour", "a story, a sum and a tool call by the built-in model");
  const auto options = std::make_shared<ModelOptions>();
  options->add_to(*command, ModelOptions::Model::kBuiltinByDefault);
  command->callback([options] {
    options->engine_options();  // errors in options before those in files
    Tour(*options).run();
  });
}

}  // namespace weir::cli
