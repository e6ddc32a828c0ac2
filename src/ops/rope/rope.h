// Rotary position embedding.
//
// Angles are shared by all layers: one op fills [rows, pairs] cosines and sines per step, one op per layer applies
// them.
//   angle = float(position) * inv_freq[i]   (one FP32 product, as the Hugging Face classes compute it)
//   cos, sin: of that FP32 angle, computed in double by this project's own reduction and polynomials (no libm), rounded
//   once to FP32, times `attention_factor`
//   (a, b) -> (fma(a, cos, -(b * sin)), fma(b, cos, a * sin))
// Half-split pairing: a = x[i], b = x[i + pairs]. Interleaved: a = x[2i], b = x[2i + 1]. Interleaved to half: reads as
// interleaved and writes as half-split, which undoes the order of rows of q and k in GGUF files of Llama, so that
// products of queries and keys are summed in the published order. Rotates the first 2 * pairs elements of each head, in
// place; the others are untouched.
//
// On CUDA: the same operations, so the same bits.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/cpu.h"
#include "ops/bound_op.h"
#include "ops/rope/sin_cos.h"

namespace weir {

struct RopeAnglesArgs {
  const float* inv_freq = nullptr;  // [pairs]
  int64_t pairs = 0;
  float attention_factor = 1;
  float* cos = nullptr;  // [rows, pairs]
  float* sin = nullptr;
};
std::unique_ptr<BoundOp> bind_rope_angles(Device& device, std::string name, const RopeAnglesArgs& args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_rope_angles_cuda(CudaDevice& device, std::string name,
                                                             const RopeAnglesArgs& args);

enum class RopePairing { kHalfSplit, kInterleaved, kInterleavedToHalf };

inline constexpr int64_t kRopeMostReordered = 512;  // pairs of kInterleavedToHalf: they pass through the stack

struct RopeArgs {
  RopePairing pairing = RopePairing::kHalfSplit;
  int64_t heads = 0;
  int64_t head_stride = 0;  // floats from one head to the next
  int64_t pairs = 0;
  const float* cos = nullptr;
  const float* sin = nullptr;
  float* x = nullptr;  // [rows, heads, ...], rotated in place
  int64_t x_stride = 0;
};
std::unique_ptr<BoundOp> bind_rope(Device& device, std::string name, const RopeArgs& args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_rope_cuda(CudaDevice& device, std::string name, const RopeArgs& args);

// One row of an op, single-threaded.
using RopeKernel = void (*)(const RopeArgs& args, int64_t row);
RopeKernel rope_kernel(KernelSet set);

}  // namespace weir
