// Any bytes are requests or are refused, within the limits, and cutting them elsewhere changes nothing: what one reader
// takes for the end of a message, all do.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "server/http_request.h"

namespace {

using namespace weir::http;

constexpr int64_t kBody = 300, kHeader = 4096;

void check(bool holds) {
  if (!holds) std::abort();
}

// The requests of a connection that gets `bytes` in pieces of the sizes that `cuts` gives, in turn; then their refusal.
struct Reading {
  std::vector<Request> requests;
  int refused = 0;
  bool operator==(const Reading& other) const {
    if (refused != other.refused || requests.size() != other.requests.size()) return false;
    for (size_t i = 0; i < requests.size(); ++i) {
      const Request &a = requests[i], &b = other.requests[i];
      if (a.method != b.method || a.path != b.path || a.query != b.query || a.headers != b.headers ||
          a.body != b.body) {
        return false;
      }
    }
    return true;
  }
};

Reading read(std::string_view bytes, std::string_view cuts) {
  const Limits limits{.body = kBody, .headers = kHeader};
  Reading out;
  std::string pending;
  auto parser = std::make_unique<RequestParser>(limits);
  for (size_t at = 0, turn = 0; at < bytes.size();) {
    const size_t size = cuts.empty() ? bytes.size() : 1 + static_cast<uint8_t>(cuts[turn++ % cuts.size()]) % 64;
    pending += bytes.substr(at, size);
    at += std::min(size, bytes.size() - at);
    for (bool again = true; again;) {
      const size_t taken = parser->feed(pending);
      check(taken <= pending.size());
      pending.erase(0, taken);
      check(parser->request().body.size() <= static_cast<size_t>(kBody));
      if (parser->refusal()) {
        out.refused = parser->refusal()->status;
        check(out.refused >= 400 && out.refused < 600 && !parser->done());
        return out;
      }
      again = parser->done();
      if (again) {
        const Request& request = parser->request();
        check(!request.method.empty() && !request.path.empty() && request.path.find('\0') == std::string::npos);
        check(request.path.front() == '/' || request.path == "*");
        check(parser->header_done());
        out.requests.push_back(request);
        parser = std::make_unique<RequestParser>(limits);
        again = !pending.empty();
      } else {
        check(pending.size() <= static_cast<size_t>(kHeader));
      }
    }
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4 || size > static_cast<size_t>(2 * kHeader)) return 0;
  const std::string_view cuts(reinterpret_cast<const char*>(data), 4);
  // A parser may wait for the end of a header before it refuses what is wrong in it: there is an end.
  const std::string bytes = std::string(reinterpret_cast<const char*>(data) + 4, size - 4) + "\r\n\r\n\r\n\r\n";
  const Reading whole = read(bytes, "");
  // Of a header that is too long, the parser has seen more or less when it says so.
  check(read(bytes, cuts) == whole || bytes.size() > static_cast<size_t>(kHeader));
  percent_decoded(bytes);
  return 0;
}
