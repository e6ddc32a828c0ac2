#include "ops/split/split.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace weir {
namespace {

TEST(Split, SortsTheGroupsOfEveryRowIntoParts) {
  struct Shape {
    int64_t groups;
    std::vector<int64_t> sizes;
  };
  for (const Shape& shape : {Shape{1, {1}}, Shape{2, {3, 5}}, Shape{4, {16, 16, 48, 48}}, Shape{3, {7, 1, 300}},
                             Shape{16, {128, 128, 512, 512}}}) {
    for (const int32_t rows : {0, 1, 3, 40}) {
      for (const int threads : {1, 2}) {
        int64_t group = 0;
        for (const int64_t size : shape.sizes) group += size;
        const int64_t x_stride = shape.groups * group + 3;
        std::vector<float> x(static_cast<size_t>((rows + 1) * x_stride));
        for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
        SplitArgs args{.groups = shape.groups, .parts = {}, .x = x.data(), .x_stride = x_stride};
        // All parts side by side in one buffer, with a gap at the end of each row.
        const int64_t y_stride = shape.groups * group + 1;
        std::vector<float> y(static_cast<size_t>((rows + 1) * y_stride), -1.f);
        int64_t at = 0;
        for (const int64_t size : shape.sizes) {
          args.parts.push_back({size, y.data() + at, y_stride});
          at += shape.groups * size;
        }
        CpuDevice device(threads, KernelSet::kReference);
        StepView step;
        step.rows = rows;
        bind_split(device, "split", args)->run(step);
        for (int64_t row = 0; row < rows; ++row) {
          int64_t begin = 0, part_begin = 0;
          for (const int64_t size : shape.sizes) {
            for (int64_t g = 0; g < shape.groups; ++g) {
              for (int64_t i = 0; i < size; ++i) {
                const int64_t from = row * x_stride + g * group + begin + i;
                const int64_t to = row * y_stride + part_begin + g * size + i;
                ASSERT_EQ(y[static_cast<size_t>(to)], x[static_cast<size_t>(from)]) << row << " " << g << " " << i;
              }
            }
            begin += size;
            part_begin += shape.groups * size;
          }
          EXPECT_EQ(y[static_cast<size_t>((row + 1) * y_stride - 1)], -1.f) << "written beyond the row";
        }
        EXPECT_EQ(y[static_cast<size_t>(rows * y_stride)], -1.f) << "written beyond the rows";
      }
    }
  }
}

TEST(Split, RefusesMissingBuffersAndShortStrides) {
  CpuDevice device(1, KernelSet::kReference);
  std::vector<float> x(8), y(8);
  const SplitArgs good{.groups = 2, .parts = {{1, y.data(), 2}, {3, y.data() + 2, 6}}, .x = x.data(), .x_stride = 8};
  EXPECT_NO_THROW(bind_split(device, "split", good));
  const auto refused = [&](auto change) {
    SplitArgs args = good;
    change(args);
    EXPECT_THROW(bind_split(device, "split", args), Error);
  };
  refused([](SplitArgs& a) { a.groups = 0; });
  refused([](SplitArgs& a) { a.parts.clear(); });
  refused([](SplitArgs& a) { a.parts[1].y_stride = 5; });
  refused([](SplitArgs& a) { a.parts[0].y = nullptr; });
  refused([](SplitArgs& a) { a.x_stride = 7; });
}

}  // namespace
}  // namespace weir
