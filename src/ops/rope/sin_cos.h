// Sine and cosine in double arithmetic without libm, for kernels of the CPU and of GPUs.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "base/host_device.h"
#include "base/math.h"

namespace weir {
namespace sin_cos_detail {

// pi/2 in three parts. The first two have 29 significant bits, so that their product with a quotient of 24 bits is
// exact in double; the third has 53.
inline constexpr double kHalfPi1 = 0x1.921fb54p+0;
inline constexpr double kHalfPi2 = 0x1.10b4611p-30;
inline constexpr double kHalfPi3 = 0x1.4c4c6628b80dcp-59;
inline constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;

// Taylor series on |r| <= pi/4: the first term left out is below 5e-17 of the result.
WEIR_HD inline double sin_near(double r) {
  const double z = r * r;
  double p = -1. / 1307674368000.;
  p = p * z + 1. / 6227020800.;
  p = p * z - 1. / 39916800.;
  p = p * z + 1. / 362880.;
  p = p * z - 1. / 5040.;
  p = p * z + 1. / 120.;
  p = p * z - 1. / 6.;
  return r + r * (z * p);
}

WEIR_HD inline double cos_near(double r) {
  const double z = r * r;
  double p = 1. / 20922789888000.;
  p = p * z - 1. / 87178291200.;
  p = p * z + 1. / 479001600.;
  p = p * z - 1. / 3628800.;
  p = p * z + 1. / 40320.;
  p = p * z - 1. / 720.;
  p = p * z + 1. / 24.;
  return 1. - z * (0.5 - z * p);
}

}  // namespace sin_cos_detail

// sine and cosine of an FP32 angle, |angle| up to 2^24, rounded to FP32 (error below 0.51 ULP of the result). A larger
// angle, an infinity or NaN gives NaN.
struct SinCos {
  float sin, cos;
};
WEIR_HD inline SinCos sin_cos(float angle) {
  using namespace sin_cos_detail;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  if (!(math::abs(angle) <= 0x1p24f)) return {kNan, kNan};
  const double x = angle;
  const double magic = 0x1.8p52;  // adding it rounds to the nearest integer, which then lies in the low mantissa bits
  const double shifted = x * kTwoOverPi + magic;
  const double quotient = shifted - magic;
  // Of the three steps only the last two round, and not when the result is small: the error is relative to r.
  const double r = ((x - quotient * kHalfPi1) - quotient * kHalfPi2) - quotient * kHalfPi3;
  const float s = static_cast<float>(sin_near(r));
  const float c = static_cast<float>(cos_near(r));
  switch (std::bit_cast<uint64_t>(shifted) & 3) {
    case 0:
      return {s, c};
    case 1:
      return {c, -s};
    case 2:
      return {-s, -c};
    default:
      return {-c, s};
  }
}

}  // namespace weir
