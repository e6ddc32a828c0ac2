#include "base/lanes.h"
#include "ops/rope/rope.h"

namespace weir::WEIR_ISA {
namespace {

struct Pair16 {
  V16 a, b;
};

Pair16 rotate(Pair16 x, V16 cos, V16 sin) { return {fma(x.a, cos, -(x.b * sin)), fma(x.b, cos, x.a * sin)}; }

// x0 x1 x2 ... x31 (in two vectors) to the even and the odd elements, and back.
#if defined(WEIR_ISA_avx512)
Pair16 split_pairs(V16 low, V16 high) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  return {{_mm512_permutex2var_ps(low.v, even, high.v)}, {_mm512_permutex2var_ps(low.v, odd, high.v)}};
}
Pair16 join_pairs(Pair16 x) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  return {{_mm512_permutex2var_ps(x.a.v, low, x.b.v)}, {_mm512_permutex2var_ps(x.a.v, high, x.b.v)}};
}
#else
__m256 ordered(__m256 a) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(a), 0xd8)); }
Pair16 split_pairs(V16 low, V16 high) {
  return {{ordered(_mm256_shuffle_ps(low.lo, low.hi, 0x88)), ordered(_mm256_shuffle_ps(high.lo, high.hi, 0x88))},
          {ordered(_mm256_shuffle_ps(low.lo, low.hi, 0xdd)), ordered(_mm256_shuffle_ps(high.lo, high.hi, 0xdd))}};
}
V16 join8(__m256 a, __m256 b) {
  const __m256 low = _mm256_unpacklo_ps(a, b);   // pairs 0 1, 4 5
  const __m256 high = _mm256_unpackhi_ps(a, b);  // pairs 2 3, 6 7
  return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}
Pair16 join_pairs(Pair16 x) { return {join8(x.a.lo, x.b.lo), join8(x.a.hi, x.b.hi)}; }
#endif

int64_t lanes_of(int64_t n) { return n < 0 ? 0 : n < 16 ? n : 16; }

void rotate_halves(float* x, const float* cos, const float* sin, int64_t pairs) {
  int64_t i = 0;
  for (; i + 16 <= pairs; i += 16) {
    const Pair16 y = rotate({load16(x + i), load16(x + pairs + i)}, load16(cos + i), load16(sin + i));
    store16(x + i, y.a);
    store16(x + pairs + i, y.b);
  }
  if (const int64_t n = pairs - i; n > 0) {
    const Pair16 y = rotate({load16_first(x + i, n), load16_first(x + pairs + i, n)}, load16_first(cos + i, n),
                            load16_first(sin + i, n));
    store16_first(x + i, y.a, n);
    store16_first(x + pairs + i, y.b, n);
  }
}

void rotate_interleaved(float* x, const float* cos, const float* sin, int64_t pairs) {
  for (int64_t i = 0; i < pairs; i += 16) {
    const int64_t n = lanes_of(pairs - i);
    const int64_t low = lanes_of(2 * n);
    const int64_t high = lanes_of(2 * n - 16);
    float* at = x + 2 * i;
    const Pair16 even_odd = split_pairs(load16_first(at, low), high > 0 ? load16_first(at + 16, high) : zero16());
    const Pair16 y = join_pairs(rotate(even_odd, load16_first(cos + i, n), load16_first(sin + i, n)));
    store16_first(at, y.a, low);
    if (high > 0) store16_first(at + 16, y.b, high);
  }
}

// The first results may overwrite pairs that have been read; the second ones wait.
void rotate_to_halves(float* x, const float* cos, const float* sin, int64_t pairs) {
  alignas(64) float second[kRopeMostReordered];
  for (int64_t i = 0; i < pairs; i += 16) {
    const int64_t n = lanes_of(pairs - i);
    const int64_t low = lanes_of(2 * n);
    const int64_t high = lanes_of(2 * n - 16);
    const float* at = x + 2 * i;
    const Pair16 even_odd = split_pairs(load16_first(at, low), high > 0 ? load16_first(at + 16, high) : zero16());
    const Pair16 y = rotate(even_odd, load16_first(cos + i, n), load16_first(sin + i, n));
    store16_first(x + i, y.a, n);
    store16_first(second + i, y.b, n);
  }
  for (int64_t i = 0; i < pairs; i += 16) {
    const int64_t n = lanes_of(pairs - i);
    store16_first(x + pairs + i, load16_first(second + i, n), n);
  }
}

}  // namespace

void rope_row(const RopeArgs& args, int64_t row) {
  const float* cos = args.cos + row * args.pairs;
  const float* sin = args.sin + row * args.pairs;
  for (int64_t h = 0; h < args.heads; ++h) {
    float* x = args.x + row * args.x_stride + h * args.head_stride;
    if (args.pairing == RopePairing::kHalfSplit) {
      rotate_halves(x, cos, sin, args.pairs);
    } else if (args.pairing == RopePairing::kInterleavedToHalf) {
      rotate_to_halves(x, cos, sin, args.pairs);
    } else {
      rotate_interleaved(x, cos, sin, args.pairs);
    }
  }
}

}  // namespace weir::WEIR_ISA
