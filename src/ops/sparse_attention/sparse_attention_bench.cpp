// Attention to 2048 selected positions in GLM-5's shape, decode rows and a part of a prompt.
#include <random>
#include <vector>

#include "base/error.h"
#include "ops/attention/attention_testing.h"
#include "ops/simd/op_bench.h"
#include "ops/sparse_attention/sparse_attention.h"

namespace weir {
namespace {

constexpr int64_t kHeads = 64, kKey = 576, kValue = 512, kTopK = 2048;

std::vector<float> random_floats(int64_t n) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(n));
  for (float& f : out) f = normal(random);
  return out;
}

void measure(OpBench& bench, int32_t rows, int64_t depth) {
  std::mt19937 random(1);
  const PageField field{.row_bytes = kKey * 2};
  PagedSequences pages(random, 1, depth, kPagePositions * field.row_bytes);
  const std::vector<float> key = random_floats(kKey), q = random_floats(rows * kHeads * kKey);
  bind_kv_write(bench.device(), "write",
                {.dtype = StateDtype::kF16, .field = field, .size = kKey, .x = key.data(), .x_stride = 0})
      ->run(pages.step({{0, 0, static_cast<int32_t>(depth)}}));
  const int64_t seen = depth < kTopK ? depth : kTopK;
  std::vector<int32_t> selected(static_cast<size_t>(rows * kTopK)), count(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t n = seen < depth - rows + r + 1 ? seen : depth - rows + r + 1;
    count[static_cast<size_t>(r)] = static_cast<int32_t>(n);
    for (int64_t i = 0; i < n; ++i) {
      selected[static_cast<size_t>(r * kTopK + i)] = static_cast<int32_t>(i * (depth - rows + r + 1) / n);
    }
  }
  std::vector<float> out(static_cast<size_t>(rows * kHeads * kValue));
  const auto op = bind_sparse_attention(bench.device(), "sparse",
                                        {.attention = {.heads = kHeads,
                                                       .kv_heads = 1,
                                                       .key_dim = kKey,
                                                       .value_dim = kValue,
                                                       .scale = 0.05f,
                                                       .dtype = StateDtype::kF16,
                                                       .key = field,
                                                       .value = field,
                                                       .q = q.data(),
                                                       .q_stride = kHeads * kKey,
                                                       .out = out.data(),
                                                       .out_stride = kHeads * kValue,
                                                       .max_rows = rows},
                                         .selected = selected.data(),
                                         .count = count.data(),
                                         .top_k = kTopK,
                                         .workspace = make_sparse_attention_workspace()});
  const StepView step = pages.step({{0, depth - rows, rows}});
  const Cost cost = op->cost(rows, depth - 1);
  bench.line(concat("attend, ", rows, " rows at ", depth), 1, static_cast<double>(cost.state_bytes), cost.flops,
             [&] { op->run(step); });
}

}  // namespace
}  // namespace weir

int main() {
  for (weir::KernelSet set : {weir::KernelSet::kAvx2, weir::KernelSet::kAvx512}) {
    if (!weir::kernel_set_supported(set)) continue;
    weir::OpBench bench(weir::default_threads(), set);
    for (const int64_t depth : {1024, 4096, 32768}) {
      weir::measure(bench, 1, depth);
      weir::measure(bench, 32, depth);
    }
  }
}
