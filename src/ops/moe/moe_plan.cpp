#include "ops/moe/moe_plan.h"

#include <algorithm>

namespace weir {
namespace {

constexpr int64_t kTile = 32;           // outputs; a multiple of every kernel's tile
constexpr int64_t kItemsPerThread = 8;  // so that the last items to finish are a small part of the whole
// Reading a weight costs about as much as multiplying it with this many rows.
constexpr int64_t kRowsPerRead = 6;

}  // namespace

int64_t PanelCut::active_of(int64_t item, int64_t active) const {
  return std::upper_bound(first_item.begin(), first_item.begin() + active, item) - first_item.begin() - 1;
}

MoePlan::MoePlan(int64_t experts, int64_t top_k, int64_t max_rows)
    : top_k_(top_k),
      next_(static_cast<size_t>(experts)),
      row_of_(static_cast<size_t>(max_rows * top_k)),
      places_(static_cast<size_t>(max_rows * top_k)) {
  active_.reserve(static_cast<size_t>(experts));
}

void MoePlan::route(const int32_t* ids, int64_t rows) {
  const int64_t pairs = rows * top_k_;
  std::fill(next_.begin(), next_.end(), 0);
  for (int64_t i = 0; i < pairs; ++i) ++next_[static_cast<size_t>(ids[i])];
  active_.clear();
  int32_t pair = 0;
  for (size_t e = 0; e < next_.size(); ++e) {
    const int32_t count = next_[e];
    if (count > 0) active_.push_back({static_cast<int32_t>(e), pair, count});
    next_[e] = pair;
    pair += count;
  }
  for (int64_t i = 0; i < pairs; ++i) {
    const int32_t place = next_[static_cast<size_t>(ids[i])]++;
    row_of_[static_cast<size_t>(place)] = static_cast<int32_t>(i / top_k_);
    places_[static_cast<size_t>(i)] = place;
  }
}

void MoePlan::cut(int64_t out, int threads, int64_t max_results, PanelCut& cut) const {
  int64_t total = 0;
  for (const Active& a : active_) total += a.rows + kRowsPerRead;
  const int64_t parts_in_all = kItemsPerThread * threads;
  int64_t items = 0;
  for (size_t i = 0; i < active_.size(); ++i) {
    const int64_t share = active_[i].rows + kRowsPerRead;
    const int64_t parts = (share * parts_in_all + total - 1) / total;
    int64_t panel = ((out + parts - 1) / parts + kTile - 1) / kTile * kTile;
    panel = std::max(std::min(panel, max_results / active_[i].rows / kTile * kTile), kTile);
    cut.first_item[i] = items;
    cut.panel[i] = panel;
    items += (out + panel - 1) / panel;
  }
  cut.first_item[active_.size()] = items;
  cut.items = items;
}

}  // namespace weir
