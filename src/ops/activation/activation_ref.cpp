#include "base/math.h"
#include "ops/activation/activation.h"

namespace weir::reference {

void elementwise(ElementwiseKind kind, float beta, float linear_beta, const float* g, const float* u, float* y,
                 int64_t n) {
  const float row_gate = kind == ElementwiseKind::kGateRow && n > 0 ? math::sigmoid(*u) : 0.f;
  for (int64_t i = 0; i < n; ++i) {
    switch (kind) {
      case ElementwiseKind::kSwiGlu:
        y[i] = (g[i] * math::sigmoid(g[i])) * u[i];
        break;
      case ElementwiseKind::kSitu: {
        const float up = linear_beta == 0 ? u[i] : linear_beta * math::tanh(u[i] / linear_beta);
        y[i] = ((beta * math::tanh(g[i] / beta)) * math::sigmoid(g[i])) * up;
        break;
      }
      case ElementwiseKind::kGeGlu: {
        const float cube = (g[i] * g[i]) * g[i];
        y[i] = (g[i] * math::sigmoid(kGeluSlope * math::fma(kGeluCubic, cube, g[i]))) * u[i];
        break;
      }
      case ElementwiseKind::kAddScaled:
        y[i] = (g[i] + u[i]) * beta;
        break;
      case ElementwiseKind::kSoftCap:
        y[i] = beta * math::tanh(g[i] / beta);
        break;
      case ElementwiseKind::kClampedSwiGlu: {
        const float gate = linear_beta < g[i] ? linear_beta : g[i];
        const float top = linear_beta < u[i] ? linear_beta : u[i];
        const float up = top < -linear_beta ? -linear_beta : top;
        y[i] = (up + 1.f) * (gate * math::sigmoid(gate * beta));
        break;
      }
      case ElementwiseKind::kAdd:
        y[i] = g[i] + u[i];
        break;
      case ElementwiseKind::kGate:
        y[i] = g[i] * math::sigmoid(u[i]);
        break;
      case ElementwiseKind::kGateRow:
        y[i] = g[i] * row_gate;
        break;
      case ElementwiseKind::kCopy:
        y[i] = g[i];
        break;
    }
  }
}

}  // namespace weir::reference
