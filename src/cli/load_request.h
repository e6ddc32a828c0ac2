// Where `weir load` sends what.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <string>

#include "cli/load_prompts.h"

namespace weir::cli {

// An address of the form http://HOST[:PORT][/PATH][/v1].
struct LoadUrl {
  std::string host, port = "80";  // an IPv6 address without its brackets
  std::string base;               // path in front of /v1; "" or "/..."
  std::string text() const;       // without /v1
  std::string authority() const;  // for the header Host
};
// Error: https, which is not spoken here, and anything else that is no such address.
LoadUrl parse_load_url(std::string_view text);

struct LoadRequestOptions {
  std::string model;
  bool chat = false;  // /v1/chat/completions, else /v1/completions
  double temperature = 0;
  bool ignore_eos = true;
  uint64_t seed = 0;  // sampling: of the conversation n, seed + n

  std::string path() const { return chat ? "/v1/chat/completions" : "/v1/completions"; }
};

// The body of the next request of a conversation, streamed and with usage. Completions get the messages' texts, a line
// each.
std::string load_body(const LoadRequestOptions& options, const Conversation& conversation);

// Takes the answer and what the user says next in. False when the conversation is over.
bool next_turn(Conversation& conversation, const std::string& answer);

}  // namespace weir::cli
