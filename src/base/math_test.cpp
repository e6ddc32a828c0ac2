// The error bounds and special values that base/math.h states, measured against libm in double (below 1e-8 float ULP).
#include "base/math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace weir {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kSmallestNormal = std::numeric_limits<float>::min();

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }
uint32_t to_bits(float value) { return std::bit_cast<uint32_t>(value); }

// The distance of neighbouring floats at `exact`.
double unit(double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::ldexp(1.0, std::max(exponent - 24, -149));
}

struct Worst {
  double ulp = 0;
  float at = 0;
};

// Every `stride`-th float from `from` up to `to`, both of one sign; results that are normal floats count.
template <class Function, class Exact>
void sweep(Worst& worst, Function function, Exact exact, float from, float to, uint32_t stride) {
  for (uint32_t bits = to_bits(from); bits <= to_bits(to); bits += stride) {
    const float x = from_bits(bits);
    const double expected = exact(static_cast<double>(x));
    if (std::fabs(expected) < static_cast<double>(kSmallestNormal) ||
        std::fabs(expected) > static_cast<double>(kLargest)) {
      continue;
    }
    const double ulp = std::fabs(static_cast<double>(function(x)) - expected) / unit(expected);
    if (!(ulp <= worst.ulp)) worst = {ulp, x};
  }
}

void expect_within(const char* name, const Worst& worst, double bound) {
  testing::Test::RecordProperty(name, std::to_string(worst.ulp));
  EXPECT_LE(worst.ulp, bound) << name << " at " << worst.at;
  EXPECT_GT(worst.ulp, 0.5) << name << " is better than any rounding: the sweep measures nothing";
}

