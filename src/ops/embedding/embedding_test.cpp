#include "ops/embedding/embedding.h"

#include <cstring>

#include "base/error.h"
#include "base/number.h"
#include "formats/quant.h"
#include "ops/simd/kernel_test.h"

namespace weir {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kF16};

struct Table {
  WeightView view;
  std::vector<std::byte> bytes;

  Table(WeightFormat format, int64_t vocab, int64_t size, uint64_t seed) {
    RandomFloats random(seed);
    const int64_t width = format == WeightFormat::kF32 ? 4 : 2;
    const int64_t row_bytes = size * width + 4;  // rows need not touch
    bytes.resize(static_cast<size_t>(vocab * row_bytes));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random.bits());  // every code, NaN included
    view = {.format = format, .out = vocab, .in = size, .data = bytes.data(), .row_bytes = row_bytes};
  }
  float value(int64_t row, int64_t i) const {
    const std::byte* p = view.data + row * view.row_bytes;
    if (view.format == WeightFormat::kF32) {
      float f;
      std::memcpy(&f, p + i * 4, 4);
      return f;
    }
    uint16_t bits;
    std::memcpy(&bits, p + i * 2, 2);
    return view.format == WeightFormat::kBf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
  }
};

std::vector<float> embed(KernelSet set, int threads, const Table& table, const std::vector<int32_t>& tokens,
                         float scale) {
  const int64_t stride = table.view.in + 3;
  std::vector<float> y((tokens.size() + 1) * static_cast<size_t>(stride), -7.f);
  CpuDevice device(threads, set);
  StepView step;
  step.rows = static_cast<int32_t>(tokens.size());
  step.tokens = tokens;
  bind_embedding(device, "embedding", {.table = table.view, .scale = scale, .y = y.data(), .y_stride = stride})
      ->run(step);
  EXPECT_EQ(device.counters().weight_bytes_read,
            static_cast<int64_t>(tokens.size()) * table.view.in * (table.view.format == WeightFormat::kF32 ? 4 : 2));
  return y;
}

TEST(EmbeddingReference, LooksUpRowsOfTokens) {
  for (const WeightFormat format : kFormats) {
    for (const float scale : {1.f, 3.7f}) {
      const Table table(format, 9, 21, 1);
      const std::vector<int32_t> tokens = {8, 0, 3, 3};
      const std::vector<float> y = embed(KernelSet::kReference, 1, table, tokens, scale);
      for (size_t r = 0; r < tokens.size(); ++r) {
        for (int64_t i = 0; i < 21; ++i) {
          EXPECT_TRUE(same_bits(table.value(tokens[r], i) * scale, y[r * 24 + static_cast<size_t>(i)]));
        }
        EXPECT_EQ(y[r * 24 + 21], -7.f) << "written beyond the row";
      }
    }
  }
}

TEST(EmbeddingOp, DequantizesTablesOfEveryFormatInBlocks) {
  RandomFloats random(5);
  const int64_t vocab = 5, size = 33024;  // more than one work item
  for (int i = static_cast<int>(WeightFormat::kMxfp4); i <= static_cast<int>(WeightFormat::kNvfp4); ++i) {
    const auto format = static_cast<WeightFormat>(i);
    WeightView table{.format = format, .out = vocab, .in = size, .row_bytes = weight_row_bytes(format, size)};
    std::vector<std::byte> bytes(static_cast<size_t>(vocab * table.row_bytes + size));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random.bits() % 0x70);
    table.data = bytes.data();
    if (format == WeightFormat::kMxfp4) {
      table.scales = bytes.data() + 3;
      table.scale_row_bytes = size / 32;
    }
    for (const float scale : {1.f, 0.7f}) {
      CpuDevice device(2, best_kernel_set());
      std::vector<float> y(static_cast<size_t>(2 * size)), expected(static_cast<size_t>(2 * size));
      const int32_t tokens[] = {4, 1};
      StepView step;
      step.rows = 2;
      step.tokens = tokens;
      bind_embedding(device, "embedding", {.table = table, .scale = scale, .y = y.data(), .y_stride = size})->run(step);
      for (int64_t r = 0; r < 2; ++r) dequantize(table, tokens[r], 0, size, expected.data() + r * size);
      for (float& value : expected) value *= scale;
      EXPECT_TRUE(same_floats(expected, y)) << weight_format_name(format);
      EXPECT_EQ(device.counters().weight_bytes_read, 2 * (table.row_bytes + table.scale_row_bytes));
    }
  }
}

