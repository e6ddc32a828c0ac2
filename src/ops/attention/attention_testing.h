// Sequences with paged state, for tests and benches of ops that read pages.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "base/step_view.h"
#include "device/memory.h"

namespace weir {

// The pages of each sequence lie in random order in one pool (the same for all groups); a byte that nobody wrote
// belongs to a NaN, in FP32, FP16 and BF16.
class PagedSequences {
 public:
  PagedSequences(std::mt19937& random, int sequences, int64_t positions, int64_t page_bytes)
      : page_bytes_(page_bytes), tables_(static_cast<size_t>(sequences)) {
    const int64_t each = (positions + kPagePositions - 1) / kPagePositions;
    std::vector<uint32_t> order(static_cast<size_t>(each * sequences));
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), random);
    bytes_ = Mapping(static_cast<int64_t>(order.size()) * page_bytes);
    std::memset(bytes_.data(), 0xff, static_cast<size_t>(bytes_.bytes()));
    for (size_t i = 0; i < order.size(); ++i) tables_[i % tables_.size()].push_back(PageId{order[i]});
    for (PoolView& pool : pools_) pool = {bytes_.data(), page_bytes};
  }

  struct Part {
    int sequence;
    int64_t first;
    int32_t rows;
  };

  // A step of these spans; valid until the next call. With a window, pages that no row of a span sees are kNoPage: far
  // outside the pool.
  StepView step(const std::vector<Part>& parts, int64_t window = 0) {
    spans_.clear();
    windowed_.clear();
    windowed_.reserve(parts.size());
    positions_.clear();
    row_spans_.clear();
    for (const Part& part : parts) {
      SpanView span{
          .first_row = static_cast<int32_t>(positions_.size()), .rows = part.rows, .first_position = part.first};
      // No more pages than the span's rows can need.
      const auto pages = static_cast<size_t>(span.last_position() / kPagePositions + 1);
      const auto all = std::span(tables_[static_cast<size_t>(part.sequence)]).first(pages);
      windowed_.emplace_back(all.begin(), all.end());
      const int64_t seen = window > 0 ? std::max<int64_t>(part.first - window + 1, 0) / kPagePositions : 0;
      std::fill_n(windowed_.back().begin(), seen, kNoPage);
      for (auto& table : span.pages) table = windowed_.back();
      for (int32_t r = 0; r < part.rows; ++r) {
        positions_.push_back(part.first + r);
        row_spans_.push_back(static_cast<int32_t>(spans_.size()));
      }
      spans_.push_back(span);
    }
    return {.rows = static_cast<int32_t>(positions_.size()),
            .spans = spans_,
            .positions = positions_,
            .row_spans = row_spans_,
            .page_pools = pools_};
  }

  // For tests on a GPU: the pool lies there, a copy of this one or not.
  std::span<const std::byte> bytes() const { return bytes_.as<const std::byte>(); }
  void set_pool(std::byte* base) {
    for (PoolView& pool : pools_) pool.base = base;
  }

  const std::byte* row(int sequence, int64_t position, int64_t offset, int64_t row_bytes) const {
    const PageId page = tables_[static_cast<size_t>(sequence)][static_cast<size_t>(position / kPagePositions)];
    return bytes_.data() + static_cast<int64_t>(page) * page_bytes_ + offset + position % kPagePositions * row_bytes;
  }

 private:
  int64_t page_bytes_;
  std::vector<std::vector<PageId>> tables_;
  Mapping bytes_;
  PoolView pools_[kMaxPageGroups];
  std::vector<std::vector<PageId>> windowed_;  // by span
  std::vector<SpanView> spans_;
  std::vector<int64_t> positions_;
  std::vector<int32_t> row_spans_;
};

}  // namespace weir
