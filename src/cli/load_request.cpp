#include "cli/load_request.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <charconv>

#include "base/error.h"

namespace weir::cli {

std::string LoadUrl::text() const { return concat("http://", authority(), base); }

std::string LoadUrl::authority() const {
  const std::string name = host.find(':') == host.npos ? host : concat("[", host, "]");
  return port == "80" ? name : concat(name, ":", port);
}

LoadUrl parse_load_url(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  const auto refuse = [&] { fail("URL: expected http://HOST[:PORT][/PATH], found ", printable(text)); };
  if (text.starts_with("https://")) {
    fail("URL: https is not supported, only http: measure the server itself, without the encryption in front of it");
  }
  if (!text.starts_with(kScheme)) refuse();
  std::string_view rest = text.substr(kScheme.size());
  LoadUrl out;
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view authority = rest.substr(0, slash), path = rest.substr(slash);
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path.ends_with("/v1")) path.remove_suffix(3);
  out.base = path;
  const bool bracket = authority.starts_with('[');
  const size_t end = bracket ? authority.find(']') : std::min(authority.find(':'), authority.size());
  if (end == authority.npos) refuse();
  out.host = authority.substr(bracket, end - bracket);
  authority.remove_prefix(end + bracket);
  if (authority.starts_with(':')) {
    uint16_t port = 0;
    const auto [stop, error] = std::from_chars(authority.data() + 1, authority.data() + authority.size(), port);
    if (error != std::errc() || stop != authority.data() + authority.size() || port == 0) refuse();
    out.port = authority.substr(1);
  } else if (!authority.empty()) {
    refuse();
  }
  // What must not end up in a request's first lines.
  const auto bad = [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || c == '?' || c == '#' || c == '@' || c == 127;
  };
  if (out.host.empty() || std::ranges::any_of(out.host, bad) || std::ranges::any_of(out.base, bad)) refuse();
  return out;
}

std::string load_body(const LoadRequestOptions& options, const Conversation& conversation) {
  boost::json::object body{{"model", options.model}};
  if (options.chat) {
    boost::json::array messages;
    for (const LoadMessage& message : conversation.messages) {
      messages.push_back({{"role", message.role}, {"content", message.content}});
    }
    body["messages"] = std::move(messages);
  } else {
    std::string prompt;
    for (const LoadMessage& message : conversation.messages) {
      prompt += prompt.empty() ? message.content : "\n" + message.content;
    }
    body["prompt"] = std::move(prompt);
  }
  body["max_tokens"] = conversation.max_tokens;
  body["temperature"] = options.temperature;
  if (options.temperature > 0) {
    body["seed"] = static_cast<int64_t>((options.seed + static_cast<uint64_t>(conversation.number)) & 0x7FFFFFFF);
  }
  if (options.ignore_eos) body["ignore_eos"] = true;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  return boost::json::serialize(body);
}

bool next_turn(Conversation& conversation, const std::string& answer) {
  if (conversation.later.empty()) return false;
  conversation.messages.push_back({"assistant", answer});
  conversation.messages.push_back({"user", std::move(conversation.later.front())});
  conversation.later.erase(conversation.later.begin());
  return true;
}

}  // namespace weir::cli
