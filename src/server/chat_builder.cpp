#include "server/chat_builder.h"

#include <boost/json/object.hpp>
#include <utility>

namespace weir {

namespace json = boost::json;

void ChatBuilder::say(std::string_view role, std::string_view text) {
  end_turn();
  messages_.push_back({{"role", role}, {"content", text}});
}

void ChatBuilder::think(std::string_view text) {
  in_turn_ = true;
  reasoning_ += text;
}

void ChatBuilder::answer(std::string_view text) {
  in_turn_ = true;
  content_ += text;
}

void ChatBuilder::call(std::string_view id, std::string_view name, std::string_view arguments) {
  in_turn_ = true;
  calls_.push_back({{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}});
  names_.insert_or_assign(std::string(id), std::string(name));
}

void ChatBuilder::result(std::string_view id, std::string_view text) {
  end_turn();
  json::object message{{"role", "tool"}, {"tool_call_id", id}, {"content", text}};
  if (const auto name = names_.find(id); name != names_.end()) message["name"] = name->second;
  messages_.push_back(std::move(message));
}

json::array ChatBuilder::take() {
  end_turn();
  return std::exchange(messages_, {});
}

void ChatBuilder::end_turn() {
  if (!std::exchange(in_turn_, false)) return;
  json::object message{{"role", "assistant"}, {"content", std::exchange(content_, {})}};
  if (!reasoning_.empty()) message["reasoning_content"] = std::exchange(reasoning_, {});
  if (!calls_.empty()) message["tool_calls"] = std::exchange(calls_, {});
  messages_.push_back(std::move(message));
}

}  // namespace weir
