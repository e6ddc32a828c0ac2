// Times Marlin's kernel (FP16 rows by 4-bit weights) for bench/peers/marlin_rows.sh.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda_timing.h"
#include "marlin/marlin_cuda_kernel.cu"

namespace weir {
namespace {

struct Shape {
  int out, in;
};

void fill(CudaDevice& device, std::byte* to, int64_t count, const std::vector<uint32_t>& words) {
  const auto most = static_cast<int64_t>(words.size() * 4);
  for (int64_t at = 0; at < count; at += most) device.to_device(to + at, words.data(), std::min(most, count - at));
}

// Groups of weights in a column share a scale; -1: all of it.
void measure(const bench::CudaReport& report, Shape shape, int group) {
  const auto device = open_cuda();
  std::vector<uint32_t> words(size_t{4} << 20);
  std::mt19937 random(1);
  for (uint32_t& word : words) word = static_cast<uint32_t>(random()) & 0xbfffbfffu;  // finite FP16 numbers
  const int64_t weight_bytes = int64_t{shape.out} * shape.in / 2;
  const int64_t scale_bytes = int64_t{2} * shape.out * (group > 0 ? shape.in / group : 1);
  constexpr int kMostRows = 64;
  std::byte* x = device->allocate(int64_t{kMostRows} * shape.in * 2);
  std::byte* y = device->allocate(int64_t{kMostRows} * shape.out * 2);
  std::byte* locks = device->allocate(int64_t{shape.out} * 4);
  fill(*device, x, int64_t{kMostRows} * shape.in * 2, words);
  const int sets = bench::rotation(*device, weight_bytes + scale_bytes);
  std::vector<std::byte*> weights, scales;
  for (int set = 0; set < sets; ++set) {
    weights.push_back(device->allocate(weight_bytes));
    scales.push_back(device->allocate(scale_bytes));
    fill(*device, weights.back(), weight_bytes, words);
    fill(*device, scales.back(), scale_bytes, words);
  }
  for (const int rows : {1, 8, 16, 32, 64}) {
    int refused = 0;
    const bench::CudaTiming timing =
        bench::time_calls(*device, {.sets = sets, .round_us = 1000, .budget_us = 30e3}, [&](int set) {
          refused |= marlin_cuda(x, weights[static_cast<size_t>(set)], y, scales[static_cast<size_t>(set)], rows,
                                 shape.out, shape.in, locks, group, 0, static_cast<cudaStream_t>(device->stream()));
          device->launched(static_cast<int>(cudaGetLastError()));
        });
    if (refused != 0) continue;
    report.add({.what = "linear q4_0",
                .shape = std::to_string(shape.out) + "x" + std::to_string(shape.in) + " m=" + std::to_string(rows),
                .us = timing.us,
                .bytes = weight_bytes + scale_bytes,
                .flops = 2. * rows * shape.out * shape.in,
                .bar_us = report.floor_us(weight_bytes + scale_bytes),
                .by = group > 0 ? "Marlin, groups of " + std::to_string(group) : "Marlin, scales of columns"});
  }
}

int run() {
  const auto device = open_cuda();
  const bench::CudaReport report(*device);
  for (const Shape shape :
       {Shape{4096, 4096}, Shape{2304, 9216}, Shape{9216, 2304}, Shape{7168, 7168}, Shape{4096, 14336}}) {
    for (const int group : {128, -1}) measure(report, shape, group);
  }
  return 0;
}

}  // namespace
}  // namespace weir

int main() { return weir::run(); }
