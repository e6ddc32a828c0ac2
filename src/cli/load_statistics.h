// What a run of `weir load` measured: distributions of times, and counts. No input or output, no clock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weir::cli {

// Values of one kind, none below 0. Up to kExact of them are kept and their percentiles exact; more are counted in
// buckets 0.07 % wide, so that memory does not grow with a run.
class Distribution {
 public:
  static constexpr size_t kExact = size_t{1} << 16;

  void add(double value);
  int64_t count() const { return count_; }
  double mean() const;  // 0 when empty
  // 0 <= p <= 100. Between two neighbours in rank it is interpolated linearly, as numpy does; 0 when empty.
  double percentile(double p) const;

 private:
  static size_t bucket_of(double value);
  static double middle_of(size_t bucket);
  double at_rank(const std::vector<double>& sorted, int64_t rank) const;

  int64_t count_ = 0;
  double sum_ = 0;
  std::vector<double> values_;    // all, while they are few,
  std::vector<int64_t> buckets_;  // and none when they are many
};

// Why a request failed. What the user stopped with Ctrl-C is no failure.
enum class LoadFailure { kNone, kConnect, kTimeout, kClosed, kStatus, kMalformed, kErrorEvent, kEmpty, kCancelled };
std::string_view load_failure_name(LoadFailure failure);  // "connect", "timeout", ...

// One request as it went. Times in milliseconds, from the moment at which it was due.
struct LoadRecord {
  LoadFailure failure = LoadFailure::kNone;
  int status = 0;            // of HTTP; 0: no answer
  std::string message;       // of the failure, one line
  double ttft = 0;           // to the first chunk with text
  double e2e = 0;            // to the last chunk with text
  std::vector<double> gaps;  // between chunks with text
  bool counted = false;      // the server sent its usage; else output_tokens counts chunks and input_tokens is 0
  int64_t input_tokens = 0, output_tokens = 0;
  std::optional<int64_t> cached_tokens;  // of the input, when the server says so

  // Time per output token after the first; nothing when there is only one.
  std::optional<double> tpot() const;
};

// Limits that a request must keep to be good, in milliseconds.
struct GoodputLimits {
  std::optional<double> ttft, tpot, e2e;

  bool any() const { return ttft || tpot || e2e; }
  bool good(const LoadRecord& record) const;
};

// "ttft:500,tpot:50,e2e:10000", any of them. Error naming the part.
GoodputLimits parse_goodput(std::string_view text);

struct LoadTally {
  GoodputLimits limits;
  int64_t completed = 0, good = 0, failed = 0, cancelled = 0;
  std::map<std::string, int64_t> failures;  // by kind: "timeout", "http 503"
  std::string first_failure;                // its message
  int64_t input_tokens = 0, output_tokens = 0, cached_tokens = 0;
  int64_t uncounted = 0;              // completed requests without usage
  int64_t told_cached = 0;            // completed requests that said how much came from the cache
  Distribution ttft, tpot, itl, e2e;  // ms, of completed requests
  int64_t most_in_flight = 0;

  void add(const LoadRecord& record);
};

// How quick the client itself was.
struct LoadSelfCheck {
  Distribution chunk_us;      // from the arrival of bytes at the socket until their chunks were recorded
  bool kernel_clock = false;  // arrival as the kernel saw it; else when the event loop woke up
  double cpu_seconds = 0;
};

}  // namespace weir::cli
