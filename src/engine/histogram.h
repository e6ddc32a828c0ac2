// Counts of values by upper bounds, as monitoring wants them. A value: whoever shares one locks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace weir {

class Histogram {
 public:
  // `bounds`: ascending; a value counts for the first one that is not below it, or for none of them.
  explicit Histogram(std::span<const double> bounds)
      : bounds_(bounds.begin(), bounds.end()), counts_(bounds.size() + 1) {}

  void add(double value) {
    const auto at = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
    ++counts_[static_cast<size_t>(at)];
    sum_ += value;
    ++count_;
  }

  std::span<const double> bounds() const { return bounds_; }
  std::span<const int64_t> counts() const { return counts_; }  // one more than bounds
  int64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;
  double sum_ = 0;
  int64_t count_ = 0;
};

}  // namespace weir
