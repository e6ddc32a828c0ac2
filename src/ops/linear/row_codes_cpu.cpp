// Rows to 8-bit codes, thirty-two elements at a time.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "ops/linear/row_codes.h"

namespace weir::WEIR_ISA {
namespace {

inline __m256i magnitude_bits(const float* x) {
  return _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)), _mm256_set1_epi32(0x7fffffff));
}

inline int32_t largest(__m256i v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return _mm_cvtsi128_si32(m);
}

inline __m256i rounded(const float* x, __m256 inverse) {
  return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
}

// 32 codes in order, and the sums of each sixteen of them.
inline __m256i codes(const float* x, __m256 inverse, int32_t* sums) {
  const __m256i low = _mm256_packs_epi32(rounded(x, inverse), rounded(x + 8, inverse));
  const __m256i high = _mm256_packs_epi32(rounded(x + 16, inverse), rounded(x + 24, inverse));
  const __m256i mixed = _mm256_packs_epi16(low, high);  // dwords 0 2 4 6 1 3 5 7 of the result
  const __m256i q = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  // q + 128 summed as unsigned bytes, eight at a time
  const __m256i eights = _mm256_sad_epu8(_mm256_xor_si256(q, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
  const __m128i first = _mm256_castsi256_si128(eights), second = _mm256_extracti128_si256(eights, 1);
  sums[0] = _mm_cvtsi128_si32(first) + _mm_extract_epi16(first, 4) - 16 * 128;
  sums[1] = _mm_cvtsi128_si32(second) + _mm_extract_epi16(second, 4) - 16 * 128;
  return q;
}

// d of a block and the factor that its elements are multiplied with; both 0 for a block that counts as zeros.
struct BlockScale {
  float d, inverse;
};
inline BlockScale scale_of(__m256i bits) {
  const int32_t most = largest(bits);
  float amax;
  __builtin_memcpy(&amax, &most, 4);
  if (most >= 0x7f800000) return {__builtin_nanf(""), 0};
  if (amax < 0x1p-100f) return {0, 0};
  return {amax / 127.f, 127.f / amax};
}

void round_row(const float* x, int64_t elements, float* rounded_x) {
  for (int64_t k = 0; k < elements; k += 32) {
    // The last block, filled up with zeros.
    alignas(32) float padded[32] = {};
    const bool whole = elements - k >= 32;
    if (!whole) __builtin_memcpy(padded, x + k, static_cast<size_t>(elements - k) * 4);
    const float* block = whole ? x + k : padded;
    __m256i bits = _mm256_setzero_si256();
    for (int i = 0; i < 32; i += 8) bits = _mm256_max_epi32(bits, magnitude_bits(block + i));
    const BlockScale scale = scale_of(bits);
    float* to = whole ? rounded_x + k : padded;
    for (int i = 0; i < 32; i += 8) {
      const __m256i q = scale.inverse == 0 ? _mm256_setzero_si256() : rounded(block + i, _mm256_set1_ps(scale.inverse));
      _mm256_storeu_ps(to + i, _mm256_mul_ps(_mm256_set1_ps(scale.d), _mm256_cvtepi32_ps(q)));
    }
    if (!whole) __builtin_memcpy(rounded_x + k, padded, static_cast<size_t>(elements - k) * 4);
  }
}

}  // namespace

void encode_row(RowCoding coding, const float* x, int64_t elements, std::byte* coded) {
  if (coding == RowCoding::kRounded) return round_row(x, elements, reinterpret_cast<float*>(coded));
  const CodedRowLayout layout = coded_row_layout(coding, elements);
  const bool small = coding == RowCoding::kBlocks32;
  const int64_t size = small ? 32 : 256;
  float* scales = reinterpret_cast<float*>(coded + layout.scales);
  for (int64_t b = 0; b < layout.blocks; ++b) {
    const float* block = x + b * size;
    __m256i bits = _mm256_setzero_si256();
    for (int64_t i = 0; i < size; i += 8) bits = _mm256_max_epi32(bits, magnitude_bits(block + i));
    const BlockScale scale = scale_of(bits);
    scales[b] = scale.d;
    for (int64_t i = 0; i < size; i += 32) {
      int32_t sums[2] = {0, 0};
      __m256i q = _mm256_setzero_si256();
      if (scale.inverse != 0) q = codes(block + i, _mm256_set1_ps(scale.inverse), sums);
      const int64_t at = b * size + i;
      _mm256_store_si256(reinterpret_cast<__m256i*>(coded + at), q);
      if (small) {
        reinterpret_cast<int32_t*>(coded + layout.sums)[b] = sums[0] + sums[1];
        reinterpret_cast<float*>(coded + layout.other_sums)[b] = static_cast<float>(sums[0] + sums[1]);
      } else {
        reinterpret_cast<int16_t*>(coded + layout.sums)[at / 16] = static_cast<int16_t>(sums[0]);
        reinterpret_cast<int16_t*>(coded + layout.sums)[at / 16 + 1] = static_cast<int16_t>(sums[1]);
        reinterpret_cast<int16_t*>(coded + layout.other_sums)[at / 32] = static_cast<int16_t>(sums[0] + sums[1]);
      }
    }
  }
}

}  // namespace weir::WEIR_ISA
