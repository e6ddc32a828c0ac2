// Kimi K3's answers as they are generated: reasoning, content and tool calls out of the model's markup. Markers come as
// token ids, so text that spells one stays text. Nothing that a model can emit is an error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat.h"

namespace weir {

enum class KimiMarker { kOpen, kClose, kSep, kEnd };  // kEnd: <|end_of_msg|> and other ends of generation

// Feed markers and the text between them, in any pieces; then finish(). Events put together are the message() of the
// end, with these exceptions, where an answer can't take back what it has streamed:
//   - an argument that a call repeats: the message holds its last value in its first place, the stream both in order
//     (JSON readers that keep the last one agree);
//   - a call that is cut, which has no kToolCallEnd in the stream, is not in the message.
// Values of type string stream as they grow, others when they are whole and known to be JSON.
class KimiParser {
 public:
  enum class Start { kThink, kResponse };  // the channel that the prompt has opened

  // Calls get the ids ID_PREFIX0, ID_PREFIX1 ...
  explicit KimiParser(Start start, std::string id_prefix = "call_");

  void marker(KimiMarker marker, std::vector<ChatEvent>& events);
  void text(std::string_view text, std::vector<ChatEvent>& events);  // UTF-8, whole characters
  // Generation is over; without a kEnd marker or a closed message it was cut.
  void finish(std::vector<ChatEvent>& events);

  bool ended() const { return channel_ == Channel::kEnded; }
  const ParsedMessage& message() const { return message_; }

 private:
  enum class Channel { kOutside, kThink, kResponse, kTools, kCall, kArgument, kJson, kClosed, kEnded };
  enum class Tag { kNone, kOpening, kClosing };
  using Attributes = std::vector<std::pair<std::string, std::string>>;

  void route(std::string_view text);  // to the channel
  void drop_tag_as_text();
  void resolve_tag();
  bool open_tag(const std::string& name, const Attributes& attributes);
  bool close_tag(const std::string& name);
  void leave_calls();  // closes argument, call and tools
  void leave_argument();
  void leave_call();
  void begin_call(const Attributes& attributes);
  void begin_argument(const Attributes& attributes);
  void take_outside();  // text outside of every channel becomes content, when there was no response
  void end(bool cut);
  void emit(ChatEvent::Kind kind, std::string_view text);
  void emit_arguments(std::string_view text);
  bool in_calls() const { return channel_ >= Channel::kTools && channel_ <= Channel::kJson; }

  Channel channel_;
  std::string id_prefix_;
  Tag tag_ = Tag::kNone;
  std::string tag_text_;
  std::string outside_;
  bool had_response_ = false;

  int calls_ = 0;
  ParsedToolCall call_;
  std::vector<std::pair<std::string, std::string>> arguments_;  // of the call: key, JSON
  bool streamed_argument_ = false;                              // of this call
  bool json_block_ = false;                                     // the call is a json block
  std::string key_, value_;                                     // of the argument; a string's value is unescaped
  bool string_value_ = true;

  ParsedMessage message_;
  std::vector<ChatEvent>* events_ = nullptr;  // of the call in progress
};

}  // namespace weir
