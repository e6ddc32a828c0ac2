#include "ops/mla/mla.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/number.h"
#include "ops/attention/attention.h"
#include "ops/attention/attention_testing.h"
#include "ops/simd/kernel_sets.h"
#include "ops/simd/lanes_ref.h"

namespace weir {
namespace {

// All numbers of nested arrays, in order.
void flatten(const boost::json::value& value, std::vector<float>& out) {
  if (!value.is_array()) return out.push_back(static_cast<float>(value.to_number<double>()));
  for (const boost::json::value& inner : value.as_array()) flatten(inner, out);
}

// tests/fixtures/kimi_k3/unit/mla.json: computed in double, absorbed and expanded forms agree to 1e-15. FP32 sums of at
// most 8 products of order one: 2e-6.
TEST(Mla, AbsorbAttendAndExpandAgreeWithTheFixture) {
  std::ifstream file(std::string(WEIR_FIXTURES) + "/kimi_k3/unit/mla.json");
  ASSERT_TRUE(file.good());
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const boost::json::value json = boost::json::parse(text);
  const auto dim = [&](const char* name) { return json.at("dims").at(name).to_number<int64_t>(); };
  const auto numbers = [&](const char* name) {
    std::vector<float> out;
    flatten(json.at(name), out);
    return out;
  };
  const int64_t heads = dim("heads"), nope = dim("nope"), extra = dim("rope"), value = dim("v"), latent = dim("latent");
  const auto rows = static_cast<int32_t>(dim("tokens"));
  const std::vector<float> q = numbers("q"), latents = numbers("latent"), extras = numbers("extra"),
                           expected = numbers("out");
  const std::vector<float> kv_b = numbers("kv_b");
  const WeightView weight{.format = WeightFormat::kF32,
                          .out = heads * (nope + value),
                          .in = latent,
                          .data = reinterpret_cast<const std::byte*>(kv_b.data()),
                          .row_bytes = latent * 4};
  for (KernelSet set : kernel_sets()) {
    CpuDevice device(2, set);
    std::mt19937 random(1);
    const PageField field{.row_bytes = (latent + extra) * 4};
    PagedSequences pages(random, 1, rows, kPagePositions * field.row_bytes);
    const StepView step = pages.step({{0, 0, rows}});
    std::vector<float> absorbed(static_cast<size_t>(rows * heads * (latent + extra)));
    std::vector<float> attended(static_cast<size_t>(rows * heads * latent));
    std::vector<float> out(static_cast<size_t>(rows * heads * value));
    MlaProjectArgs project{.kv_b = weight,
                           .heads = heads,
                           .nope = nope,
                           .extra = extra,
                           .value = value,
                           .latent = latent,
                           .x = q.data(),
                           .x_stride = heads * (nope + extra),
                           .y = absorbed.data(),
                           .y_stride = heads * (latent + extra)};
    bind_kv_write(device, "latent", {.field = field, .size = latent, .x = latents.data(), .x_stride = latent})
        ->run(step);
    bind_kv_write(device, "extra", {.field = field, .to = latent, .size = extra, .x = extras.data(), .x_stride = extra})
        ->run(step);
    bind_mla_absorb(device, "absorb", project)->run(step);
    bind_attention(device, "attention",
                   {.heads = heads,
                    .kv_heads = 1,
                    .key_dim = latent + extra,
                    .value_dim = latent,
                    .scale = 1 / std::sqrt(static_cast<float>(nope + extra)),
                    .key = field,
                    .value = field,
                    .q = absorbed.data(),
                    .q_stride = heads * (latent + extra),
                    .out = attended.data(),
                    .out_stride = heads * latent,
                    .max_rows = rows})
        ->run(step);
    project.x = attended.data();
    project.x_stride = heads * latent;
    project.y = out.data();
    project.y_stride = heads * value;
    bind_mla_expand(device, "expand", project)->run(step);
    ASSERT_EQ(out.size(), expected.size());
    for (size_t i = 0; i < out.size(); ++i)
      EXPECT_NEAR(out[i], expected[i], 2e-6) << kernel_set_name(set) << ", element " << i;
  }
}

struct Shape {
  int64_t heads, nope, extra, value, latent;
};
const Shape kShapes[] = {
    {3, 4, 2, 5, 6}, {2, 128, 64, 128, 512}, {1, 17, 0, 33, 300}, {5, 32, 16, 32, 272}, {2, 1, 1, 1, 1}};

enum class Layout { kFused, kSplit };  // kv_b, or k_b (transposed) and v_b

class Projection {
 public:
  Projection(const Shape& shape, WeightFormat format, int32_t rows, Layout layout = Layout::kFused)
      : shape_(shape), rows_(rows), layout_(layout) {
    const uint32_t seed = 1;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const float special[] = {0.f, -0.f, 1e-40f, 3e4f, -1e-30f, 1e30f};
    const auto element = [&] { return random() % 16 == 0 ? special[random() % 6] : normal(random); };
    const int64_t out = shape.heads * (shape.nope + shape.value);
    const int64_t bytes = format == WeightFormat::kF32 ? 4 : 2;
    kv_b_ = {.format = format, .out = out, .in = shape.latent, .row_bytes = weight_row_bytes(format, shape.latent)};
    data_.resize(static_cast<size_t>(out * kv_b_.row_bytes));
    const bool blocks = weight_block(format).elements > 1 || format == WeightFormat::kE4m3;
    for (std::byte& b : data_) b = static_cast<std::byte>(random() % 0x50);  // halves below 32
    for (int64_t i = 0; i < (blocks ? 0 : out * shape.latent); ++i) {
      const float f = element();
      const uint16_t half = format == WeightFormat::kF16 ? f32_to_f16(f) : f32_to_bf16(f);
      std::memcpy(data_.data() + i * bytes, bytes == 4 ? static_cast<const void*>(&f) : &half,
                  static_cast<size_t>(bytes));
    }
    kv_b_.data = data_.data();
    if (format == WeightFormat::kE4m3) {
      const int64_t across = (shape.latent + 127) / 128;
      for (int64_t i = 0; i < (out + 127) / 128 * across; ++i) scales_.push_back(normal(random));
      kv_b_.scales = reinterpret_cast<const std::byte*>(scales_.data());
      kv_b_.scale_row_bytes = across * 4;
      kv_b_.scale_rows = kv_b_.scale_cols = 128;
    }
    if (layout == Layout::kSplit) split();
    q_.resize(static_cast<size_t>(rows * shape.heads * (shape.nope + shape.extra) + 1));
    lat_.resize(static_cast<size_t>(rows * shape.heads * shape.latent + 1));
    for (float& f : q_) f = element();
    for (float& f : lat_) f = element();
  }

