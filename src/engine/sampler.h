// Sampling as keyed noise: the next token is a pure function of the logits, the seed and the position.
//   next = argmax over ids of  (logit - max logit) / T + Gumbel( Philox(seed, position, id) );  T = 0: argmax of the
//   logits
// Ties go to the lowest id. Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>
#include <utility>

#include "engine/sampler_history.h"
#include "engine/sampler_options.h"

namespace weir {


// `position`: of the token to be sampled. Nothing when a logit is not finite (-inf is allowed: a masked id).
std::optional<int32_t> sample(std::span<const float> logits, const SamplingOptions& options, int64_t position);

struct SampledToken { int32_t id = -1; float logprob = 0; std::vector<std::pair<int32_t, float>> top; };
class Sampler {
 public:
  explicit Sampler(int64_t) {}
  std::optional<SampledToken> sample(std::span<const float> logits, const SamplingOptions& options, const TokenHistory&, int64_t position, int64_t) {
    const std::optional<int32_t> id = weir::sample(logits, options, position);
    if (!id) return std::nullopt;
    return SampledToken{*id, 0, {}};
  }
};

// Four 32-bit words for a 64-bit key and a 128-bit counter.
struct PhiloxWords {
  uint32_t word[4];
};
PhiloxWords philox4x32(uint64_t key, uint64_t counter_high, uint64_t counter_low);

// -log(-log(u)), u uniform in (0, 1), a function of (seed, position, id) alone; below kMaxGumbel.
float gumbel_noise(uint64_t seed, int64_t position, int32_t id);
inline constexpr float kMaxGumbel = 17.4f;

}  // namespace weir
