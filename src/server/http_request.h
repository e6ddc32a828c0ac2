// Bytes of a client to requests: Boost.Beast's parser under weir's limits, and stricter about where a message ends
// (RFC 9112, sections 3, 6 and 11.2). No input or output here.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http.h"

namespace weir::http {

struct Refusal {
  int status = 400;
  std::string message;
};

// `text` with its %XX replaced by bytes; nothing when an escape is cut or no hexadecimal number, or means NUL.
std::optional<std::string> percent_decoded(std::string_view text);

// One request, from its first byte to its last.
class RequestParser {
 public:
  explicit RequestParser(const Limits& limits);
  ~RequestParser();

  // Takes what it can use from the front of `input` and returns how much that was; the rest belongs in front of the
  // next call's input. After a refusal, and once the request is whole, nothing more is taken.
  size_t feed(std::string_view input);

  const std::optional<Refusal>& refusal() const;
  bool header_done() const;
  bool done() const;
  Request& request();  // what is known so far

  // Once header_done().
  bool http_1_1() const;
  bool keep_alive() const;
  bool expects_continue() const;

 private:
  class Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace weir::http
