// linear on the GPU (or the emulator): FP32 products against the specification bit for bit, tensor-core products
// against a model in double precision of the rounding that linear.h states, and both against themselves: rows alone and
// together, few and many.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>

#include "base/error.h"
#include "formats/quant.h"
#include "ops/cuda_op.h"
#include "ops/linear/linear_multiply.h"
#include "ops/linear/linear_testing.h"
#include "tests/support/cuda_case.h"

namespace weir {
namespace {

using testing::CudaCase;
using testing::DeviceBuffer;

StepView step_of(int64_t rows) {
  StepView step;
  step.rows = static_cast<int32_t>(rows);
  return step;
}

// Rows of y after the op has run for a step with these rows; y has room for three more, which must stay poison.
struct Product {
  std::vector<float> y;
  int64_t stride;

  std::vector<float> row(int64_t r, int64_t out) const {
    return {y.begin() + r * stride, y.begin() + r * stride + out};
  }
};

uint32_t bits(float value) { return std::bit_cast<uint32_t>(value); }

void expect_untouched(const Product& product, int64_t rows, int64_t out) {
  for (size_t i = 0; i < product.y.size(); ++i) {
    const auto r = static_cast<int64_t>(i) / product.stride, o = static_cast<int64_t>(i) % product.stride;
    if (r < rows && o < out) continue;
    ASSERT_EQ(bits(product.y[i]), 0xffffffffu) << "row " << r << " element " << o;
  }
}

Rows row_alone(Rows& x, int64_t r) {
  Rows one(1, x.size);
  std::copy_n(x.row(r), x.size, one.row(0));
  return one;
}

Rows first_rows(Rows& x, int64_t count) {
  Rows some(count, x.size);
  for (int64_t r = 0; r < count; ++r) std::copy_n(x.row(r), x.size, some.row(r));
  return some;
}

class LinearCuda : public CudaCase {
 protected:
  // For as long as the device, which knows host memory again by its address.
  template <class T>
  const T& keep(T value) {
    auto kept = std::make_shared<T>(std::move(value));
    kept_.push_back(kept);
    return *kept;
  }
  const std::vector<float>& random_bias(std::mt19937& random, int64_t out) {
    std::vector<float> bias(static_cast<size_t>(out));
    for (float& b : bias) b = random_value(random, Values::kUsual);
    return keep(std::move(bias));
  }

  // `bound`: rows that the launches are for, at least the step's; those beyond are NaN.
  Product multiply(const Weight& weight, const float* bias, Rows& x, Activations activations, int64_t bound = 0) {
    std::vector<float> rows = x.data;
    rows.resize(static_cast<size_t>(std::max(x.rows, bound) * x.stride), std::numeric_limits<float>::quiet_NaN());
    const DeviceBuffer<float> device_x(device(), rows);
    const int64_t stride = weight.view.out + 3;
    const DeviceBuffer<float> y(device(), (x.rows + 3) * stride);
    const auto op = bind_linear(device(), "product",
                                {.weight = weight.view,
                                 .bias = bias,
                                 .x = device_x.data(),
                                 .x_stride = x.stride,
                                 .y = y.data(),
                                 .y_stride = stride,
                                 .activations = activations,
                                 .max_rows = static_cast<int32_t>(std::max(x.rows, bound))});
    StepView step = step_of(x.rows);
    device().stage(step);
    step.rows = static_cast<int32_t>(std::max(x.rows, bound));
    static_cast<CudaOp&>(*op).enqueue(CudaDevice::bounds_of(step));
    Product product{y.values(), stride};
    expect_untouched(product, x.rows, weight.view.out);
    return product;
  }

  // Whether these rows of a product with x have the bits that they have alone.
  ::testing::AssertionResult same_bits_alone(const Weight& weight, Rows& x, const Product& together,
                                             const std::vector<int64_t>& rows) {
    for (const int64_t r : rows) {
      Rows one = row_alone(x, r);
      const Product alone = multiply(weight, nullptr, one, Activations::kAuto);
      const auto same = same_bits(together.row(r, weight.view.out), alone.row(0, weight.view.out));
      if (!same) return ::testing::AssertionFailure() << "row " << r << ", " << same.message();
    }
    return ::testing::AssertionSuccess();
  }

