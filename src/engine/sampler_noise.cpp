#include "engine/sampler_noise.h"

#include "engine/philox.h"

namespace weir {

PhiloxWords philox4x32(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
  return philox_words(key, counter_high, counter_low);
}

float gumbel_noise(uint64_t seed, int64_t position, int32_t id) {
  const PhiloxWords words = philox_words(seed, static_cast<uint64_t>(position), static_cast<uint64_t>(id) / 4);
  return gumbel_of_word(words.word[id % 4]);
}

}  // namespace weir
