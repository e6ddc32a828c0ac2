// What tests of kernels share: a suite per vector kernel set, random values of every magnitude, equality of bits.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/cpu.h"

namespace weir {

// Parameterise with kVectorSets; sets that this processor lacks are reported as skipped, by name.
class KernelTest : public ::testing::TestWithParam<KernelSet> {
 protected:
  void SetUp() override {
    if (!kernel_set_supported(GetParam())) GTEST_SKIP() << "this processor lacks " << kernel_set_name(GetParam());
  }
};

inline const auto kVectorSets = ::testing::Values(KernelSet::kAvx2, KernelSet::kAvx512);

inline std::string kernel_set_test_name(const ::testing::TestParamInfo<KernelSet>& info) {
  return std::string(kernel_set_name(info.param));
}

enum class Values {
  kPlain,    // uniform in [-2, 2)
  kWide,     // every magnitude from denormals to 2^126, and both zeros
  kSpecial,  // kWide with infinities and NaN
};

class RandomFloats {
 public:
  explicit RandomFloats(uint64_t seed) : state_(seed) {}

  uint64_t bits() {  // splitmix64
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
  float next(Values values = Values::kPlain) {
    const uint64_t b = bits();
    if (values == Values::kPlain) return static_cast<float>(b >> 40) * 0x1p-22f - 2.f;
    const uint32_t sign = static_cast<uint32_t>(b) & 0x80000000u;
    const int64_t dice = below(64);
    if (dice < 3) return std::bit_cast<float>(sign);
    if (dice < 6) return std::bit_cast<float>(sign | (static_cast<uint32_t>(b) & 0x007fffffu));
    if (dice == 6 && values == Values::kSpecial) return std::bit_cast<float>(sign | 0x7f800000u);
    if (dice == 7 && values == Values::kSpecial) return std::bit_cast<float>(sign | 0x7fc00000u);
    if (dice < 40) return static_cast<float>(b >> 40) * 0x1p-22f - 2.f;
    const uint32_t exponent = 1 + static_cast<uint32_t>((b >> 32) % 252);
    return std::bit_cast<float>(sign | (exponent << 23) | (static_cast<uint32_t>(b) & 0x007fffffu));
  }
  std::vector<float> take(int64_t n, Values values = Values::kPlain) {
    std::vector<float> out(static_cast<size_t>(n));
    for (float& v : out) v = next(values);
    return out;
  }

 private:
  uint64_t state_;
};

inline bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (a != a && b != b);
}

// Equal bits, or both NaN. Reports the first difference.
inline ::testing::AssertionResult same_floats(std::span<const float> expected, std::span<const float> found) {
  if (expected.size() != found.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!same_bits(expected[i], found[i])) {
      return ::testing::AssertionFailure() << "element " << i << " of " << expected.size() << ": expected "
                                         << ::testing::PrintToString(expected[i]) << ", found "
                                         << ::testing::PrintToString(found[i]);
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace weir
