#include <cmath>

#include "base/error.h"
#include "ops/cuda_op.h"
#include "ops/simd/kernel_test.h"
#include "ops/split/split.h"
#include "tests/support/cuda_case.h"

namespace weir {
namespace {

using testing::DeviceBuffer;

class SplitCuda : public testing::CudaCase {};

// All parts side by side in one buffer, with a gap at the end of each row.
struct Parts {
  SplitArgs args;
  int64_t y_stride = 0;

  Parts(int64_t groups, const std::vector<int64_t>& sizes, const float* x, int64_t x_stride, float* y, int64_t gap) {
    args = {.groups = groups, .parts = {}, .x = x, .x_stride = x_stride};
    for (const int64_t size : sizes) y_stride += groups * size;
    y_stride += gap;
    int64_t at = 0;
    for (const int64_t size : sizes) {
      args.parts.push_back({size, y + at, y_stride});
      at += groups * size;
    }
  }
};

TEST_F(SplitCuda, SortsTheGroupsAsTheCpuDoes) {
  struct Shape {
    int64_t groups;
    std::vector<int64_t> sizes;
  };
  uint64_t seed = 1;
  for (const Shape& shape : {Shape{1, {1}}, Shape{2, {3, 5}}, Shape{4, {16, 16, 48, 48}}, Shape{3, {7, 1, 300}},
                             Shape{16, {128, 128, 512, 512}}, Shape{2, {1, 2, 3, 4, 5, 6, 7, 8}}, Shape{1, {4, 8}}}) {
    for (const int32_t rows : {0, 1, 3, 40}) {
      for (const int64_t gap : {1, 4}) {
        int64_t row = 0;
        for (const int64_t size : shape.sizes) row += shape.groups * size;
        const int64_t x_stride = row + gap;
        RandomFloats random(seed++);
        const std::vector<float> x = random.take((rows + 2) * x_stride);
        std::vector<float> expected(static_cast<size_t>((rows + 2) * (row + gap)), std::nanf(""));
        StepView step;
        step.rows = rows;
        CpuDevice cpu(1, KernelSet::kReference);
        bind_split(cpu, "split", Parts(shape.groups, shape.sizes, x.data(), x_stride, expected.data(), gap).args)
            ->run(step);

        DeviceBuffer<float> dx(device(), x), y(device(), static_cast<int64_t>(expected.size()));
        const auto op =
            bind_split(device(), "split", Parts(shape.groups, shape.sizes, dx.data(), x_stride, y.data(), gap).args);
        device().stage(step);
        StepBounds bounds;
        bounds.rows = rows + 2;
        dynamic_cast<CudaOp&>(*op).enqueue(bounds);
        EXPECT_TRUE(same_floats(expected, y.values())) << shape.groups << " groups, " << rows << " rows";
      }
    }
  }
}

TEST_F(SplitCuda, RefusesMorePartsThanAKernelTakes) {
  DeviceBuffer<float> x(device(), 9), y(device(), 9);
  EXPECT_THROW(bind_split(device(), "split", Parts(1, std::vector<int64_t>(9, 1), x.data(), 9, y.data(), 0).args),
               Error);
}

}  // namespace
}  // namespace weir
