// weir run: a completion of token ids or of a text, the answer to a question, or a conversation.
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>

#include "base/error.h"
#include "cli/chat_session.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/statistics.h"

namespace weir::cli {
namespace {

constexpr int64_t kDefaultContext = 32768;

struct RunOptions {
  ModelOptions model;
  std::string prompt_tokens;
  std::optional<std::string> prompt;
  std::string system;
  bool raw = false;
  std::optional<int64_t> max_tokens;
  int64_t context = kDefaultContext;
  double temperature = 0;
  uint64_t seed = 0;
  bool ignore_eos = false;
  bool json = false;
  std::string reasoning = "show";

  SamplingOptions sampling() const { return {static_cast<float>(temperature), seed}; }
  ReasoningShown reasoning_shown() const { return reasoning == "show" ? ReasoningShown::kYes : ReasoningShown::kNo; }
  boost::json::object format() const {
    if (reasoning != "off") return {};
    return {{"thinking", false}, {"enable_thinking", false}};
  }
};

// Tokens to generate after a prompt, within the model's context. The last one needs no row of its own.
int64_t room_after(size_t prompt, std::optional<int64_t> wanted, const ModelSpec& spec) {
  const int64_t room = spec.max_positions - static_cast<int64_t>(prompt) + 1;
  if (room < 1) fail("the prompt has ", prompt, " tokens, the model's context ", spec.max_positions);
  return std::min(wanted.value_or(room), room);
}

std::unique_ptr<Engine> engine_for(const RunOptions& options, const Model& model, size_t prompt, int64_t max_tokens) {
  EngineOptions engine_options = options.model.engine_options();
  engine_options.max_batch_rows =
      static_cast<int32_t>(std::min<int64_t>(engine_options.max_batch_rows, static_cast<int64_t>(prompt)));
  engine_options.max_logit_rows = 1;
  engine_options.max_tokens = static_cast<int64_t>(prompt) + max_tokens;
  return std::make_unique<Engine>(model, engine_options);
}

void print_json(const Completion& completion, const boost::json::value& text, const ParsedMessage* message) {
  boost::json::object out;
  out["tokens"] = boost::json::array(completion.tokens.begin(), completion.tokens.end());
  out["text"] = text;
  if (message != nullptr) {
    out["reasoning"] = message->reasoning;
    out["content"] = message->content;
    boost::json::array calls;
    for (const ParsedToolCall& call : message->tool_calls) {
      calls.push_back({{"id", call.id}, {"name", call.name}, {"arguments", call.arguments}});
    }
    out["tool_calls"] = std::move(calls);
  }
  out["finish_reason"] = finish_reason_name(completion.finish_reason);
  out["timings"] = timings_json(completion.timings);
  std::printf("%s\n", boost::json::serialize(out).c_str());
}

boost::json::value text_of(const ModelText& text, std::span<const int32_t> ids) {
  if (!text.has_tokenizer()) return nullptr;
  return boost::json::value(text.tokenizer().decode(ids, true));
}

void run_tokens(const RunOptions& options) {
  options.model.engine_options();  // errors in options before those in files
  const LoadedModel loaded = load_with_text(options.model.model, Words::kOptional);
  const ModelSpec& spec = loaded.model->spec;
  const std::vector<int32_t> prompt = read_tokens(options.prompt_tokens, spec.vocab, spec.max_positions);
  GenerateOptions generate_options;
  generate_options.max_tokens = room_after(prompt.size(), options.max_tokens.value_or(128), spec);
  generate_options.sampling = options.sampling();
  generate_options.ignore_eos = options.ignore_eos;
  generate_options.stop_tokens = loaded.text.stop_tokens(spec.stop_tokens);
  if (!options.json) {
    generate_options.on_token = [first = true](int32_t token) mutable {
      std::printf(first ? "%d" : " %d", token);
      flush_output();
      first = false;
    };
  }
  const std::unique_ptr<Engine> engine = engine_for(options, *loaded.model, prompt.size(), generate_options.max_tokens);
  const Completion completion = generate(*engine, prompt, generate_options);
  if (options.json) return print_json(completion, text_of(loaded.text, completion.tokens), nullptr);
  std::printf("\n");
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", statistics_line(*engine, completion, 0).c_str());
}

std::string standard_input() {
  std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  if (text.ends_with('\n')) text.pop_back();
  if (text.empty()) fail("standard input: expected a prompt, found nothing (or give one with -p)");
  return text;
}

// One prompt, one answer.
void run_text(const RunOptions& options, const std::string& prompt) {
  options.model.engine_options();
  const LoadedModel loaded = load_with_text(options.model.model, Words::kNeeded);
  loaded.text.tokenizer();
  const bool chat = !options.raw && (loaded.text.can_chat() || !options.system.empty());
  ChatPrompt asked;
  if (chat) {
    asked =
        chat_prompt(loaded, chat_request(options.system, {{{"role", "user"}, {"content", prompt}}}, options.format()));
  } else {
    asked.ids = loaded.text.encode_raw(prompt);
    if (asked.ids.empty()) fail("the prompt has no tokens: expected at least one");
    check_prompt(asked.ids, *loaded.model);
  }
  GenerateOptions generate_options;
  generate_options.max_tokens = room_after(asked.ids.size(), options.max_tokens, loaded.model->spec);
  generate_options.sampling = options.sampling();
  generate_options.ignore_eos = options.ignore_eos;
  generate_options.stop_tokens = loaded.text.stop_tokens(loaded.model->spec.stop_tokens);

  std::optional<AnswerPrinter> printer;
  if (!options.json) printer.emplace(Style(STDOUT_FILENO), options.reasoning_shown());
  ShownAnswer answer(loaded.text.answer(asked.rendered), printer);
  generate_options.on_token = [&](int32_t token) { answer.push(token); };
  const std::unique_ptr<Engine> engine =
      engine_for(options, *loaded.model, asked.ids.size(), generate_options.max_tokens);
  const Completion completion = generate(*engine, asked.ids, generate_options);
  answer.end(completion);
  if (options.json) {
    return print_json(completion, text_of(loaded.text, completion.tokens), chat ? &answer.message() : nullptr);
  }
  std::fprintf(stderr, "%s\n", statistics_line(*engine, completion, weight_read_bandwidth(*engine)).c_str());
}

void run_chat(const RunOptions& options) {
  EngineOptions engine_options = options.model.engine_options();
  const LoadedModel loaded = load_with_text(options.model.model, Words::kNeeded);
  loaded.text.tokenizer();
  if (!loaded.text.can_chat()) loaded.text.render({});  // the error says why
  engine_options.max_logit_rows = 1;
  engine_options.max_tokens = std::min(options.context, loaded.model->spec.max_positions);
  engine_options.max_batch_rows =
      static_cast<int32_t>(std::min<int64_t>(engine_options.max_batch_rows, engine_options.max_tokens));
  // A turn that differs from what was generated goes on from the last anchor before the difference.
  engine_options.anchor_memory = available_memory() / 8;
  Engine engine(*loaded.model, engine_options);
  ChatSession session(loaded, engine,
                      {.system = options.system,
                       .format = options.format(),
                       .max_tokens = options.max_tokens,
                       .sampling = options.sampling(),
                       .reasoning = options.reasoning_shown()});
  session.run();
}

void run(const RunOptions& options) {
  if (!options.prompt_tokens.empty()) return run_tokens(options);
  if (options.prompt) return run_text(options, *options.prompt);
  if (!is_terminal(STDIN_FILENO)) return run_text(options, standard_input());
  if (!is_terminal(STDOUT_FILENO) || options.json || options.raw) {
    fail("expected a prompt: -p TEXT, or text on standard input");
  }
  run_chat(options);
}

}  // namespace

void add_run(CLI::App& app) {
  CLI::App* command = app.add_subcommand("run", "chat with a model, or complete a prompt");
  const auto options = std::make_shared<RunOptions>();
  options->model.add_to(*command, ModelOptions::Model::kBuiltinByDefault);
  auto* prompt = command->add_option("-p,--prompt", options->prompt,
                                     "answer this and leave (default: standard input; a conversation on a terminal)");
  auto* tokens =
      command->add_option("--prompt-tokens", options->prompt_tokens,
                          "JSON file (-: standard input): an array of token ids, taken as they are; prints ids");
  auto* system = command->add_option("--system", options->system, "system message");
  auto* raw = command->add_flag("--raw", options->raw, "complete the text as it is, without chat format");
  tokens->excludes(prompt)->excludes(system)->excludes(raw);
  system->excludes(raw);
  command
      ->add_option("--max-tokens", options->max_tokens,
                   "tokens to generate at most (default: up to the context; 128 after --prompt-tokens)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32));
  command->add_option("--context", options->context, "tokens that a conversation may have, within the model's limit")
      ->check(CLI::Range(int64_t{16}, int64_t{1} << 32))
      ->capture_default_str();
  command
      ->add_option("--temperature", options->temperature,
                   "0: greedy, the same answer every time; what a model's files advise is not followed")
      ->check(finite())
      ->check(CLI::Range(0.0, 1e4))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "of the sampling noise")->check(unsigned_64())->capture_default_str();
  command->add_option("--reasoning", options->reasoning, "show, hide, or off: ask the model not to reason")
      ->check(CLI::IsMember({"show", "hide", "off"}))
      ->capture_default_str();
  command->add_flag("--ignore-eos", options->ignore_eos, "go on after the end token");
  command->add_flag("--json", options->json, "print a JSON object");
  command->callback([options] { run(*options); });
}

}  // namespace weir::cli
