// What goes into a scheduler and what comes out: values without ties to the engine's state.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/generate.h"
#include "engine/sampler.h"
#include "state/prefix_cache.h"

namespace weir {

using RequestId = uint64_t;

// What may come next in an answer: a pure function of the answer's tokens so far. One request's; called by the engine.
class TokenMask {
 public:
  virtual ~TokenMask() = default;
  // Bit id % 32 of word id / 32, for the whole vocabulary; empty: every id. Valid until push(). Must not throw, nor
  // allocate after the first call. Never without a single id: where an answer must end, the stop tokens are allowed.
  virtual std::span<const uint32_t> allowed() = 0;
  virtual void push(int32_t id) = 0;  // the token that was chosen
};

struct Request {
  std::vector<int32_t> prompt;  // at least one id, all of the vocabulary
  int64_t max_tokens = 128;     // at least 1
  SamplingOptions sampling;
  std::vector<int32_t> stop_tokens;  // end the answer and are not part of it
  int32_t priority = 0;              // higher ones first
  uint64_t client = 0;               // requests of the same client share its turns
  std::shared_ptr<TokenMask> mask;   // may be null
};

struct RequestUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt: not computed
  HitReason hit = HitReason::kDisabled;
  int64_t generated_tokens = 0;  // with the stop token
  int64_t preemptions = 0;
  int64_t recomputed_tokens = 0;  // after preemptions
  double queue_ms = 0;            // until its first row was computed
  double prompt_ms = 0;           // from there to the first token
  double decode_ms = 0;           // from the first token to the end
};

struct RequestEnd {
  FinishReason reason = FinishReason::kLength;
  int32_t stop_token = -1;  // kStop
  std::string error;        // kError
  RequestUsage usage;
};

// Called by the scheduler's thread.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  virtual void on_token(RequestId id, const SampledToken& token) = 0;
  virtual void on_end(RequestId id, const RequestEnd& end) = 0;
};

}  // namespace weir
