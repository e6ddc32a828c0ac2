#include "ops/moe/moe.h"

#include <set>

#include "base/error.h"
#include "ops/moe/moe_testing.h"

namespace weir {
namespace {

using namespace moe_testing;

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
      if (seed % 3 == 0) p.add_addend();
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
    alone.args.x = alone.x.data() + r * alone.args.x_stride;
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
