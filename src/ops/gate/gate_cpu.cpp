#include "base/lanes.h"
#include "ops/gate/gate_kernel.h"

namespace weir::WEIR_ISA {
namespace {

template <bool kBounded>
void decay_heads(const KdaGateArgs& args, int64_t row, int64_t begin, int64_t end) {
  const V16 bound = set16(args.lower_bound);
  for (int64_t h = begin; h < end; ++h) {
    const V16 a = set16(args.a[h]);
    const float* f = args.f + row * args.f_stride + h * args.key_dim;
    const float* bias = args.dt_bias + h * args.key_dim;
    float* g = args.g + row * args.g_stride + h * args.key_dim;
    for (int64_t d = 0; d < args.key_dim; d += 16) {
      const int64_t n = args.key_dim - d < 16 ? args.key_dim - d : 16;
      const V16 z = load16_first(f + d, n) + load16_first(bias + d, n);
      V16 y;
      if constexpr (kBounded) {
        y = bound * math::sigmoid(a * z);
      } else {
        y = -(a * math::softplus(z));
      }
      store16_first(g + d, y, n);
    }
  }
}

// The unbounded gate with one decay a head: lanes are heads.
void decay_of_heads(const KdaGateArgs& args, int64_t row, int64_t begin, int64_t end) {
  for (int64_t h = begin; h < end; h += 16) {
    const int64_t n = end - h < 16 ? end - h : 16;
    const V16 z = load16_first(args.f + row * args.f_stride + h, n) + load16_first(args.dt_bias + h, n);
    store16_first(args.g + row * args.g_stride + h, -(load16_first(args.a + h, n) * math::softplus(z)), n);
  }
}

}  // namespace

void kda_gate_heads(const KdaGateArgs& args, int64_t row, int64_t begin, int64_t end) {
  if (args.bounded) {
    decay_heads<true>(args, row, begin, end);
  } else if (args.key_dim == 1) {
    decay_of_heads(args, row, begin, end);
  } else {
    decay_heads<false>(args, row, begin, end);
  }
  const float* logit = args.beta_logit + row * args.beta_logit_stride;
  float* beta = args.beta + row * args.beta_stride;
  for (int64_t h = begin; h < end; h += 16) {
    const int64_t n = end - h < 16 ? end - h : 16;
    store16_first(beta + h, math::sigmoid(load16_first(logit + h, n)), n);
  }
}

}  // namespace weir::WEIR_ISA
