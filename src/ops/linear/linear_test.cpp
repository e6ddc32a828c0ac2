#include "ops/linear/linear.h"

#include <gtest/gtest.h>

#include <bit>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/number.h"
#include "formats/quant.h"
#include "ops/linear/linear_testing.h"

namespace weir {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

float from_hex(const boost::json::value& value) {
  return std::bit_cast<float>(static_cast<uint32_t>(std::stoul(std::string(value.as_string()), nullptr, 16)));
}

// One element holds the code, the others are zero: y is the weight itself (only a zero's sign is lost in the sum).
TEST(Linear, DecodesEveryMxfp4CodeUnderEveryScaleAsPublished) {
  const boost::json::value json = boost::json::parse(read_file(WEIR_FIXTURES "/kimi_k3/unit/mxfp4.json"));
  std::vector<KernelSet> sets = vector_sets();
  sets.push_back(KernelSet::kReference);
  int codes_seen = 0;
  for (const boost::json::value& row : json.at("rows").as_array()) {
    const size_t scale_code = row.at("scale").to_number<size_t>();
    if (scale_code == 255) continue;
    const std::byte scale = static_cast<std::byte>(scale_code);
    for (size_t code = 0; code < 16; ++code) {
      const size_t element = (code * 7 + scale_code) % 32;
      std::vector<std::byte> packed(16);
      packed[element / 2] = static_cast<std::byte>(element % 2 == 0 ? code : code << 4);
      const WeightView weight{WeightFormat::kMxfp4, 1, 32, packed.data(), 16, &scale, 1};
      const float published = from_hex(row.at("ocp_f32").as_array()[code]);
      ++codes_seen;
      for (int64_t rows : {1, 40}) {
        Rows x(rows, 32);
        for (int64_t i = 0; i < 32; ++i) x.row(rows - 1)[i] = static_cast<size_t>(i) == element ? 1.f : 0.f;
        for (KernelSet set : sets) {
          EXPECT_EQ(product(set, weight, x).row(rows - 1)[0], published)
              << kernel_set_name(set) << " scale " << scale_code << " code " << code;
        }
      }
    }
  }
  EXPECT_GE(codes_seen, 10 * 16);
}

TEST(Linear, ReadsPackedMxfp4RowsInThePublishedLayout) {
  const boost::json::value json = boost::json::parse(read_file(WEIR_FIXTURES "/kimi_k3/unit/mxfp4.json"));
  const boost::json::value& layout = json.at("layout");
  std::vector<std::byte> packed, scales;
  for (const auto& row : layout.at("packed").as_array()) {
    for (const auto& b : row.as_array()) packed.push_back(static_cast<std::byte>(b.to_number<int>()));
  }
  for (const auto& row : layout.at("scale").as_array()) {
    for (const auto& b : row.as_array()) scales.push_back(static_cast<std::byte>(b.to_number<int>()));
  }
  ASSERT_EQ(packed.size(), 96u);
  const WeightView weight{WeightFormat::kMxfp4, 3, 64, packed.data(), 32, scales.data(), 2};
  Rows x(64, 64);
  for (int64_t r = 0; r < 64; ++r) {
    for (int64_t i = 0; i < 64; ++i) x.row(r)[i] = i == r ? 1.f : 0.f;
  }
  std::vector<KernelSet> sets = vector_sets();
  sets.push_back(KernelSet::kReference);
  for (KernelSet set : sets) {
    Rows y = product(set, weight, x);
    for (size_t o = 0; o < 3; ++o) {
      for (size_t k = 0; k < 64; ++k) {
        const float published = layout.at("values").as_array()[o].as_array()[k].to_number<float>();
        EXPECT_EQ(y.row(static_cast<int64_t>(k))[o], published)
            << kernel_set_name(set) << " [" << o << ", " << k << "]";
      }
    }
  }
}

TEST(Linear, GivesForMxfp4TheBitsOfTheSameWeightsUnpackedToBf16) {
  std::mt19937 random(3);
  for (Values values : {Values::kUsual, Values::kExtreme, Values::kTiny}) {
    const int64_t out = 11, in = 160;
    const Weight packed = random_weight(random, WeightFormat::kMxfp4, out, in, values);
    std::vector<uint16_t> unpacked;
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t k = 0; k < in; ++k) {
        const auto pair = static_cast<uint8_t>(packed.data[static_cast<size_t>((o * in + k) / 2)]);
        const auto scale = static_cast<uint8_t>(packed.scales[static_cast<size_t>((o * in + k) / 32)]);
        unpacked.push_back(f32_to_bf16(kE2m1[k % 2 == 0 ? pair & 15 : pair >> 4] * e8m0_to_f32(scale)));
      }
    }
    const WeightView bf16{WeightFormat::kBf16, out, in, reinterpret_cast<const std::byte*>(unpacked.data()), in * 2};
    for (KernelSet set : vector_sets()) {
      for (int64_t rows : {1, 2, 5, 17}) {
        Rows x(rows, in);
        x.fill(random, values);
        EXPECT_TRUE(same_bits(product(set, packed.view, x).data, product(set, bf16, x).data)) << kernel_set_name(set);
      }
    }
  }
}

