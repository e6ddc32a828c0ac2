#include "state/state_layout.h"

#include <cassert>
#include <utility>

#include "base/error.h"

namespace weir {
namespace {

constexpr int64_t kAlign = 64;  // a cache line, and an AVX-512 register

int64_t align_up(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

int StateLayout::group_of(Retention retention, int64_t window) const {
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].retention == retention && groups_[i].window == window) return static_cast<int>(i);
  }
  return -1;
}

PageField StateLayout::add_page(std::string name, Retention retention, int64_t row_bytes, int64_t window) {
  assert((retention == Retention::kWindow) == (window > 0));
  int group = group_of(retention, window);
  if (group < 0) {
    group = static_cast<int>(groups_.size());
    if (group == kMaxPageGroups) {
      fail(name, ": more than ", kMaxPageGroups, " kinds of pages (every length of a sliding window is one)");
    }
    groups_.push_back({.retention = retention, .window = window});
  }
  Group& g = groups_[static_cast<size_t>(group)];
  const PageField field{.group = group, .offset = g.page_bytes, .row_bytes = row_bytes};
  g.page_bytes += align_up(kPagePositions * row_bytes);
  g.row_bytes += row_bytes;
  g.parts.push_back({std::move(name), row_bytes});
  return field;
}

AnchorField StateLayout::add_anchor(std::string name, int64_t bytes) {
  const AnchorField field{.offset = anchor_bytes_, .bytes = bytes};
  anchor_bytes_ += align_up(bytes);
  anchor_parts_.push_back({std::move(name), bytes});
  return field;
}

}  // namespace weir
