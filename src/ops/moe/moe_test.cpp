#include "ops/moe/moe.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/math.h"
#include "base/number.h"
#include "formats/quant.h"
#include "ops/linear/linear.h"
#include "ops/simd/kernel_test.h"
#include "ops/simd/lanes_ref.h"

namespace weir {
namespace {

// Random values in a format, and the same values as floats.
struct Matrix {
  WeightView view;
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  std::vector<float> values;  // [out, in]

  Matrix(WeightFormat format, int64_t out, int64_t in, RandomFloats& random) {
    view = {.format = format, .out = out, .in = in};
    values.resize(static_cast<size_t>(out * in));
    view.row_bytes = weight_row_bytes(format, in);
    data.resize(static_cast<size_t>(out * view.row_bytes));
    if (format == WeightFormat::kMxfp4) {
      view.scale_row_bytes = in / 32;
      scales.resize(static_cast<size_t>(out * in / 32));
      for (std::byte& s : scales) s = static_cast<std::byte>(118 + random.below(10));
      scales[0] = std::byte{0};  // 2^-127
      for (std::byte& b : data) b = static_cast<std::byte>(random.bits());
    }
    if (format == WeightFormat::kE4m3) {
      const int64_t across = (in + 127) / 128;
      view.scale_rows = view.scale_cols = 128;
      view.scale_row_bytes = across * 4;
      scales.resize(static_cast<size_t>((out + 127) / 128 * view.scale_row_bytes));
      for (size_t i = 0; i < scales.size() / 4; ++i) reinterpret_cast<float*>(scales.data())[i] = random.next() * 0.1f;
    }
    view.data = data.data();
    view.scales = scales.empty() ? nullptr : scales.data();
    if ((weight_block(format).elements == 1 && format != WeightFormat::kE4m3) || format == WeightFormat::kMxfp4) {
      for (size_t i = 0; i < values.size(); ++i) set(i, random.next());
      return;
    }
    for (std::byte& b : data) b = static_cast<std::byte>(random.bits() % 0x30);  // as halves: below 0.13
    for (int64_t o = 0; o < out; ++o) dequantize(view, o, 0, in, values.data() + o * in);
  }

 private:
  void set(size_t i, float value) {
    uint16_t* half = reinterpret_cast<uint16_t*>(data.data());
    switch (view.format) {
      case WeightFormat::kF32:
        values[i] = value;
        reinterpret_cast<float*>(data.data())[i] = value;
        break;
      case WeightFormat::kBf16:
        half[i] = f32_to_bf16(value);
        values[i] = bf16_to_f32(half[i]);
        break;
      case WeightFormat::kF16:
        half[i] = f32_to_f16(value);
        values[i] = f16_to_f32(half[i]);
        break;
      case WeightFormat::kMxfp4: {
        const uint8_t byte = static_cast<uint8_t>(data[i / 2]);
        values[i] = kE2m1[i % 2 == 0 ? byte & 15 : byte >> 4] * e8m0_to_f32(static_cast<uint8_t>(scales[i / 32]));
        break;
      }
      default:
        break;
    }
  }
};

struct Shape {
  int64_t experts, in, inter, out, top_k, rows;
};

struct Problem {
  Shape shape;
  std::vector<Matrix> matrices;  // gate, up, down of every expert
  std::vector<float> x, weights;
  std::vector<float> gate_bias, up_bias, down_bias;  // empty: none
  std::vector<int32_t> ids;
  MoeArgs args;

  Problem(const Shape& s, const std::vector<WeightFormat>& formats, GluFunction act, uint64_t seed) : shape(s) {
    RandomFloats random(seed);
    matrices.reserve(static_cast<size_t>(s.experts * 3));
    size_t next = 0;
    const auto format = [&] { return formats[next++ % formats.size()]; };
    for (int64_t e = 0; e < s.experts; ++e) {
      matrices.emplace_back(format(), s.inter, s.in, random);
      matrices.emplace_back(format(), s.inter, s.in, random);
      matrices.emplace_back(format(), s.out, s.inter, random);
      args.experts.push_back({matrices.end()[-3].view, matrices.end()[-2].view, matrices.end()[-1].view});
    }
    x = random.take((s.rows + 1) * (s.in + 3));
    weights = random.take((s.rows + 1) * s.top_k);
    std::vector<int32_t> all(static_cast<size_t>(s.experts));
    std::iota(all.begin(), all.end(), 0);
    for (int64_t r = 0; r <= s.rows; ++r) {
      for (int64_t k = 0; k < s.top_k; ++k)
        std::swap(all[static_cast<size_t>(k)], all[static_cast<size_t>(k + random.below(s.experts - k))]);
      std::sort(all.begin(), all.begin() + s.top_k);
      ids.insert(ids.end(), all.begin(), all.begin() + s.top_k);
    }
    args.in = s.in;
    args.inter = s.inter;
    args.out = s.out;
    args.top_k = s.top_k;
    args.act = act;
    args.x = x.data();
    args.x_stride = s.in + 3;
    args.ids = ids.data();
    args.weights = weights.data();
    args.y_stride = s.out + 1;
    args.max_rows = static_cast<int32_t>(std::max<int64_t>(s.rows, 1));
  }

