// Who may ask.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"

namespace weir {

class ApiKeys {
 public:
  ApiKeys() = default;  // none: anyone may ask
  explicit ApiKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {}
  // One key a line; empty lines and lines that begin with # are skipped. Error: unreadable, or without a key.
  static ApiKeys read(const std::string& path);

  bool empty() const { return keys_.empty(); }
  // `Authorization: Bearer KEY` or `x-api-key: KEY`. The time it takes does not depend on how much of a key is right.
  bool allow(const http::Request& request) const;

 private:
  std::vector<std::string> keys_;
};

}  // namespace weir