TEST(Linear, GivesForEveryFormatTheBitsOfItsValuesAsF32) {
  std::mt19937 random(9);
  std::vector<KernelSet> sets = vector_sets();
  sets.push_back(KernelSet::kReference);
  for (WeightFormat format : kFormats) {
    for (Values values : {Values::kUsual, Values::kExtreme, Values::kTiny}) {
      const int64_t out = 13, in = 768;
      const Weight weight = random_weight(random, format, out, in, values);
      std::vector<float> wide(static_cast<size_t>(out * in));
      for (int64_t o = 0; o < out; ++o) dequantize(weight.view, o, 0, in, wide.data() + o * in);
      const WeightView f32{WeightFormat::kF32, out, in, reinterpret_cast<const std::byte*>(wide.data()), in * 4};
      for (KernelSet set : sets) {
        for (int64_t rows : {1, 3, 26}) {
          Rows x(rows, in);
          x.fill(random, values);
          EXPECT_TRUE(same_bits(product(set, weight.view, x).data, product(set, f32, x).data))
              << kernel_set_name(set) << " " << weight_format_name(format) << " rows " << rows;
        }
      }
    }
  }
}

TEST(Linear, GivesTheReferenceBitsInEveryKernelSetForAnyShapeAndValues) {
  std::mt19937 random(1);
  const auto sets = vector_sets();
  for (WeightFormat format : kFormats) {
    for (Values values : {Values::kUsual, Values::kExtreme, Values::kTiny}) {
      for (int64_t rows : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 31}) {
        const int64_t out = 1 + static_cast<int64_t>(random() % 40);
        int64_t in = 1 + static_cast<int64_t>(random() % 200);
        in = whole_blocks(format, weight_block(format).elements == 256 ? in * 5 : in);
        const Weight weight = random_weight(random, format, out, in, values);
        Rows x(rows, in);
        x.fill(random, values);
        const Rows expected = product(KernelSet::kReference, weight.view, x);
        for (KernelSet set : sets) {
          EXPECT_TRUE(same_bits(product(set, weight.view, x).data, expected.data))
              << kernel_set_name(set) << " " << weight_format_name(format) << " rows " << rows << " [" << out << ", "
              << in << "]";
        }
      }
    }
  }
}

// Beyond the kernels' blocks: sums saved between blocks of depth, several blocks of rows and outputs.
TEST(Linear, GivesTheReferenceBitsWhenDepthRowsAndOutputsSpanSeveralBlocks) {
  std::mt19937 random(2);
  const auto sets = vector_sets();
  for (WeightFormat format : kFormats) {
    for (auto [rows, out, in] : {std::array<int64_t, 3>{10, 9, 2333}, {101, 3, 1040}, {200, 70, 37}, {1, 5, 4099}}) {
      const int64_t depth = whole_blocks(format, in);
      const Weight weight = random_weight(random, format, out, depth, Values::kUsual);
      Rows x(rows, depth);
      x.fill(random, Values::kUsual);
      const Rows expected = product(KernelSet::kReference, weight.view, x);
      for (KernelSet set : sets) {
        EXPECT_TRUE(same_bits(product(set, weight.view, x).data, expected.data))
            << kernel_set_name(set) << " " << weight_format_name(format) << " rows " << rows << " [" << out << ", "
            << depth << "]";
      }
    }
  }
}