  // Rows [first, first + rows) through absorb or expand.
  std::vector<float> run(KernelSet set, int threads, bool absorb, int32_t first, int32_t rows) {
    CpuDevice device(threads, set);
    const Shape& s = shape_;
    const int64_t x_stride = s.heads * (absorb ? s.nope + s.extra : s.latent);
    const int64_t y_stride = s.heads * (absorb ? s.latent + s.extra : s.value);
    std::vector<float> y(static_cast<size_t>(rows * y_stride + 1), 77.f);
    const bool fused = layout_ == Layout::kFused;
    const MlaProjectArgs args{.kv_b = fused ? kv_b_ : WeightView{},
                              .k_b = fused ? WeightView{} : k_b_,
                              .v_b = fused ? WeightView{} : v_b_,
                              .heads = s.heads,
                              .nope = s.nope,
                              .extra = s.extra,
                              .value = s.value,
                              .latent = s.latent,
                              .x = (absorb ? q_ : lat_).data() + first * x_stride,
                              .x_stride = x_stride,
                              .y = y.data(),
                              .y_stride = y_stride};
    const auto op = absorb ? bind_mla_absorb(device, "absorb", args) : bind_mla_expand(device, "expand", args);
    op->run({.rows = rows});
    EXPECT_EQ(y.back(), 77.f);
    y.pop_back();
    weight_bytes_ = device.counters().weight_bytes_read;
    return y;
  }

  int32_t rows() const { return rows_; }
  int64_t weight_bytes() const { return weight_bytes_; }
  const WeightView& k_b() const { return k_b_; }
  const std::vector<float>& q() const { return q_; }

