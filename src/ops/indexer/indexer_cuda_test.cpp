#include <gtest/gtest.h>

#include <random>

#include "ops/attention/attention_testing.h"
#include "ops/cuda_op.h"
#include "ops/indexer/indexer.h"
#include "tests/support/cuda_case.h"

namespace weir {
namespace {

using testing::DeviceBuffer;

struct Shape {
  int64_t heads, dim, top_k;
  StateDtype dtype;
  bool ties;  // many equal scores
};

class IndexerOnCuda : public testing::CudaCaseWith<Shape> {
 protected:
  static constexpr int64_t kPositions = 700;

  float element() {
    return GetParam().ties ? static_cast<float>(random_() % 3) - 1.f : std::normal_distribution<float>()(random_);
  }
  std::vector<float> elements(int64_t n) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& f : x) f = element();
    return x;
  }

  std::mt19937 random_{7};
};

TEST_P(IndexerOnCuda, SelectsWhatTheCpuSelects) {
  const Shape& s = GetParam();
  const PageField field{.offset = 32, .row_bytes = s.dim * state_dtype_bytes(s.dtype)};
  PagedSequences pages(random_, 2, kPositions, kPagePositions * field.row_bytes + 64);
  CpuDevice cpu(1, KernelSet::kReference);
  for (int sequence : {0, 1}) {
    const std::vector<float> keys = elements(kPositions * s.dim);
    bind_kv_write(cpu, "keys", {.dtype = s.dtype, .field = field, .size = s.dim, .x = keys.data(), .x_stride = s.dim})
        ->run(pages.step({{sequence, 0, kPositions}}));
  }
  const std::vector<PagedSequences::Part> parts{{0, 0, 3}, {1, s.top_k - 2, 5}, {0, 699, 1}, {1, 300, 2}};
  const StepView step = pages.step(parts);
  const std::vector<float> q = elements(step.rows * s.heads * s.dim), weights = elements(step.rows * s.heads);
  std::vector<int32_t> selected(static_cast<size_t>(step.rows * s.top_k), -1), count(static_cast<size_t>(step.rows));
  IndexerArgs args{.heads = s.heads,
                   .dim = s.dim,
                   .top_k = s.top_k,
                   .scale = 0.4f,
                   .weight_scale = 0.7f,
                   .dtype = s.dtype,
                   .key = field,
                   .q = q.data(),
                   .q_stride = s.heads * s.dim,
                   .weights = weights.data(),
                   .weights_stride = s.heads,
                   .selected = selected.data(),
                   .count = count.data()};
  bind_indexer(cpu, "indexer", args)->run(step);

  const DeviceBuffer<std::byte> pool(device(), std::vector<std::byte>(pages.bytes().begin(), pages.bytes().end()));
  const DeviceBuffer<float> q_there(device(), q), weights_there(device(), weights);
  const int64_t spare = 2;
  const DeviceBuffer<int32_t> selected_there(
      device(), std::vector<int32_t>(static_cast<size_t>((step.rows + spare) * s.top_k), -1));
  const DeviceBuffer<int32_t> count_there(device(), std::vector<int32_t>(static_cast<size_t>(step.rows + spare), -1));
  args.q = q_there.data(), args.weights = weights_there.data();
  args.selected = selected_there.data(), args.count = count_there.data();
  pages.set_pool(pool.data());
  const StepView there = pages.step(parts);
  const auto op = bind_indexer(device(), "indexer", args);
  device().stage(there);
  StepBounds bounds = CudaDevice::bounds_of(there);
  bounds.rows += spare;
  bounds.longest_context += 1000;
  static_cast<CudaOp&>(*op).enqueue(bounds);
  selected.resize(selected.size() + static_cast<size_t>(spare * s.top_k), -1);
  count.resize(count.size() + spare, -1);
  EXPECT_EQ(count_there.values(), count);
  EXPECT_EQ(selected_there.values(), selected);
}

INSTANTIATE_TEST_SUITE_P(Shapes, IndexerOnCuda,
                         ::testing::Values(Shape{3, 20, 37, StateDtype::kF32, false},
                                           Shape{8, 32, 32, StateDtype::kF16, true},
                                           Shape{2, 16, 300, StateDtype::kF32, true}),
                         [](const auto& param) { return "shape" + std::to_string(param.index); });

}  // namespace
}  // namespace weir
