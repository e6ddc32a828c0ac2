// The functions of activation.h on one element, for its kernels and for ops that compute them on the way.
#pragma once

#include "device/cuda/kernel.h"
#include "ops/activation/activation.h"

namespace weir::cuda {

// kGateRow takes the sigmoid of the row's gate as u: it is the same for all elements.
template <ElementwiseKind kKind>
__device__ __forceinline__ float element(float g, float u, float beta, float linear_beta) {
  if constexpr (kKind == ElementwiseKind::kSwiGlu) return (g * math::sigmoid(g)) * u;
  if constexpr (kKind == ElementwiseKind::kSitu) {
    const float up = linear_beta == 0 ? u : linear_beta * math::tanh(u / linear_beta);
    return ((beta * math::tanh(g / beta)) * math::sigmoid(g)) * up;
  }
  if constexpr (kKind == ElementwiseKind::kGeGlu) {
    return (g * math::sigmoid(kGeluSlope * math::fma(kGeluCubic, (g * g) * g, g))) * u;
  }
  if constexpr (kKind == ElementwiseKind::kClampedSwiGlu) {
    const float gate = linear_beta < g ? linear_beta : g;
    const float top = linear_beta < u ? linear_beta : u;
    const float up = top < -linear_beta ? -linear_beta : top;
    return (up + 1.f) * (gate * math::sigmoid(gate * beta));
  }
  if constexpr (kKind == ElementwiseKind::kAdd) return g + u;
  if constexpr (kKind == ElementwiseKind::kAddScaled) return (g + u) * beta;
  if constexpr (kKind == ElementwiseKind::kGate) return g * math::sigmoid(u);
  if constexpr (kKind == ElementwiseKind::kGateRow) return g * u;
  if constexpr (kKind == ElementwiseKind::kSoftCap) return beta * math::tanh(g / beta);
  return g;
}

// f.operator()<kKind>() for the kind.
template <class F>
void with_kind(ElementwiseKind kind, F f) {
  switch (kind) {
    case ElementwiseKind::kSwiGlu:
      return f.template operator()<ElementwiseKind::kSwiGlu>();
    case ElementwiseKind::kSitu:
      return f.template operator()<ElementwiseKind::kSitu>();
    case ElementwiseKind::kGeGlu:
      return f.template operator()<ElementwiseKind::kGeGlu>();
    case ElementwiseKind::kClampedSwiGlu:
      return f.template operator()<ElementwiseKind::kClampedSwiGlu>();
    case ElementwiseKind::kAdd:
      return f.template operator()<ElementwiseKind::kAdd>();
    case ElementwiseKind::kAddScaled:
      return f.template operator()<ElementwiseKind::kAddScaled>();
    case ElementwiseKind::kGate:
      return f.template operator()<ElementwiseKind::kGate>();
    case ElementwiseKind::kGateRow:
      return f.template operator()<ElementwiseKind::kGateRow>();
    case ElementwiseKind::kSoftCap:
      return f.template operator()<ElementwiseKind::kSoftCap>();
    case ElementwiseKind::kCopy:
      return f.template operator()<ElementwiseKind::kCopy>();
  }
}

}  // namespace weir::cuda