class EmbeddingKernels : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(, EmbeddingKernels, kVectorSets, kernel_set_test_name);

TEST_P(EmbeddingKernels, EqualTheReferenceWithAnyNumberOfThreads) {
  for (const WeightFormat format : kFormats) {
    for (const int64_t size : {1, 15, 16, 100, 4000, 70001}) {
      const Table table(format, 5, size, 2);
      for (const float scale : {1.f, 0.3f}) {
        for (const std::vector<int32_t>& tokens : {std::vector<int32_t>{}, {4}, {1, 0, 2, 2, 4, 3, 1, 1, 0, 2, 4}}) {
          const std::vector<float> expected = embed(KernelSet::kReference, 1, table, tokens, scale);
          EXPECT_TRUE(same_floats(expected, embed(GetParam(), 1, table, tokens, scale)));
          EXPECT_TRUE(same_floats(expected, embed(GetParam(), 2, table, tokens, scale)));
        }
      }
    }
  }
}

TEST(EmbeddingOp, RefusesTablesThatItCannotRead) {
  CpuDevice device(1, KernelSet::kReference);
  const Table table(WeightFormat::kBf16, 4, 32, 3);
  std::vector<float> y(64);
  const EmbeddingArgs good{.table = table.view, .y = y.data(), .y_stride = 32};
  EXPECT_NO_THROW(bind_embedding(device, "embedding", good));
  const auto refused = [&](auto change) {
    EmbeddingArgs args = good;
    change(args);
    EXPECT_THROW(bind_embedding(device, "embedding", args), Error);
  };
  refused([](EmbeddingArgs& a) { a.table.format = WeightFormat::kMxfp4; });
  refused([](EmbeddingArgs& a) { a.table.format = WeightFormat::kQ4_K; });
  refused([](EmbeddingArgs& a) { a.table.row_bytes = 63; });
  refused([](EmbeddingArgs& a) { a.table.data = nullptr; });
  refused([](EmbeddingArgs& a) { a.y_stride = 31; });
}

TEST(GatherOp, MovesTheRowsThatWantLogitsToTheFront) {
  for (const int64_t size : {5, 50000}) {
    RandomFloats random(4);
    const std::vector<float> x = random.take(6 * (size + 1), Values::kSpecial);
    for (const int threads : {1, 2}) {
      CpuDevice device(threads, KernelSet::kReference);
      std::vector<float> y(static_cast<size_t>(3 * (size + 2)), -7.f);
      const int32_t rows[] = {0, 2, 5};
      StepView step;
      step.rows = 6;
      step.logit_rows = rows;
      bind_gather(device, "gather",
                  {.size = size, .x = x.data(), .x_stride = size + 1, .y = y.data(), .y_stride = size + 2})
          ->run(step);
      for (int64_t i = 0; i < 3; ++i) {
        const auto expected =
            std::span(x).subspan(static_cast<size_t>(rows[i] * (size + 1)), static_cast<size_t>(size));
        const auto found = std::span(y).subspan(static_cast<size_t>(i * (size + 2)), static_cast<size_t>(size));
        EXPECT_TRUE(same_floats(expected, found));
        EXPECT_EQ(y[static_cast<size_t>(i * (size + 2) + size)], -7.f);
      }
    }
  }
}

TEST(GatherOp, RefusesToWorkInPlace) {
  CpuDevice device(1, KernelSet::kReference);
  std::vector<float> x(8);
  EXPECT_THROW(bind_gather(device, "gather", {.size = 4, .x = x.data(), .x_stride = 4, .y = x.data(), .y_stride = 4}),
               Error);
}

}  // namespace
}  // namespace weir
