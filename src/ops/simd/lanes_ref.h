// The sixteen-lane scheme in plain loops, for references: the executable form of CPU rule 1 (docs/numerics.md).
#pragma once

#include <cstdint>

#include "base/math.h"

namespace weir {

// Sixteen partial sums; element k belongs to lane k mod 16.
struct Lanes {
  float sum[16] = {};

  // One vector of products: lane i becomes fma(a_i, b_i, lane i).
  void fma(int64_t element, float a, float b) { sum[element % 16] = math::fma(a, b, sum[element % 16]); }
  void add(int64_t element, float a) { sum[element % 16] += a; }

  // 16 -> 8 -> 4 -> 2 -> 1, lane i adds lane i + half.
  float fold() const {
    float s[16];
    for (int i = 0; i < 16; ++i) s[i] = sum[i];
    for (int half = 8; half >= 1; half /= 2) {
      for (int i = 0; i < half; ++i) s[i] = s[i] + s[i + half];
    }
    return s[0];
  }
};

// Dot product of n elements, n padded with zeros to a multiple of 16 (the padding is multiplied and added too).
template <class GetA, class GetB>
float dot_lanes(int64_t n, GetA a, GetB b) {
  Lanes lanes;
  const int64_t padded = (n + 15) / 16 * 16;
  for (int64_t k = 0; k < padded; ++k) lanes.fma(k, k < n ? a(k) : 0.f, k < n ? b(k) : 0.f);
  return lanes.fold();
}

}  // namespace weir
