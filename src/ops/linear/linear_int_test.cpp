// Products of integer formats with rows in 8-bit codes.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "formats/quant.h"
#include "ops/linear/linear_testing.h"

namespace weir {
namespace {

struct CodedX {
  Mapping memory;
  CodedRows rows;
  CodedX(WeightFormat format, Rows& x) {
    const RowCoding coding = row_coding(format, Activations::kAuto);
    rows.row_bytes = coded_row_layout(coding, x.size).bytes;
    memory = Mapping(std::max<int64_t>(x.rows, 1) * rows.row_bytes);
    rows.data = memory.data();
    for (int64_t r = 0; r < x.rows; ++r) {
      encode_row_kernel(KernelSet::kReference)(coding, x.row(r), x.size, memory.data() + r * rows.row_bytes);
    }
  }
};

Rows int_product(KernelSet set, const WeightView& weight, const CodedX& x, int64_t rows) {
  Scratch scratch;
  Rows y(rows, weight.out);
  coded_linear_kernel(set)(weight, 0, weight.out, x.rows, rows, y.data.data(), y.stride, scratch.memory.data());
  return y;
}

TEST(LinearInt, IsTheDotProductOfTheValuesThatTheCodesStandFor) {
  std::mt19937 random(1);
  for (WeightFormat format : kIntegerFormats) {
    const int64_t out = 7, in = 2304;
    const Weight weight = random_weight(random, format, out, in, Values::kUsual);
    Rows x(1, in);
    x.fill(random, Values::kUsual);
    const CodedX coded(format, x);
    Rows y = int_product(KernelSet::kReference, weight.view, coded, 1);
    const int64_t block = weight_block(format).elements;
    const RowCoding coding = row_coding(format, Activations::kAuto);
    EXPECT_EQ(coding, block == 32 ? RowCoding::kBlocks32 : RowCoding::kBlocks256);
    const float* d = reinterpret_cast<const float*>(coded.rows.data + coded_row_layout(coding, in).scales);
    std::vector<float> w(static_cast<size_t>(in));
    for (int64_t o = 0; o < out; ++o) {
      dequantize(weight.view, o, 0, in, w.data());
      double sum = 0, size = 0;
      for (int64_t k = 0; k < in; ++k) {
        const double product =
            static_cast<double>(w[static_cast<size_t>(k)]) * d[k / block] * static_cast<int8_t>(coded.rows.data[k]);
        sum += product;
        size += std::abs(product);
      }
      EXPECT_NEAR(y.row(0)[o], sum, 3e-7 * size) << weight_format_name(format);
    }
  }
}

TEST(LinearInt, GivesTheReferenceBitsInEveryKernelSetForAnyShapeAndValues) {
  std::mt19937 random(2);
  const auto sets = vector_sets();
  for (WeightFormat format : kIntegerFormats) {
    for (Values values : {Values::kUsual, Values::kExtreme, Values::kTiny}) {
      for (int64_t rows : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 31}) {
        const int64_t out = 1 + static_cast<int64_t>(random() % 70);
        const int64_t in = weight_block(format).elements * (1 + static_cast<int64_t>(random() % 20));
        const Weight weight = random_weight(random, format, out, in, values);
        Rows x(rows, in);
        x.fill(random, values);
        const CodedX coded(format, x);
        const Rows expected = int_product(KernelSet::kReference, weight.view, coded, rows);
        for (KernelSet set : sets) {
          EXPECT_TRUE(same_bits(int_product(set, weight.view, coded, rows).data, expected.data))
              << kernel_set_name(set) << " " << weight_format_name(format) << " rows " << rows << " [" << out << ", "
              << in << "]";
        }
      }
    }
  }
}

// Every code at its largest, so that a sum which overflows 16 bits, or saturates, shows.
TEST(LinearInt, KeepsSumsExactWhenEveryCodeIsExtreme) {
  std::mt19937 random(3);
  for (WeightFormat format : kIntegerFormats) {
    for (int byte : {0x00, 0xff, 0x80, 0x7f, 0x08, 0xf0}) {
      for (float sign : {1.f, -1.f}) {
        const int64_t out = 9, in = 512;
        Weight weight = random_weight(random, format, out, in, Values::kUsual);
        const auto block = static_cast<size_t>(weight_block(format).bytes);
        for (size_t i = 0; i < weight.data.size(); ++i) {
          bool half = false;
          for (int64_t at : half_offsets(format)) half |= i % block - static_cast<size_t>(at) < 2;
          if (!half) weight.data[i] = static_cast<std::byte>(byte);
        }
        Rows x(3, in);
        for (int64_t i = 0; i < in; ++i) {
          x.row(0)[i] = sign;
          x.row(1)[i] = i % 2 == 0 ? sign : -sign;
          x.row(2)[i] = i % 4 == 0 ? sign : 0;
        }
        const CodedX coded(format, x);
        const Rows expected = int_product(KernelSet::kReference, weight.view, coded, 3);
        for (KernelSet set : vector_sets()) {
          EXPECT_TRUE(same_bits(int_product(set, weight.view, coded, 3).data, expected.data))
              << kernel_set_name(set) << " " << weight_format_name(format) << " byte " << byte;
        }
      }
    }
  }
}

TEST(LinearInt, GivesTheReferenceBitsWhenDepthRowsAndOutputsSpanSeveralBlocks) {
  std::mt19937 random(4);
  for (WeightFormat format : kIntegerFormats) {
    for (auto [rows, out, in] : {std::array<int64_t, 3>{10, 9, 2560}, {101, 35, 768}, {200, 70, 256}, {1, 33, 5120}}) {
      const Weight weight = random_weight(random, format, out, in, Values::kUsual);
      Rows x(rows, in);
      x.fill(random, Values::kUsual);
      const CodedX coded(format, x);
      const Rows expected = int_product(KernelSet::kReference, weight.view, coded, rows);
      for (KernelSet set : vector_sets()) {
        EXPECT_TRUE(same_bits(int_product(set, weight.view, coded, rows).data, expected.data))
            << kernel_set_name(set) << " " << weight_format_name(format) << " rows " << rows;
      }
    }
  }
}

TEST(LinearInt, ComputesAnyPartOfTheOutputsLikeTheWhole) {
  std::mt19937 random(5);
  for (WeightFormat format : kIntegerFormats) {
    const int64_t out = 45, in = 512, rows = 4;
    const Weight weight = random_weight(random, format, out, in, Values::kUsual);
    Rows x(rows, in);
    x.fill(random, Values::kUsual);
    const CodedX coded(format, x);
    for (KernelSet set : vector_sets()) {
      const Rows whole = int_product(set, weight.view, coded, rows);
      for (int64_t part : {1, 8, 19, 44}) {
        Scratch scratch;
        Rows y(rows, out);
        for (int64_t o = 0; o < out; o += part) {
          coded_linear_kernel(set)(weight.view, o, std::min(o + part, out), coded.rows, rows, y.data.data(), y.stride,
                                   scratch.memory.data());
        }
        EXPECT_TRUE(same_bits(y.data, whole.data)) << kernel_set_name(set) << " parts of " << part;
      }
    }
  }
}

// Through the op: coding by one thread or several, bias, batch or alone.
TEST(LinearInt, ComputesABatchLikeEachOfItsRowsAloneWithAnyNumberOfThreads) {
  std::mt19937 random(6);
  for (WeightFormat format : kIntegerFormats) {
    const int64_t out = 70, in = 768, rows = 40;
    const Weight weight = random_weight(random, format, out, in, Values::kUsual);
    Rows x(rows, in);
    x.fill(random, Values::kUsual);
    std::vector<float> bias(static_cast<size_t>(out));
    for (float& b : bias) b = random_value(random, Values::kUsual);
    const CodedX coded(format, x);
    Rows expected = int_product(KernelSet::kReference, weight.view, coded, rows);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t o = 0; o < out; ++o) expected.row(r)[o] += bias[static_cast<size_t>(o)];
    }
    for (KernelSet set : kernel_sets()) {
      for (int threads : {1, 3}) {
        CpuDevice device(threads, set);
        Rows y(rows, out), one(1, out);
        LinearArgs args{.weight = weight.view,
                        .bias = bias.data(),
                        .x = x.data.data(),
                        .x_stride = x.stride,
                        .y = y.data.data(),
                        .y_stride = y.stride,
                        .activations = Activations::kAuto,
                        .max_rows = rows};
        bind_linear(device, "batch", args)->run({.rows = rows});
        EXPECT_TRUE(same_bits(y.data, expected.data)) << kernel_set_name(set) << " threads " << threads;
        for (int64_t r = 0; r < rows; r += 13) {
          args.x = x.row(r);
          args.y = one.row(0);
          bind_linear(device, "alone", args)->run({.rows = 1});
          EXPECT_EQ(std::memcmp(one.row(0), expected.row(r), sizeof(float) * out), 0);
        }
      }
    }
  }
}

