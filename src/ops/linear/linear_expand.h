// Blocks of GGUF expanded to FP32, exactly as dequantize_row does. Included by kernels only.
#pragma once

#include "ops/linear/block_formats.h"

namespace weir::WEIR_ISA {
namespace {

// Eight signed codes times their scale; in formats with minima less the minimum (a product, exact, and one rounding).
template <bool kMinima>
inline void expand_8(__m128i codes, __m256 scale, __m256 minimum, float* out) {
  const __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), scale);
  _mm256_storeu_ps(out, kMinima ? _mm256_sub_ps(product, minimum) : product);
}

// `elements` of one row, a multiple of the block.
template <class F>
void expand_blocks(const std::byte* block, int64_t elements, float* out) {
  constexpr int kPerCode = F::kGroup / 16;
  for (int64_t k = 0; k < elements; k += F::kBlock, block += F::kBytes) {
    const float d = scale_of<F>(block);
    float dmin = 0;
    if constexpr (F::kMinima) dmin = F::kBlock == 32 ? -half_at(block + F::kMin) : half_at(block + F::kMin);
    int16_t scale[16] = {1, 1}, min[16] = {1, 1};
    if constexpr (F::kBlock == 256) F::scales(block, scale, min);
#pragma GCC unroll 8
    for (int j = 0; j < F::kBlock / 32; ++j) {
      const __m256i codes = _mm256_sub_epi8(codes_in_order<F>(block, j), set8<__m256i>(F::kOffset));
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const int group = (2 * j + half) / kPerCode;
        const __m256 factor = _mm256_set1_ps(d * static_cast<float>(scale[group]));
        const __m256 minimum = _mm256_set1_ps(dmin * static_cast<float>(min[group]));
        const __m128i sixteen = half == 0 ? _mm256_castsi256_si128(codes) : _mm256_extracti128_si256(codes, 1);
        float* to = out + k + 32 * j + 16 * half;
        expand_8<F::kMinima>(sixteen, factor, minimum, to);
        expand_8<F::kMinima>(_mm_srli_si128(sixteen, 8), factor, minimum, to + 8);
      }
    }
  }
}

}  // namespace
}  // namespace weir::WEIR_ISA
