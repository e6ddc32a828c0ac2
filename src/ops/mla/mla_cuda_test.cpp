#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/number.h"
#include "formats/quant.h"
#include "ops/attention/attention_testing.h"
#include "ops/cuda_op.h"
#include "ops/mla/mla.h"
#include "tests/support/cuda_case.h"

namespace weir {
namespace {

using testing::DeviceBuffer;

// A matrix of a format with random, sensible values.
struct Matrix {
  Matrix(std::mt19937& random, WeightFormat format, int64_t out, int64_t in) {
    const int64_t row_bytes = weight_row_bytes(format, in) + 16;
    bytes.resize(static_cast<size_t>(out * row_bytes));
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t i = 0; i < in; ++i) {
        const float w = std::normal_distribution<float>()(random);
        std::byte* row = bytes.data() + o * row_bytes;
        if (format == WeightFormat::kF32) reinterpret_cast<float*>(row)[i] = w;
        if (format == WeightFormat::kF16) reinterpret_cast<uint16_t*>(row)[i] = f32_to_f16(w);
        if (format == WeightFormat::kBf16) reinterpret_cast<uint16_t*>(row)[i] = f32_to_bf16(w);
        if (format == WeightFormat::kQ8_0) {
          const uint16_t d = f32_to_f16(0.01f * static_cast<float>(1 + o % 3));
          std::memcpy(row + i / 32 * 34, &d, 2);
          row[i / 32 * 34 + 2 + i % 32] = static_cast<std::byte>(random());
        }
      }
    }
    view = {.format = format, .out = out, .in = in, .data = bytes.data(), .row_bytes = row_bytes};
  }
  float at(int64_t o, int64_t i) const {
    float block[256];
    const int64_t size = weight_block(view.format).elements;
    dequantize(view, o, i / size * size, size, block);
    return block[i % size];
  }

  std::vector<std::byte> bytes;
  WeightView view;
};

struct Shape {
  int64_t heads, nope, extra, value, latent;
  WeightFormat format;
  bool split = false;  // k_b and v_b
};

class MlaOnCuda : public testing::CudaCaseWith<Shape> {
 protected:
  static constexpr int32_t kRows = 150;

  MlaOnCuda() : pages_(random_, 1, kRows, 16) {
    const Shape& s = GetParam();
    if (s.split) {
      k_b_ = std::make_unique<Matrix>(random_, s.format, s.heads * s.latent, s.nope);
      v_b_ = std::make_unique<Matrix>(random_, s.format, s.heads * s.value, s.latent);
      args_ = {.k_b = k_b_->view, .v_b = v_b_->view};
    } else {
      kv_b_ = std::make_unique<Matrix>(random_, s.format, s.heads * (s.nope + s.value), s.latent);
      args_ = {.kv_b = kv_b_->view};
    }
    args_.heads = s.heads, args_.nope = s.nope, args_.extra = s.extra, args_.value = s.value, args_.latent = s.latent;
    x_.resize(static_cast<size_t>(kRows * (x_size(true) + x_size(false))));
    for (float& f : x_) f = std::normal_distribution<float>()(random_);
  }

  int64_t x_size(bool absorb) const { return args_.heads * (absorb ? args_.nope + args_.extra : args_.latent); }
  int64_t y_size(bool absorb) const { return args_.heads * (absorb ? args_.latent + args_.extra : args_.value); }
  const float* x(bool absorb) const { return x_.data() + (absorb ? 0 : kRows * x_size(true)); }

  std::unique_ptr<BoundOp> bind(Device& device, bool absorb) {
    return absorb ? bind_mla_absorb(device, "absorb", args_) : bind_mla_expand(device, "expand", args_);
  }

  std::vector<float> on_cpu(bool absorb, int32_t rows) {
    std::vector<float> y(static_cast<size_t>(rows * y_size(absorb)));
    args_.x = x(absorb), args_.x_stride = x_size(absorb), args_.y = y.data(), args_.y_stride = y_size(absorb);
    CpuDevice cpu(1, KernelSet::kReference);
    bind(cpu, absorb)->run(pages_.step({{0, 0, rows}}));
    return y;
  }

  // Rows [first, first + rows), with bounds of `spare` rows more.
  std::vector<float> on_gpu(bool absorb, Activations activations, int32_t first, int32_t rows, int32_t spare = 0) {
    const DeviceBuffer<float> x_there(
        device(), std::vector<float>(x(absorb) + first * x_size(absorb), x(absorb) + (first + rows) * x_size(absorb)));
    const std::vector<float> before(static_cast<size_t>((rows + spare) * (y_size(absorb) + 1)), 77.f);
    const DeviceBuffer<float> y_there(device(), before);
    args_.x = x_there.data(), args_.x_stride = x_size(absorb);
    args_.y = y_there.data(), args_.y_stride = y_size(absorb) + 1;
    args_.activations = activations;
    const StepView step = pages_.step({{0, 0, rows}});
    StepBounds bounds = CudaDevice::bounds_of(step);
    bounds.rows += spare;
    const auto op = bind(device(), absorb);
    device().stage(step);
    static_cast<CudaOp&>(*op).enqueue(bounds);
    const std::vector<float> y = y_there.values();
    std::vector<float> out;
    for (int64_t r = 0; r < rows + spare; ++r) {
      const auto row = y.begin() + r * (y_size(absorb) + 1);
      EXPECT_EQ(row[y_size(absorb)], 77.f) << "wrote beyond a row";
      if (r < rows) {
        out.insert(out.end(), row, row + y_size(absorb));
      } else {
        EXPECT_TRUE(std::all_of(row, row + y_size(absorb), [](float f) { return f == 77.f; })) << "beyond the rows";
      }
    }
    return out;
  }