  void add_biases() {
    RandomFloats random(99);
    gate_bias = random.take(shape.experts * shape.inter);
    up_bias = random.take(shape.experts * shape.inter);
    down_bias = random.take(shape.experts * shape.out);
    args.gate_bias = gate_bias.data();
    args.up_bias = up_bias.data();
    args.down_bias = down_bias.data();
  }

  std::vector<float> run(CpuDevice& device) {
    std::vector<float> y(static_cast<size_t>((shape.rows + 1) * args.y_stride), -7.f);
    args.y = y.data();
    StepView step;
    step.rows = static_cast<int32_t>(shape.rows);
    bind_moe(device, "moe", args)->run(step);
    return y;
  }
  std::vector<float> run(KernelSet set, int threads) {
    CpuDevice device(threads, set);
    return run(device);
  }

  // Row by row and expert by expert, from the values; shares nothing with the op but the elementwise functions.
  std::vector<float> naive() const {
    std::vector<float> y(static_cast<size_t>((shape.rows + 1) * args.y_stride), -7.f);
    for (int64_t r = 0; r < shape.rows; ++r) {
      std::vector<float> sum(static_cast<size_t>(shape.out), 0.f);
      for (int64_t k = 0; k < shape.top_k; ++k) {
        const size_t e = static_cast<size_t>(ids[static_cast<size_t>(r * shape.top_k + k)]);
        const float* row = x.data() + r * args.x_stride;
        const Activations a = args.activations;
        std::vector<float> g = product(matrices[e * 3], row, a), u = product(matrices[e * 3 + 1], row, a);
        add(g, gate_bias, e);
        add(u, up_bias, e);
        std::vector<float> h(g.size());
        for (size_t i = 0; i < h.size(); ++i) h[i] = glu(g[i], u[i]);
        std::vector<float> z = product(matrices[e * 3 + 2], h.data(), a);
        add(z, down_bias, e);
        const float w = weights[static_cast<size_t>(r * shape.top_k + k)];
        for (size_t d = 0; d < z.size(); ++d) sum[d] = math::fma(w, z[d], sum[d]);
      }
      std::copy(sum.begin(), sum.end(), y.begin() + r * args.y_stride);
    }
    return y;
  }

