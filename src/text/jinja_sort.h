// A stable sort for comparisons that may throw or, given NaN, contradict themselves: std::sort may leave its range
// then.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace weir::jinja {

template <class T, class Less>
void merge_sort(std::vector<T>& items, Less less) {
  std::vector<T> merged;
  for (size_t width = 1; width < items.size(); width *= 2) {
    merged.clear();
    merged.reserve(items.size());
    for (size_t begin = 0; begin < items.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, items.size()), end = std::min(middle + width, items.size());
      size_t left = begin, right = middle;
      while (left < middle || right < end) {
        const bool take_right = left == middle || (right < end && less(items[right], items[left]));
        merged.push_back(std::move(items[take_right ? right++ : left++]));
      }
    }
    items.swap(merged);
  }
}

}  // namespace weir::jinja
