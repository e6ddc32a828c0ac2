#include "base/lanes.h"
#include "ops/attn_residual/attn_residual.h"

namespace weir::WEIR_ISA {
namespace {

// Each candidate has two chains of FMAs (sum of squares, dot product), 4 cycles an FMA, two FMAs a cycle: eight
// registers of sums keep both ports busy. A V16 is two registers with AVX2.
#if defined(WEIR_ISA_avx512)
constexpr int kTogether = 4;
#else
constexpr int kTogether = 2;
#endif

template <int N>
void scores(const AttnResidualArgs& args, const float* const* v, float* score) {
  V16 ss[N];
  V16 dot[N];
  for (int i = 0; i < N; ++i) ss[i] = dot[i] = zero16();
  const int64_t whole = args.size & ~int64_t{15};
  for (int64_t k = 0; k < whole; k += 16) {
    const V16 w = load16(args.weight + k);
    for (int i = 0; i < N; ++i) {
      const V16 x = load16(v[i] + k);
      ss[i] = fma(x, x, ss[i]);
      dot[i] = fma(x, w, dot[i]);
    }
  }
  if (const int64_t rest = args.size - whole; rest != 0) {
    const V16 w = load16_first(args.weight + whole, rest);
    for (int i = 0; i < N; ++i) {
      const V16 x = load16_first(v[i] + whole, rest);
      ss[i] = fma(x, x, ss[i]);
      dot[i] = fma(x, w, dot[i]);
    }
  }
  for (int i = 0; i < N; ++i) {
    const V16 mean = set16(fold16(ss[i])) / set16(static_cast<float>(args.size));
    const V16 r = set16(1.f) / sqrt(mean + set16(args.eps));
    store16_first(score + i, set16(fold16(dot[i])) * r, 1);
  }
}

// N vectors of the output side by side, so that every candidate is read in pieces of N cache lines.
template <int N>
inline void mix(const float* const* v, const float* p, int n, int64_t d, float* y) {
  V16 sum[N];
  for (int j = 0; j < N; ++j) sum[j] = zero16();
  for (int i = 0; i < n; ++i) {
    const V16 weight = set16(p[i]);
    for (int j = 0; j < N; ++j) sum[j] = fma(weight, load16(v[i] + d + j * 16), sum[j]);
  }
  for (int j = 0; j < N; ++j) store16(y + d + j * 16, sum[j]);
}

}  // namespace

void attn_residual_row(const AttnResidualArgs& args, int64_t row) {
  const int n = static_cast<int>(args.candidates.size());
  const float* const* candidates = args.candidates.data();
  const float* v[kMaxResidualCandidates];
  for (int i = 0; i < n; ++i) v[i] = candidates[i] + row * args.stride;

  alignas(64) float p[kMaxResidualCandidates];
  int i = 0;
  for (; i + kTogether <= n; i += kTogether) scores<kTogether>(args, v + i, p + i);
  for (; i < n; ++i) scores<1>(args, v + i, p + i);
  float largest = p[0];
  for (i = 1; i < n; ++i) largest = largest > p[i] ? largest : p[i];
  float z = 0;
  for (i = 0; i < n; i += 16) {
    const int64_t count = n - i < 16 ? n - i : 16;
    store16_first(p + i, math::exp(load16_first(p + i, count) - set16(largest)), count);
  }
  for (i = 0; i < n; ++i) z = z + p[i];
  for (i = 0; i < n; ++i) p[i] = p[i] / z;

  float* y = args.y + row * args.y_stride;
  int64_t d = 0;
  for (; d + 64 <= args.size; d += 64) mix<4>(v, p, n, d, y);
  for (; d + 16 <= args.size; d += 16) mix<1>(v, p, n, d, y);
  if (const int64_t rest = args.size - d; rest != 0) {
    V16 sum = zero16();
    for (i = 0; i < n; ++i) sum = fma(set16(p[i]), load16_first(v[i] + d, rest), sum);
    store16_first(y + d, sum, rest);
  }
}

}  // namespace weir::WEIR_ISA
