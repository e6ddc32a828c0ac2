#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "ops/short_conv/short_conv_testing.h"
#include "ops/simd/kernel_sets.h"

namespace weir::test {
namespace {

TEST(ShortConv, GivesThePublishedExample) {
  std::ifstream file(WEIR_FIXTURES "/kimi_k3/unit/ops.json");
  std::stringstream text;
  text << file.rdbuf();
  const boost::json::value golden = boost::json::parse(text.str());
  const boost::json::value& example = golden.at("conv");
  std::vector<float> weight, x;
  for (const auto& channel : example.at("weight").as_array()) {
    for (const auto& tap : channel.as_array()[0].as_array()) weight.push_back(tap.to_number<float>());
  }
  for (const auto& row : example.at("x").as_array()) {
    for (const auto& value : row.as_array()) x.push_back(value.to_number<float>());
  }
  CpuDevice device(1, KernelSet::kReference);
  World world(device, 2, 4, weight, {x});
  world.step({6}, true, false);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_NEAR(world.state(0).out[i], example.at("y").as_array()[i / 2].as_array()[i % 2].to_number<float>(), 5e-7)
        << i;
  }
}

TEST(ShortConv, EveryKernelSetEqualsTheReferenceBitForBit) {
  for (KernelSet set : kernel_sets()) {
    for (int64_t channels : {1, 16, 45, 1100}) {
      for (int64_t taps : {2, 3, 4, 8}) {
        const std::vector<float> weight = random_values(channels * taps, 1), x = random_values(channels * 37, 2);
        CpuDevice plain(1, KernelSet::kReference), device(2, set);
        World expected(plain, channels, taps, weight, {x}), found(device, channels, taps, weight, {x});
        for (int64_t piece : {20, 17}) {
          expected.step({piece}, true, false);
          found.step({piece}, true, false);
        }
        EXPECT_TRUE(same(found.state(0).out, expected.state(0).out))
            << kernel_set_name(set) << " " << channels << "x" << taps;
        EXPECT_TRUE(same(found.pages(), expected.pages()));
        EXPECT_TRUE(same(found.slots(), expected.slots()));
      }
    }
  }
}

TEST(ShortConv, AnySplitOfASpanEqualsTheWholeSpan) {
  std::mt19937 random(5);
  for (KernelSet set : kernel_sets()) {
    for (int64_t taps : {2, 4, 8}) {
      const int64_t channels = 19, rows = 100;
      const std::vector<float> weight = random_values(channels * taps, 3), x = random_values(channels * rows, 4);
      CpuDevice device(2, set);
      World whole(device, channels, taps, weight, {x});
      whole.step({rows}, true, false);
      for (int round = 0; round < 12; ++round) {
        World pieces(device, channels, taps, weight, {x});
        World sparse(device, channels, taps, weight, {x});  // only the anchor and pages that the next step needs
        while (pieces.left(0) > 0) {
          const int64_t longest = round == 0 ? 1 : 40;
          const int64_t n = std::min<int64_t>(pieces.left(0), 1 + random() % longest);
          pieces.step({n}, true, false);
          sparse.step({n}, false, true);
        }
        EXPECT_TRUE(same(pieces.state(0).out, whole.state(0).out));
        EXPECT_TRUE(same(pieces.pages(), whole.pages()));
        EXPECT_TRUE(same(pieces.slots(), whole.slots()));
        EXPECT_TRUE(same(sparse.state(0).out, whole.state(0).out));
        EXPECT_TRUE(same(sparse.window(0, 96), whole.window(0, 96)));
      }
    }
  }
}

TEST(ShortConv, AnAnchorHoldsTheInputsBeforeIt) {
  CpuDevice device(1, best_kernel_set());
  const std::vector<float> weight = random_values(4 * 4, 3), x = random_values(4 * 40, 4);
  World world(device, 4, 4, weight, {x});
  world.step({40}, true, false);
  EXPECT_TRUE(same(world.window(0, 16), std::vector<float>(x.begin() + 13 * 4, x.begin() + 16 * 4)));
  EXPECT_TRUE(same(world.window(0, 32), std::vector<float>(x.begin() + 29 * 4, x.begin() + 32 * 4)));
}

TEST(ShortConv, ASequenceThatStartsAtAnAnchorNeedsNoPageBeforeIt) {
  for (KernelSet set : kernel_sets()) {
    CpuDevice device(1, set);
    const int64_t channels = 24;
    const std::vector<float> weight = random_values(channels * 4, 3), x = random_values(channels * 60, 4);
    World world(device, channels, 4, weight, {x, x});
    world.step({60, 0}, true, false);
    const std::vector<float> before = world.window(0, 32);
    world.state(1) = {.position = 32, .anchor = world.slot(0, 32), .anchor_position = 32};
    for (int64_t piece : {1, 2, 20, 5}) world.step({0, piece}, true, false);
    const std::vector<float>& all = world.state(0).out;
    EXPECT_TRUE(same(world.state(1).out, std::vector<float>(all.begin() + 32 * channels, all.end())));
    EXPECT_TRUE(same(world.window(0, 32), before));
  }
}

TEST(ShortConv, SequencesInOneBatchEqualEachAlone) {
  std::mt19937 random(9);
  for (KernelSet set : kernel_sets()) {
    const int64_t channels = 21;
    const std::vector<float> weight = random_values(channels * 4, 3);
    std::vector<std::vector<float>> inputs;
    for (int64_t rows : {1, 40, 16, 63}) inputs.push_back(random_values(channels * rows, static_cast<uint32_t>(rows)));
    CpuDevice device(2, set);
    World together(device, channels, 4, weight, inputs);
    for (bool more = true; more;) {
      std::vector<int64_t> counts;
      more = false;
      for (size_t s = 0; s < inputs.size(); ++s) {
        counts.push_back(std::min<int64_t>(together.left(s), random() % 20));
        more = more || counts.back() < together.left(s);
      }
      together.step(counts, false, false);
    }
    for (size_t s = 0; s < inputs.size(); ++s) {
      World alone(device, channels, 4, weight, {inputs[s]});
      alone.step({alone.left(0)}, false, false);
      EXPECT_TRUE(same(together.state(s).out, alone.state(0).out));
    }
  }
}

TEST(ShortConv, RefusesShapesThatDoNotFit) {
  CpuDevice device(1, KernelSet::kReference);
  std::vector<float> weight(64), x(64), y(64);
  const ShortConvArgs good{.channels = 4,
                           .taps = 4,
                           .weight = weight.data(),
                           .journal = {.row_bytes = 16},
                           .window = {.bytes = 48},
                           .x = x.data(),
                           .x_stride = 4,
                           .y = y.data(),
                           .y_stride = 4};
  EXPECT_NO_THROW(bind_short_conv(device, "conv", good));
  const auto refuses = [&](auto change) {
    ShortConvArgs args = good;
    change(args);
    EXPECT_THROW(bind_short_conv(device, "conv", args), Error);
  };
  refuses([](ShortConvArgs& a) { a.taps = 1; });
  refuses([](ShortConvArgs& a) { a.taps = 9; });
  refuses([](ShortConvArgs& a) { a.channels = 0; });
  refuses([](ShortConvArgs& a) { a.journal.row_bytes = 12; });
  refuses([](ShortConvArgs& a) { a.window.bytes = 47; });
  refuses([&](ShortConvArgs& a) { a.y = x.data(); });
  refuses([](ShortConvArgs& a) { a.x_stride = 3; });
}

}  // namespace
}  // namespace weir::test
