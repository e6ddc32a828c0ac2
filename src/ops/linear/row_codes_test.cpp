#include "ops/linear/row_codes.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/simd/kernel_test.h"

namespace weir {
namespace {

constexpr RowCoding kCodings[] = {RowCoding::kBlocks32, RowCoding::kBlocks256};

struct Coded {
  CodedRowLayout layout;
  Mapping memory;
  Coded(KernelSet set, RowCoding coding, const std::vector<float>& x)
      : layout(coded_row_layout(coding, static_cast<int64_t>(x.size()))), memory(layout.bytes) {
    encode_row_kernel(set)(coding, x.data(), static_cast<int64_t>(x.size()), memory.data());
  }
  int q(int64_t i) const { return static_cast<int8_t>(memory.data()[i]); }
  float scale(int64_t b) const { return reinterpret_cast<const float*>(memory.data() + layout.scales)[b]; }
};

TEST(RowCodes, RoundsToTheNearestOf255LevelsTiesToEven) {
  std::vector<float> x(32, 0.f);
  x[0] = 254;  // d = 2
  x[1] = 3;    // 1.5 -> 2
  x[2] = 5;    // 2.5 -> 2
  x[3] = -3;
  x[4] = -254;
  x[5] = 0.9f;
  const Coded coded(KernelSet::kReference, RowCoding::kBlocks32, x);
  EXPECT_EQ(coded.scale(0), 2.f);
  const int expected[] = {127, 2, 2, -2, -127, 0};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(coded.q(i), expected[i]) << i;
  EXPECT_EQ(reinterpret_cast<const int32_t*>(coded.memory.data() + coded.layout.sums)[0], 2);
  EXPECT_EQ(reinterpret_cast<const float*>(coded.memory.data() + coded.layout.other_sums)[0], 2.f);
}

TEST(RowCodes, ErrsByAtMostHalfALevel) {
  RandomFloats random(1);
  for (const RowCoding coding : kCodings) {
    const std::vector<float> x = random.take(1024);
    const Coded coded(KernelSet::kReference, coding, x);
    const int64_t size = coding == RowCoding::kBlocks32 ? 32 : 256;
    for (int64_t i = 0; i < 1024; ++i) {
      const double d = coded.scale(i / size);
      EXPECT_LE(std::abs(d * coded.q(i) - static_cast<double>(x[static_cast<size_t>(i)])), d * 0.5001);
    }
  }
}

TEST(RowCodes, CountsTinyBlocksAsZerosAndMarksBlocksThatAreNotFinite) {
  for (const float value : {0.f, -0.f, 1e-31f, 1e-44f}) {
    const Coded coded(KernelSet::kReference, RowCoding::kBlocks32, std::vector<float>(32, value));
    EXPECT_EQ(coded.scale(0), 0.f);
    EXPECT_EQ(coded.q(5), 0);
  }
  for (const float value : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    std::vector<float> x(64, 1.f);
    x[40] = value;
    const Coded coded(KernelSet::kReference, RowCoding::kBlocks32, x);
    EXPECT_FALSE(std::isnan(coded.scale(0)));
    EXPECT_TRUE(std::isnan(coded.scale(1)));
    EXPECT_EQ(coded.q(32), 0);
  }
}

TEST(RowCodes, RoundsRowsOfAnyLengthToTheValuesOfTheirCodes) {
  RandomFloats random(3);
  const std::vector<float> x = random.take(64);
  const Coded codes(KernelSet::kReference, RowCoding::kBlocks32, x);
  for (const int64_t size : {64, 50, 7}) {
    std::vector<float> part(x.begin(), x.begin() + size);
    part[0] = 2;  // the largest, also of what remains
    std::vector<float> rounded(static_cast<size_t>(coded_row_layout(RowCoding::kRounded, size).bytes / 4));
    encode_row_kernel(KernelSet::kReference)(RowCoding::kRounded, part.data(), size,
                                             reinterpret_cast<std::byte*>(rounded.data()));
    EXPECT_EQ(rounded[0], 2.f / 127.f * 127.f);
    for (int64_t i = 1; i < size; ++i)
      EXPECT_NEAR(rounded[static_cast<size_t>(i)], part[static_cast<size_t>(i)], 0.0079f);
    if (size == 64) {
      for (int64_t i = 32; i < 64; ++i) {
        EXPECT_EQ(rounded[static_cast<size_t>(i)], codes.scale(1) * static_cast<float>(codes.q(i)));
      }
    }
  }
}

class RowCodesKernels : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(, RowCodesKernels, kVectorSets, kernel_set_test_name);

TEST_P(RowCodesKernels, WriteTheBytesOfTheReference) {
  RandomFloats random(2);
  for (const RowCoding coding : kCodings) {
    for (const int64_t elements : {256, 512, 1280}) {
      for (const Values values : {Values::kPlain, Values::kWide, Values::kSpecial}) {
        for (int repeat = 0; repeat < 20; ++repeat) {
          std::vector<float> x = random.take(elements, values);
          for (int64_t i = 0; i < elements; i += 96) {  // blocks of one small magnitude, and ties
            for (int64_t j = i; j < std::min(i + 32, elements); ++j) {
              x[static_cast<size_t>(j)] = std::ldexp(std::round(x[static_cast<size_t>(j)] * 64) / 2, -20 - repeat * 5);
            }
          }
          const Coded expected(KernelSet::kReference, coding, x), found(GetParam(), coding, x);
          const size_t bytes = static_cast<size_t>(expected.layout.bytes);
          for (int64_t b = 0; b < expected.layout.blocks; ++b) {
            if (!std::isnan(expected.scale(b))) continue;
            EXPECT_TRUE(std::isnan(found.scale(b)));
            const float nan = expected.scale(b);
            std::memcpy(found.memory.data() + expected.layout.scales + b * 4, &nan, 4);
          }
          EXPECT_EQ(std::memcmp(expected.memory.data(), found.memory.data(), bytes), 0);
        }
      }
    }
  }
}

TEST_P(RowCodesKernels, RoundLikeTheReference) {
  RandomFloats random(4);
  for (const int64_t size : {1, 31, 32, 33, 300}) {
    for (const Values values : {Values::kPlain, Values::kWide, Values::kSpecial}) {
      const std::vector<float> x = random.take(size, values);
      std::vector<float> expected(static_cast<size_t>(size + 64), -7.f), found = expected;
      encode_row_kernel(KernelSet::kReference)(RowCoding::kRounded, x.data(), size,
                                               reinterpret_cast<std::byte*>(expected.data()));
      encode_row_kernel(GetParam())(RowCoding::kRounded, x.data(), size, reinterpret_cast<std::byte*>(found.data()));
      EXPECT_TRUE(same_floats(expected, found)) << size;
    }
  }
}

}  // namespace
}  // namespace weir
