// Scores of all positions and the choice of the best, in GLM-5's shape: 32 heads of 128, 2048 positions kept.
#include <random>
#include <vector>

#include "base/error.h"
#include "ops/attention/attention_testing.h"
#include "ops/indexer/indexer.h"
#include "ops/simd/op_bench.h"

namespace weir {
namespace {

constexpr int64_t kHeads = 32, kDim = 128, kTopK = 2048;

std::vector<float> random_floats(int64_t n) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(n));
  for (float& f : out) f = normal(random);
  return out;
}

void measure(OpBench& bench, int32_t rows, int64_t depth) {
  std::mt19937 random(1);
  const PageField field{.row_bytes = kDim * 2};
  PagedSequences pages(random, 1, depth, kPagePositions * field.row_bytes);
  const std::vector<float> keys = random_floats(depth * kDim), q = random_floats(rows * kHeads * kDim),
                           weights = random_floats(rows * kHeads);
  bind_kv_write(bench.device(), "write",
                {.dtype = StateDtype::kF16, .field = field, .size = kDim, .x = keys.data(), .x_stride = kDim})
      ->run(pages.step({{0, 0, static_cast<int32_t>(depth)}}));
  std::vector<int32_t> selected(static_cast<size_t>(rows * kTopK)), count(static_cast<size_t>(rows));
  const auto op = bind_indexer(bench.device(), "indexer",
                               {.heads = kHeads,
                                .dim = kDim,
                                .top_k = kTopK,
                                .dtype = StateDtype::kF16,
                                .key = field,
                                .q = q.data(),
                                .q_stride = kHeads * kDim,
                                .weights = weights.data(),
                                .weights_stride = kHeads,
                                .selected = selected.data(),
                                .count = count.data()});
  const StepView step = pages.step({{0, depth - rows, rows}});
  const Cost cost = op->cost(rows, depth - 1);
  bench.line(concat("choose, ", rows, " rows at ", depth), 1, static_cast<double>(cost.state_bytes), cost.flops,
             [&] { op->run(step); });
}

}  // namespace
}  // namespace weir

int main() {
  for (weir::KernelSet set : {weir::KernelSet::kAvx2, weir::KernelSet::kAvx512}) {
    if (!weir::kernel_set_supported(set)) continue;
    weir::OpBench bench(weir::default_threads(), set);
    for (const int64_t depth : {4096, 32768}) {
      weir::measure(bench, 1, depth);
      weir::measure(bench, 32, depth);
    }
  }
}