  // The first so many: of each segment, strip and eight rows.
  bool posts_are_zero(size_t count) {
    std::vector<uint32_t> posts(count * 128);
    device().to_host(posts.data(), device().posts(), static_cast<int64_t>(posts.size() * 4));
    return std::ranges::all_of(posts, [](uint32_t word) { return word == 0; });
  }

 private:
  std::vector<std::shared_ptr<void>> kept_;
};

int64_t fitting(WeightFormat format, int64_t in) { return whole_blocks(format, in); }

// y in 32 lanes: element k in lane k mod 32 by fused multiply-adds, lanes folded at distances 16, 8, 4, 2, 1.
float dot_in_32_lanes(const std::vector<float>& w, const float* x) {
  float lanes[32] = {};
  for (size_t k = 0; k < w.size(); ++k) lanes[k % 32] = std::fmaf(w[k], x[k], lanes[k % 32]);
  for (int distance = 16; distance > 0; distance /= 2) {
    for (int i = 0; i < distance; ++i) lanes[i] += lanes[i + distance];
  }
  return lanes[0];
}

TEST_F(LinearCuda, MultipliesEveryFormatInFp32AsSpecified) {
  std::mt19937 random(1);
  for (const WeightFormat format : kFormats) {
    for (const int64_t rows : {1, 11}) {
      const int64_t out = 9, in = fitting(format, 300);
      const Weight& weight = keep(random_weight(random, format, out, in, Values::kUsual));
      const std::vector<float>& bias = random_bias(random, out);
      Rows x(rows, in);
      x.fill(random, Values::kUsual);
      const Product product = multiply(weight, bias.data(), x, Activations::kF32);
      for (int64_t o = 0; o < out; ++o) {
        std::vector<float> w(static_cast<size_t>(in));
        dequantize(weight.view, o, 0, in, w.data());
        for (int64_t r = 0; r < rows; ++r) {
          const float expected = dot_in_32_lanes(w, x.row(r)) + bias[static_cast<size_t>(o)];
          ASSERT_EQ(bits(product.row(r, out)[static_cast<size_t>(o)]), bits(expected))
              << weight_format_name(format) << " [" << r << ", " << o << "]";
        }
      }
    }
  }
}

// The weight that the tensor cores multiply by: exact but where linear.h says BF16.
double weight_of(const WeightView& weight, int64_t o, int64_t k) {
  const WeightBlock block = weight_block(weight.format);
  float values[256];
  if (is_integer_format(weight.format)) {
    BlockCodes codes;
    decode_block(weight.format, weight.data + o * weight.row_bytes + k / block.elements * block.bytes, codes);
    const auto i = static_cast<size_t>(k % block.elements);
    return double{codes.d} * codes.scale[i / 16] * codes.code[i] - double{codes.dmin} * codes.min[i / 16];
  }
  if (weight.format == WeightFormat::kE4m3 && (weight.scale_cols % 64 == 0 || weight.scale_cols >= weight.in)) {
    return double{e4m3_to_f32(static_cast<uint8_t>(weight.data[o * weight.row_bytes + k]))} * e4m3_scale(weight, o, k);
  }
  dequantize(weight, o, k / block.elements * block.elements, block.elements, values);
  const float value = values[k % block.elements];
  return weight.format == WeightFormat::kF32 || weight.format == WeightFormat::kE4m3 ? bf16_to_f32(f32_to_bf16(value))
                                                                                     : value;
}

TEST_F(LinearCuda, MultipliesEveryFormatOnTensorCoresAsTheRoundingPointsSay) {
  std::mt19937 random(2);
  for (const WeightFormat format : kFormats) {
    for (const int64_t in_wish : {40, 300, 2100}) {
      const int64_t out = 21, rows = 3, in = fitting(format, in_wish);
      const Weight& weight = keep(random_weight(random, format, out, in, Values::kUsual));
      Rows x(rows, in);
      x.fill(random, Values::kUsual);
      const Product product = multiply(weight, nullptr, x, Activations::kAuto);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t o = 0; o < out; ++o) {
          double sum = 0, magnitude = 0;
          for (int64_t k = 0; k < in; ++k) {
            const double term = weight_of(weight.view, o, k) * bf16_to_f32(f32_to_bf16(x.row(r)[k]));
            sum += term;
            magnitude += std::abs(term);
          }
          // Sums of 16 products at a time in FP32, 128 in a chain; where minima are apart their parts are larger than
          // the weights.
          const double tolerance = (has_minima(format) ? 1e-4 : 1e-5) * magnitude;
          ASSERT_NEAR(product.row(r, out)[static_cast<size_t>(o)], sum, tolerance)
              << weight_format_name(format) << " in " << in << " [" << r << ", " << o << "]";
        }
      }
    }
  }
}

