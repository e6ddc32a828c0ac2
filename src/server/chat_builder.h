// Puts the conversations of other dialects into messages as OpenAI's chats have them, so that all dialects end in the
// same prompts.
#pragma once

#include <boost/json/array.hpp>
#include <map>
#include <string>
#include <string_view>

namespace weir {

// What the assistant says, thinks and calls in a row is one message.
class ChatBuilder {
 public:
  void say(std::string_view role, std::string_view text);  // of system or user
  void think(std::string_view text);
  void answer(std::string_view text);
  void call(std::string_view id, std::string_view name, std::string_view arguments);
  // The tool's name is that of the call with this id, if there was one.
  void result(std::string_view id, std::string_view text);

  boost::json::array take();

 private:
  void end_turn();

  boost::json::array messages_;
  bool in_turn_ = false;  // of the assistant: its parts are gathered here
  std::string reasoning_, content_;
  boost::json::array calls_;
  std::map<std::string, std::string, std::less<>> names_;  // of tools, by the ids of calls
};

}  // namespace weir
