// Routed experts: every row goes through its own few gated feed-forward blocks.
//
//   x [rows, in];  ids, weights [rows, top_k] (router.h; ids ascending);  y [rows, out]   FP32
//   expert e:  h = act(gate_e x + bg_e, up_e x + bu_e) [inter];  z_e = down_e h + bd_e [out]
//              products as linear.h, any format per matrix; biases, where there are any, are added last
//   y = sum over a row's experts, ids ascending: a = fma(w, z_e, a) from +0;  then y + addend, where there is one
// An expert's output for a row does not depend on other rows (docs/numerics.md, CPU rule 6).
//
// A step builds, per expert that has rows, the list of its (row, slot) pairs; gate and up run over the gathered rows in
// panels of outputs, then down, then the sums. With activations other than f32, rows that integer formats multiply are
// coded in 8 bits (row_codes.h): x once per row before it is gathered, h once per pair. Only experts that have rows are
// read: weight_bytes_read counts those. cost() cannot know the routing and assumes that every expert is equally likely.
//
// On CUDA with activations f32: the CPU's f32 bits (sixteen sums, base/math.h).
// On CUDA otherwise, tensor cores (linear_tiles.h, linear_tile_cuda.cuh):
//   x is rounded to BF16 unless it is that already;  gate_e x and up_e x: as linear multiplies on CUDA, in segments(in)
//   parts, each from zero, added to +0 in ascending order;  + bias;  h = act(gate, up) in FP32 by base/math.h, rounded
//   to BF16 down_e h: the same in segments(inter) parts;  z_e = that + bias, FP32;  y as above
// An expert's output for a row has the same bits whichever kernel multiplies: warps by themselves with few rows an
// expert, blocks with many, which is decided by the bounds of the step. Experts whose matrices differ in format from
// each other's (gate and up count as one) are multiplied as with f32.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/cpu.h"
#include "device/memory.h"
#include "formats/weight.h"
#include "ops/activation/activation.h"
#include "ops/bound_op.h"
#include "ops/linear/row_codes.h"
#include "ops/norm/add_norm.h"

namespace weir {

// The rows of gate and up may lie interleaved: views with twice the stride.
struct ExpertWeights {
  WeightView gate;  // [inter, in]
  WeightView up;    // [inter, in]
  WeightView down;  // [out, inter]
};

// What lies between the phases of one step: max_rows * top_k * (inter + the larger of in and out) floats, and coded
// rows. Layers run one after the other, so all MoE ops of a model may share one.
class MoeWorkspace {
 public:
  // Grows to at least `bytes`; earlier data() is then void. For binding, not for steps.
  void reserve(int64_t bytes) {
    if (memory_.bytes() < bytes) memory_ = Mapping(bytes);
  }
  std::byte* data() const { return memory_.data(); }
  int64_t bytes() const { return memory_.bytes(); }

 private:
  Mapping memory_;
};

struct MoeArgs {
  std::vector<ExpertWeights> experts;
  int64_t in = 0;
  int64_t inter = 0;
  int64_t out = 0;
  int64_t top_k = 0;
  GluFunction act;
  const float* gate_bias = nullptr;  // [experts, inter], with up_bias and down_bias; none: no biases
  const float* up_bias = nullptr;    // [experts, inter]
  const float* down_bias = nullptr;  // [experts, out]
  const void* x = nullptr;           // elements of x_type
  int64_t x_stride = 0;
  RowType x_type = RowType::kF32;  // kBf16: where moe_takes_bf16
  const int32_t* ids = nullptr;
  const float* weights = nullptr;
  // On CUDA: ids were written by an op that at least one other lies behind, so that experts' weights can be fetched
  // while that one still runs.
  bool routed_before = false;
  const float* addend = nullptr;  // [rows, out], not y
  int64_t addend_stride = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  // add_norm.h of y, which is add.u; then y itself may be left unwritten. With few rows in one launch on a GPU.
  std::optional<SumNorm> follows;
  int32_t max_rows = 0;                     // the most rows of a step; sizes the buffers
  std::shared_ptr<MoeWorkspace> workspace;  // none: the op's own
  Activations activations = Activations::kF32;
};

// Whether each side of the experts has one format, as the tensor cores' kernels need it.
bool uniform_experts(const std::vector<ExpertWeights>& experts);
// Whether a GPU multiplies rows of BF16 by these experts: x would be rounded anyway, and lies as the kernels want it.
bool moe_takes_bf16(const Device& device, const std::vector<ExpertWeights>& experts, Activations activations);

// ids are in [0, experts) and distinct within a row. Throws Error, naming the op and the expert, for shapes or formats
// that do not fit.
std::unique_ptr<BoundOp> bind_moe(Device& device, std::string name, MoeArgs args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_moe_cuda(CudaDevice& device, std::string name, MoeArgs args);

}  // namespace weir
