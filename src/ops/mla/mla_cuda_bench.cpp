// Head products on the GPU: Kimi Linear's (32 heads) and Kimi K3's (96 heads), rows of BF16 as in a model. The bar is
// that of kernels which read weights; rows count for nothing in it.
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/number.h"
#include "bench/cuda_timing.h"
#include "ops/cuda_op.h"
#include "ops/mla/mla.h"

namespace weir {
namespace {

constexpr int64_t kNope = 128, kExtra = 64, kValue = 128, kLatent = 512;

// BF16 numbers of order one.
std::vector<uint16_t> random_numbers(int64_t count) {
  std::mt19937 random(1);
  std::vector<uint16_t> block(1 << 16), numbers(static_cast<size_t>(count));
  for (uint16_t& x : block) x = f32_to_bf16(std::normal_distribution<float>()(random));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = block[i % block.size()];
  return numbers;
}

void bench_product(CudaDevice& device, const bench::CudaReport& report, int64_t heads, bool absorb,
                   const std::vector<int32_t>& row_counts) {
  const int64_t bytes = heads * kNope * kLatent * 2, elements = row_counts.back() * heads * (kLatent + kExtra);
  const std::vector<uint16_t> weights = random_numbers(bytes), numbers = random_numbers(elements);
  auto* const x = device.allocate_array<uint16_t>(elements);
  auto* const y = device.allocate_array<uint16_t>(elements);
  device.to_device(x, numbers.data(), elements * 2);
  const MlaProjectArgs args{.kv_b = {.format = WeightFormat::kBf16,
                                     .out = heads * (kNope + kValue),
                                     .in = kLatent,
                                     .data = reinterpret_cast<const std::byte*>(weights.data()),
                                     .row_bytes = kLatent * 2},
                            .heads = heads,
                            .nope = kNope,
                            .extra = kExtra,
                            .value = kValue,
                            .latent = kLatent,
                            .x = reinterpret_cast<const float*>(x),
                            .x_stride = heads * (absorb ? kNope + kExtra : kLatent),
                            .y = reinterpret_cast<float*>(y),
                            .y_stride = heads * (absorb ? kLatent + kExtra : kValue),
                            .x_type = RowType::kBf16,
                            .y_type = RowType::kBf16,
                            .activations = Activations::kAuto};
  const int sets = bench::rotation(device, bytes, 40);
  std::vector<std::unique_ptr<BoundOp>> ops;
  for (int i = 0; i < sets; ++i) {
    ops.push_back(absorb ? bind_mla_absorb(device, "absorb", args) : bind_mla_expand(device, "expand", args));
  }
  for (int32_t rows : row_counts) {
    const std::vector<int64_t> positions(static_cast<size_t>(rows));
    const StepView step{.rows = rows, .positions = positions};
    device.stage(step);
    const StepBounds bounds{.rows = rows, .longest_span = 1, .longest_context = 1};
    const bench::CudaTiming timing = bench::time_calls(
        device, {.sets = sets}, [&](int set) { static_cast<CudaOp&>(*ops[static_cast<size_t>(set)]).enqueue(bounds); });
    report.add({.what = absorb ? "mla absorb" : "mla expand",
                .shape = std::to_string(heads) + " heads rows " + std::to_string(rows),
                .us = timing.us,
                .bytes = bytes,
                .flops = static_cast<double>(bytes) * rows,
                .bar_us = rows > 64 ? 0 : 1.2 * report.floor_us(bytes)});
  }
  ops.clear();
  device.release(reinterpret_cast<std::byte*>(x));
  device.release(reinterpret_cast<std::byte*>(y));
}

void run() {
  const std::unique_ptr<CudaDevice> device = open_cuda();
  const bench::CudaReport report(*device);
  for (int64_t heads : {32, 96}) {
    for (bool absorb : {true, false}) bench_product(*device, report, heads, absorb, {1, 16, 64, 2048});
  }
}

}  // namespace
}  // namespace weir

int main() {
  try {
    weir::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
