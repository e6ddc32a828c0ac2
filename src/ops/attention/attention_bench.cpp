// Attention over pages: decode is bound by reading K and V (grouped-query) or by FMAs (MLA with many heads), prompts by
// FMAs. Prints time, what was read and computed in it, and the share of this machine's roofs.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <vector>

#include "device/roof.h"
#include "ops/attention/attention.h"
#include "ops/attention/attention_testing.h"

namespace weir {
namespace {

struct Case {
  const char* name;
  int64_t heads, kv_heads, key_dim, value_dim;
  bool shared;
  StateDtype dtype;
  int sequences;
  int32_t rows;  // of each sequence
  int64_t depth;
};

double median_seconds(BoundOp& op, const StepView& step) {
  std::vector<double> times;
  for (double total = 0; times.size() < 5 || (total < 0.4 && times.size() < 200);) {
    const auto start = std::chrono::steady_clock::now();
    op.run(step);
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    total += times.back();
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

void measure(CpuDevice& device, const Case& c, double read_roof, double fma_roof) {
  std::mt19937 random(1);
  const int64_t element = state_dtype_bytes(c.dtype);
  const int64_t key_row = c.kv_heads * c.key_dim * element;
  const int64_t value_row = c.shared ? 0 : c.kv_heads * c.value_dim * element;
  PagedSequences pages(random, c.sequences, c.depth, kPagePositions * (key_row + value_row));
  const PageField key{.row_bytes = key_row};
  const PageField value = c.shared ? key : PageField{.offset = kPagePositions * key_row, .row_bytes = value_row};
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(c.kv_heads * c.key_dim));
  for (float& f : x) f = normal(random);
  for (int s = 0; s < c.sequences; ++s) {  // all rows alike: time does not depend on values
    const StepView step = pages.step({{s, 0, static_cast<int32_t>(c.depth)}});
    for (const auto& [field, size] : {std::pair{key, key_row}, std::pair{value, value_row}}) {
      if (size == 0) continue;
      bind_kv_write(device, "write",
                    {.dtype = c.dtype, .field = field, .size = size / element, .x = x.data(), .x_stride = 0})
          ->run(step);
    }
  }
  std::vector<PagedSequences::Part> parts;
  for (int s = 0; s < c.sequences; ++s) parts.push_back({s, c.depth - c.rows, c.rows});
  const StepView step = pages.step(parts);
  std::vector<float> q(static_cast<size_t>(step.rows * c.heads * c.key_dim));
  for (float& f : q) f = normal(random);
  std::vector<float> out(static_cast<size_t>(step.rows * c.heads * c.value_dim));
  const auto op = bind_attention(device, "attention",
                                 {.heads = c.heads,
                                  .kv_heads = c.kv_heads,
                                  .key_dim = c.key_dim,
                                  .value_dim = c.value_dim,
                                  .scale = 0.05f,
                                  .dtype = c.dtype,
                                  .key = key,
                                  .value = value,
                                  .value_head_stride = c.value_dim,
                                  .q = q.data(),
                                  .q_stride = c.heads * c.key_dim,
                                  .out = out.data(),
                                  .out_stride = c.heads * c.value_dim,
                                  .max_rows = step.rows});
  const double seconds = median_seconds(*op, step);
  const Cost cost = op->cost(c.rows, c.depth - 1);
  const double gbs = static_cast<double>(cost.state_bytes * c.sequences) / seconds * 1e-9;
  const double gflops = cost.flops * c.sequences / seconds * 1e-9;
  std::printf("%-34s %9.1f us %7.1f GB/s (%3.0f%% of read roof) %7.1f GFLOP/s (%3.0f%% of FMA peak)\n", c.name,
              seconds * 1e6, gbs, 100 * gbs / read_roof, gflops, 100 * gflops / fma_roof);
}

void run(KernelSet set) {
  CpuDevice device(default_threads(), set);
  const double read_roof = measure_read_bandwidth(device, 256 << 20);
  const double fma_roof = measure_fma_peak(device);
  std::printf("%s, %d threads: read %.1f GB/s, FMA %.0f GFLOP/s\n", kernel_set_name(set).data(), device.threads(),
              read_roof, fma_roof);
  const auto f16 = StateDtype::kF16;
  const auto f32 = StateDtype::kF32;
  const Case cases[] = {
      {"decode GQA 32/8 x 128, 512, F16", 32, 8, 128, 128, false, f16, 1, 1, 512},
      {"decode GQA 32/8 x 128, 4k, F16", 32, 8, 128, 128, false, f16, 1, 1, 4096},
      {"decode GQA 32/8 x 128, 32k, F16", 32, 8, 128, 128, false, f16, 1, 1, 32768},
      {"decode GQA 32/8 x 128, 32k, F32", 32, 8, 128, 128, false, f32, 1, 1, 32768},
      {"decode GQA 32/8 x 128, 16 x 4k, F16", 32, 8, 128, 128, false, f16, 16, 1, 4096},
      {"decode MHA 16/16 x 128, 8k, F16", 16, 16, 128, 128, false, f16, 1, 1, 8192},
      {"decode GQA 64/8 x 128, 8k, F16", 64, 8, 128, 128, false, f16, 1, 1, 8192},
      {"decode MLA 32 x 576/512, 4k, F16", 32, 1, 576, 512, true, f16, 1, 1, 4096},
      {"decode MLA 32 x 576/512, 32k, F16", 32, 1, 576, 512, true, f16, 1, 1, 32768},
      {"decode MLA 96 x 576/512, 4k, F16", 96, 1, 576, 512, true, f16, 1, 1, 4096},
      {"prompt GQA 32/8 x 128, 512, F16", 32, 8, 128, 128, false, f16, 1, 512, 512},
      {"prompt GQA 32/8 x 128, 512 of 4k, F16", 32, 8, 128, 128, false, f16, 1, 512, 4096},
      {"prompt MLA 32 x 576/512, 512, F16", 32, 1, 576, 512, true, f16, 1, 512, 512},
  };
  for (const Case& c : cases) measure(device, c, read_roof, fma_roof);
}

}  // namespace
}  // namespace weir

int main() {
  for (weir::KernelSet set : {weir::KernelSet::kAvx2, weir::KernelSet::kAvx512}) {
    if (weir::kernel_set_supported(set)) weir::run(set);
  }
}