 private:
  static std::vector<float> product(const Matrix& w, const float* v, Activations activations) {
    std::vector<float> out(static_cast<size_t>(w.view.out));
    const RowCoding coding = row_coding(w.view.format, activations);
    if (coding != RowCoding::kNone) {
      const Mapping coded(coded_row_layout(coding, w.view.in).bytes);
      encode_row_kernel(KernelSet::kReference)(coding, v, w.view.in, coded.data());
      if (coding == RowCoding::kRounded) {
        linear_kernel(KernelSet::kReference)(w.view, 0, w.view.out, coded.as<float>().data(), w.view.in, 1, out.data(),
                                             w.view.out, nullptr);
        return out;
      }
      coded_linear_kernel(KernelSet::kReference)(w.view, 0, w.view.out, {coded.data(), coded.bytes()}, 1, out.data(),
                                                 w.view.out, nullptr);
      return out;
    }
    for (size_t o = 0; o < out.size(); ++o) {
      const float* row = w.values.data() + o * static_cast<size_t>(w.view.in);
      out[o] = dot_lanes(
          w.view.in, [&](int64_t k) { return row[k]; }, [&](int64_t k) { return v[k]; });
    }
    return out;
  }
  static void add(std::vector<float>& y, const std::vector<float>& bias, size_t expert) {
    for (size_t i = 0; !bias.empty() && i < y.size(); ++i) y[i] += bias[expert * y.size() + i];
  }
  float glu(float g, float u) const {
    const GluFunction& f = args.act;
    if (f.kind == ElementwiseKind::kSwiGlu) return (g * math::sigmoid(g)) * u;
    if (f.kind == ElementwiseKind::kClampedSwiGlu) {
      const float gate = std::min(g, f.linear_beta);
      return (std::clamp(u, -f.linear_beta, f.linear_beta) + 1) * (gate * math::sigmoid(gate * f.beta));
    }
    if (f.kind == ElementwiseKind::kGeGlu) {
      return (g * math::sigmoid(kGeluSlope * std::fma(kGeluCubic, (g * g) * g, g))) * u;
    }
    const float up = f.linear_beta == 0 ? u : f.linear_beta * math::tanh(u / f.linear_beta);
    return ((f.beta * math::tanh(g / f.beta)) * math::sigmoid(g)) * up;
  }
};

constexpr GluFunction kSwiGlu{};
constexpr GluFunction kSitu{ElementwiseKind::kSitu, 4.f, 25.f};
constexpr GluFunction kGeGlu{ElementwiseKind::kGeGlu};
constexpr GluFunction kClamped{ElementwiseKind::kClampedSwiGlu, 1.702f, 0.7f};
const std::vector<std::vector<WeightFormat>> kFormats = {
    {WeightFormat::kF32},  {WeightFormat::kBf16},
    {WeightFormat::kF16},  {WeightFormat::kMxfp4},
    {WeightFormat::kE4m3}, {WeightFormat::kMxfp4, WeightFormat::kBf16, WeightFormat::kF32, WeightFormat::kF16}};
constexpr Shape kShapes[] = {{4, 32, 64, 32, 2, 0},   {4, 32, 64, 32, 2, 1},   {6, 64, 96, 64, 3, 5},
                             {3, 96, 32, 160, 3, 4},  {16, 64, 64, 64, 4, 40}, {1, 32, 32, 40, 1, 13},
                             {5, 64, 160, 32, 1, 70}, {64, 32, 32, 32, 8, 30}};

class MoeKernels : public testing::TestWithParam<KernelSet> {
 protected:
  void SetUp() override {
    if (!kernel_set_supported(GetParam())) GTEST_SKIP() << "this processor lacks " << kernel_set_name(GetParam());
  }
};
INSTANTIATE_TEST_SUITE_P(, MoeKernels, testing::Values(KernelSet::kReference, KernelSet::kAvx2, KernelSet::kAvx512),
                         kernel_set_test_name);

TEST_P(MoeKernels, EqualTheNaiveSumBitForBitWithAnyNumberOfThreads) {
  uint64_t seed = 1;
  for (const auto& formats : kFormats) {
    for (const Shape& shape : kShapes) {
      Problem p(shape, formats, std::array{kSwiGlu, kSitu, kGeGlu, kClamped}[seed % 4], seed);
      if (seed % 2 == 0) p.add_biases();
      ++seed;
      const std::vector<float> expected = p.naive();
      for (const int threads : {1, 2}) {
        EXPECT_TRUE(same_floats(expected, p.run(GetParam(), threads)))
            << shape.experts << " experts, " << shape.rows << " rows, " << threads << " threads";
      }
    }
  }
}

TEST_P(MoeKernels, MultiplyIntegerFormatsExactlyOrWithCodedRows) {
  const std::vector<std::vector<WeightFormat>> mixes = {
      {WeightFormat::kQ4_0},
      {WeightFormat::kQ4_K},
      {WeightFormat::kQ8_0, WeightFormat::kQ4_1, WeightFormat::kQ6_K},
      {WeightFormat::kQ4_K, WeightFormat::kMxfp4Block, WeightFormat::kBf16, WeightFormat::kIq4Nl}};
  uint64_t seed = 20;
  for (const auto& formats : mixes) {
    for (const Activations activations : {Activations::kF32, Activations::kAuto, Activations::kQ8}) {
      for (const Shape& shape : {Shape{6, 256, 512, 256, 3, 1}, Shape{6, 256, 256, 512, 2, 7},
                                 Shape{4, 512, 256, 96, 2, 40}, Shape{1, 256, 256, 40, 1, 13}}) {
        Problem p(shape, formats, kSwiGlu, ++seed);
        p.args.activations = activations;
        const std::vector<float> expected = p.naive();
        for (const int threads : {1, 2}) EXPECT_TRUE(same_floats(expected, p.run(GetParam(), threads)));
      }
    }
  }
}

TEST_P(MoeKernels, AcceptSizesThatAreNotMultiplesOfAVector) {
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
    Problem p({5, 37, 51, 29, 2, 9}, {format}, kSwiGlu, 3);
    EXPECT_TRUE(same_floats(p.naive(), p.run(GetParam(), 2)));
  }
}

TEST_P(MoeKernels, GiveABatchTheBitsOfItsRows) {
  Problem p({8, 64, 96, 64, 3, 21}, {WeightFormat::kMxfp4}, kSitu, 4);
  const std::vector<float> batch = p.run(GetParam(), 2);
  for (int64_t r = 0; r < 21; ++r) {
    Problem alone({8, 64, 96, 64, 3, 21}, {WeightFormat::kMxfp4}, kSitu, 4);
    alone.shape.rows = 1;
    alone.args.x += r * alone.args.x_stride;
    alone.args.ids += r * 3;
    alone.args.weights += r * 3;
    const std::vector<float> row = alone.run(GetParam(), 2);
    EXPECT_TRUE(same_floats(std::span(batch).subspan(static_cast<size_t>(r * 65), 64), std::span(row).first(64)));
  }
}

TEST_P(MoeKernels, GiveMxfp4TheBitsOfItsUnpackedValues) {
  Problem packed({6, 64, 96, 64, 3, 12}, {WeightFormat::kMxfp4}, kSitu, 5);
  Problem unpacked({6, 64, 96, 64, 3, 12}, {WeightFormat::kBf16}, kSitu, 5);
  unpacked.x = packed.x;
  unpacked.ids = packed.ids;
  unpacked.weights = packed.weights;
  unpacked.args.x = unpacked.x.data();
  unpacked.args.ids = unpacked.ids.data();
  unpacked.args.weights = unpacked.weights.data();
  for (size_t m = 0; m < packed.matrices.size(); ++m) {
    uint16_t* half = reinterpret_cast<uint16_t*>(unpacked.matrices[m].data.data());
    for (size_t i = 0; i < packed.matrices[m].values.size(); ++i) {
      half[i] = f32_to_bf16(packed.matrices[m].values[i]);
      ASSERT_EQ(bf16_to_f32(half[i]), packed.matrices[m].values[i]);
    }
  }
  EXPECT_TRUE(same_floats(packed.run(GetParam(), 2), unpacked.run(GetParam(), 2)));
}

TEST_P(MoeKernels, ReadGateAndUpWhoseRowsLieInTurn) {
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kBf16}) {
    Problem p({6, 64, 96, 64, 3, 12}, {format}, kClamped, 10);
    p.add_biases();
    const std::vector<float> expected = p.run(GetParam(), 2);
    std::vector<std::vector<std::byte>> memory;
    const auto interleave = [&](const std::byte* a, const std::byte* b, int64_t row_bytes, int64_t rows) {
      std::vector<std::byte>& both = memory.emplace_back();
      for (int64_t r = 0; r < rows; ++r) {
        both.insert(both.end(), a + r * row_bytes, a + (r + 1) * row_bytes);
        both.insert(both.end(), b + r * row_bytes, b + (r + 1) * row_bytes);
      }
      return both.data();
    };
    for (ExpertWeights& w : p.args.experts) {
      const std::byte* rows = interleave(w.gate.data, w.up.data, w.gate.row_bytes, w.gate.out);
      w.gate.data = rows;
      w.up.data = rows + w.up.row_bytes;
      w.gate.row_bytes = w.up.row_bytes *= 2;
      if (w.gate.scales == nullptr) continue;
      const std::byte* scales = interleave(w.gate.scales, w.up.scales, w.gate.scale_row_bytes, w.gate.out);
      w.gate.scales = scales;
      w.up.scales = scales + w.up.scale_row_bytes;
      w.gate.scale_row_bytes = w.up.scale_row_bytes *= 2;
    }
    EXPECT_TRUE(same_floats(expected, p.run(GetParam(), 2)));
    CpuDevice device(1, GetParam());
    p.run(device);
    const std::set<int32_t> touched(p.ids.begin(), p.ids.begin() + 12 * 3);
    const int64_t elements = 3 * 64 * 96;
    const int64_t bytes = format == WeightFormat::kBf16 ? elements * 2 : elements / 2 + elements / 32;
    EXPECT_EQ(device.counters().weight_bytes_read, static_cast<int64_t>(touched.size()) * bytes);
  }
}

