// The loops that roof.cpp times.
#include <cstddef>
#include <cstdint>

#include "base/lanes.h"

namespace weir::WEIR_ISA {

#if defined(WEIR_ISA_avx512)
namespace {
constexpr int kChains = 24;
}
#else
namespace {
constexpr int kChains = 6;  // 12 registers
}
#endif

extern const int64_t kRoofFlops;
const int64_t kRoofFlops = kChains * 16 * 2;

// bytes: a multiple of 256. The value returned keeps the loads from being removed.
float roof_read(const std::byte* data, int64_t bytes) {
  V16 sum[4] = {zero16(), zero16(), zero16(), zero16()};
  const float* p = reinterpret_cast<const float*>(data);
  for (int64_t i = 0; i + 64 <= bytes / 4; i += 64) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sum[j] = sum[j] + load16(p + i + 16 * j);
  }
  return fold16((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

float roof_fma(int64_t iterations) {
  // Sixteen different lanes: the compiler would compute equal halves of a V16 once.
  float start[kChains + 16];
  for (int i = 0; i < kChains + 16; ++i) start[i] = static_cast<float>(i);
  V16 sum[kChains];
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) sum[i] = load16(start + i);
  const V16 a = set16(0.5f);
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) sum[i] = fma(sum[i], a, a);
  }
  V16 total = sum[0];
#pragma GCC unroll 24
  for (int i = 1; i < kChains; ++i) total = total + sum[i];
  return fold16(total);
}

}  // namespace weir::WEIR_ISA
