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

namespace weir {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBf16, WeightFormat::kMxfp4};

std::vector<KernelSet> vector_sets() {
  std::vector<KernelSet> sets;
  for (KernelSet set : {KernelSet::kAvx2, KernelSet::kAvx512}) {
    if (kernel_set_supported(set)) {
      sets.push_back(set);
    } else {
      std::printf("[ SKIPPED  ] kernel set %s: not on this processor\n", std::string(kernel_set_name(set)).c_str());
    }
  }
  return sets;
}

// Values a network has, and those it should not have.
// kTiny: products underflow, to subnormals and signed zeros.
enum class Values { kUsual, kExtreme, kTiny };

float random_value(std::mt19937& random, Values values) {
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

Weight random_weight(std::mt19937& random, WeightFormat format, int64_t out, int64_t in, Values values) {
  Weight weight;
  weight.view = {.format = format, .out = out, .in = in};
  const int64_t row_bytes = format == WeightFormat::kF32 ? in * 4 : format == WeightFormat::kMxfp4 ? in / 2 : in * 2;
  weight.view.row_bytes = row_bytes;
  weight.data.resize(static_cast<size_t>(out * row_bytes));
  if (format == WeightFormat::kMxfp4) {
    weight.view.scale_row_bytes = in / 32;
    weight.scales.resize(static_cast<size_t>(out * in / 32));
    for (std::byte& b : weight.data) b = static_cast<std::byte>(random());
    for (std::byte& b : weight.scales) {
      b = static_cast<std::byte>(values == Values::kUsual  ? 115 + random() % 12
                                 : values == Values::kTiny ? random() % 60
                                                           : random() % 255);
    }
    weight.view.scales = weight.scales.data();
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
::testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
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

Rows product(KernelSet set, const WeightView& weight, Rows& x) {
  Scratch scratch;
  Rows y(x.rows, weight.out);
  linear_kernel(set)(weight, 0, weight.out, x.data.data(), x.stride, x.rows, y.data.data(), y.stride,
                     scratch.memory.data());
  return y;
}

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

TEST(Linear, GivesTheReferenceBitsInEveryKernelSetForAnyShapeAndValues) {
  std::mt19937 random(1);
  const auto sets = vector_sets();
  for (WeightFormat format : kFormats) {
    for (Values values : {Values::kUsual, Values::kExtreme, Values::kTiny}) {
      for (int64_t rows : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 31}) {
        const int64_t out = 1 + static_cast<int64_t>(random() % 40);
        int64_t in = 1 + static_cast<int64_t>(random() % 200);
        if (format == WeightFormat::kMxfp4) in = (in + 31) / 32 * 32;
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
      const int64_t depth = format == WeightFormat::kMxfp4 ? (in + 31) / 32 * 32 : in;
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
    const Weight weight = random_weight(random, format, 37, 1120, Values::kUsual);
    for (KernelSet set : vector_sets()) {
      for (int64_t rows : {2, 3, 4, 7, 8, 20, 100}) {
        Rows x(rows, 1120);
        x.fill(random, Values::kUsual);
        Rows batch = product(set, weight.view, x);
        Rows alone(rows, 37);
        for (int64_t r = 0; r < rows; ++r) {
          Rows one(1, 1120);
          std::memcpy(one.row(0), x.row(r), 1120 * sizeof(float));
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
    const int64_t out = 45, in = 96;
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
