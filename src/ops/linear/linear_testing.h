// What the tests of linear share: random matrices in every format, rows with gaps, equality of bits.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/number.h"
#include "ops/linear/linear.h"
#include "ops/simd/kernel_sets.h"

namespace weir {

inline constexpr WeightFormat kIntegerFormats[] = {WeightFormat::kQ4_0, WeightFormat::kQ4_1,  WeightFormat::kQ5_0,
                                                   WeightFormat::kQ5_1, WeightFormat::kQ8_0,  WeightFormat::kQ2_K,
                                                   WeightFormat::kQ3_K, WeightFormat::kQ4_K,  WeightFormat::kQ5_K,
                                                   WeightFormat::kQ6_K, WeightFormat::kIq4Nl, WeightFormat::kIq4Xs};
inline constexpr WeightFormat kFormats[] = {
    WeightFormat::kF32,   WeightFormat::kF16,   WeightFormat::kBf16, WeightFormat::kMxfp4, WeightFormat::kMxfp4Block,
    WeightFormat::kQ4_0,  WeightFormat::kQ4_1,  WeightFormat::kQ5_0, WeightFormat::kQ5_1,  WeightFormat::kQ8_0,
    WeightFormat::kQ2_K,  WeightFormat::kQ3_K,  WeightFormat::kQ4_K, WeightFormat::kQ5_K,  WeightFormat::kQ6_K,
    WeightFormat::kIq4Nl, WeightFormat::kIq4Xs, WeightFormat::kE4m3};

inline int64_t whole_blocks(WeightFormat format, int64_t elements) {
  const int64_t block = weight_block(format).elements;
  return (elements + block - 1) / block * block;
}

// Values a network has, and those it should not have.
// kTiny: products underflow, to subnormals and signed zeros.
enum class Values { kUsual, kExtreme, kTiny };

inline float random_value(std::mt19937& random, Values values) {
  const float usual = std::normal_distribution<float>(0.f, 1.f)(random);
  if (values == Values::kUsual) return usual;
  if (values == Values::kTiny) return usual * (random() % 2 == 0 ? 1e-22f : 1e-23f);
  switch (random() % 10) {
    case 0:
      return -0.f;
    case 1:
      return 0.f;
    case 2:
      return usual * 1e-42f;
    case 3:
      return usual * 1e-38f;
    case 4:
      return random() % 16 == 0 ? usual * 1e37f : usual;
    case 5:
      return random() % 32 == 0 ? std::numeric_limits<float>::infinity() : usual;
    case 6:
      return usual * 1e-30f;
    default:
      return usual;
  }
}

struct Weight {
  WeightView view;
  std::vector<std::byte> data, scales;
};

// Offsets of the halves in a block.
inline std::vector<int64_t> half_offsets(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ5_1:
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K:
      return {0, 2};
    case WeightFormat::kQ2_K:
      return {80, 82};
    case WeightFormat::kQ3_K:
      return {108};
    case WeightFormat::kQ6_K:
      return {208};
    default:
      return {0};
  }
}

inline std::byte random_e8m0(std::mt19937& random, Values values) {
  return static_cast<std::byte>(values == Values::kUsual  ? 115 + random() % 12
                                : values == Values::kTiny ? random() % 60
                                                          : random() % 255);
}

// Random codes; scales that suit `values`: kExtreme has any half, infinities and NaN too, kTiny subnormal ones.
inline void fill_blocks(std::mt19937& random, WeightFormat format, Values values, std::vector<std::byte>& data) {
  for (std::byte& b : data) b = static_cast<std::byte>(random());
  const auto block_bytes = static_cast<size_t>(weight_block(format).bytes);
  for (size_t block = 0; block < data.size(); block += block_bytes) {
    if (format == WeightFormat::kMxfp4Block) {
      data[block] = random_e8m0(random, values);
      continue;
    }
    for (const int64_t at : half_offsets(format)) {
      uint16_t half = f32_to_f16(std::normal_distribution<float>(0.f, 0.02f)(random));
      if (values == Values::kTiny) half = static_cast<uint16_t>(random() & 0x83ff);
      if (values == Values::kExtreme && random() % 4 == 0) half = static_cast<uint16_t>(random());
      std::memcpy(data.data() + block + static_cast<size_t>(at), &half, 2);
    }
  }
}