TEST_P(MoeKernels, WorkWhenAllRowsWantTheSameExperts) {
  Problem p({6, 32, 64, 32, 2, 33}, {WeightFormat::kBf16}, kSwiGlu, 6);
  for (size_t i = 0; i < p.ids.size(); ++i) p.ids[i] = i % 2 == 0 ? 1 : 4;
  EXPECT_TRUE(same_floats(p.naive(), p.run(GetParam(), 2)));
}

TEST(MoeOp, ReadsOnlyTheExpertsThatHaveRows) {
  Problem p({32, 64, 32, 64, 2, 3}, {WeightFormat::kMxfp4}, kSwiGlu, 7);
  std::set<int32_t> touched(p.ids.begin(), p.ids.begin() + 6);
  ASSERT_LT(touched.size(), 32u);
  CpuDevice device(2, KernelSet::kReference);
  p.run(device);
  const int64_t bytes = 3 * (64 * 32 / 2 + 64 * 32 / 32);
  EXPECT_EQ(device.counters().weight_bytes_read, static_cast<int64_t>(touched.size()) * bytes);
}

TEST(MoeOp, SharesAWorkspaceWithOtherLayers) {
  Problem small({4, 32, 32, 32, 2, 3}, {WeightFormat::kBf16}, kSwiGlu, 8);
  Problem large({4, 64, 96, 64, 2, 20}, {WeightFormat::kBf16}, kSwiGlu, 9);
  CpuDevice device(2, KernelSet::kReference);
  small.args.workspace = large.args.workspace = std::make_shared<MoeWorkspace>();
  std::vector<float> y(static_cast<size_t>(4 * small.args.y_stride), -7.f);
  small.args.y = y.data();
  const std::unique_ptr<BoundOp> first = bind_moe(device, "small", small.args);  // before the workspace grows
  EXPECT_TRUE(same_floats(large.naive(), large.run(device)));
  StepView step;
  step.rows = 3;
  first->run(step);
  EXPECT_TRUE(same_floats(small.naive(), y));
}