// Numbers of rows that all the kernels' instances serve.
TEST_F(LinearCuda, GivesEveryRowTheSameBitsAloneAndAmongOthers) {
  std::mt19937 random(3);
  for (const WeightFormat format : kFormats) {
    const int64_t out = 165, in = fitting(format, 2150);  // two segments; blocks that are not full
    const Weight& weight = keep(random_weight(random, format, out, in, Values::kUsual));
    Rows x(140, in);
    x.fill(random, Values::kUsual);
    const int64_t chosen[] = {0, 7, 8, 15, 16, 31, 33, 63, 64, 127, 128, 139};
    std::vector<std::vector<float>> alone;
    for (const int64_t r : chosen) {
      Rows one = row_alone(x, r);
      alone.push_back(multiply(weight, nullptr, one, Activations::kAuto).row(0, out));
    }
    for (const int64_t rows : {8, 9, 17, 34, 65, 140}) {
      Rows some = first_rows(x, rows);
      const Product product = multiply(weight, nullptr, some, Activations::kAuto);
      for (size_t i = 0; i < alone.size() && chosen[i] < rows; ++i) {
        ASSERT_TRUE(same_bits(product.row(chosen[i], out), alone[i]))
            << weight_format_name(format) << " row " << chosen[i] << " of " << rows;
      }
    }
  }
}

// So many that blocks take all segments of several tiles, one after the other.
TEST_F(LinearCuda, GivesTheSameBitsWhereBlocksTakeAllSegments) {
  std::mt19937 random(4);
  for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kMxfp4, WeightFormat::kQ4_K}) {
    const int64_t out = 130, in = fitting(format, 2144), rows = 520;
    const Weight& weight = keep(random_weight(random, format, out, in, Values::kUsual));
    Rows x(rows, in);
    x.fill(random, Values::kUsual);
    const Product many = multiply(weight, nullptr, x, Activations::kAuto);
    ASSERT_TRUE(same_bits_alone(weight, x, many, {0, 255, 256, 519})) << weight_format_name(format);
  }
}

// Blocks that have a segment each, or several, and meet; ragged outputs.
TEST_F(LinearCuda, GivesTheSameBitsHoweverManySegmentsMeet) {
  std::mt19937 random(14);
  for (const WeightFormat format :
       {WeightFormat::kMxfp4, WeightFormat::kE4m3, WeightFormat::kQ8_0, WeightFormat::kQ4_K}) {
    for (const int64_t in_wish : {900, 1536, 4096, 9216, 17500, 34000}) {
      const int64_t out = 150, in = fitting(format, in_wish), rows = 40;
      const Weight& weight = keep(random_weight(random, format, out, in, Values::kUsual));
      Rows x(rows, in);
      x.fill(random, Values::kUsual);
      const Product many = multiply(weight, nullptr, x, Activations::kAuto);
      ASSERT_TRUE(same_bits_alone(weight, x, many, {3, 39})) << weight_format_name(format) << " in " << in;
    }
  }
}

// A block a segment, with more than one unit for each of its groups of warps; outputs that are no whole units.
TEST_F(LinearCuda, GivesTheSameBitsWhereBlocksKeepTheirSegmentOfX) {
  std::mt19937 random(15);
  const int64_t segments = device().sm_count() / 2 + 1, out = 330;
  for (const WeightFormat format :
       {WeightFormat::kMxfp4, WeightFormat::kQ4_0, WeightFormat::kQ2_K, WeightFormat::kQ3_K, WeightFormat::kQ4_K}) {
    for (const int64_t rows : {20, 64}) {
      const int64_t in = fitting(format, segments * (rows == 20 ? 960 : 1024));
      const Weight& weight = keep(random_weight(random, format, out, in, Values::kUsual));
      Rows x(rows, in);
      x.fill(random, Values::kUsual);
      const Product many = multiply(weight, nullptr, x, Activations::kAuto);
      ASSERT_TRUE(same_bits_alone(weight, x, many, {0, rows - 1})) << weight_format_name(format) << " rows " << rows;
      EXPECT_TRUE(posts_are_zero(static_cast<size_t>((in + 1023) / 1024 * 21 * (rows == 20 ? 4 : 8)))) << rows;
    }
  }
}