TEST(LinearInt, TakesRoundedRowsWithQ8WhereTheFormatHasNoIntegerProduct) {
  std::mt19937 random(8);
  for (WeightFormat format :
       {WeightFormat::kBf16, WeightFormat::kMxfp4, WeightFormat::kMxfp4Block, WeightFormat::kF32}) {
    const int64_t out = 20, in = 96, rows = 3;
    const Weight weight = random_weight(random, format, out, in, Values::kUsual);
    Rows x(rows, in), rounded(rows, in);
    x.fill(random, Values::kUsual);
    for (int64_t r = 0; r < rows; ++r) {
      encode_row_kernel(KernelSet::kReference)(RowCoding::kRounded, x.row(r), in,
                                               reinterpret_cast<std::byte*>(rounded.row(r)));
    }
    const Rows expected = product(KernelSet::kReference, weight.view, rounded);
    for (KernelSet set : kernel_sets()) {
      CpuDevice device(2, set);
      Rows y(rows, out);
      bind_linear(device, "q8",
                  {.weight = weight.view,
                   .x = x.data.data(),
                   .x_stride = x.stride,
                   .y = y.data.data(),
                   .y_stride = y.stride,
                   .activations = Activations::kQ8,
                   .max_rows = rows})
          ->run({.rows = rows});
      EXPECT_TRUE(same_bits(y.data, expected.data)) << kernel_set_name(set) << " " << weight_format_name(format);
    }
  }
}

TEST(LinearInt, MakesARowWithAnInfinityNanAndLeavesTheOthers) {
  std::mt19937 random(7);
  const Weight weight = random_weight(random, WeightFormat::kQ4_0, 20, 64, Values::kUsual);
  Rows x(2, 64);
  x.fill(random, Values::kUsual);
  x.row(0)[3] = std::numeric_limits<float>::infinity();
  for (KernelSet set : kernel_sets()) {
    Rows y = int_product(set, weight.view, CodedX(WeightFormat::kQ4_0, x), 2);
    for (int64_t o = 0; o < 20; ++o) {
      EXPECT_TRUE(std::isnan(y.row(0)[o]));
      EXPECT_TRUE(std::isfinite(y.row(1)[o]));
    }
  }
}

}  // namespace
}  // namespace weir
