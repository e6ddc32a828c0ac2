// Elementwise ops on rows of FP32 values.
//
//   kSwiGlu    y = (g * sigmoid(g)) * u
//   kSitu      y = ((b1 * tanh(g / b1)) * sigmoid(g)) * up,  up = b2 * tanh(u / b2), or u when linear_beta is 0
//              (Kimi K3's SiTU-GLU: b1 = beta, b2 = linear_beta; |y| <= b1 * b2)
//   kGeGlu     y = (g * sigmoid(2a)) * u,  a = sqrt(2 / pi) (g + 0.044715 g^3)
//              (gelu's tanh form, arXiv:1606.08415: 0.5 (1 + tanh(a)) = sigmoid(2a); Gemma). 2a is formed as
//              1.5957691216 * fma(0.044715, (g * g) * g, g)
//   kClampedSwiGlu  y = (c(u) + 1) * (a * sigmoid(a * beta)),  a = min(g, L), c(u) = u clamped to [-L, L],
//              L = linear_beta (gpt-oss: beta 1.702, L 7); a NaN stays one
//   kAdd       y = g + u
//   kAddScaled y = (g + u) * beta
//   kGate      y = g * sigmoid(u)      (MLA's output gate: g the values, u the gate logits)
//   kSoftCap   y = beta * tanh(g / beta)    (Gemma 2's cap on logits)
//   kGateRow   y = g * sigmoid(u_0)    (a gate of one number a row: u [rows, 1])
//   kCopy      y = g
// The products associate as written; sigmoid and tanh are those of base/math.h. y may be g or u.
// On CUDA: the same operations, so the same bits. y may be BF16, in other memory than g and u: rounded to nearest even.
#pragma once

#include <memory>
#include <string>

#include "device/cpu.h"
#include "ops/bound_op.h"
#include "ops/linear/linear.h"

namespace weir {

enum class ElementwiseKind {
  kSwiGlu,
  kSitu,
  kGeGlu,
  kClampedSwiGlu,
  kAdd,
  kAddScaled,
  kGate,
  kGateRow,
  kSoftCap,
  kCopy
};

inline constexpr float kGeluSlope = 1.5957691216057308f;  // 2 sqrt(2 / pi)
inline constexpr float kGeluCubic = 0.044715f;

// Functions of g alone: u is not read.
constexpr bool is_unary(ElementwiseKind kind) {
  return kind == ElementwiseKind::kSoftCap || kind == ElementwiseKind::kCopy;
}
// Functions of a gated feed-forward block.
constexpr bool is_glu(ElementwiseKind kind) {
  return kind == ElementwiseKind::kSwiGlu || kind == ElementwiseKind::kSitu || kind == ElementwiseKind::kGeGlu ||
         kind == ElementwiseKind::kClampedSwiGlu;
}

// The function of a gated feed-forward block.
struct GluFunction {
  ElementwiseKind kind = ElementwiseKind::kSwiGlu;  // one of is_glu()
  float beta = 1;
  float linear_beta = 0;
};

struct ElementwiseArgs {
  ElementwiseKind kind = ElementwiseKind::kAdd;
  float beta = 1;
  float linear_beta = 0;
  int64_t size = 0;  // elements per row
  const float* g = nullptr;
  int64_t g_stride = 0;
  const float* u = nullptr;  // unused where is_unary()
  int64_t u_stride = 0;
  void* y = nullptr;  // elements of y_type
  int64_t y_stride = 0;
  RowType y_type = RowType::kF32;
  RowSet rows = RowSet::kAll;
};

std::unique_ptr<BoundOp> bind_elementwise(Device& device, std::string name, const ElementwiseArgs& args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_elementwise_cuda(CudaDevice& device, std::string name,
                                                             const ElementwiseArgs& args);

Cost elementwise_cost(const ElementwiseArgs& args, int32_t rows);

// n elements; for ops that need it inside (MoE).
using ElementwiseKernel = void (*)(ElementwiseKind kind, float beta, float linear_beta, const float* g, const float* u,
                                   float* y, int64_t n);
ElementwiseKernel elementwise_kernel(KernelSet set);

}  // namespace weir
