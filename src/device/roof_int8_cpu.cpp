// The loop that measure_int8_peak times.
#include <immintrin.h>

#include <cstdint>

namespace weir::WEIR_ISA {

extern const int64_t kRoofInt8Operations;

#if defined(WEIR_ISA_avx512)
namespace {
constexpr int kChains = 24;
using Vector = __m512i;
inline Vector start(int i) { return _mm512_set1_epi8(static_cast<char>(i)); }
// In place: for the intrinsic GCC moves sums about, which takes the same ports.
inline Vector step(Vector sum, Vector b) {
  __asm__("vpdpbusd %1, %1, %0" : "+v"(sum) : "v"(b));
  return sum;
}
inline int32_t first(Vector v) { return _mm512_cvtsi512_si32(v); }
inline Vector sum_of(Vector a, Vector b) { return _mm512_add_epi32(a, b); }
}  // namespace
const int64_t kRoofInt8Operations = kChains * 64 * 2;
#else
namespace {
constexpr int kChains = 12;
using Vector = __m256i;
inline Vector start(int i) { return _mm256_set1_epi8(static_cast<char>(i)); }
inline Vector step(Vector sum, Vector b) {
  __asm__ volatile("" : "+x"(b));  // as if b were another one: else all chains would share one product
  const Vector ones = _mm256_set1_epi16(1);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(b, b), ones));
}
inline int32_t first(Vector v) { return _mm256_cvtsi256_si32(v); }
inline Vector sum_of(Vector a, Vector b) { return _mm256_add_epi32(a, b); }
}  // namespace
const int64_t kRoofInt8Operations = kChains * 32 * 2;
#endif

// The value returned keeps the products from being removed.
int32_t roof_int8(int64_t iterations) {
  Vector sum[kChains];
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) sum[i] = start(i + 1);
  const Vector b = start(3);
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) sum[i] = step(sum[i], b);
  }
  Vector total = sum[0];
#pragma GCC unroll 24
  for (int i = 1; i < kChains; ++i) total = sum_of(total, sum[i]);
  return first(total);
}

}  // namespace weir::WEIR_ISA
