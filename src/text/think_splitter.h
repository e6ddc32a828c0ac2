// Answers of models that write their reasoning as <think>...</think> in front of the answer, taken apart as they
// arrive.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/chat.h"

namespace weir {

// Reasoning is what stands between <think> at the start of the answer, or of the prompt's end, and </think>. Tags
// elsewhere are content. White space around the tags is nobody's, as templates write it anew; the rest keeps its bytes.
// An answer that ends before </think> is reasoning only.
class ThinkSplitter {
 public:
  enum class Start { kAnswer, kReasoning };  // kReasoning: the prompt has written <think>

  explicit ThinkSplitter(Start start) : state_(start == Start::kAnswer ? State::kStart : State::kBeforeReasoning) {}

  // Any pieces of the answer, in order. `message` grows by what the events say.
  void push(std::string_view piece, ParsedMessage& message, std::vector<ChatEvent>& events);
  void finish(ParsedMessage& message, std::vector<ChatEvent>& events);

 private:
  enum class State { kStart, kBeforeReasoning, kReasoning, kBeforeContent, kContent };

  bool step(ParsedMessage& message, std::vector<ChatEvent>& events);  // false: needs more text

  State state_;
  std::string held_;  // seen, but not yet known what it is
};

// Does a prompt leave the model inside a <think>?
bool ends_in_think(std::string_view prompt);

}  // namespace weir