 private:
  void split() {
    const Shape& s = shape_;
    const int64_t bytes = kv_b_.row_bytes / kv_b_.in;
    k_b_ = {.format = kv_b_.format, .out = s.heads * s.latent, .in = s.nope, .row_bytes = s.nope * bytes};
    v_b_ = {.format = kv_b_.format, .out = s.heads * s.value, .in = s.latent, .row_bytes = s.latent * bytes};
    for (int64_t h = 0; h < s.heads; ++h) {
      const std::byte* head = kv_b_.data + h * (s.nope + s.value) * kv_b_.row_bytes;
      for (int64_t l = 0; l < s.latent; ++l) {
        for (int64_t d = 0; d < s.nope; ++d) {
          const std::byte* at = head + d * kv_b_.row_bytes + l * bytes;
          k_data_.insert(k_data_.end(), at, at + bytes);
        }
      }
      v_data_.insert(v_data_.end(), head + s.nope * kv_b_.row_bytes, head + (s.nope + s.value) * kv_b_.row_bytes);
    }
    k_b_.data = k_data_.data();
    v_b_.data = v_data_.data();
  }

  Shape shape_;
  int32_t rows_;
  Layout layout_;
  WeightView kv_b_, k_b_, v_b_;
  std::vector<std::byte> data_, k_data_, v_data_;
  std::vector<float> q_, lat_, scales_;
  int64_t weight_bytes_ = 0;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::memcmp(&a[i], &b[i], 4) != 0) return false;
  }
  return a.size() == b.size();
}

TEST(Mla, EveryKernelSetGivesTheBitsOfTheReference) {
  for (const Shape& shape : kShapes) {
    for (WeightFormat format : {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBf16}) {
      for (int32_t rows : {0, 1, 2, 3, 4, 11}) {
        for (Layout layout : {Layout::kFused, Layout::kSplit}) {
          Projection problem(shape, format, rows, layout);
          for (bool absorb : {true, false}) {
            const std::vector<float> expected = problem.run(KernelSet::kReference, 2, absorb, 0, rows);
            for (KernelSet set : kernel_sets()) {
              EXPECT_TRUE(same_bits(problem.run(set, 2, absorb, 0, rows), expected))
                  << kernel_set_name(set) << (absorb ? " absorb " : " expand ") << weight_format_name(format)
                  << (layout == Layout::kSplit ? ", split" : "") << ", latent " << shape.latent << ", " << rows
                  << " rows";
            }
          }
        }
      }
    }
  }
}

TEST(Mla, SplitMatricesExpandWithTheBitsOfOneAndAbsorbInSixteenLanes) {
  for (const Shape& s : kShapes) {
    Projection fused(s, WeightFormat::kF32, 3), split(s, WeightFormat::kF32, 3, Layout::kSplit);
    EXPECT_TRUE(same_bits(fused.run(best_kernel_set(), 2, false, 0, 3), split.run(best_kernel_set(), 2, false, 0, 3)));
    const std::vector<float> found = split.run(best_kernel_set(), 2, true, 0, 3);
    const auto* weights = reinterpret_cast<const float*>(split.k_b().data);
    std::vector<float> expected;
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t h = 0; h < s.heads; ++h) {
        const float* q = split.q().data() + (r * s.heads + h) * (s.nope + s.extra);
        for (int64_t l = 0; l < s.latent; ++l) {
          const float* w = weights + (h * s.latent + l) * s.nope;
          expected.push_back(dot_lanes(
              s.nope, [&](int64_t d) { return w[d]; }, [&](int64_t d) { return q[d]; }));
        }
        expected.insert(expected.end(), q + s.nope, q + s.nope + s.extra);
      }
    }
    EXPECT_TRUE(same_bits(found, expected));
  }
}

TEST(Mla, EveryKernelSetGivesTheBitsOfTheReferenceForWeightsInBlocks) {
  for (WeightFormat format : {WeightFormat::kQ8_0, WeightFormat::kQ4_1, WeightFormat::kIq4Nl, WeightFormat::kMxfp4Block,
                              WeightFormat::kQ4_K, WeightFormat::kQ6_K}) {
    for (const Shape& shape : {Shape{2, 20, 6, 33, 512}, Shape{3, 16, 0, 16, 256}}) {
      for (int32_t rows : {1, 3, 7}) {
        Projection problem(shape, format, rows);
        for (bool absorb : {true, false}) {
          const std::vector<float> expected = problem.run(KernelSet::kReference, 2, absorb, 0, rows);
          for (KernelSet set : kernel_sets()) {
            EXPECT_TRUE(same_bits(problem.run(set, 2, absorb, 0, rows), expected))
                << kernel_set_name(set) << (absorb ? " absorb " : " expand ") << weight_format_name(format);
          }
        }
      }
    }
  }
}

