// How a step's rows meet the experts: per expert that has rows, its (row, slot) pairs, and how its matrices are cut
// into work items.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weir {

// Work items of one phase over the active experts: expert i owns items [first_item[i], first_item[i + 1]), each a panel
// of panel[i] outputs (the last may be shorter).
struct PanelCut {
  std::vector<int64_t> first_item;  // [experts + 1]
  std::vector<int64_t> panel;       // [experts]
  int64_t items = 0;

  int64_t active_of(int64_t item, int64_t active) const;  // by binary search
};

class MoePlan {
 public:
  // All memory for steps of up to max_rows rows.
  MoePlan(int64_t experts, int64_t top_k, int64_t max_rows);

  // ids [rows, top_k]. Pairs are sorted by expert, rows ascending within one.
  void route(const int32_t* ids, int64_t rows);

  struct Active {
    int32_t expert = 0;
    int32_t first_pair = 0;
    int32_t rows = 0;
  };
  std::span<const Active> active() const { return {active_.data(), active_.size()}; }
  int32_t row_of(int64_t pair) const { return row_of_[static_cast<size_t>(pair)]; }
  // Where the pairs of a row went: [top_k], by slot.
  const int32_t* places(int64_t row) const { return places_.data() + row * top_k_; }

  // Cuts `out` outputs of every active expert's matrix into items of about equal work, several per thread, panels in
  // multiples of the kernels' tile; rows * panel stays within max_results.
  void cut(int64_t out, int threads, int64_t max_results, PanelCut& cut) const;

 private:
  int64_t top_k_;
  std::vector<int32_t> next_;  // [experts]: rows of it, then where its next pair goes
  std::vector<Active> active_;
  std::vector<int32_t> row_of_;  // [pairs]
  std::vector<int32_t> places_;  // [rows, top_k]
};

}  // namespace weir
