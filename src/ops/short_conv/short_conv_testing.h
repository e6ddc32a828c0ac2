// Sequences around a bound short convolution, for its tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "ops/cuda_op.h"
#include "ops/short_conv/short_conv.h"
#include "tests/support/device_copies.h"

namespace weir::test {

// Sequences with one page and one anchor slot a chunk, all NaN until the op writes them.
class World {
 public:
  World(Device& device, int64_t channels, int64_t taps, const std::vector<float>& weight,
        const std::vector<std::vector<float>>& inputs)
      : copies_(device), channels_(channels), taps_(taps), inputs_(inputs), states_(inputs.size()) {
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
    y_.assign(static_cast<size_t>(rows_ * (channels + 1)), std::nanf(""));
    op_ = bind_short_conv(device, "conv",
                          {.channels = channels,
                           .taps = taps,
                           .weight = weight.data(),
                           .journal = {.group = 2, .offset = 32, .row_bytes = channels * 4 + 8},
                           .window = {.offset = 16, .bytes = (taps - 1) * channels * 4},
                           .x = copies_.where(x_),
                           .x_stride = channels + 3,
                           .y = copies_.where(y_),
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
  // On a GPU: launches are for that many rows and spans more than a step has, as those of a graph may be.
  void loosen_bounds(int32_t by) { loose_ = by; }
  const std::vector<float>& y() const { return y_; }

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
    const PoolView pools[3] = {{}, {}, {copies_.where(pages_), page_bytes_}};
    std::byte* const slots = copies_.where(slots_);
    copies_.to_device();
    run({.rows = row,
         .spans = spans,
         .row_spans = row_spans,
         .page_pools = pools,
         .anchor_pool = {slots, slot_bytes_}});
    copies_.to_host();
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
  void run(const StepView& step) {
    CudaDevice* const cuda = copies_.cuda();
    if (cuda == nullptr) return op_->run(step);
    cuda->stage(step);
    StepBounds bounds = CudaDevice::bounds_of(step);
    bounds.rows += loose_;
    bounds.spans += loose_;
    static_cast<CudaOp&>(*op_).enqueue(bounds);
  }

  int32_t loose_ = 0;
  testing::DeviceCopies copies_;
  int64_t channels_, taps_;
  std::vector<std::vector<float>> inputs_;
  std::vector<State> states_;
  int64_t rows_ = 0, chunks_ = 0, page_bytes_ = 0, slot_bytes_ = 0;
  Mapping pages_, slots_;
  std::vector<float> x_, y_;
  std::unique_ptr<BoundOp> op_;
};

inline std::vector<float> random_values(int64_t count, uint32_t seed) {
  const float specials[] = {0.f, -0.f, 1e-40f, -1e-40f, 1e30f, -1e30f};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(random() % 16 == 0 ? specials[random() % 6] : normal(random));
  return values;
}

inline bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
inline bool same(const Mapping& a, const Mapping& b) {
  return std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) == 0;
}

}  // namespace weir::test