TEST(Linear, ComputesABatchLikeEachOfItsRowsAlone) {
  std::mt19937 random(4);
  for (WeightFormat format : kFormats) {
    const int64_t in = whole_blocks(format, 1120);
    const Weight weight = random_weight(random, format, 37, in, Values::kUsual);
    for (KernelSet set : vector_sets()) {
      for (int64_t rows : {2, 3, 4, 7, 8, 20, 100}) {
        Rows x(rows, in);
        x.fill(random, Values::kUsual);
        Rows batch = product(set, weight.view, x);
        Rows alone(rows, 37);
        for (int64_t r = 0; r < rows; ++r) {
          Rows one(1, in);
          std::memcpy(one.row(0), x.row(r), static_cast<size_t>(in) * sizeof(float));
          std::memcpy(alone.row(r), product(set, weight.view, one).row(0), 37 * sizeof(float));
        }
        EXPECT_TRUE(same_bits(batch.data, alone.data)) << kernel_set_name(set) << " rows " << rows;
      }
    }
  }
}

TEST(Linear, ComputesAnyPartOfTheOutputsLikeTheWhole) {
  std::mt19937 random(5);
  for (WeightFormat format : kFormats) {
    const int64_t out = 45, in = whole_blocks(format, 96);
    const Weight weight = random_weight(random, format, out, in, Values::kUsual);
    for (KernelSet set : vector_sets()) {
      for (int64_t rows : {1, 3, 30}) {
        Rows x(rows, in);
        x.fill(random, Values::kUsual);
        const Rows whole = product(set, weight.view, x);
        for (int64_t part : {1, 3, 8, 19, 44}) {
          Scratch scratch;
          Rows y(rows, out);
          for (int64_t o = 0; o < out; o += part) {
            linear_kernel(set)(weight.view, o, std::min(o + part, out), x.data.data(), x.stride, rows, y.data.data(),
                               y.stride, scratch.memory.data());
          }
          EXPECT_TRUE(same_bits(y.data, whole.data)) << kernel_set_name(set) << " parts of " << part;
        }
      }
    }
  }
}

TEST(Linear, AddsTheBiasLastAndDoesNotDependOnThreads) {
  std::mt19937 random(6);
  const int64_t out = 150, in = 70, rows = 6;
  const Weight weight = random_weight(random, WeightFormat::kBf16, out, in, Values::kUsual);
  Rows x(rows, in);
  x.fill(random, Values::kUsual);
  std::vector<float> bias(out);
  for (float& b : bias) b = random_value(random, Values::kUsual);
  Rows expected = product(KernelSet::kReference, weight.view, x);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) expected.row(r)[o] += bias[static_cast<size_t>(o)];
  }
  std::vector<KernelSet> sets = vector_sets();
  sets.push_back(KernelSet::kReference);
  for (KernelSet set : sets) {
    for (int threads : {1, 2, 3}) {
      CpuDevice device(threads, set);
      Rows y(rows, out);
      const auto op = bind_linear(device, "test",
                                  {.weight = weight.view,
                                   .bias = bias.data(),
                                   .x = x.data.data(),
                                   .x_stride = x.stride,
                                   .y = y.data.data(),
                                   .y_stride = y.stride});
      op->run({.rows = rows});
      EXPECT_TRUE(same_bits(y.data, expected.data)) << kernel_set_name(set) << " threads " << threads;
      EXPECT_EQ(device.counters().weight_bytes_read, out * in * 2);
      EXPECT_EQ(op->cost(rows, 0).flops, 2.0 * rows * out * in);
    }
  }
}