double exact_sigmoid(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }
double exact_softplus(double x) { return std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

// Dense where the functions bend, sparse over all other magnitudes.
template <class Function, class Exact>
Worst sweep_both_signs(Function function, Exact exact, float most_negative = -kLargest) {
  Worst worst;
  for (const float sign : {1.f, -1.f}) {
    const float limit = sign < 0 ? -most_negative : kLargest;
    sweep(worst, function, exact, sign * 0.f, sign * limit, 30011);
    sweep(worst, function, exact, sign * 0x1p-6f, sign * std::fmin(128.f, limit), 373);
  }
  return worst;
}

TEST(Math, ExpIsWithin1Ulp) {
  expect_within("exp", sweep_both_signs([](float x) { return math::exp(x); }, [](double x) { return std::exp(x); }), 1);
}
TEST(Math, SigmoidIsWithin2AndAHalfUlp) {
  expect_within("sigmoid", sweep_both_signs([](float x) { return math::sigmoid(x); }, exact_sigmoid), 2.5);
}
TEST(Math, SiluIsWithin3UlpWhereTheSigmoidIsNormal) {
  const auto exact = [](double x) { return x * exact_sigmoid(x); };
  expect_within("silu", sweep_both_signs([](float x) { return math::silu(x); }, exact, -87.f), 3);
}
TEST(Math, SoftplusIsWithin2AndAHalfUlp) {
  expect_within("softplus", sweep_both_signs([](float x) { return math::softplus(x); }, exact_softplus), 2.5);
}
TEST(Math, TanhIsWithin1AndAHalfUlp) {
  expect_within("tanh", sweep_both_signs([](float x) { return math::tanh(x); }, [](double x) { return std::tanh(x); }),
                1.5);
}
TEST(Math, LogIsWithin1Ulp) {
  Worst worst;
  const auto log = [](float x) { return math::log(x); };
  const auto exact = [](double x) { return std::log(x); };
  sweep(worst, log, exact, from_bits(1), kLargest, 2003);  // denormals too
  sweep(worst, log, exact, 0.4f, 2.5f, 37);
  expect_within("log", worst, 1);
}
TEST(Math, Log1pIsWithin1AndAHalfUlpOnTheUnitInterval) {
  Worst worst;
  const auto log1p = [](float x) { return math::log1p_unit(x); };
  const auto exact = [](double x) { return std::log1p(x); };
  sweep(worst, log1p, exact, 0.f, 1.f, 2003);
  sweep(worst, log1p, exact, 0x1p-8f, 1.f, 73);
  expect_within("log1p_unit", worst, 1.5);
}

TEST(Math, ExpUnderflowsGraduallyAndOverflowsToInfinity) {
  EXPECT_EQ(math::exp(88.72283f), std::exp(88.72283f));  // the last finite result
  EXPECT_TRUE(std::isfinite(math::exp(88.72283f)));
  EXPECT_EQ(math::exp(88.72284f), kInfinity);
  EXPECT_EQ(math::exp(kLargest), kInfinity);
  EXPECT_EQ(math::exp(kInfinity), kInfinity);
  EXPECT_EQ(math::exp(-kInfinity), 0.f);
  EXPECT_EQ(math::exp(-kLargest), 0.f);
  EXPECT_EQ(math::exp(-104.f), 0.f);
  for (float x = -87.f; x > -104.f; x -= 0.013f) {
    EXPECT_NEAR(math::exp(x), std::exp(static_cast<double>(x)), std::exp(static_cast<double>(x)) * 0x1p-23 + 0x1p-149);
  }
  EXPECT_GT(math::exp(-103.f), 0.f);
}

TEST(Math, ZerosAndOnesAreExact) {
  for (const float zero : {0.f, -0.f, from_bits(1), -from_bits(1)}) {
    EXPECT_EQ(math::exp(zero), 1.f);
    EXPECT_EQ(math::sigmoid(zero), 0.5f);
  }
  EXPECT_EQ(to_bits(math::log(1.f)), to_bits(0.f));
  EXPECT_EQ(math::log1p_unit(0.f), 0.f);
  EXPECT_EQ(math::log1p_unit(from_bits(1)), from_bits(1));
  EXPECT_EQ(math::log1p_unit(0x1p-30f), 0x1p-30f);
}

TEST(Math, TanhIsOddToTheSignOfZero) {
  EXPECT_EQ(to_bits(math::tanh(0.f)), to_bits(0.f));
  EXPECT_EQ(to_bits(math::tanh(-0.f)), to_bits(-0.f));
  for (uint32_t bits = 1; bits < to_bits(kInfinity); bits += 1000003) {
    EXPECT_EQ(to_bits(math::tanh(-from_bits(bits))), to_bits(-math::tanh(from_bits(bits))));
    EXPECT_LE(math::tanh(from_bits(bits)), 1.f);
  }
}

TEST(Math, SaturatesAtTheEnds) {
  for (const float big : {kLargest, kInfinity, 1e4f}) {
    EXPECT_EQ(math::tanh(big), 1.f);
    EXPECT_EQ(math::tanh(-big), -1.f);
    EXPECT_EQ(math::sigmoid(big), 1.f);
    EXPECT_EQ(math::sigmoid(-big), 0.f);
    EXPECT_EQ(math::softplus(big), big);
    EXPECT_EQ(math::softplus(-big), 0.f);
  }
}

TEST(Math, LogOfZeroNegativeAndInfinity) {
  EXPECT_EQ(math::log(0.f), -kInfinity);
  EXPECT_EQ(math::log(-0.f), -kInfinity);
  EXPECT_EQ(math::log(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(math::log(-1.f)));
  EXPECT_TRUE(std::isnan(math::log(-kInfinity)));
  EXPECT_TRUE(std::isnan(math::log(-from_bits(1))));
}

TEST(Math, NanComesBack) {
  for (const float nan : {kNan, -kNan}) {
    for (const float y : {math::exp(nan), math::log(nan), math::log1p_unit(nan), math::sigmoid(nan),
                          math::softplus(nan), math::silu(nan), math::tanh(nan)}) {
      EXPECT_TRUE(std::isnan(y));
    }
  }
}

TEST(Math, RoundIntTiesToEven) {
  for (const float x : {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 2.4999f, -7.51f, 1234567.5f}) {
    EXPECT_EQ(math::round_int(x), std::nearbyint(x));
  }
}

TEST(Math, MinAndMaxReturnTheSecondOperandForNan) {
  EXPECT_EQ(math::min(kNan, 2.f), 2.f);
  EXPECT_TRUE(std::isnan(math::min(2.f, kNan)));
  EXPECT_EQ(math::max(kNan, 2.f), 2.f);
  EXPECT_TRUE(std::isnan(math::max(2.f, kNan)));
}

}  // namespace
}  // namespace weir
