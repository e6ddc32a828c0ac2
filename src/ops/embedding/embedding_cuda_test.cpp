#include "base/error.h"
#include "formats/quant.h"
#include "ops/cuda_op.h"
#include "ops/embedding/embedding.h"
#include "ops/simd/kernel_test.h"
#include "tests/support/cuda_case.h"

namespace weir {
namespace {

using testing::DeviceBuffer;
using EmbeddingCuda = testing::CudaCase;
using GatherCuda = testing::CudaCase;

TEST_F(EmbeddingCuda, WidensRowsOfEveryFormatExactly) {
  RandomFloats random(5);
  const int64_t vocab = 5, size = 1280, stride = size + 3;  // more than one block a row
  const std::vector<int32_t> tokens = {4, 0, 4, 1};
  std::vector<std::vector<std::byte>> memory;  // uploads are known by their address
  for (int i = 0; i < static_cast<int>(WeightFormat::kNvfp4); ++i) {
    const auto format = static_cast<WeightFormat>(i);
    const bool packed = format == WeightFormat::kMxfp4;
    WeightView table{.format = format, .out = vocab, .in = size, .row_bytes = weight_row_bytes(format, size) + 6};
    std::vector<std::byte>& bytes = memory.emplace_back(static_cast<size_t>(vocab * table.row_bytes + size));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random.bits() % 0x70);
    table.data = bytes.data();
    if (packed) {
      table.scales = bytes.data() + 3;
      table.scale_row_bytes = size / 32 + 1;
    }
    for (const float scale : {1.f, 0.7f}) {
      DeviceBuffer<float> y(device(), 5 * stride);
      const auto op =
          bind_embedding(device(), "embedding", {.table = table, .scale = scale, .y = y.data(), .y_stride = stride});
      StepView step;
      step.rows = 4;
      step.tokens = tokens;
      device().stage(step);
      static_cast<CudaOp&>(*op).enqueue({.rows = 5});
      const std::vector<float> found = y.values();
      std::vector<float> expected(static_cast<size_t>(5 * stride), std::bit_cast<float>(0xffffffffu));
      for (int64_t r = 0; r < 4; ++r) {
        float* row = expected.data() + r * stride;
        dequantize(table, tokens[static_cast<size_t>(r)], 0, size, row);
        for (int64_t k = 0; k < size; ++k) row[k] *= scale;
      }
      EXPECT_TRUE(same_floats(expected, found)) << weight_format_name(format) << " times " << scale;
      EXPECT_EQ(op->cost(2, 0).weight_bytes, 2 * (weight_row_bytes(format, size) + (packed ? size / 32 : 0)));
    }
  }
}

TEST_F(EmbeddingCuda, RefusesWhatItCannotRead) {
  std::vector<std::byte> bytes(36);
  const WeightView table{.format = WeightFormat::kNvfp4, .out = 1, .in = 64, .data = bytes.data(), .row_bytes = 36};
  DeviceBuffer<float> y(device(), 64);
  EXPECT_THROW(bind_embedding(device(), "embedding", {.table = table, .y = y.data(), .y_stride = 64}), Error);
}

TEST_F(GatherCuda, MovesTheRowsThatWantLogitsToTheFront) {
  for (const int64_t size : {5, 3000}) {
    RandomFloats random(4);
    const std::vector<float> x = random.take(6 * (size + 1), Values::kSpecial);
    DeviceBuffer<float> from(device(), x), to(device(), 4 * (size + 2));
    const int32_t rows[] = {0, 2, 5};
    StepView step;
    step.rows = 6;
    step.logit_rows = rows;
    const auto op =
        bind_gather(device(), "gather",
                    {.size = size, .x = from.data(), .x_stride = size + 1, .y = to.data(), .y_stride = size + 2});
    device().stage(step);
    static_cast<CudaOp&>(*op).enqueue({.rows = 6, .logit_rows = 4});
    std::vector<float> expected(static_cast<size_t>(4 * (size + 2)), std::bit_cast<float>(0xffffffffu));
    for (int64_t i = 0; i < 3; ++i) {
      std::copy_n(x.begin() + rows[i] * (size + 1), size, expected.begin() + i * (size + 2));
    }
    EXPECT_TRUE(same_floats(expected, to.values()));
  }
}

}  // namespace
}  // namespace weir