// Matrices of so many segments that blocks have one each with their rows of x; alone and in two parts.
TEST_F(LinearCuda, GivesTheSameBitsWhereXStays) {
  std::mt19937 random(15);
  for (const WeightFormat format :
       {WeightFormat::kMxfp4, WeightFormat::kE4m3, WeightFormat::kQ4_0, WeightFormat::kQ8_0, WeightFormat::kQ4_K}) {
    for (const int64_t in_wish : {5200, 9216}) {
      const int64_t outs[] = {70, 90}, in = fitting(format, in_wish), most = 20;
      const Weight* weights[2];
      const float* biases[2];
      for (int p = 0; p < 2; ++p) {
        weights[p] = &keep(random_weight(random, format, outs[p], in, Values::kUsual));
        biases[p] = random_bias(random, outs[p]).data();
      }
      Rows x(most, in);
      x.fill(random, Values::kUsual);
      const Product expected[] = {multiply(*weights[0], biases[0], x, Activations::kAuto),
                                  multiply(*weights[1], biases[1], x, Activations::kAuto)};
      for (const int32_t rows : {1, 2, 8, 9, 16}) {
        const DeviceBuffer<float> device_x(device(), x.data);
        const DeviceBuffer<float> first(device(), rows * outs[0]), second(device(), rows * outs[1]);
        std::vector<LinearArgs> parts;
        for (int p = 0; p < 2; ++p) {
          parts.push_back({.weight = weights[p]->view,
                           .bias = biases[p],
                           .x = device_x.data(),
                           .x_stride = x.stride,
                           .y = (p == 0 ? first : second).data(),
                           .y_stride = outs[p],
                           .activations = Activations::kAuto,
                           .max_rows = rows});
        }
        bind_linears(device(), "parts", parts)->run(step_of(rows));
        Rows some = first_rows(x, rows);
        for (int p = 0; p < 2; ++p) {
          const Product together{(p == 0 ? first : second).values(), outs[p]};
          const Product alone = multiply(*weights[p], biases[p], some, Activations::kAuto);
          for (int64_t r = 0; r < rows; ++r) {
            ASSERT_TRUE(same_bits(alone.row(r, outs[p]), expected[p].row(r, outs[p])))
                << weight_format_name(format) << " in " << in << " row " << r << " of " << rows;
            ASSERT_TRUE(same_bits(together.row(r, outs[p]), expected[p].row(r, outs[p])))
                << weight_format_name(format) << " in " << in << " part " << p << " row " << r << " of " << rows;
          }
        }
      }
    }
  }
}

// So many outputs that blocks with a segment each take strips in several rounds, some one less; with 16 rows blocks
// have less to do where some have two segments.
TEST_F(LinearCuda, GivesTheSameBitsWhereSegmentsHaveRounds) {
  std::mt19937 random(16);
  const int64_t segments = std::min(device().sm_count() - 1, 7);
  const int64_t strips = device().sm_count() * 24 / segments, out = strips * kTileOuts - 10;
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kQ4_0, WeightFormat::kQ4_K}) {
    const int64_t in = fitting(format, segments * 1024 - 600);
    const Weight& weight = keep(random_weight(random, format, out, in, Values::kUsual));
    Rows x(16, in);
    x.fill(random, Values::kUsual);
    for (const int64_t rows : {5, 16}) {
      Rows some = first_rows(x, rows);
      const Product together = multiply(weight, nullptr, some, Activations::kAuto);
      ASSERT_TRUE(same_bits_alone(weight, x, together, {0, rows - 1}))
          << weight_format_name(format) << " rows " << rows;
    }
  }
}

