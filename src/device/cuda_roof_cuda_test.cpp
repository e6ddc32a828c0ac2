#include "device/cuda_roof.h"

#include <gtest/gtest.h>

#include <bit>

#include "bench/cuda_timing.h"
#include "tests/support/cuda_case.h"

namespace weir {
namespace {

#ifdef WEIR_CUDA_EMULATED
constexpr int64_t kBytes = int64_t{4} << 20;
constexpr double kLeast = 0;
#else
constexpr int64_t kBytes = int64_t{1} << 30;
constexpr double kLeast = 50;  // GB/s; TFLOP/s: any card that this program runs on has more
#endif

using CudaRoof = testing::CudaCase;

TEST_F(CudaRoof, FiguresArePlausible) {
  const CudaBandwidths bandwidths = measure_cuda_bandwidths(device(), kBytes);
  EXPECT_GT(bandwidths.read_gbs, kLeast);
  EXPECT_LT(bandwidths.read_gbs, 20000);
  EXPECT_GT(bandwidths.copy_gbs, kLeast);
  EXPECT_LT(bandwidths.copy_gbs, 20000);
  if (device().info().major == 9) {
    EXPECT_GT(measure_cuda_bf16_peak(device()), kLeast);
    EXPECT_LT(measure_cuda_bf16_peak(device()), 2000);
  }
  const CudaLatencies latencies = measure_cuda_latencies(device());
  EXPECT_GT(latencies.graph_node_us, 0);
  EXPECT_LT(latencies.graph_node_us, latencies.round_trip_us + 10);
  const CudaTransfers transfers = measure_cuda_transfers(device(), kBytes / 4);
  EXPECT_GT(transfers.to_device_gbs, 0);
  EXPECT_GT(transfers.to_host_gbs, 0);
}

using CudaTimingTest = testing::CudaCase;

TEST_F(CudaTimingTest, CallsTakeTurns) {
  const testing::DeviceBuffer<float> buffer(device(), 1000);
  int calls[3] = {};
  const bench::CudaTiming timing =
      bench::time_calls(device(), {.sets = 3, .round_us = 20, .budget_us = 100}, [&](int set) {
        ++calls[set];
        device().fill(buffer.data(), set, 4000);
      });
  EXPECT_GT(timing.us, 0);
  EXPECT_LE(timing.best_us, timing.us);
  EXPECT_EQ(calls[0], calls[1]);
  EXPECT_EQ(calls[0], calls[2]);
  EXPECT_EQ(std::bit_cast<uint32_t>(buffer.values()[0]), 0x02020202u) << "set 2 comes last";
}

}  // namespace
}  // namespace weir
