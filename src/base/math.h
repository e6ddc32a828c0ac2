// Elementwise functions with bits that do not depend on the instruction set: each is written once, as a template over a
// "lane vector" V, and runs the same IEEE operations in the same order whether V is a float or sixteen of them.
// No libm: its results vary by version.
//
// V needs, found by overload: fma(a, b, c), operators + - * /, unary -, min, max, sqrt, and the few bit operations used
// below. For min and max: the second operand when either is NaN, as in SSE.
//
// Error bounds against the exact value, results in the normal range (base/math_test.cpp measures them against double):
//   exp 1 ULP, log 1, log1p_unit 1.5, tanh 1.5, softplus 2.5, sigmoid 2.5,
//   silu 3 (for x > -87, where the sigmoid is normal)
// Special values: NaN in, NaN out. exp: overflow gives +inf, underflow denormals (to 1 unit of 2^-149), then 0.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/host_device.h"

namespace weir::math {

// --- the scalar lane: float -----------------------------------------------------------------------------------------
WEIR_HD inline float fma(float a, float b, float c) { return std::fmaf(a, b, c); }
WEIR_HD inline float min(float a, float b) { return a < b ? a : b; }
WEIR_HD inline float max(float a, float b) { return a > b ? a : b; }
WEIR_HD inline float sqrt(float a) { return std::sqrt(a); }
WEIR_HD inline float abs(float a) { return std::bit_cast<float>(std::bit_cast<uint32_t>(a) & 0x7fffffffu); }
WEIR_HD inline float copysign(float magnitude, float sign) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(magnitude) & 0x7fffffffu) |
                              (std::bit_cast<uint32_t>(sign) & 0x80000000u));
}
// a < b ? x : y, lane by lane; false for NaN.
WEIR_HD inline float select_less(float a, float b, float x, float y) { return a < b ? x : y; }
// x where a is NaN, else y.
WEIR_HD inline float select_nan(float a, float x, float y) { return a != a ? x : y; }
// 2^n for integral n in [-126, 127].
WEIR_HD inline float exp2_int(float n) { return std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23); }
// For positive, normal a: exponent e (as float) and mantissa m in [1, 2) with a = m * 2^e.
WEIR_HD inline float exponent(float a) {
  return static_cast<float>(static_cast<int32_t>(std::bit_cast<uint32_t>(a) >> 23) - 127);
}
WEIR_HD inline float mantissa(float a) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(a) & 0x007fffffu) | 0x3f800000u);
}
template <class V>
WEIR_HD V broadcast(float a);
template <>
WEIR_HD inline float broadcast<float>(float a) {
  return a;
}

// --- the functions --------------------------------------------------------------------------------------------------

// Nearest integer, ties to even, for |a| < 2^22.
template <class V>
WEIR_HD inline V round_int(V a) {
  const V magic = broadcast<V>(12582912.f);  // 1.5 * 2^23
  return (a + magic) - magic;
}

// e^x = 2^n e^r, |r| <= ln2 / 2; e^r = 1 + r + r^2 P(r), P fitted at Chebyshev nodes (relative error 1e-8); the scale
// in two halves, so that denormals are right.
template <class V>
WEIR_HD inline V exp(V x) {
  const V one = broadcast<V>(1.f);
  const V clamped = max(min(x, broadcast<V>(90.f)), broadcast<V>(-105.f));
  const V n = round_int(clamped * broadcast<V>(1.44269504088896341f));
  V r = fma(n, broadcast<V>(-0.693145751953125f), clamped);
  r = fma(n, broadcast<V>(-1.42860682030941723e-6f), r);
  V p = broadcast<V>(1.392625039e-3f);
  p = fma(p, r, broadcast<V>(8.363232948e-3f));
  p = fma(p, r, broadcast<V>(4.166655242e-2f));
  p = fma(p, r, broadcast<V>(1.666657627e-1f));
  p = fma(p, r, broadcast<V>(0.5f));
  p = fma(p, r, one);
  p = fma(p, r, one);
  const V half = round_int(n * broadcast<V>(0.5f));
  const V scaled = (p * exp2_int(half)) * exp2_int(n - half);
  return select_nan(x, x, scaled);
}

