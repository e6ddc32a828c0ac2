// Every conversion of base/number.h, against arithmetic in double.
#include "base/number.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace weir {
namespace {

uint32_t to_bits(float value) { return std::bit_cast<uint32_t>(value); }
float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

// A format with `fraction` stored bits and the given exponent range, sign and infinity in the IEEE places.
struct Format {
  int fraction;
  int least;  // exponent of the smallest normal
  int most;   // exponent of the largest
  int bits;   // exponent bits
};
constexpr Format kHalf{10, -14, 15, 5};
constexpr Format kBrain{7, -126, 127, 8};

double value_of(const Format& f, uint16_t code) {
  const int exponent = (code >> f.fraction) & ((1 << f.bits) - 1);
  const int fraction = code & ((1 << f.fraction) - 1);
  const double sign = (code & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << f.bits) - 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, f.least - f.fraction);
  return sign * std::ldexp((1 << f.fraction) + fraction, f.least + exponent - 1 - f.fraction);
}

// Round to nearest, ties to even, in double: scale so that the last kept bit is 1, round, scale back.
double rounded(const Format& f, double x) {
  if (x == 0 || std::isinf(x)) return x;
  const int exponent = std::max(std::ilogb(x), f.least) - f.fraction;
  const double y = std::ldexp(std::nearbyint(std::ldexp(x, -exponent)), exponent);
  const double largest = std::ldexp(2.0 - std::ldexp(1.0, -f.fraction), f.most);
  return std::fabs(y) > largest ? std::copysign(std::numeric_limits<double>::infinity(), x) : y;
}

template <class Widen, class Narrow>
void check_all_codes(const Format& format, Widen widen, Narrow narrow) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const uint16_t c = static_cast<uint16_t>(code);
    const float wide = widen(c);
    const double expected = value_of(format, c);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(wide)) << code;
      const uint16_t quiet = static_cast<uint16_t>(1u << (format.fraction - 1));
      ASSERT_EQ(narrow(wide), c | quiet) << "payload and sign of NaN " << code;
    } else {
      ASSERT_EQ(static_cast<double>(wide), expected) << code;
      ASSERT_EQ(std::signbit(wide), (code & 0x8000) != 0) << code;
      ASSERT_EQ(narrow(wide), c) << code;
    }
  }
}

template <class Widen, class Narrow>
void check_rounding(const Format& format, Widen widen, Narrow narrow) {
  const auto check = [&](uint32_t bits) {
    const float x = from_bits(bits);
    const float found = widen(narrow(x));
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(found)) << bits;
      ASSERT_EQ(std::signbit(x), std::signbit(found)) << bits;
      return;
    }
    ASSERT_EQ(static_cast<double>(found), rounded(format, static_cast<double>(x))) << "bits " << bits << " value " << x;
    ASSERT_EQ(std::signbit(x), std::signbit(found)) << bits;
  };
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4093) check(static_cast<uint32_t>(bits));
  // Every boundary: the codes, half way to the next, and one float to each side of both.
  for (uint32_t code = 0; code < 65536; ++code) {
    const uint32_t at = to_bits(widen(static_cast<uint16_t>(code)));
    const uint32_t next = to_bits(widen(static_cast<uint16_t>(code + 1)));
    if (std::isnan(from_bits(at)) || std::isnan(from_bits(next)) || (code & 0x7fff) == 0x7fff) continue;
    const double middle = (static_cast<double>(from_bits(at)) + static_cast<double>(from_bits(next))) / 2;
    const uint32_t half = to_bits(static_cast<float>(middle));
    for (const uint32_t center : {at, half}) {
      for (const int step : {-1, 0, 1}) check(center + static_cast<uint32_t>(step));
    }
  }
}

TEST(Number, EveryBf16CodeWidensExactlyAndComesBack) { check_all_codes(kBrain, bf16_to_f32, f32_to_bf16); }
TEST(Number, EveryF16CodeWidensExactlyAndComesBack) { check_all_codes(kHalf, f16_to_f32, f32_to_f16); }
TEST(Number, F32RoundsToTheNearestBf16TiesToEven) { check_rounding(kBrain, bf16_to_f32, f32_to_bf16); }
TEST(Number, F32RoundsToTheNearestF16TiesToEven) { check_rounding(kHalf, f16_to_f32, f32_to_f16); }

TEST(Number, OverflowGivesInfinityOnlyFromHalfWayOn) {
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-1e30f), 0xfc00);
  EXPECT_EQ(f32_to_bf16(from_bits(0x7f7f7fff)), 0x7f7f);
  EXPECT_EQ(f32_to_bf16(from_bits(0x7f7f8000)), 0x7f80);
}

TEST(Number, SmallF16ValuesUnderflowGradually) {
  EXPECT_EQ(f32_to_f16(0x1p-24f), 1);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0);  // a tie, to even
  EXPECT_EQ(f32_to_f16(0x1.000002p-25f), 1);
  EXPECT_EQ(f32_to_f16(0x1.8p-24f), 2);  // a tie, to even
  EXPECT_EQ(f32_to_f16(-0x1p-149f), 0x8000);
}

TEST(Number, E8m0IsAPowerOfTwoDownToTheSubnormal) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(static_cast<double>(e8m0_to_f32(static_cast<uint8_t>(code))), std::ldexp(1.0, code - 127));
  }
}

TEST(Number, E2m1HasOneFractionBitAndASubnormal) {
  for (int code = 0; code < 16; ++code) {
    const int exponent = (code >> 1) & 3;
    const int fraction = code & 1;
    const double magnitude = exponent == 0 ? 0.5 * fraction : std::ldexp(1 + 0.5 * fraction, exponent - 1);
    EXPECT_EQ(static_cast<double>(kE2m1[code]), (code & 8) != 0 ? -magnitude : magnitude);
    EXPECT_EQ(std::signbit(kE2m1[code]), (code & 8) != 0);
  }
}

}  // namespace
}  // namespace weir