TEST(MoeOp, ExpectsMoreExpertsOfMoreRows) {
  Problem p({32, 32, 32, 32, 2, 1}, {WeightFormat::kBf16}, kSwiGlu, 7);
  std::vector<float> y(64);
  p.args.y = y.data();
  CpuDevice device(1, KernelSet::kReference);
  const std::unique_ptr<BoundOp> op = bind_moe(device, "moe", p.args);
  const int64_t expert = 3 * 32 * 32 * 2;
  EXPECT_EQ(op->cost(1, 0).weight_bytes, 2 * expert);
  EXPECT_NEAR(static_cast<double>(op->cost(1000, 0).weight_bytes), 32.0 * expert, 2.0);
  EXPECT_EQ(op->cost(10, 0).flops, 10 * 2 * 2.0 * 3 * 32 * 32);
}

TEST(MoeOp, RefusesExpertsThatDoNotFitAndNamesThem) {
  Problem p({3, 64, 32, 64, 2, 1}, {WeightFormat::kMxfp4}, kSwiGlu, 7);
  std::vector<float> y(65);
  p.args.y = y.data();
  CpuDevice device(1, KernelSet::kReference);
  EXPECT_NO_THROW(bind_moe(device, "layers.1.moe", p.args));
  const auto refused = [&](const char* part, auto change) {
    MoeArgs args = p.args;
    change(args);
    try {
      bind_moe(device, "layers.1.moe", args);
      ADD_FAILURE() << "bound: " << part;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("layers.1.moe"), std::string::npos);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  refused("expert 2: up", [](MoeArgs& a) { a.experts[2].up.in = 32; });
  refused("expert 1: down", [](MoeArgs& a) { a.experts[1].down.scales = nullptr; });
  refused("expert 0: gate", [](MoeArgs& a) { a.experts[0].gate.row_bytes = 31; });
  refused("missing", [](MoeArgs& a) { a.experts[0].gate.data = nullptr; });
  refused("top 4 of 3", [](MoeArgs& a) { a.top_k = 4; });
  refused("SwiGLU", [](MoeArgs& a) { a.act.kind = ElementwiseKind::kAdd; });
  refused("stride", [](MoeArgs& a) { a.x_stride = 63; });
}

}  // namespace
}  // namespace weir