// Sums that are NaN, of one input whose bits are all set too, are not taken for sums that are yet to come; and posts
// are left zero.
TEST_F(LinearCuda, SegmentsMeetWithSumsThatAreNoNumbers) {
  std::mt19937 random(17);
  const int64_t in = 4096, out = 200;
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kQ4_0, WeightFormat::kQ4_K}) {
    const Weight& weight = keep(random_weight(random, format, out, in, Values::kUsual));
    Rows x(8, in);
    x.fill(random, Values::kUsual);
    Rows broken = x;
    broken.row(1)[0] = std::bit_cast<float>(~uint32_t{0});
    broken.row(6)[in - 1] = std::numeric_limits<float>::infinity();
    const Product sound = multiply(weight, nullptr, x, Activations::kAuto);
    const Product found = multiply(weight, nullptr, broken, Activations::kAuto);
    for (int64_t r = 0; r < 8; ++r) {
      const std::vector<float> row = found.row(r, out);
      if (r == 1) {
        EXPECT_TRUE(std::ranges::all_of(row, [](float v) { return std::isnan(v); })) << weight_format_name(format);
      } else if (r != 6) {
        EXPECT_TRUE(same_bits(row, sound.row(r, out))) << weight_format_name(format) << " row " << r;
      }
    }
  }
  EXPECT_TRUE(posts_are_zero(size_t{4} * 13));
}

TEST_F(LinearCuda, ServesStepsSmallerThanItsBounds) {
  std::mt19937 random(5);
  const int64_t out = 50, in = 4200;
  const Weight weight = random_weight(random, WeightFormat::kBf16, out, in, Values::kUsual);
  Rows x(5, in);
  x.fill(random, Values::kUsual);
  for (const Activations activations : {Activations::kF32, Activations::kAuto}) {
    const Product exact = multiply(weight, nullptr, x, activations);
    for (const int64_t bound : {8, 16, 64, 200}) {
      const Product product = multiply(weight, nullptr, x, activations, bound);
      for (int64_t r = 0; r < x.rows; ++r) EXPECT_TRUE(same_bits(product.row(r, out), exact.row(r, out))) << bound;
    }
  }
}

TEST_F(LinearCuda, AddsTheBiasToTheCompleteSum) {
  std::mt19937 random(6);
  const int64_t out = 40, in = 2304;
  const Weight weight = random_weight(random, WeightFormat::kQ8_0, out, in, Values::kUsual);
  const std::vector<float>& bias = random_bias(random, out);
  for (const int64_t rows : {2, 20}) {
    Rows x(rows, in);
    x.fill(random, Values::kUsual);
    const Product plain = multiply(weight, nullptr, x, Activations::kAuto);
    const Product biased = multiply(weight, bias.data(), x, Activations::kAuto);
    for (int64_t r = 0; r < rows; ++r) {
      for (size_t o = 0; o < bias.size(); ++o) {
        ASSERT_EQ(bits(biased.row(r, out)[o]), bits(plain.row(r, out)[o] + bias[o]));
      }
    }
  }
}

// BF16 numbers of rows, as many a row as a multiple of 8 holds; what follows the row's own is NaN.
std::vector<uint16_t> rounded_rows(Rows& x, int64_t stride) {
  std::vector<uint16_t> rounded(static_cast<size_t>(x.rows * stride), 0x7fff);
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t k = 0; k < x.size; ++k) rounded[static_cast<size_t>(r * stride + k)] = f32_to_bf16(x.row(r)[k]);
  }
  return rounded;
}

// Whichever kernel the rows go to: blocks with a segment each, and with all.
TEST_F(LinearCuda, TakesRowsOfBf16AsTheyAreAndRoundsThoseThatItGives) {
  std::mt19937 random(12);
  const int64_t in = 2100, stride = 2104;
  const Weight* weights[] = {&keep(random_weight(random, WeightFormat::kBf16, 50, in, Values::kUsual)),
                             &keep(random_weight(random, WeightFormat::kBf16, 7, in, Values::kUsual)),
                             &keep(random_weight(random, WeightFormat::kE4m3, 20, in, Values::kUsual))};
  const RowType y_types[] = {RowType::kBf16, RowType::kF32, RowType::kBf16};
  for (const int64_t rows : {1, 3, 20, 140, 520}) {
    Rows x(rows, in);
    x.fill(random, Values::kUsual);
    const DeviceBuffer<uint16_t> device_x(device(), rounded_rows(x, stride));
    std::vector<std::unique_ptr<DeviceBuffer<uint16_t>>> ys;  // of FP32: two to an element
    std::vector<const std::vector<float>*> biases;
    std::vector<LinearArgs> parts;
    for (size_t i = 0; i < 3; ++i) {
      const int64_t out = weights[i]->view.out, y_stride = out + 3;
      ys.push_back(std::make_unique<DeviceBuffer<uint16_t>>(device(), rows * y_stride * 2));
      biases.push_back(&random_bias(random, out));
      parts.push_back({.weight = weights[i]->view,
                       .bias = biases.back()->data(),
                       .x = device_x.data(),
                       .x_stride = stride,
                       .y = ys.back()->data(),
                       .y_stride = y_stride,
                       .x_type = RowType::kBf16,
                       .y_type = y_types[i],
                       .activations = Activations::kAuto,
                       .max_rows = static_cast<int32_t>(rows)});
    }
    bind_linears(device(), "rounded", parts)->run(step_of(rows));
    for (size_t i = 0; i < 3; ++i) {
      const Product exact = multiply(*weights[i], biases[i]->data(), x, Activations::kAuto);
      const std::vector<uint16_t> y = ys[i]->values();
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t o = 0; o < parts[i].y_stride; ++o) {
          const auto at = static_cast<size_t>(r * parts[i].y_stride + o);
          const float expected = exact.y[static_cast<size_t>(r * exact.stride + o)];
          const bool there = o < weights[i]->view.out;
          if (y_types[i] == RowType::kBf16) {
            ASSERT_EQ(y[at], there ? f32_to_bf16(expected) : 0xffff) << "matrix " << i << " [" << r << ", " << o << "]";
          } else {
            float value;
            std::memcpy(&value, y.data() + 2 * at, 4);
            ASSERT_EQ(bits(value), bits(expected)) << "matrix " << i << " [" << r << ", " << o << "]";
          }
        }
      }
    }
  }
}

