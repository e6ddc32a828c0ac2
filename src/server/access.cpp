#include "server/access.h"

#include <algorithm>
#include <cctype>
#include <fstream>

#include "base/error.h"

namespace weir {
namespace {

bool same(std::string_view key, std::string_view given) {
  size_t difference = key.size() ^ given.size();
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(key[i % key.size()]);
  }
  return difference == 0;
}

std::string_view bearer(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  const bool matches = authorization.size() >= kScheme.size() &&
                       std::ranges::equal(authorization.substr(0, kScheme.size()), kScheme, {},
                                          [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return matches ? authorization.substr(kScheme.size()) : std::string_view();
}

}  // namespace

ApiKeys ApiKeys::read(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail(path, ": can't be opened");
  std::vector<std::string> keys;
  int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    line.erase(0, std::min(line.find_first_not_of(' '), line.size()));
    if (line.empty() || line.front() == '#') continue;
    if (!std::ranges::all_of(line, [](unsigned char c) { return c > ' ' && c < 127; })) {
      fail(path, ": line ", number, ": expected a key of printable ASCII without spaces");
    }
    keys.push_back(std::move(line));
  }
  if (file.bad()) fail(path, ": can't be read");
  if (keys.empty()) fail(path, ": expected a key, one a line, found none");
  return ApiKeys(std::move(keys));
}

bool ApiKeys::allow(const http::Request& request) const {
  if (keys_.empty()) return true;
  std::string_view given = bearer(request.header("authorization"));
  if (given.empty()) given = request.header("x-api-key");
  bool found = false;
  for (const std::string& key : keys_) found |= same(key, given);
  return found;
}

}  // namespace weir
