#include "ops/short_conv/short_conv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "ops/simd/kernel_sets.h"

namespace weir {
namespace {

// Sequences with one page and one anchor slot a chunk, all NaN until the op writes them.
class World {
 public:
  World(CpuDevice& device, int64_t channels, int64_t taps, const std::vector<float>& weight,
        const std::vector<std::vector<float>>& inputs)
      : channels_(channels), taps_(taps), inputs_(inputs), states_(inputs.size()) {
    int64_t longest = 0;
    for (const std::vector<float>& input : inputs) {
      longest = std::max(longest, static_cast<int64_t>(input.size()) / channels);
      rows_ += static_cast<int64_t>(input.size()) / channels;
    }
    chunks_ = longest / 16 + 1;
    page_bytes_ = 32 + 16 * (channels * 4 + 8);
    slot_bytes_ = 16 + (taps - 1) * channels * 4;
    pages_ = Mapping(static_cast<int64_t>(inputs.size()) * chunks_ * page_bytes_);
    slots_ = Mapping(static_cast<int64_t>(inputs.size()) * chunks_ * slot_bytes_);
    std::memset(pages_.data(), 0xff, static_cast<size_t>(pages_.bytes()));
    std::memset(slots_.data(), 0xff, static_cast<size_t>(slots_.bytes()));
    x_.resize(static_cast<size_t>(rows_ * (channels + 3)));
    y_.resize(static_cast<size_t>(rows_ * (channels + 1)));
    op_ = bind_short_conv(device, "conv",
                          {.channels = channels,
                           .taps = taps,
                           .weight = weight.data(),
                           .journal = {.group = 2, .offset = 32, .row_bytes = channels * 4 + 8},
                           .window = {.offset = 16, .bytes = (taps - 1) * channels * 4},
                           .x = x_.data(),
                           .x_stride = channels + 3,
                           .y = y_.data(),
                           .y_stride = channels + 1});
  }

  struct State {
    int64_t position = 0;
    SlotId anchor = kZeroAnchor;
    int64_t anchor_position = 0;
    std::vector<float> out;
  };
  State& state(size_t s) { return states_[s]; }
  int64_t left(size_t s) const { return static_cast<int64_t>(inputs_[s].size()) / channels_ - states_[s].position; }
  SlotId slot(size_t s, int64_t position) const {
    return SlotId(static_cast<uint32_t>(static_cast<int64_t>(s) * chunks_ + position / 16));
  }
  std::vector<float> window(size_t s, int64_t position) const {
    const float* from =
        reinterpret_cast<const float*>(slots_.data() + static_cast<int64_t>(slot(s, position)) * slot_bytes_ + 16);
    return std::vector<float>(from, from + (taps_ - 1) * channels_);
  }
  const Mapping& pages() const { return pages_; }
  const Mapping& slots() const { return slots_; }

  void step(const std::vector<int64_t>& counts, bool every_anchor, bool drop_pages) {
    std::vector<SpanView> spans;
    std::vector<int32_t> row_spans;
    std::vector<std::vector<PageId>> tables(states_.size());
    std::vector<std::vector<AnchorWrite>> writes(states_.size());
    int32_t row = 0;
    for (size_t s = 0; s < states_.size(); ++s) {
      if (counts[s] == 0) continue;
      SpanView span{.first_row = row, .rows = static_cast<int32_t>(counts[s]), .first_position = states_[s].position};
      for (int64_t c = 0; c < chunks_; ++c)
        tables[s].push_back(PageId(static_cast<uint32_t>(static_cast<int64_t>(s) * chunks_ + c)));
      for (int64_t c = states_[s].position / 16 + 1; drop_pages && c < span.last_position() / 16; ++c) {
        tables[s][static_cast<size_t>(c)] = kNoPage;
      }
      const int64_t last = span.last_position() / 16 * 16;
      for (int64_t p = every_anchor ? states_[s].anchor_position + 16 : last; p <= last; p += 16) {
        if (p > states_[s].anchor_position) writes[s].push_back({p, slot(s, p)});
      }
      span.pages[2] = tables[s];
      span.anchor = states_[s].anchor;
      span.anchor_position = states_[s].anchor_position;
      span.anchor_writes = writes[s];
      for (int64_t r = 0; r < counts[s]; ++r, ++row) {
        std::copy_n(inputs_[s].data() + (states_[s].position + r) * channels_, channels_,
                    x_.data() + row * (channels_ + 3));
        row_spans.push_back(static_cast<int32_t>(spans.size()));
      }
      spans.push_back(span);
    }
    const PoolView pools[3] = {{}, {}, {pages_.data(), page_bytes_}};
    op_->run({.rows = row,
              .spans = spans,
              .row_spans = row_spans,
              .page_pools = pools,
              .anchor_pool = {slots_.data(), slot_bytes_}});
    row = 0;
    for (size_t s = 0; s < states_.size(); ++s) {
      for (int64_t r = 0; r < counts[s]; ++r, ++row) {
        const float* y = y_.data() + row * (channels_ + 1);
        states_[s].out.insert(states_[s].out.end(), y, y + channels_);
      }
      states_[s].position += counts[s];
      if (!writes[s].empty()) {
        states_[s].anchor = writes[s].back().slot;
        states_[s].anchor_position = writes[s].back().position;
      }
    }
  }

 private:
  int64_t channels_, taps_;
  std::vector<std::vector<float>> inputs_;
  std::vector<State> states_;
  int64_t rows_ = 0, chunks_ = 0, page_bytes_ = 0, slot_bytes_ = 0;
  Mapping pages_, slots_;
  std::vector<float> x_, y_;
  std::unique_ptr<BoundOp> op_;
};

std::vector<float> random_values(int64_t count, uint32_t seed) {
  const float specials[] = {0.f, -0.f, 1e-40f, -1e-40f, 1e30f, -1e30f};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(random() % 16 == 0 ? specials[random() % 6] : normal(random));
  return values;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
bool same(const Mapping& a, const Mapping& b) {
  return std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) == 0;
}

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
}  // namespace weir
