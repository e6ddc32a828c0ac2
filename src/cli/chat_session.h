// A conversation on a terminal: `weir run MODEL`.
#pragma once

#include <boost/json/array.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cli/answer_printer.h"
#include "cli/line_editor.h"
#include "cli/load.h"
#include "engine/generate.h"

namespace weir::cli {

struct ChatOptions {
  std::string system;                 // "": none
  boost::json::object format;         // ChatRequest::options
  std::optional<int64_t> max_tokens;  // of an answer
  SamplingOptions sampling;
  ReasoningShown reasoning = ReasoningShown::kYes;
};

class ChatSession {
 public:
  ChatSession(const LoadedModel& loaded, Engine& engine, ChatOptions options);
  void run();  // until the user leaves

 private:
  bool command(std::string_view line);  // false: leave
  void system(std::string_view text);
  void save(const std::string& path) const;
  void load(const std::string& path);
  void clear();
  void turn(const std::string& text);
  Completion answer(const ChatRequest& request);

  const LoadedModel& loaded_;
  Engine& engine_;
  ChatOptions options_;
  LineEditor editor_;
  boost::json::array messages_;
  std::unique_ptr<Sequence> sequence_;  // of the last turn: the next one goes on from what they share
  std::optional<double> roof_;          // GB/s, measured once
  bool leave_on_interrupt_ = false;
};

// The prompt of a conversation, checked against the model.
struct ChatPrompt {
  RenderedPrompt rendered;
  std::vector<int32_t> ids;
};
ChatPrompt chat_prompt(const LoadedModel& loaded, const ChatRequest& request);

// The conversation that these messages make; a system message first unless `system` is empty.
ChatRequest chat_request(const std::string& system, const boost::json::array& messages,
                         const boost::json::object& format);

// The model's answer as a message of the conversation.
boost::json::object assistant_message(const ParsedMessage& parsed);

}  // namespace weir::cli
