// Sixteen lanes do what one lane does, bit for bit.
#include "ops/simd/lanes_probe.h"

#include <cstring>

#include "base/math.h"
#include "base/number.h"
#include "ops/simd/kernel_test.h"
#include "ops/simd/lanes_ref.h"

namespace weir {
namespace {

// The member of avx2:: or avx512:: that the parameter names.
#define PROBE(name) (GetParam() == KernelSet::kAvx2 ? avx2::name : avx512::name)

class Lanes16 : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(, Lanes16, kVectorSets, kernel_set_test_name);

float scalar(LaneFunction function, float x) {
  switch (function) {
    case LaneFunction::kExp:
      return math::exp(x);
    case LaneFunction::kLog:
      return math::log(x);
    case LaneFunction::kLog1pUnit:
      return math::log1p_unit(x);
    case LaneFunction::kSigmoid:
      return math::sigmoid(x);
    case LaneFunction::kSoftplus:
      return math::softplus(x);
    case LaneFunction::kSilu:
      return math::silu(x);
    case LaneFunction::kTanh:
      return math::tanh(x);
  }
  return 0;
}

TEST_P(Lanes16, ElementwiseFunctionsHaveTheBitsOfTheScalarOnes) {
  std::vector<float> x;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 15013) {
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  for (float v = -110.f; v < 110.f; v += 0.0037f) x.push_back(v);
  for (const float v : {0.f, -0.f, 0.625f, -0.625f, 1.f, 88.72283f, 88.72284f, -87.33655f, -103.97f, 1.41421356f}) {
    for (int step = -2; step <= 2; ++step) {
      x.push_back(std::bit_cast<float>(std::bit_cast<uint32_t>(v) + static_cast<uint32_t>(step)));
    }
  }
  x.resize(x.size() / 16 * 16 + 5);  // and a part of a vector
  std::vector<float> expected(x.size()), found(x.size());
  for (int f = 0; f <= static_cast<int>(LaneFunction::kTanh); ++f) {
    const LaneFunction function = static_cast<LaneFunction>(f);
    for (size_t i = 0; i < x.size(); ++i) expected[i] = scalar(function, x[i]);
    PROBE(probe_function)(function, x.data(), found.data(), static_cast<int64_t>(x.size()));
    EXPECT_TRUE(same_floats(expected, found)) << "function " << f;
  }
}

float scalar(LaneBinary operation, float a, float b) {
  switch (operation) {
    case LaneBinary::kMin:
      return math::min(a, b);
    case LaneBinary::kMax:
      return math::max(a, b);
    case LaneBinary::kCopysign:
      return math::copysign(a, b);
    case LaneBinary::kSelectLess:
      return math::select_less(a, b, a, -b);
    case LaneBinary::kSelectNan:
      return math::select_nan(a, b, math::abs(a));
    case LaneBinary::kFma:
      return math::fma(a, b, a);
    case LaneBinary::kQuotient:
      return a / b;
    case LaneBinary::kRoot:
      return math::sqrt(a) - b;
  }
  return 0;
}

TEST_P(Lanes16, OperationsHaveTheBitsOfTheScalarOnesIncludingNanAndZeros) {
  RandomFloats random(1);
  std::vector<float> expected(16), found(16);
  for (int round = 0; round < 300; ++round) {
    const std::vector<float> a = random.take(16, Values::kSpecial);
    std::vector<float> b = random.take(16, Values::kSpecial);
    for (size_t i = 0; i < 4; ++i) b[i] = round % 2 == 0 ? a[i] : -a[i];
    for (int o = 0; o <= static_cast<int>(LaneBinary::kRoot); ++o) {
      const LaneBinary operation = static_cast<LaneBinary>(o);
      for (size_t i = 0; i < 16; ++i) expected[i] = scalar(operation, a[i], b[i]);
      PROBE(probe_binary)(operation, a.data(), b.data(), found.data());
      EXPECT_TRUE(same_floats(expected, found)) << "operation " << o;
    }
  }
}

TEST_P(Lanes16, FoldInTheOrderOfTheReference) {
  RandomFloats random(2);
  for (int round = 0; round < 200; ++round) {
    const std::vector<float> x = random.take(16, round % 2 == 0 ? Values::kPlain : Values::kWide);
    Lanes lanes;
    for (int64_t i = 0; i < 16; ++i) lanes.add(i, x[static_cast<size_t>(i)]);
    EXPECT_TRUE(same_bits(lanes.fold(), PROBE(probe_fold)(x.data())));
  }
}

TEST_P(Lanes16, LoadTheFirstLanesAndZeroTheOthers) {
  RandomFloats random(3);
  std::vector<float> y(16);
  for (int64_t n = 0; n <= 16; ++n) {
    // Exactly as long as what may be read, so that an address sanitizer sees a read beyond it.
    std::vector<uint16_t> half(static_cast<size_t>(n));
    half.reserve(1);  // a null pointer may not be copied from, not even nothing
    for (uint16_t& h : half) h = static_cast<uint16_t>(random.bits());
    const std::vector<float> full = random.take(n, Values::kSpecial);
    for (const LaneFormat format : {LaneFormat::kF32, LaneFormat::kBf16, LaneFormat::kF16}) {
      std::vector<float> expected(16, 0.f);
      for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
        expected[i] = format == LaneFormat::kF32    ? full[i]
                      : format == LaneFormat::kBf16 ? bf16_to_f32(half[i])
                                                    : f16_to_f32(half[i]);
      }
      const void* source = format == LaneFormat::kF32 ? static_cast<const void*>(full.data()) : half.data();
      PROBE(probe_load_first)(format, source, n, y.data());
      EXPECT_TRUE(same_floats(expected, y)) << n << " lanes of format " << static_cast<int>(format);
    }
  }
}

TEST_P(Lanes16, StoreTheFirstLanesAndLeaveTheOthers) {
  RandomFloats random(4);
  for (int64_t n = 0; n <= 16; ++n) {
    const std::vector<float> x = random.take(16, Values::kWide);
    std::vector<float> y(16, -7.f);
    std::vector<uint16_t> half(16, 0xabcd);
    PROBE(probe_store_first)(x.data(), n, y.data());
    PROBE(probe_store_f16_first)(x.data(), n, half.data());
    for (size_t i = 0; i < 16; ++i) {
      const bool stored = static_cast<int64_t>(i) < n;
      EXPECT_TRUE(same_bits(stored ? x[i] : -7.f, y[i]));
      EXPECT_EQ(half[i], stored ? f32_to_f16(x[i]) : 0xabcd);
    }
  }
}

TEST_P(Lanes16, NarrowToF16LikeTheScalarConversion) {
  std::vector<float> x(16);
  std::vector<uint16_t> half(16);
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 16 * 4099) {
    for (uint64_t i = 0; i < 16; ++i) x[i] = std::bit_cast<float>(static_cast<uint32_t>(bits + i * 4099));
    PROBE(probe_store_f16_first)(x.data(), 16, half.data());
    for (size_t i = 0; i < 16; ++i) ASSERT_EQ(half[i], f32_to_f16(x[i])) << x[i];
  }
}

}  // namespace
}  // namespace weir
