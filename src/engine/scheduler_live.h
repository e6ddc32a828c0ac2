// A request that waits or runs: the scheduler's own view. Included by scheduler*.cpp only.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "engine/scheduler.h"
#include "state/positions.h"

namespace weir {

inline double milliseconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double, std::milli>(d).count();
}

struct Scheduler::Live {
  RequestId id = 0;
  Request request;
  uint64_t arrival = 0;
  Clock::time_point submitted, started, first_token;
  std::vector<int32_t> tokens;  // prompt and answer: what the sequence's rows are computed from
  int64_t prompt_size = 0;
  TokenHistory history;
  RequestUsage usage;
  bool has_run = false, ended = false;
  bool needs_history = false;   // penalties
  uint64_t waits_for = 0;       // arrival + 1 of the request that computes this one's beginning; 0: none
  int64_t branch = 0;           // where this prompt parts from what is cached: a restore point is left there
  std::vector<int64_t> wanted;  // positions where others want one
  // While it runs:
  std::unique_ptr<Sequence> sequence;
  PrefixCache::Path path;
  RestorePoint newest;  // the deepest one passed

  int64_t left() const { return static_cast<int64_t>(tokens.size()) - sequence->length(); }
  int64_t generated() const { return static_cast<int64_t>(tokens.size()) - prompt_size; }
  bool in_prompt() const { return left() > 1 || sequence->length() < prompt_size; }
  int64_t most_tokens() const { return prompt_size + request.max_tokens; }
};

}  // namespace weir