TEST(Linear, ComputesOnlyAsManyRowsAsWantLogits) {
  std::mt19937 random(7);
  const Weight weight = random_weight(random, WeightFormat::kF32, 20, 33, Values::kUsual);
  CpuDevice device(1, best_kernel_set());
  Rows x(5, 33), y(5, 20);
  x.fill(random, Values::kUsual);
  const auto op = bind_linear(device, "head",
                              {.weight = weight.view,
                               .x = x.data.data(),
                               .x_stride = x.stride,
                               .y = y.data.data(),
                               .y_stride = y.stride,
                               .rows = RowSet::kLogits});
  op->run({.rows = 5});
  EXPECT_EQ(y.data, Rows(5, 20).data);
  EXPECT_EQ(device.counters().weight_bytes_read, 0);
  const std::vector<int32_t> wanted = {1, 4};
  op->run({.rows = 5, .logit_rows = wanted});
  const Rows whole = product(KernelSet::kReference, weight.view, x);
  EXPECT_EQ(std::memcmp(y.row(0), whole.data.data(), sizeof(float) * static_cast<size_t>(y.stride + 20)), 0);
  EXPECT_EQ(y.row(2)[0], Rows::kGap);
}

TEST(Linear, RefusesShapesThatTheFormatDoesNotAllow) {
  CpuDevice device(1, KernelSet::kReference);
  std::mt19937 random(8);
  const Weight good = random_weight(random, WeightFormat::kMxfp4, 4, 64, Values::kUsual);
  std::vector<float> x(64), y(4);
  const auto message = [&](auto change) -> std::string {
    LinearArgs args{.weight = good.view, .x = x.data(), .x_stride = 64, .y = y.data(), .y_stride = 4};
    change(args);
    try {
      bind_linear(device, "layers.0.up", args);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message([](LinearArgs&) {}), "");
  EXPECT_EQ(message([](LinearArgs& a) { a.weight.in = 40; }),
            "layers.0.up: MXFP4 needs a multiple of 32 inputs, found 40");
  EXPECT_EQ(message([](LinearArgs& a) { a.weight.scale_row_bytes = 1; }),
            "layers.0.up: expected 2 scales per row, found 1");
  EXPECT_EQ(message([](LinearArgs& a) { a.weight.scales = nullptr; }), "layers.0.up: MXFP4 needs scales, found none");
  EXPECT_EQ(message([](LinearArgs& a) { a.weight.format = WeightFormat::kBf16; }),
            "layers.0.up: a row of 64 BF16 elements has 128 bytes, found 32");
  EXPECT_EQ(message([](LinearArgs& a) { a.weight.format = WeightFormat::kQ6_K; }),
            "layers.0.up: Q6_K needs a multiple of 256 inputs, found 64");
  EXPECT_EQ(message([](LinearArgs& a) {
              a.weight.format = WeightFormat::kQ4_0;
              a.weight.row_bytes = 36;
              a.activations = Activations::kAuto;
            }),
            "layers.0.up: expected the most rows of a step, found 0");
  EXPECT_EQ(message([](LinearArgs& a) { a.y_type = RowType::kBf16; }),
            "layers.0.up: BF16 rows are multiplied on a GPU with --activations auto, expected FP32 rows");
  EXPECT_EQ(message([](LinearArgs& a) { a.weight.data = nullptr; }), "layers.0.up: expected a weight, found none");
  EXPECT_EQ(message([](LinearArgs& a) { a.x_stride = 63; }), "layers.0.up: expected x rows of at least 64, found 63");
  EXPECT_EQ(message([](LinearArgs& a) { a.y_stride = 3; }), "layers.0.up: expected y rows of at least 4, found 3");
  EXPECT_EQ(message([](LinearArgs& a) { a.weight.out = 0; }),
            "layers.0.up: expected a weight of at least [1, 1], found [0, 64]");
}

TEST(Linear, CutsAMatrixIntoPanelsOfWholeTilesThatKeepThreadsBusy) {
  for (int64_t out : {1, 8, 100, 4096, 163840}) {
    for (int threads : {1, 2, 64}) {
      const int64_t panel = linear_panel(out, threads);
      EXPECT_EQ(panel % 8, 0);
      EXPECT_GE(panel, 8);
      if (out >= threads * 32) {
        EXPECT_GE((out + panel - 1) / panel, threads * 4);
      }
    }
  }
}

}  // namespace
}  // namespace weir
