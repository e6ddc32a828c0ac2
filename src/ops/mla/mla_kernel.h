// What the kernels of mla compute at a time; between mla.cpp and the kernel sets.
#pragma once

#include <cstdint>

#include "ops/mla/mla.h"

namespace weir {

// Outputs of a task: enough work for a round trip of the loop, and more tasks than threads with few heads.
inline constexpr int64_t kMlaAbsorbRange = 256;  // latent elements
inline constexpr int64_t kMlaExpandRange = 32;   // value rows

struct MlaTask {
  const MlaProjectArgs* args;
  int64_t rows;
  int64_t head;
  int64_t first;  // output elements [first, end) of the head, for all rows
  int64_t end;
  float* scratch;
};

// Formats that are expanded to FP32 for any number of rows.
constexpr bool is_expanded(WeightFormat format) {
  return weight_block(format).elements > 1 || format == WeightFormat::kE4m3;
}

// Scratch holds the part of the weights that rows pass over, in FP32: absorb [nope, 64] (blocks: [nope, 256]), expand
// [32, latent padded].
inline constexpr int64_t mla_scratch_bytes(const MlaProjectArgs& args) {
  const int64_t absorb = args.nope * (is_expanded(args.kv_b.format) ? kMlaAbsorbRange : 64);
  const int64_t expand = kMlaExpandRange * ((args.latent + 15) / 16 * 16);
  return 4 * (absorb > expand ? absorb : expand);
}

using MlaKernel = void (*)(const MlaTask& task);

}  // namespace weir
