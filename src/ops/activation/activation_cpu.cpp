#include "base/lanes.h"
#include "ops/activation/activation.h"

namespace weir::WEIR_ISA {
namespace {

// body(g, u) on every vector; kUnary functions never touch u.
template <bool kUnary, class Body>
inline void each_vector(const float* g, const float* u, float* y, int64_t n, Body body) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store16(y + i, body(load16(g + i), kUnary ? zero16() : load16(u + i)));
  if (i < n) {
    store16_first(y + i, body(load16_first(g + i, n - i), kUnary ? zero16() : load16_first(u + i, n - i)), n - i);
  }
}

}  // namespace

void elementwise(ElementwiseKind kind, float beta, float linear_beta, const float* g, const float* u, float* y,
                 int64_t n) {
  switch (kind) {
    case ElementwiseKind::kSwiGlu:
      return each_vector<false>(g, u, y, n, [](V16 a, V16 b) { return (a * math::sigmoid(a)) * b; });
    case ElementwiseKind::kSitu: {
      const V16 b1 = set16(beta);
      const V16 b2 = set16(linear_beta);
      const auto gate = [b1](V16 a) { return (b1 * math::tanh(a / b1)) * math::sigmoid(a); };
      if (linear_beta == 0) return each_vector<false>(g, u, y, n, [gate](V16 a, V16 b) { return gate(a) * b; });
      return each_vector<false>(g, u, y, n, [gate, b2](V16 a, V16 b) { return gate(a) * (b2 * math::tanh(b / b2)); });
    }
    case ElementwiseKind::kGeGlu: {
      const V16 slope = set16(kGeluSlope);
      const V16 cubic = set16(kGeluCubic);
      return each_vector<false>(g, u, y, n, [slope, cubic](V16 a, V16 b) {
        return (a * math::sigmoid(slope * fma(cubic, (a * a) * a, a))) * b;
      });
    }
    case ElementwiseKind::kAddScaled: {
      const V16 factor = set16(beta);
      return each_vector<false>(g, u, y, n, [factor](V16 a, V16 b) { return (a + b) * factor; });
    }
    case ElementwiseKind::kSoftCap: {
      const V16 cap = set16(beta);
      return each_vector<true>(g, u, y, n, [cap](V16 a, V16) { return cap * math::tanh(a / cap); });
    }
    case ElementwiseKind::kClampedSwiGlu: {
      const V16 slope = set16(beta);
      const V16 limit = set16(linear_beta);
      const V16 floor = set16(-linear_beta);
      return each_vector<false>(g, u, y, n, [=](V16 a, V16 b) {
        const V16 gate = select_less(limit, a, limit, a);
        const V16 top = select_less(limit, b, limit, b);
        const V16 up = select_less(top, floor, floor, top);
        return (up + set16(1.f)) * (gate * math::sigmoid(gate * slope));
      });
    }
    case ElementwiseKind::kAdd:
      return each_vector<false>(g, u, y, n, [](V16 a, V16 b) { return a + b; });
    case ElementwiseKind::kGate:
      return each_vector<false>(g, u, y, n, [](V16 a, V16 b) { return a * math::sigmoid(b); });
    case ElementwiseKind::kGateRow: {
      if (n == 0) return;
      const V16 gate = math::sigmoid(set16(*u));
      return each_vector<true>(g, u, y, n, [gate](V16 a, V16) { return a * gate; });
    }
    case ElementwiseKind::kCopy:
      return each_vector<true>(g, u, y, n, [](V16 a, V16) { return a; });
  }
}

}  // namespace weir::WEIR_ISA