// Codes of every value but NaN, which kExtreme has; a grid of scales in one of the three types, per row or in blocks of
// 128 x 128, of which the matrix may begin anywhere.
inline void fill_e4m3(std::mt19937& random, Values values, Weight& weight) {
  WeightView& view = weight.view;
  for (std::byte& b : weight.data) {
    b = static_cast<std::byte>(random());
    if ((b & std::byte{0x7f}) == std::byte{0x7f} && (values != Values::kExtreme || random() % 64 != 0)) b = {};
  }
  constexpr WeightFormat kScales[] = {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBf16};
  view.scale_format = kScales[random() % 3];
  const bool blocks = random() % 4 != 0;
  view.scale_rows = blocks ? 128 : 1;
  view.scale_cols = blocks ? 128 : view.in;
  view.scale_first = blocks ? static_cast<int64_t>(random() % 300) : 0;
  const int64_t across = (view.in + view.scale_cols - 1) / view.scale_cols;
  const int64_t down = (view.scale_first + view.out - 1) / view.scale_rows + 1;
  const int64_t bytes = weight_block(view.scale_format).bytes;
  view.scale_row_bytes = across * bytes + 1;  // any alignment
  weight.scales.resize(static_cast<size_t>(down * view.scale_row_bytes));
  for (int64_t i = 0; i < down * across; ++i) {
    float scale = std::normal_distribution<float>(0.f, 0.01f)(random);
    if (values == Values::kTiny) scale *= 1e-24f;
    if (values == Values::kExtreme && random() % 2 == 0) {
      scale *=
          std::exp2(static_cast<float>(random() % 250) - (view.scale_format == WeightFormat::kF16 ? 240.f : 130.f));
    }
    const uint16_t half = view.scale_format == WeightFormat::kF16 ? f32_to_f16(scale) : f32_to_bf16(scale);
    std::byte* to = weight.scales.data() + i / across * view.scale_row_bytes + i % across * bytes;
    std::memcpy(to, bytes == 4 ? static_cast<const void*>(&scale) : &half, static_cast<size_t>(bytes));
  }
  view.scales = weight.scales.data();
}

inline Weight random_weight(std::mt19937& random, WeightFormat format, int64_t out, int64_t in, Values values) {
  Weight weight;
  weight.view = {.format = format, .out = out, .in = in, .row_bytes = weight_row_bytes(format, in)};
  weight.data.resize(static_cast<size_t>(out * weight.view.row_bytes));
  if (format == WeightFormat::kMxfp4) {
    weight.view.scale_row_bytes = in / 32;
    weight.scales.resize(static_cast<size_t>(out * in / 32));
    for (std::byte& b : weight.data) b = static_cast<std::byte>(random());
    for (std::byte& b : weight.scales) b = random_e8m0(random, values);
    weight.view.scales = weight.scales.data();
  } else if (format == WeightFormat::kE4m3) {
    fill_e4m3(random, values, weight);
  } else if (weight_block(format).elements > 1) {
    fill_blocks(random, format, values, weight.data);
  } else {
    for (int64_t i = 0; i < out * in; ++i) {
      const float value = random_value(random, values);
      const uint16_t half = format == WeightFormat::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
      if (format == WeightFormat::kF32) {
        std::memcpy(weight.data.data() + i * 4, &value, 4);
      } else {
        std::memcpy(weight.data.data() + i * 2, &half, 2);
      }
    }
  }
  weight.view.data = weight.data.data();
  return weight;
}

// Rows with a stride beyond the row, the gap filled with a value that must not be read or written.
struct Rows {
  static constexpr float kGap = 12345.f;
  int64_t rows, size, stride;
  std::vector<float> data;
  Rows(int64_t rows_, int64_t size_) : rows(rows_), size(size_), stride(size_ + 5) {
    data.assign(static_cast<size_t>(rows * stride) + 1, kGap);
  }
  float* row(int64_t r) { return data.data() + r * stride; }
  void fill(std::mt19937& random, Values values) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < size; ++i) row(r)[i] = random_value(random, values);
    }
  }
};

// Equal bits; all NaN are one value.
inline ::testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]) && !(std::isnan(a[i]) && std::isnan(b[i]))) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

struct Scratch {
  Mapping memory{linear_scratch_bytes()};
};

inline Rows product(KernelSet set, const WeightView& weight, Rows& x) {
  Scratch scratch;
  Rows y(x.rows, weight.out);
  linear_kernel(set)(weight, 0, weight.out, x.data.data(), x.stride, x.rows, y.data.data(), y.stride,
                     scratch.memory.data());
  return y;
}

}  // namespace weir