  // All rows, as BF16 on both sides; `beyond` elements lie between the rows of y.
  std::vector<uint16_t> bf16_on_gpu(bool absorb, int64_t beyond) {
    std::vector<uint16_t> rounded;
    for (int64_t i = 0; i < kRows * x_size(absorb); ++i) rounded.push_back(f32_to_bf16(x(absorb)[i]));
    const DeviceBuffer<uint16_t> x_there(device(), rounded);
    const std::vector<uint16_t> before(static_cast<size_t>(kRows * (y_size(absorb) + beyond)), 77);
    const DeviceBuffer<uint16_t> y_there(device(), before);
    args_.x = reinterpret_cast<const float*>(x_there.data()), args_.x_stride = x_size(absorb);
    args_.y = reinterpret_cast<float*>(y_there.data()), args_.y_stride = y_size(absorb) + beyond;
    args_.x_type = args_.y_type = RowType::kBf16;
    args_.activations = Activations::kAuto;
    bind(device(), absorb)->run(pages_.step({{0, 0, kRows}}));
    args_.x_type = args_.y_type = RowType::kF32;
    const std::vector<uint16_t> y = y_there.values();
    std::vector<uint16_t> out;
    for (int64_t r = 0; r < kRows; ++r) {
      const auto row = y.begin() + r * args_.y_stride;
      out.insert(out.end(), row, row + y_size(absorb));
      EXPECT_TRUE(std::all_of(row + y_size(absorb), row + args_.y_stride, [](uint16_t u) { return u == 77; }));
    }
    return out;
  }

  float weight(bool absorb, int64_t head, int64_t o, int64_t i) const {
    if (args_.kv_b.empty()) return absorb ? k_b_->at(head * args_.latent + o, i) : v_b_->at(head * args_.value + o, i);
    const int64_t first = head * (args_.nope + args_.value);
    return absorb ? kv_b_->at(first + i, o) : kv_b_->at(first + args_.nope + o, i);
  }

  std::mt19937 random_{1};
  PagedSequences pages_;
  std::unique_ptr<Matrix> kv_b_, k_b_, v_b_;
  MlaProjectArgs args_;
  std::vector<float> x_;
};

TEST_P(MlaOnCuda, InFp32HasTheBitsOfTheCpu) {
  for (bool absorb : {true, false}) {
    EXPECT_EQ(on_gpu(absorb, Activations::kF32, 0, 5, 3), on_cpu(absorb, 5)) << (absorb ? "absorb" : "expand");
  }
}

// x is rounded to BF16 and weights to two such numbers (relative error 2^-16; exact in BF16), products are summed in
// FP32: n roundings of 2^-24 of the sum of magnitudes.
TEST_P(MlaOnCuda, OnTensorCoresMultipliesRoundedRows) {
  for (bool absorb : {true, false}) {
    const std::vector<float> y = on_gpu(absorb, Activations::kAuto, 0, 20, 3);
    const int64_t inner = absorb ? args_.nope : args_.latent, outputs = absorb ? args_.latent : args_.value;
    const int64_t extra = absorb ? args_.extra : 0;
    for (int64_t r = 0; r < 20; r += 3) {
      for (int64_t h = 0; h < args_.heads; ++h) {
        const float* row = x(absorb) + r * x_size(absorb) + h * (inner + extra);
        const float* out = y.data() + r * y_size(absorb) + h * (outputs + extra);
        for (int64_t o = r % 5; o < outputs; o += 5) {
          double sum = 0, magnitude = 0;
          for (int64_t i = 0; i < inner; ++i) {
            const double product =
                static_cast<double>(bf16_to_f32(f32_to_bf16(row[i]))) * static_cast<double>(weight(absorb, h, o, i));
            sum += product;
            magnitude += std::abs(product);
          }
          ASSERT_NEAR(out[o], sum, magnitude * (0x1p-16 + static_cast<double>(inner) * 0x1p-24))
              << absorb << " " << r << " " << o;
        }
        for (int64_t e = 0; e < extra; ++e) ASSERT_EQ(out[outputs + e], row[inner + e]);
      }
    }
  }
}

TEST_P(MlaOnCuda, ARowIsAloneWhatItIsAmongOthers) {
  for (bool absorb : {true, false}) {
    const std::vector<float> all = on_gpu(absorb, Activations::kAuto, 0, kRows);
    const int64_t size = y_size(absorb);
    for (const auto& [first, rows] : {std::pair{0, 1}, {17, 16}, {40, 63}, {149, 1}}) {
      const std::vector<float> some = on_gpu(absorb, Activations::kAuto, first, rows, 2);
      EXPECT_EQ(std::memcmp(some.data(), all.data() + first * size, some.size() * 4), 0) << first;
    }
  }
}

TEST_P(MlaOnCuda, RowsOfBf16AreTheRoundedOnes) {
  for (bool absorb : {true, false}) {
    std::vector<uint16_t> expected;
    for (float f : on_gpu(absorb, Activations::kAuto, 0, kRows)) expected.push_back(f32_to_bf16(f));
    for (int64_t beyond : {8, 1}) EXPECT_EQ(bf16_on_gpu(absorb, beyond), expected) << absorb << " " << beyond;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, MlaOnCuda,
                         ::testing::Values(Shape{3, 16, 8, 12, 24, WeightFormat::kF32},
                                           Shape{2, 32, 16, 32, 64, WeightFormat::kQ8_0},
                                           Shape{2, 128, 64, 128, 512, WeightFormat::kBf16},
                                           Shape{3, 32, 0, 24, 96, WeightFormat::kF16, true},
                                           Shape{2, 64, 16, 40, 64, WeightFormat::kQ8_0, true}),
                         [](const auto& param) { return "shape" + std::to_string(param.index); });

}  // namespace
}  // namespace weir
