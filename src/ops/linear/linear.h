// y = W x (+ bias), for every weight format, any number of rows.
//
//   x [rows, in] FP32, row stride x_stride;  W [out, in] as in the file;  y [rows, out] FP32, row stride y_stride
//
// Numeric specification (docs/numerics.md, CPU rule 1): y[r, o] is a dot product in sixteen lanes. Element k goes to
// lane k mod 16 by one fused multiply-add of the exact weight (widened to FP32; MXFP4: E2M1 value times its power of
// two, also exact) and x[r, k], k ascending, from +0; `in` is padded with zeros to a multiple of 16 and the padding
// takes part; lanes fold 16 -> 8 -> 4 -> 2 -> 1. A bias is added last, one rounding. The bits depend on nothing else:
// not on rows, threads, tiles or instruction set.
//
// MXFP4: `in` is a multiple of 32; scale code 255 is refused by the loader.
// Any alignment is allowed; fastest when rows of x start at multiples of 64 bytes.
// Cost: every weight byte is read once per call however many rows there are; 2 * rows * out * in FLOPs.
#pragma once

#include <memory>
#include <string>

#include "base/step_view.h"
#include "device/cpu.h"
#include "formats/weight.h"
#include "ops/bound_op.h"

namespace weir {

// Which rows of the batch an op works on: all of them, or those that want logits (gathered to the front of its
// buffers).
enum class RowSet { kAll, kLogits };

inline int32_t row_count(const StepView& step, RowSet set) {
  return set == RowSet::kAll ? step.rows : static_cast<int32_t>(step.logit_rows.size());
}

struct LinearArgs {
  WeightView weight;
  const float* bias = nullptr;  // [out] or none
  const float* x = nullptr;
  int64_t x_stride = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  RowSet rows = RowSet::kAll;
};

// Weight views must outlive the op. Throws Error for shapes that the format does not allow.
std::unique_ptr<BoundOp> bind_linear(CpuDevice& device, std::string name, const LinearArgs& args);

// The kernel itself, for ops that multiply by parts of matrices (MoE, MLA): outputs [out_begin, out_end) of all `rows`
// rows, y[r * y_stride + o] for o in that range. No bias. Single-threaded; scratch: linear_scratch_bytes(), 64-byte
// aligned, private to the call.
using LinearKernel = void (*)(const WeightView& weight, int64_t out_begin, int64_t out_end, const float* x,
                              int64_t x_stride, int64_t rows, float* y, int64_t y_stride, std::byte* scratch);
LinearKernel linear_kernel(KernelSet set);
int64_t linear_scratch_bytes();

// Outputs per work item so that a matrix keeps all threads busy to the end; a multiple of the kernels' tile.
int64_t linear_panel(int64_t out, int threads);

}  // namespace weir
