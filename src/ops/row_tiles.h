// Cuts [rows, size] elements into work items of about `grain` elements each: parts of rows when rows are long, several
// rows when they are short. Little work gives one item, which the thread pool runs on the calling thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace weir {

class RowTiles {
 public:
  // `align`: parts of a row start at multiples of it.
  RowTiles(int64_t rows, int64_t size, int64_t grain, int64_t align = 16)
      : rows_(rows),
        size_(size),
        width_(size <= grain ? size : std::max<int64_t>(grain / align * align, align)),
        height_(size <= grain ? std::max<int64_t>(grain / std::max<int64_t>(size, 1), 1) : 1),
        across_(size == 0 ? 0 : (size + width_ - 1) / width_) {}

  int64_t items() const { return across_ * ((rows_ + height_ - 1) / height_); }

  // body(row, begin, end) for every row of the item: elements [begin, end) of it.
  template <class Body>
  void each(int64_t item, Body body) const {
    const int64_t begin = item % across_ * width_;
    const int64_t end = std::min(begin + width_, size_);
    const int64_t first = item / across_ * height_;
    for (int64_t row = first; row < std::min(first + height_, rows_); ++row) body(row, begin, end);
  }

 private:
  int64_t rows_, size_, width_, height_, across_;
};

}  // namespace weir
