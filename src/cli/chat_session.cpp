#include "cli/chat_session.h"

#include <unistd.h>

#include <boost/json/serialize.hpp>
#include <cstdio>
#include <fstream>

#include "base/error.h"
#include "cli/statistics.h"
#include "formats/json.h"

namespace weir::cli {
namespace {

namespace json = boost::json;

constexpr const char* kHelp =
    "/system [TEXT]  show or set the system message\n"
    "/save FILE      write the conversation as JSON\n"
    "/load FILE      go on with a written conversation\n"
    "/clear          forget the conversation\n"
    "/quit           leave (also Ctrl-D, or Ctrl-C twice)\n"
    "Ctrl-C stops an answer. Alt-Enter begins a new line.\n"
    "Up and Down walk through what you wrote.\n"
    "(14 % of 18.0): of the GB/s that reading the weights reaches.\n";

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

void say(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
}

}  // namespace

json::object assistant_message(const ParsedMessage& parsed) {
  json::object out{{"role", "assistant"}, {"content", parsed.content}};
  if (!parsed.reasoning.empty()) out["reasoning_content"] = parsed.reasoning;
  json::array calls;
  for (const ParsedToolCall& call : parsed.tool_calls) {
    calls.push_back(
        {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  if (!calls.empty()) out["tool_calls"] = std::move(calls);
  return out;
}

ChatPrompt chat_prompt(const LoadedModel& loaded, const ChatRequest& request) {
  ChatPrompt out;
  out.rendered = loaded.text.render(request);
  out.ids = loaded.text.encode(out.rendered);
  if (out.ids.empty()) fail("the conversation is rendered to nothing: expected at least one token");
  check_prompt(out.ids, *loaded.model);
  return out;
}

ChatRequest chat_request(const std::string& system, const json::array& messages, const json::object& format) {
  json::array all;
  if (!system.empty()) all.push_back({{"role", "system"}, {"content", system}});
  all.insert(all.end(), messages.begin(), messages.end());
  ChatRequest request = parse_chat_request(all, "conversation");
  request.options = format;
  return request;
}

ChatSession::ChatSession(const LoadedModel& loaded, Engine& engine, ChatOptions options)
    : loaded_(loaded), engine_(engine), options_(std::move(options)), sequence_(engine.new_sequence()) {}

void ChatSession::run() {
  const Style style(STDOUT_FILENO);
  std::printf("%s%s, context %lld tokens; /help lists commands%s\n", std::string(style.dim()).c_str(),
              loaded_.model->spec.family.c_str(), static_cast<long long>(engine_.options().max_tokens),
              std::string(style.plain()).c_str());
  for (;;) {
    std::string line;
    const LineEditor::End end = editor_.read("> ", line);
    if (end == LineEditor::End::kEof) return;
    if (end == LineEditor::End::kInterrupt) {
      if (leave_on_interrupt_) return;
      leave_on_interrupt_ = line.empty();
      if (line.empty()) say("Ctrl-C once more leaves; so do Ctrl-D and /quit.");
      continue;
    }
    leave_on_interrupt_ = false;
    const std::string_view text = trimmed(line);
    if (text.empty()) continue;
    try {
      if (text.front() != '/') {
        turn(line);
      } else if (!command(text)) {
        return;
      }
    } catch (const Error& error) {
      say(error.what());
    }
  }
}

bool ChatSession::command(std::string_view line) {
  const size_t space = line.find_first_of(" \t\n");
  const std::string_view name = line.substr(0, space);
  const std::string rest(space == std::string_view::npos ? std::string_view() : trimmed(line.substr(space)));
  if (name == "/quit" || name == "/exit" || name == "/bye") return false;
  if (name == "/help") {
    std::fputs(kHelp, stdout);
  } else if (name == "/system") {
    system(rest);
  } else if (name == "/clear") {
    clear();
    say("The conversation is empty.");
  } else if (name == "/save" || name == "/load") {
    if (rest.empty()) fail(name, ": expected the name of a file");
    name == "/save" ? save(rest) : load(rest);
  } else {
    fail(printable(name), ": no such command; /help lists them");
  }
  return true;
}

void ChatSession::system(std::string_view text) {
  if (text.empty()) {
    say(options_.system.empty() ? "No system message." : options_.system);
    return;
  }
  options_.system = text;
  say("The system message is set.");
}

void ChatSession::clear() { messages_.clear(); }

void ChatSession::save(const std::string& path) const {
  json::array all;
  if (!options_.system.empty()) all.push_back({{"role", "system"}, {"content", options_.system}});
  all.insert(all.end(), messages_.begin(), messages_.end());
  std::ofstream file(path, std::ios::binary);
  file << json::serialize(json::object{{"messages", all}}) << "\n";
  file.close();
  if (!file) fail(path, ": can't be written");
  say(concat("Saved ", all.size(), " messages to ", path, "."));
}

void ChatSession::load(const std::string& path) {
  const ChatRequest request = parse_chat_request(read_json_file(path), path);
  json::array messages;
  std::string system_text;
  for (const ChatMessage& message : request.messages) {
    const bool first = messages.empty() && message.role == "system" && system_text.empty();
    const bool plain = message.content.size() == 1 && message.content[0].kind == ContentPart::Kind::kText;
    if (first && plain) {
      system_text = message.content[0].text;
    } else {
      messages.push_back(message.json);
    }
  }
  messages_ = std::move(messages);
  options_.system = std::move(system_text);
  say(concat("Loaded ", request.messages.size(), " messages."));
}

Completion ChatSession::answer(const ChatRequest& request) {
  const ChatPrompt prompt = chat_prompt(loaded_, request);
  const int64_t room = engine_.options().max_tokens - static_cast<int64_t>(prompt.ids.size());
  if (room < 1) {
    fail("the conversation has ", prompt.ids.size(), " tokens, the context ", engine_.options().max_tokens,
         ": /clear it, or start with a larger --context");
  }
  ShownAnswer answer(loaded_.text.answer(prompt.rendered), AnswerPrinter(Style(STDOUT_FILENO), options_.reasoning));
  GenerateOptions generate_options;
  generate_options.max_tokens = std::min(options_.max_tokens.value_or(room), room);
  generate_options.sampling = options_.sampling;
  generate_options.stop_tokens = loaded_.text.stop_tokens(loaded_.model->spec.stop_tokens);
  generate_options.cancelled = [] { return InterruptGuard::interrupted(); };
  // A long prompt takes a while before the first word.
  const Style style(STDOUT_FILENO);
  bool waiting = prompt.ids.size() > 512 && !style.erase_line().empty();
  if (waiting) {
    std::fputs(concat(style.dim(), "reading ", prompt.ids.size(), " tokens ...", style.plain()).c_str(), stdout);
    std::fflush(stdout);
  }
  const auto end_waiting = [&] {
    if (waiting) std::fputs(std::string(style.erase_line()).c_str(), stdout);
    waiting = false;
  };
  generate_options.on_token = [&](int32_t token) {
    end_waiting();
    answer.push(token);
  };
  Completion completion;
  {
    const QuietInput mode(QuietInput::CtrlC::kSignal);
    const InterruptGuard guard;
    completion = generate(engine_, *sequence_, prompt.ids, generate_options);
  }
  end_waiting();
  answer.end(completion);
  if (!completion.tokens.empty() || completion.stop_token) messages_.push_back(assistant_message(answer.message()));
  return completion;
}

void ChatSession::turn(const std::string& text) {
  const json::array before = messages_;
  messages_.push_back({{"role", "user"}, {"content", text}});
  Completion completion;
  try {
    completion = answer(chat_request(options_.system, messages_, options_.format));
  } catch (const Error&) {
    messages_ = before;
    throw;
  }
  leave_on_interrupt_ = completion.finish_reason == FinishReason::kCancelled;
  if (messages_.size() == before.size() + 1) messages_ = before;  // stopped before the answer began
  if (!roof_) roof_ = weight_read_bandwidth(engine_);
  const Style style(STDERR_FILENO);
  std::fflush(stdout);
  std::fprintf(stderr, "%s%s%s\n", std::string(style.dim()).c_str(),
               statistics_line(engine_, completion, *roof_).c_str(), std::string(style.plain()).c_str());
}

}  // namespace weir::cli
