// The passes over a row of logits that sampling is made of, once in plain loops and once per instruction set: same
// bits. Internal to the sampler; sampler.h has the specification.
#pragma once

#include <cstdint>

#include "device/cpu.h"

namespace weir {

// Passes go by blocks, whose largest logits are kept, so that blocks without a chance are not looked at again. 64: at
// 160,000 logits 2,500 maxima, which stay in the first-level cache; four AVX-512 registers.
inline constexpr int64_t kSampleBlock = 64;

// A row of logits. The last block has a copy, filled up with -infinity, when it is not full.
struct LogitRow {
  const float* logits = nullptr;
  const float* tail = nullptr;
  int64_t full_blocks = 0;
  int64_t blocks = 0;
  const float* block(int64_t b) const { return b < full_blocks ? logits + b * kSampleBlock : tail; }
};

// Weights are fixed-point numbers: floor(2^40 e^s), s <= 0. Their sums are exact, so their order is free.
inline constexpr float kWeightUnit = 0x1p40f;

// Below it a weight is 0: e^-28 < 2^-40.
inline constexpr float kWeightless = -28;

// What is left after the filters: logits above `value`, and those equal to it with ids up to `id`.
struct LogitCut {
  float value = 0;
  float above = 0;  // the next larger number
  int32_t id = 0;
};

struct NoiseArgs {
  LogitRow row;
  const float* maxima = nullptr;  // [blocks]
  float largest = 0;
  float temperature = 1;
  uint64_t seed = 0;
  int64_t position = 0;
  LogitCut cut;
  int64_t first_block = 0;  // looked at first: a high score early saves others
};

struct SampleKernels {
  // maxima[b] = the largest of block b. False when a logit is NaN or +infinity: then the maxima mean nothing.
  bool (*block_maxima)(const LogitRow& row, float* maxima);
  // Sum of floor(2^40 exp((l - largest) / temperature)) over all l >= least. 2^22 logits at most.
  uint64_t (*total_weight)(const LogitRow& row, const float* maxima, float largest, float temperature, float least);
  // weights[i] = exp((logits[i] - largest) / temperature), for n a multiple of 16.
  void (*weights)(const float* logits, int64_t n, float largest, float temperature, float* weights);
  // The id with the largest (l - largest) / temperature + Gumbel noise within the cut, the lowest of equals.
  int32_t (*draw)(const NoiseArgs& args);
};

SampleKernels sample_kernels(KernelSet set);

}  // namespace weir
