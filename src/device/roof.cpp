#include "device/roof.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace weir {

namespace avx2 {
float roof_read(const std::byte* data, int64_t bytes);
float roof_fma(int64_t iterations);
int32_t roof_int8(int64_t iterations);
extern const int64_t kRoofFlops;
extern const int64_t kRoofInt8Operations;
}  // namespace avx2
namespace avx512vnni {
int32_t roof_int8(int64_t iterations);
extern const int64_t kRoofInt8Operations;
}  // namespace avx512vnni
namespace avx512 {
float roof_read(const std::byte* data, int64_t bytes);
float roof_fma(int64_t iterations);
extern const int64_t kRoofFlops;
}  // namespace avx512

namespace {

float read_plain(const std::byte* data, int64_t bytes) {
  uint64_t sum = 0;
  for (int64_t i = 0; i + 8 <= bytes; i += 8) {
    uint64_t word;
    std::memcpy(&word, data + i, 8);
    sum += word;
  }
  return static_cast<float>(sum);
}

template <class Body>
double best_seconds(int passes, Body body) {
  double best = 1e30;
  for (int pass = 0; pass < passes; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

KernelSet vector_set(const CpuDevice& device) {
  if (device.kernels() == KernelSet::kReference && kernel_set_supported(KernelSet::kAvx2)) return KernelSet::kAvx2;
  return device.kernels();
}

double read_bandwidth(CpuDevice& device, std::span<const std::span<const std::byte>> pieces, int passes) {
  float (*read)(const std::byte*, int64_t) = read_plain;
  switch (vector_set(device)) {
    case KernelSet::kAvx512:
      read = avx512::roof_read;
      break;
    case KernelSet::kAvx2:
      read = avx2::roof_read;
      break;
    case KernelSet::kReference:
      break;
  }
  std::vector<float> kept(static_cast<size_t>(device.threads()) * 16);
  const double seconds = best_seconds(passes, [&] {
    device.pool().parallel_for(static_cast<int64_t>(pieces.size()), [&](int64_t index, int thread) {
      const std::span<const std::byte> piece = pieces[static_cast<size_t>(index)];
      kept[static_cast<size_t>(thread) * 16] += read(piece.data(), static_cast<int64_t>(piece.size()));
    });
  });
  size_t bytes = 0;
  for (const std::span<const std::byte> piece : pieces) bytes += piece.size();
  return static_cast<double>(bytes) / seconds * 1e-9;
}

}  // namespace

double measure_read_bandwidth(CpuDevice& device, int64_t bytes) {
  const int64_t piece = int64_t{1} << 20;
  Mapping buffer(std::max<int64_t>(bytes / piece, 1) * piece);
  std::memset(buffer.data(), 1, static_cast<size_t>(buffer.bytes()));  // pages of their own, not the shared zero page
  std::vector<std::span<const std::byte>> pieces;
  for (int64_t at = 0; at < buffer.bytes(); at += piece) {
    pieces.emplace_back(buffer.data() + at, static_cast<size_t>(piece));
  }
  return read_bandwidth(device, pieces, 7);
}

double measure_read_bandwidth(CpuDevice& device, std::span<const std::span<const std::byte>> pieces) {
  return read_bandwidth(device, pieces, 3);
}

double measure_fma_peak(CpuDevice& device) {
  float (*fma)(int64_t) = nullptr;
  int64_t flops = 0;
  switch (vector_set(device)) {
    case KernelSet::kAvx512:
      fma = avx512::roof_fma, flops = avx512::kRoofFlops;
      break;
    case KernelSet::kAvx2:
      fma = avx2::roof_fma, flops = avx2::kRoofFlops;
      break;
    case KernelSet::kReference:
      return 0;
  }
  const int64_t iterations = 1'000'000;  // some milliseconds, so that the threads' start does not count
  std::vector<float> kept(static_cast<size_t>(device.threads()) * 16);
  const double seconds = best_seconds(7, [&] {
    device.pool().parallel_for(device.threads(),
                               [&](int64_t, int thread) { kept[static_cast<size_t>(thread) * 16] += fma(iterations); });
  });
  return static_cast<double>(flops * iterations * device.threads()) / seconds * 1e-9;
}

double measure_int8_peak(CpuDevice& device) {
  if (!kernel_set_supported(KernelSet::kAvx2)) return 0;
  const bool vnni = device.kernels() == KernelSet::kAvx512 && __builtin_cpu_supports("avx512vnni");
  const auto products = vnni ? avx512vnni::roof_int8 : avx2::roof_int8;
  const int64_t operations = vnni ? avx512vnni::kRoofInt8Operations : avx2::kRoofInt8Operations;
  const int64_t iterations = 1'000'000;
  std::vector<int32_t> kept(static_cast<size_t>(device.threads()) * 16);
  const double seconds = best_seconds(7, [&] {
    device.pool().parallel_for(
        device.threads(), [&](int64_t, int thread) { kept[static_cast<size_t>(thread) * 16] ^= products(iterations); });
  });
  return static_cast<double>(operations * iterations * device.threads()) / seconds * 1e-9;
}

}  // namespace weir
