// The noise of sampling in plain operations, for CPUs and GPUs. sampler_noise.h says what it is.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "base/math.h"
#include "engine/sampler_noise.h"

namespace weir {

WEIR_HD inline PhiloxWords philox_words(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

WEIR_HD inline float gumbel_of_word(uint32_t word) {
  // (n + 1/2) / 2^23 is exact in FP32, never 0 and never 1.
  const float u = (static_cast<float>(word >> 9) + 0.5f) * 0x1p-23f;
  return -math::log(-math::log(u));
}

}  // namespace weir