TEST(Mla, EveryKernelSetGivesTheBitsOfTheReferenceForFp8) {
  for (const Shape& shape : kShapes) {
    for (int32_t rows : {1, 3, 7}) {
      Projection problem(shape, WeightFormat::kE4m3, rows);
      for (bool absorb : {true, false}) {
        const std::vector<float> expected = problem.run(KernelSet::kReference, 2, absorb, 0, rows);
        for (KernelSet set : kernel_sets()) {
          EXPECT_TRUE(same_bits(problem.run(set, 2, absorb, 0, rows), expected))
              << kernel_set_name(set) << (absorb ? " absorb " : " expand ") << "latent " << shape.latent;
        }
      }
    }
  }
}

TEST(Mla, ABatchOfRowsGivesTheBitsOfEachRowAlone) {
  for (const Shape& shape : kShapes) {
    const Layout layout = &shape - kShapes > 2 ? Layout::kSplit : Layout::kFused;
    Projection problem(shape, WeightFormat::kBf16, 70, layout);
    for (bool absorb : {true, false}) {
      const std::vector<float> batch = problem.run(best_kernel_set(), 2, absorb, 0, 70);
      std::vector<float> rows;
      for (int32_t r = 0; r < 70; ++r) {
        const std::vector<float> row = problem.run(best_kernel_set(), 1, absorb, r, 1);
        rows.insert(rows.end(), row.begin(), row.end());
      }
      EXPECT_TRUE(same_bits(batch, rows));
    }
  }
}

TEST(Mla, ReadsEachWeightByteOncePerStep) {
  Projection problem({3, 8, 2, 24, 32}, WeightFormat::kBf16, 9);
  problem.run(best_kernel_set(), 2, true, 0, 9);
  EXPECT_EQ(problem.weight_bytes(), 3 * 8 * 32 * 2);
  problem.run(best_kernel_set(), 2, false, 0, 9);
  EXPECT_EQ(problem.weight_bytes(), 3 * 24 * 32 * 2);
  Projection split({3, 8, 2, 24, 32}, WeightFormat::kBf16, 9, Layout::kSplit);
  split.run(best_kernel_set(), 2, true, 0, 9);
  EXPECT_EQ(split.weight_bytes(), 3 * 8 * 32 * 2);
  split.run(best_kernel_set(), 2, false, 0, 9);
  EXPECT_EQ(split.weight_bytes(), 3 * 24 * 32 * 2);
}

TEST(Mla, RefusesWeightsOfAnotherShapeOrFormat) {
  CpuDevice device(1, best_kernel_set());
  const MlaProjectArgs good{.kv_b = {.format = WeightFormat::kF32, .out = 18, .in = 8, .row_bytes = 32},
                            .heads = 2,
                            .nope = 4,
                            .extra = 2,
                            .value = 5,
                            .latent = 8};
  const auto refused = [&](auto change) {
    MlaProjectArgs args = good;
    change(args);
    EXPECT_THROW(bind_mla_absorb(device, "absorb", args), Error);
    EXPECT_THROW(bind_mla_expand(device, "expand", args), Error);
  };
  refused([](MlaProjectArgs& a) { a.kv_b.out = 17; });
  refused([](MlaProjectArgs& a) { a.latent = 7; });
  refused([](MlaProjectArgs& a) { a.heads = 0; });
  refused([](MlaProjectArgs& a) { a.kv_b.format = WeightFormat::kMxfp4; });
  const std::byte some[4] = {};
  const auto with_parts = [&](auto change) {
    refused([&](MlaProjectArgs& a) {
      a.kv_b = {};
      a.k_b = {.format = WeightFormat::kF32, .out = 16, .in = 4, .data = some, .row_bytes = 16};
      a.v_b = {.format = WeightFormat::kF32, .out = 10, .in = 8, .data = some, .row_bytes = 32};
      change(a);
    });
  };
  with_parts([](MlaProjectArgs& a) { a.k_b.out = 15; });
  with_parts([](MlaProjectArgs& a) { a.v_b.in = 4; });
  with_parts([](MlaProjectArgs& a) { a.v_b.row_bytes = 16; });
  with_parts([](MlaProjectArgs& a) { a.k_b.format = WeightFormat::kQ8_0; });
  refused([](MlaProjectArgs& a) { a.kv_b.format = WeightFormat::kQ8_0; });
}

}  // namespace
}  // namespace weir
