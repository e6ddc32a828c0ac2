#include <array>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "cli/load_prompts.h"
#include "formats/json.h"

namespace weir::cli {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 24;

class FilePrompts final : public PromptSource {
 public:
  explicit FilePrompts(std::vector<Conversation> conversations) : conversations_(std::move(conversations)) {}

  Conversation conversation(int64_t number) const override {
    Conversation out = conversations_[static_cast<size_t>(number) % conversations_.size()];
    out.number = number;
    return out;
  }

 private:
  std::vector<Conversation> conversations_;
};

// The objects of an array field.
std::vector<JsonObject> objects_of(const JsonObject& line, std::string_view key) {
  std::vector<JsonObject> out;
  const boost::json::value& value = line.raw().at(key);
  if (!value.is_array()) line.fail_field(key, "an array of messages");
  for (const boost::json::value& element : value.as_array()) {
    if (!element.is_object()) line.fail_field(key, "an array of messages");
    out.emplace_back(line.file(), concat(key, "[", out.size(), "]"), element.as_object());
  }
  return out;
}

// OpenAI's form: all messages up to the last one that asks something.
std::vector<LoadMessage> messages_of(const JsonObject& line) {
  std::vector<LoadMessage> out;
  for (const JsonObject& message : objects_of(line, "messages")) {
    out.push_back({message.string("role"), message.string("content")});
  }
  while (!out.empty() && out.back().role == "assistant") out.pop_back();
  return out;
}

// ShareGPT's form: what the human says first.
std::vector<LoadMessage> first_of(const JsonObject& line) {
  for (const JsonObject& message : objects_of(line, "conversations")) {
    const std::string from = message.string("from");
    if (from == "human" || from == "user") return {{"user", message.string("value")}};
  }
  return {};
}

Conversation conversation_of(const JsonObject& line, int64_t max_tokens) {
  Conversation out;
  if (line.has("messages")) {
    out.messages = messages_of(line);
  } else if (line.has("conversations")) {
    out.messages = first_of(line);
  } else {
    out.messages = {{"user", line.string("prompt")}};
  }
  out.max_tokens = line.integer_or("max_tokens", max_tokens, 1, kMostTokens);
  return out;
}

}  // namespace

std::unique_ptr<PromptSource> read_prompts(const std::string& path, int64_t max_tokens) {
  std::ifstream in(path);
  if (!in) fail(path, ": can't be read");
  std::vector<Conversation> out;
  std::string text;
  for (int64_t number = 1; std::getline(in, text); ++number) {
    if (text.find_first_not_of(" \t\r") == text.npos) continue;
    const std::string place = concat(path, ":", number);
    const boost::json::value value = parse_json(text, place);
    if (!value.is_object()) fail(place, ": expected an object");
    Conversation next = conversation_of(JsonObject(place, "", value.as_object()), max_tokens);
    if (next.messages.empty()) continue;  // nobody asks anything
    out.push_back(std::move(next));
  }
  if (in.bad()) fail(path, ": can't be read");
  if (out.empty()) fail(path, ": expected lines with a conversation or a prompt, found none");
  return std::make_unique<FilePrompts>(std::move(out));
}

}  // namespace weir::cli
