// y = W x (+ bias), for every weight format, any number of rows.
//
//   x [rows, in] FP32, row stride x_stride;  W [out, in] as in the file;  y [rows, out] FP32, row stride y_stride
//
// Numeric specification, FP32 products (docs/numerics.md, rule 1): y[r, o] is a dot product in sixteen lanes. Element k
// goes to lane k mod 16 by one fused multiply-add of the exact weight (formats/quant.h: its FP32 value) and x[r, k], k
// ascending, from +0; `in` is padded with zeros to a multiple of 16 and the padding takes part; lanes fold
// 16 -> 8 -> 4 -> 2 -> 1. A bias is added last, one rounding.
//
// Integer products (rule 2; the integer formats unless activations are f32): rows of x are coded in 8 bits per block
// (row_codes.h: d_a, q). A block's sum S = sum over k of scale code[k] q[k] and, in formats with minima, its
// M = sum over k of min q[k] (scale and min of the element's group, formats/quant.h) are exact integers. Blocks
// ascending, block b in lane b mod 8 of eight, from +0:
//   lane = fma(float(S), d * d_a, lane), then with minima lane = fma(float(M), -(dmin * d_a), lane)
// Lanes fold 8 -> 4 -> 2 -> 1; a bias is added last.
//
// On CUDA, FP32 products: y[r, o] is a dot product in 32 lanes: element k goes to lane k mod 32 by one fused
// multiply-add of the exact weight and x[r, k], k ascending, from +0; lanes fold 32 -> 16 -> 8 -> 4 -> 2 -> 1. The bias
// is added last.
//
// On CUDA, otherwise: x is rounded to BF16 and multiplied on the tensor cores, which take 16 elements a step, k
// ascending, and keep FP32 sums. `in` is padded with zeros to segments(in) = ceil(in / 1024) equal segments of a
// multiple of 64. Each segment's sum begins at zero; segments are added in ascending order, the bias last. By format:
//   BF16, MXFP4    exact weights, one chain of steps a segment
//   F32            weights rounded to BF16, likewise
//   F16            weight = high + low, high = BF16(weight), low exact: in each step first high, then low
//   E4M3           codes are exact BF16; a step chain of 64 elements (a tile) begins at zero, sum = fma(scale, chain,
//   sum).
//                  Scales of blocks that are not a multiple of 64 wide: weights (code times scale) rounded to BF16
//   integers       codes are exact BF16; a chain for each group with a scale (32 elements; Q2_K, Q3_K, Q6_K: 16) begins
//                  at zero, sum = fma(d scale, chain, sum), the scale's product one FP32 number. With minima then
//                  sum = fma(-(dmin min), total, sum), total being the chain of the same steps with weights of one
// Rows of x that are BF16 already are used as they are; a y of BF16 is the sum, with its bias, rounded to nearest even.
//
// The bits depend on nothing else: not on rows, threads, tiles or instruction set.
//
// `in` is a multiple of the format's block. kMxfp4: scale code 255 is refused by the loader. kNvfp4: reference only.
// kE4m3: weights are code times scale rounded to FP32; a NaN code is NaN; scales are finite, and so is 448 times each.
// Any alignment is allowed; fastest when rows of x start at multiples of 64 bytes.
// Cost: every weight byte is read once per call however many rows there are; 2 * rows * out * in FLOPs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/step_view.h"
#include "device/cpu.h"
#include "formats/weight.h"
#include "ops/bound_op.h"
#include "ops/linear/row_codes.h"

namespace weir {

// Which rows of the batch an op works on: all of them, or those that want logits (gathered to the front of its
// buffers).
enum class RowSet { kAll, kLogits };

WEIR_HD inline int32_t row_count(const StepView& step, RowSet set) {
  return set == RowSet::kAll ? step.rows : static_cast<int32_t>(step.logit_rows.size());
}

// Throws Error unless rows of the type can be written at y while x is read: BF16 ones are a GPU's, and not over x.
inline void check_output(const Device& device, const std::string& name, RowType type, const void* y, const void* x) {
  if (type == RowType::kF32) return;
  if (!device.is_cuda()) fail(name, ": rows of BF16 are written on a GPU, expected FP32 rows");
  if (x == y) fail(name, ": rows of BF16 cannot be written over what they are computed from");
}

struct LinearArgs {
  WeightView weight;
  const float* bias = nullptr;  // [out] or none
  const void* x = nullptr;      // elements of x_type, max_rows rows; those of BF16 start at multiples of 16 bytes
  int64_t x_stride = 0;         // in elements
  void* y = nullptr;            // elements of y_type
  int64_t y_stride = 0;
  RowType x_type = RowType::kF32;  // kBf16: on a GPU with Activations::kAuto
  RowType y_type = RowType::kF32;  // likewise
  RowSet rows = RowSet::kAll;
  Activations activations = Activations::kF32;
  int32_t max_rows = 0;  // the most rows of a step; needed where rows are coded (sizes their buffer)
};

// Weight views must outlive the op. Throws Error for shapes that the format does not allow.
std::unique_ptr<BoundOp> bind_linear(Device& device, std::string name, const LinearArgs& args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_linear_cuda(CudaDevice& device, std::string name, const LinearArgs& args);

// Several products as one op: the bits are those of one after the other, but a GPU computes matrices of the same format
// in one launch. Their inputs, x_type, row set, activations and max_rows are equal; x may be another for each, fewer
// blocks are half empty where parts with the same x follow each other.
std::unique_ptr<BoundOp> bind_linears(Device& device, std::string name, const std::vector<LinearArgs>& parts);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_linears_cuda(CudaDevice& device, std::string name,
                                                         const std::vector<LinearArgs>& parts);

// The kernels themselves, for ops that multiply by parts of matrices (MoE): outputs [out_begin, out_end) of all `rows`
// rows, y[r * y_stride + o] for o in that range. No bias. Single-threaded; scratch: linear_scratch_bytes(), 64-byte
// aligned, private to the call.
using LinearKernel = void (*)(const WeightView& weight, int64_t out_begin, int64_t out_end, const float* x,
                              int64_t x_stride, int64_t rows, float* y, int64_t y_stride, std::byte* scratch);
LinearKernel linear_kernel(KernelSet set);
using CodedLinearKernel = void (*)(const WeightView& weight, int64_t out_begin, int64_t out_end, const CodedRows& x,
                                   int64_t rows, float* y, int64_t y_stride, std::byte* scratch);
CodedLinearKernel coded_linear_kernel(KernelSet set);
int64_t linear_scratch_bytes();

// The least that a step of `rows` rows must move and compute. Of a sequence's rows, the last one wants logits.
Cost linear_cost(const WeightView& weight, RowSet set, int32_t rows);

// Throws Error unless kernels of the set can read the matrix; the message starts with `name`.
void check_weight(const std::string& name, const WeightView& weight, KernelSet set);

// Outputs per work item so that a matrix keeps all threads busy to the end; a multiple of the kernels' tile.
int64_t linear_panel(int64_t out, int threads, RowCoding coding = RowCoding::kNone);

}  // namespace weir