TEST_F(LinearCuda, RefusesRowsOfBf16ThatItCannotRead) {
  std::mt19937 random(13);
  const Weight weight = random_weight(random, WeightFormat::kBf16, 8, 64, Values::kUsual);
  const DeviceBuffer<uint16_t> x(device(), 2 * 80);
  const DeviceBuffer<float> y(device(), 2 * 8);
  const auto bind = [&](int64_t offset, int64_t stride, Activations activations) {
    bind_linear(device(), "bf16",
                {.weight = weight.view,
                 .x = x.data() + offset,
                 .x_stride = stride,
                 .y = y.data(),
                 .y_stride = 8,
                 .x_type = RowType::kBf16,
                 .activations = activations,
                 .max_rows = 2});
  };
  EXPECT_NO_THROW(bind(8, 72, Activations::kAuto));
  EXPECT_THROW(bind(1, 72, Activations::kAuto), Error);
  EXPECT_THROW(bind(0, 70, Activations::kAuto), Error);
  EXPECT_THROW(bind(0, 72, Activations::kF32), Error);
}

TEST_F(LinearCuda, MultipliesTheRowsThatWantLogits) {
  std::mt19937 random(7);
  const int64_t out = 30, in = 64;
  const Weight weight = random_weight(random, WeightFormat::kBf16, out, in, Values::kUsual);
  Rows x(4, in);
  x.fill(random, Values::kUsual);
  for (const Activations activations : {Activations::kF32, Activations::kAuto}) {
    const Product all = multiply(weight, nullptr, x, activations);
    const DeviceBuffer<float> device_x(device(), x.data);
    const DeviceBuffer<float> y(device(), 4 * out);
    const auto op = bind_linear(device(), "logits",
                                {.weight = weight.view,
                                 .x = device_x.data(),
                                 .x_stride = x.stride,
                                 .y = y.data(),
                                 .y_stride = out,
                                 .rows = RowSet::kLogits,
                                 .activations = activations,
                                 .max_rows = 4});
    const std::vector<int32_t> logit_rows = {3, 9};
    StepView step = step_of(10);
    step.logit_rows = logit_rows;
    op->run(step);
    const Product product{y.values(), out};
    expect_untouched(product, 2, out);
    for (int64_t r = 0; r < 2; ++r) EXPECT_TRUE(same_bits(product.row(r, out), all.row(r, out)));
  }
}

