// The two per-head products that put multi-head latent attention into absorbed form (docs/numerics.md; DeepSeek-V2
// paper, section 2.1). kv_b [heads * (nope + value), latent] holds, per head, `nope` rows W_UK and then `value` rows
// W_UV.
//
//   absorb   q'[r, h, l] = sum_d q[r, h, d] * W_UK,h[d, l]      d ascending, one fused multiply-add each, from +0
//            and q'[r, h, latent + e] = q[r, h, nope + e] for the `extra` dims that all heads' keys share
//            q [rows, heads, nope + extra]; q' [rows, heads, latent + extra]
//   expand   o[r, h, v] = dot(W_UV,h[v, :], o_lat[r, h, :])     sixteen lanes over latent (rule 1)
//            o_lat [rows, heads, latent]; o [rows, heads, value]
// Weights as they lie in the file, each byte read once per step. F32, BF16 and F16 are multiplied directly; GGUF's
// blocks and FP8 are first expanded to FP32, a part at a time (their exact values, whatever the activations).
//
// GGUF files hold the two parts by themselves, the first one transposed: k_b [heads * latent, nope] and v_b [heads *
// value, latent]. Then both are the FP32 products of linear.h, per head, in any format of weights:
//   absorb   q'[r, h, l] = W_UK,h^T[l, :] . q[r, h, :nope]      so sums over nope are in sixteen lanes, not d ascending
//   expand   as above
//
// On CUDA, FP32 activations: the operations above, so the same bits. Otherwise weights and x are rounded to BF16 and
// multiplied with FP32 sums, inner dimension ascending in steps of m16n8k16, from zero. Weights that BF16 does not hold
// (all but BF16 itself) come as two numbers, hi = BF16(w) and lo = BF16(w - hi); each step multiplies by hi, then by
// lo. Rows of x and y may be BF16: y is then rounded, the extra dims too.
#pragma once

#include <memory>
#include <string>

#include "device/cpu.h"
#include "formats/weight.h"
#include "ops/bound_op.h"
#include "ops/linear/row_codes.h"

namespace weir {

struct MlaProjectArgs {
  WeightView kv_b;  // or the next two
  WeightView k_b;
  WeightView v_b;
  int64_t heads = 0;
  int64_t nope = 0;
  int64_t extra = 0;
  int64_t value = 0;
  int64_t latent = 0;
  const float* x = nullptr;  // absorb: q; expand: o_lat. Where x_type is kBf16, the address of such elements
  int64_t x_stride = 0;
  float* y = nullptr;  // absorb: q'; expand: o. Likewise
  int64_t y_stride = 0;
  RowType x_type = RowType::kF32;               // kBf16: on a GPU with Activations::kAuto
  RowType y_type = RowType::kF32;               // likewise
  Activations activations = Activations::kF32;  // on CUDA
};

std::unique_ptr<BoundOp> bind_mla_absorb(Device& device, std::string name, const MlaProjectArgs& args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_mla_absorb_cuda(CudaDevice& device, std::string name,
                                                            const MlaProjectArgs& args);
std::unique_ptr<BoundOp> bind_mla_expand(Device& device, std::string name, const MlaProjectArgs& args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_mla_expand_cuda(CudaDevice& device, std::string name,
                                                            const MlaProjectArgs& args);

}  // namespace weir