// Natural logarithm. Argument: non-negative; 0 gives -inf, +inf gives +inf, negative gives NaN. Denormals are scaled.
template <class V>
WEIR_HD inline V log(V x) {
  const V tiny = broadcast<V>(std::numeric_limits<float>::min());
  const V scaled = select_less(x, tiny, x * broadcast<V>(0x1p24f), x);
  V e = exponent(scaled) + select_less(x, tiny, broadcast<V>(-24.f), broadcast<V>(0.f));
  V m = mantissa(scaled);
  // m in [sqrt(1/2), sqrt(2)): e + log2(m) without cancellation near 1.
  const V root2 = broadcast<V>(1.41421356f);
  e = select_less(m, root2, e, e + broadcast<V>(1.f));
  m = select_less(m, root2, m, m * broadcast<V>(0.5f));
  const V f = m - broadcast<V>(1.f);
  // log(1 + f) = f - f^2/2 + f^3 P(f) (Cephes logf).
  V p = broadcast<V>(7.0376836292e-2f);
  p = fma(p, f, broadcast<V>(-1.1514610310e-1f));
  p = fma(p, f, broadcast<V>(1.1676998740e-1f));
  p = fma(p, f, broadcast<V>(-1.2420140846e-1f));
  p = fma(p, f, broadcast<V>(1.4249322787e-1f));
  p = fma(p, f, broadcast<V>(-1.6668057665e-1f));
  p = fma(p, f, broadcast<V>(2.0000714765e-1f));
  p = fma(p, f, broadcast<V>(-2.4999993993e-1f));
  p = fma(p, f, broadcast<V>(3.3333331174e-1f));
  const V f2 = f * f;
  V y = (p * f) * f2;
  y = fma(e, broadcast<V>(-2.12194440e-4f), y);
  y = fma(f2, broadcast<V>(-0.5f), y);
  y = f + y;
  y = fma(e, broadcast<V>(0.693359375f), y);
  const V infinity = broadcast<V>(std::numeric_limits<float>::infinity());
  const V zero = broadcast<V>(0.f);
  y = select_less(x, infinity, y, x);      // +inf and NaN
  y = select_less(zero, x, y, -infinity);  // 0 (and below, and NaN)
  y = select_less(x, zero, broadcast<V>(std::numeric_limits<float>::quiet_NaN()), y);
  return select_nan(x, x, y);
}

// log(1 + x) for x in [0, 1].
template <class V>
WEIR_HD inline V log1p_unit(V x) {
  const V one = broadcast<V>(1.f);
  const V u = one + x;
  return log(u) + (x - (u - one)) / u;  // the rounding error of u, to first order
}

template <class V>
WEIR_HD inline V sigmoid(V x) {
  const V one = broadcast<V>(1.f);
  // e^-|x| never overflows; for x < 0, e^x / (1 + e^x).
  const V e = exp(-abs(x));
  const V zero = broadcast<V>(0.f);
  return select_nan(x, x, select_less(x, zero, e, one) / (one + e));
}

// log(1 + e^x)
template <class V>
WEIR_HD inline V softplus(V x) {
  return select_nan(x, x, max(x, broadcast<V>(0.f)) + log1p_unit(exp(-abs(x))));
}

template <class V>
WEIR_HD inline V silu(V x) {
  return x * sigmoid(x);
}

// |x| < 0.625: odd polynomial (Cephes tanhf); else 1 - 2 / (e^{2|x|} + 1). Odd, the sign of zero included.
template <class V>
WEIR_HD inline V tanh(V x) {
  const V one = broadcast<V>(1.f);
  const V two = broadcast<V>(2.f);
  const V a = abs(x);
  const V z = a * a;
  V p = broadcast<V>(-5.70498872745e-3f);
  p = fma(p, z, broadcast<V>(2.06390887954e-2f));
  p = fma(p, z, broadcast<V>(-5.37397155531e-2f));
  p = fma(p, z, broadcast<V>(1.33314422036e-1f));
  p = fma(p, z, broadcast<V>(-3.33332819422e-1f));
  const V small = fma(p * z, a, a);
  const V large = one - two / (exp(two * a) + one);
  return select_nan(x, x, copysign(select_less(a, broadcast<V>(0.625f), small, large), x));
}

}  // namespace weir::math
