// Normalisations over the last dimension, per group of `size` elements (a whole row, or each head of it).
//
//   x, y [rows, groups, size] FP32, row strides given, groups contiguous. x == y is allowed. On a GPU y may be BF16, in
//   other memory than x: what follows, rounded to nearest even.
//
// Numeric specification (docs/numerics.md, CPU rules 1 and 4): ss = sum of x_k^2 in sixteen lanes (fused multiply-add,
// size padded with zeros to a multiple of 16), folded.
//   RMS norm      r = 1 / sqrt(ss / size + eps);   y_k = (x_k * r) * w_k
//   plain RMS     y_k = x_k * r                          (r as RMS norm; no weight)
//   L2 norm       r = 1 / sqrt(ss + eps);          y_k = (x_k * r) * scale        (eps on the sum)
//   gated RMS     y_k = ((x_k * r) * w_k) * sigmoid(gate_k)                       (r as RMS norm; KDA's output norm)
//   SiLU-gated    y_k = ((x_k * r) * w_k) * (gate_k * sigmoid(gate_k))            (Gated DeltaNet's output norm)
// Divisions and square roots are the correctly rounded IEEE operations.
// On CUDA: ss in 4 T sums, T = 32 for sizes up to 512, 256 up to 8192, 1024 up to 16384, the largest. Element k is
// added to sum k mod 4 T by one fused multiply-add, k ascending, from +0. They fold: sums 4 t to 4 t + 3 as (s0 + s2) +
// (s1 + s3); of the T results each aligned 32, then the T / 32 of these, by halves: result i takes in result i + half.
// All else as above.
#pragma once

#include <memory>
#include <string>

#include "device/cpu.h"
#include "ops/bound_op.h"
#include "ops/linear/linear.h"

namespace weir {

enum class NormKind { kRms, kRmsPlain, kL2, kRmsGated, kRmsSiluGated };

constexpr bool norm_has_gate(NormKind kind) { return kind == NormKind::kRmsGated || kind == NormKind::kRmsSiluGated; }

struct NormArgs {
  NormKind kind = NormKind::kRms;
  int64_t groups = 1;
  int64_t size = 0;
  float eps = 0;
  float scale = 1;                // kL2
  const float* weight = nullptr;  // [size], shared by all groups (all but kL2)
  const float* x = nullptr;
  int64_t x_stride = 0;
  const float* gate = nullptr;  // [rows, groups, size] (kRmsGated, kRmsSiluGated)
  int64_t gate_stride = 0;
  void* y = nullptr;  // elements of y_type
  int64_t y_stride = 0;
  RowType y_type = RowType::kF32;
  RowSet rows = RowSet::kAll;
};

std::unique_ptr<BoundOp> bind_norm(Device& device, std::string name, const NormArgs& args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_norm_cuda(CudaDevice& device, std::string name, const NormArgs& args);

// One row of an op, single-threaded.
using NormKernel = void (*)(const NormArgs& args, int64_t row);
NormKernel norm_kernel(KernelSet set);

}  // namespace weir
