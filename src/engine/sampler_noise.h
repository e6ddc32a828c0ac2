// The noise of sampling: a function of (seed, position, id) alone.
// Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#pragma once

#include <cstdint>

namespace weir {

// Four 32-bit words for a 64-bit key and a 128-bit counter.
struct PhiloxWords {
  uint32_t word[4];
};
PhiloxWords philox4x32(uint64_t key, uint64_t counter_high, uint64_t counter_low);

// -log(-log(u)), u uniform in (0, 1): word id % 4 of Philox(seed; position, id / 4). Below kMaxGumbel.
float gumbel_noise(uint64_t seed, int64_t position, int32_t id);
inline constexpr float kMaxGumbel = 17.4f;

}  // namespace weir
