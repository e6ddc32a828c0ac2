// How far `weir batch` is, on standard error: a bar on a terminal, else a line every ten seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "engine/service.h"

namespace weir::cli {

struct BatchCounts {
  int64_t total = -1;  // requests of the input; -1: not known
  int64_t answered = 0, refused = 0, skipped = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;

  int64_t done() const { return answered + refused + skipped; }
};

class BatchProgress {
 public:
  BatchProgress();
  ~BatchProgress();  // takes the bar away
  void show(const BatchCounts& counts, const Service& service);
  int patience_ms() const { return terminal_ ? 100 : 1000; }  // to wait between two calls
  double seconds() const;                                     // since the start

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_, drawn_ = false;
  Clock::time_point start_ = Clock::now(), last_ = start_;
};

// "12 of 40 requests (2 refused, 3 from before), 8 running, 123.4 tok/s, 61 % of the prompt tokens cached"
std::string batch_state_line(const BatchCounts& counts, int64_t running, double seconds);

// "40 requests: 35 answered, 2 refused, 3 from before; prompt 1200 tokens (700 cached), ..."
std::string batch_summary(const BatchCounts& counts, int64_t preemptions, double seconds);

}  // namespace weir::cli