// E2M1 times a power of two is a BF16 number, whatever the power: large ones leave the packed tiles.
TEST_F(LinearCuda, GivesForMxfp4TheBitsOfTheSameWeightsInBf16) {
  std::mt19937 random(8);
  const int64_t out = 20, in = 2208;
  for (const int most : {100, 128, 129, 160}) {
    Weight packed = random_weight(random, WeightFormat::kMxfp4, out, in, Values::kUsual);
    for (std::byte& scale : packed.scales) scale = static_cast<std::byte>(most - static_cast<int>(random() % 12));
    packed.scales[17] = static_cast<std::byte>(most);
    Weight plain;
    plain.view = {.format = WeightFormat::kBf16, .out = out, .in = in, .row_bytes = in * 2};
    plain.data.resize(static_cast<size_t>(out * in * 2));
    for (int64_t o = 0; o < out; ++o) {
      std::vector<float> values(static_cast<size_t>(in));
      dequantize(packed.view, o, 0, in, values.data());
      for (int64_t k = 0; k < in; ++k) {
        const uint16_t half = f32_to_bf16(values[static_cast<size_t>(k)]);
        std::memcpy(plain.data.data() + (o * in + k) * 2, &half, 2);
      }
    }
    plain.view.data = plain.data.data();
    EXPECT_EQ(upload_tiles(device(), packed.view).format, most > 128 ? TileFormat::kBf16 : TileFormat::kMxfp4);
    Rows x(3, in);
    x.fill(random, Values::kUsual);
    EXPECT_TRUE(same_bits(multiply(packed, nullptr, x, Activations::kAuto).y,
                          multiply(plain, nullptr, x, Activations::kAuto).y))
        << most;
  }
}

TEST_F(LinearCuda, KeepsANanCodeOfE4m3) {
  std::mt19937 random(9);
  Weight weight = random_weight(random, WeightFormat::kE4m3, 20, 256, Values::kUsual);
  weight.data[5 * 256 + 100] = std::byte{0xff};
  Rows x(2, 256);
  x.fill(random, Values::kUsual);
  const Product product = multiply(weight, nullptr, x, Activations::kAuto);
  for (int64_t o = 0; o < 20; ++o) EXPECT_EQ(std::isnan(product.row(1, 20)[static_cast<size_t>(o)]), o == 5) << o;
}

// Two of them with the same x.
TEST_F(LinearCuda, MultipliesSeveralMatricesAsOneByOne) {
  std::mt19937 random(10);
  const int64_t in = 2400;
  const WeightFormat formats[] = {WeightFormat::kBf16, WeightFormat::kQ8_0, WeightFormat::kBf16, WeightFormat::kBf16};
  const int64_t outs[] = {33, 16, 70, 200};
  std::vector<const Weight*> weights;
  for (size_t i = 0; i < 4; ++i)
    weights.push_back(&keep(random_weight(random, formats[i], outs[i], in, Values::kUsual)));
  for (const int64_t rows : {1, 5, 20, 70}) {
    Rows first(rows, in), second(rows, in);
    first.fill(random, Values::kUsual);
    second.fill(random, Values::kUsual);
    Rows* xs[] = {&first, &first, &first, &second};
    const DeviceBuffer<float> device_first(device(), first.data), device_second(device(), second.data);
    for (const Activations activations : {Activations::kF32, Activations::kAuto}) {
      std::vector<std::unique_ptr<DeviceBuffer<float>>> ys;
      std::vector<LinearArgs> parts;
      for (size_t i = 0; i < 4; ++i) {
        ys.push_back(std::make_unique<DeviceBuffer<float>>(device(), rows * outs[i]));
        parts.push_back({.weight = weights[i]->view,
                         .x = xs[i] == &first ? device_first.data() : device_second.data(),
                         .x_stride = first.stride,
                         .y = ys.back()->data(),
                         .y_stride = outs[i],
                         .activations = activations,
                         .max_rows = static_cast<int32_t>(rows)});
      }
      bind_linears(device(), "several", parts)->run(step_of(rows));
      for (size_t i = 0; i < 4; ++i) {
        const Product together{ys[i]->values(), outs[i]};
        const Product alone = multiply(*weights[i], nullptr, *xs[i], activations);
        for (int64_t r = 0; r < rows; ++r) {
          ASSERT_TRUE(same_bits(together.row(r, outs[i]), alone.row(r, outs[i])))
              << "matrix " << i << " row " << r << " of " << rows;
        }
      }
    }
  }
}

TEST_F(LinearCuda, DoesNothingForNoRows) {
  std::mt19937 random(11);
  const Weight weight = random_weight(random, WeightFormat::kBf16, 20, 64, Values::kUsual);
  Rows x(0, 64);
  for (const Activations activations : {Activations::kF32, Activations::kAuto}) {
    multiply(weight, nullptr, x, activations);
    multiply(weight, nullptr, x, activations, 20);
  }
}

}  // namespace
}  // namespace weir
