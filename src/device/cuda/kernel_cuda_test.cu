#include "device/cuda/kernel.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "device/cuda/ptx.h"
#include "device/cuda/testing.h"

namespace weir::cuda {
namespace {

using Kernel = KernelTest;

// --- the warp -------------------------------------------------------------------------------------------------------

__global__ void sum_kernel(float* y, const float* x) {
  const float value = x[threadIdx.x];
  y[threadIdx.x] = warp_sum(value);
  y[32 + threadIdx.x] = warp_sum<8>(value);
  y[64 + threadIdx.x] = warp_max<16>(value);
}

TEST_F(Kernel, SumsHaveOneOrder) {
  std::vector<float> x(32);
  for (size_t i = 0; i < 32; ++i) x[i] = std::sin(static_cast<float>(i)) * std::exp2(static_cast<float>(i % 20));
  const DeviceArray<float> in(x);
  DeviceArray<float> out(96);
  launch(owner, {.grid = 1, .block = 32}, sum_kernel, out.device(), in.device());
  const std::vector<float>& y = out.host();
  std::vector<float> sum = x, eight = x, greatest = x;
  for (size_t distance = 16; distance > 0; distance /= 2) {
    const std::vector<float> s = sum, e = eight, g = greatest;
    for (size_t i = 0; i < 32; ++i) {
      sum[i] = s[i] + s[i ^ distance];
      if (distance < 8) eight[i] = e[i] + e[i ^ distance];
      if (distance < 16) greatest[i] = std::fmax(g[i], g[i ^ distance]);
    }
  }
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(y[i], sum[i]) << i;
    EXPECT_EQ(y[32 + i], eight[i]) << i;
    EXPECT_EQ(y[64 + i], greatest[i]) << i;
  }
}

__global__ void shuffle_kernel(int* y) {
  const int lane = static_cast<int>(threadIdx.x);
  y[lane] = __shfl_sync(kAllLanes, lane, 3, 8);
  y[32 + lane] = __shfl_up_sync(kAllLanes, lane, 2u, 16);
  y[64 + lane] = __shfl_down_sync(kAllLanes, lane, 5u);
  y[96 + lane] = static_cast<int>(__ballot_sync(kAllLanes, lane % 3 == 0));
  y[128 + lane] = __any_sync(kAllLanes, lane == 40) + 2 * __all_sync(kAllLanes, lane < 32);
  // The halves of the warp go different ways and meet again.
  int half = 0;
  if (lane < 16) {
    half = __shfl_xor_sync(0xffffu, lane, 1);
  } else {
    half = __shfl_xor_sync(0xffff0000u, lane, 2);
    half = __shfl_xor_sync(0xffff0000u, half, 4);
  }
  __syncwarp();
  y[160 + lane] = half;
}

TEST_F(Kernel, Shuffles) {
  DeviceArray<int> out(192);
  launch(owner, {.grid = 1, .block = 32}, shuffle_kernel, out.device());
  const std::vector<int>& y = out.host();
  uint32_t thirds = 0;
  for (unsigned i = 0; i < 32; i += 3) thirds |= 1u << i;
  for (int i = 0; i < 32; ++i) {
    const size_t at = static_cast<size_t>(i);
    EXPECT_EQ(y[at], i / 8 * 8 + 3);
    EXPECT_EQ(y[32 + at], i % 16 < 2 ? i : i - 2);
    EXPECT_EQ(y[64 + at], i + 5 > 31 ? i : i + 5);
    EXPECT_EQ(static_cast<uint32_t>(y[96 + at]), thirds);
    EXPECT_EQ(y[128 + at], 2);
    EXPECT_EQ(y[160 + at], i < 16 ? i ^ 1 : i ^ 6);
  }
}

// --- the block ------------------------------------------------------------------------------------------------------

// Turns the block's values around through shared memory, twice, in static and dynamic arrays; some threads leave early.
__global__ void block_kernel(int* y, int* flags, int keep) {
  __shared__ int fixed[128];
  WEIR_DYNAMIC_SHARED(int, dynamic);
  const int i = static_cast<int>(threadIdx.x + threadIdx.y * blockDim.x);
  const int count = __syncthreads_count(i % 5 == 0);
  const int any = __syncthreads_or(i == 77), all = __syncthreads_and(i != 77);
  if (i == 0) flags[blockIdx.y] = count * 100 + any * 10 + all;
  if (i >= keep) return;
  dynamic[i] = 3 * i;
  __syncthreads();
  fixed[i] = dynamic[keep - 1 - i];
  __syncthreads();
  y[static_cast<int>(blockIdx.y) * keep + i] = fixed[keep - 1 - i] + dynamic[i];
}

TEST_F(Kernel, BarriersOrderABlock) {
  DeviceArray<int> out(3 * 96), flags(3);
  launch(owner, {.grid = {1, 3}, .block = {32, 4}, .shared_bytes = 512}, block_kernel, out.device(), flags.device(),
         96);
  for (size_t block = 0; block < 3; ++block) {
    EXPECT_EQ(flags.host()[block], 26 * 100 + 10);
    for (size_t i = 0; i < 96; ++i) EXPECT_EQ(out.host()[block * 96 + i], static_cast<int>(6 * i));
  }
}

__global__ void named_barrier_kernel(int* y) {
  __shared__ int box[32];
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int turn = 0; turn < 3; ++turn) {
    if (threadIdx.x >= 32) {
      if (turn > 0) ptx::named_barrier_sync(2, 64);
      box[lane] = 10 * turn + lane;
      ptx::named_barrier_arrive(1, 64);
    } else {
      ptx::named_barrier_sync(1, 64);
      y[32 * turn + lane] = box[31 - lane];
      if (turn < 2) ptx::named_barrier_arrive(2, 64);
    }
  }
}

TEST_F(Kernel, NamedBarriersHandOver) {
  DeviceArray<int> out(96);
  launch(owner, {.grid = 1, .block = 64}, named_barrier_kernel, out.device());
  for (int i = 0; i < 96; ++i) EXPECT_EQ(out.host()[static_cast<size_t>(i)], i / 32 * 10 + 31 - i % 32);
}

__global__ void atomics_kernel(unsigned* y, unsigned long long* wide) {
  atomicAdd(y, 2u);
  atomicMax(y + 1, threadIdx.x);
  atomicAdd(wide, 1ull << 33);
  if (atomicAdd(y + 2, 1u) == gridDim.x * blockDim.x - 1) y[3] = 7;  // the last of all
}

TEST_F(Kernel, AtomicsCountAcrossBlocks) {
  DeviceArray<unsigned> counts(std::vector<unsigned>(4, 0));
  DeviceArray<unsigned long long> wide(std::vector<unsigned long long>(1, 0));
  launch(owner, {.grid = 5, .block = 64}, atomics_kernel, counts.device(), wide.device());
  EXPECT_EQ(counts.host(), (std::vector<unsigned>{640, 63, 320, 7}));
  EXPECT_EQ(wide.host()[0], 320ull << 33);
}

// --- numbers --------------------------------------------------------------------------------------------------------

constexpr int kFunctions = 8;
WEIR_HD void apply_all(float x, float* y) {
  y[0] = math::exp(x);
  y[1] = math::sigmoid(x);
  y[2] = math::silu(x);
  y[3] = math::tanh(x);
  y[4] = math::softplus(x);
  y[5] = math::log(x);
  y[6] = f16_to_f32(f32_to_f16(x));
  y[7] = bf16_to_f32(f32_to_bf16(x));
}
__global__ void math_kernel(float* y, const float* x, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) apply_all(x[i], y + i * kFunctions);
}

std::vector<float> numbers() {
  std::vector<float> x = {0.f, -0.f, 1.f, -1.f, 88.8f, -103.9f, 1e-40f, 65504.f, 65520.f, INFINITY, -INFINITY, NAN};
  uint32_t state = 1;
  for (int i = 0; i < 20000; ++i) {
    state = state * 1664525u + 1013904223u;
    x.push_back(i % 2 ? std::bit_cast<float>(state) : static_cast<float>(static_cast<int32_t>(state)) * 0x1p-25f);
  }
  return x;
}

TEST_F(Kernel, MathHasTheBitsOfTheHost) {
  const std::vector<float> x = numbers();
  const int n = static_cast<int>(x.size());
  const DeviceArray<float> in(x);
  DeviceArray<float> out(x.size() * kFunctions);
  launch(owner, {.grid = (n + 127) / 128, .block = 128}, math_kernel, out.device(), in.device(), n);
  const std::vector<float>& y = out.host();
  for (size_t i = 0; i < x.size(); ++i) {
    float expected[kFunctions];
    apply_all(x[i], expected);
    for (size_t f = 0; f < kFunctions; ++f) {
      const float found = y[i * kFunctions + f];
      if (std::isnan(expected[f]) && std::isnan(found)) continue;
      ASSERT_EQ(std::bit_cast<uint32_t>(found), std::bit_cast<uint32_t>(expected[f]))
          << "function " << f << " of " << x[i];
    }
  }
}

__global__ void pack_kernel(uint32_t* y, const float* x, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  y[4 * i] = pack_bf16(x[i], -x[i]);
  y[4 * i + 1] = pack_f16(x[i], -x[i]);
  y[4 * i + 2] = __float_as_uint(low_f16(y[4 * i + 1]));
  y[4 * i + 3] = __float_as_uint(high_bf16(y[4 * i]));
}

TEST_F(Kernel, PackingRoundsToNearestEven) {
  const std::vector<float> x = numbers();
  const int n = static_cast<int>(x.size());
  const DeviceArray<float> in(x);
  DeviceArray<uint32_t> out(x.size() * 4);
  launch(owner, {.grid = (n + 127) / 128, .block = 128}, pack_kernel, out.device(), in.device(), n);
  const std::vector<uint32_t>& y = out.host();
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(static_cast<uint16_t>(y[4 * i]))));
      EXPECT_TRUE(std::isnan(f16_to_f32(static_cast<uint16_t>(y[4 * i + 1]))));
      continue;
    }
    ASSERT_EQ(y[4 * i], static_cast<uint32_t>(f32_to_bf16(-x[i])) << 16 | f32_to_bf16(x[i])) << x[i];
    ASSERT_EQ(y[4 * i + 1], static_cast<uint32_t>(f32_to_f16(-x[i])) << 16 | f32_to_f16(x[i])) << x[i];
    ASSERT_EQ(y[4 * i + 2], std::bit_cast<uint32_t>(f16_to_f32(f32_to_f16(x[i])))) << x[i];
    ASSERT_EQ(y[4 * i + 3], std::bit_cast<uint32_t>(bf16_to_f32(f32_to_bf16(-x[i])))) << x[i];
  }
}

__global__ void bits_kernel(uint32_t* y) {
  y[0] = __byte_perm(0x33221100u, 0x77665544u, 0x7521u);
  y[1] = static_cast<uint32_t>(__popc(0xf0f0u) * 10000 + __clz(0x00ffffff) * 100 + __ffs(0x40));
  y[2] = __funnelshift_l(0x80000001u, 0x12345678u, 4);
  y[3] = __funnelshift_r(0x80000001u, 0x12345678u, 4);
  y[4] = __umulhi(0x12345678u, 0x9abcdef0u);
  y[5] = static_cast<uint32_t>(__dp4a(0x7f80ff01, 0x02030405, 10));
}

TEST_F(Kernel, BitFunctions) {
  DeviceArray<uint32_t> out(6);
  launch(owner, {}, bits_kernel, out.device());
  EXPECT_EQ(out.host(), (std::vector<uint32_t>{0x77552211u, 80807u, 0x23456788u, 0x88000000u, 0x0b00ea4eu,
                                               static_cast<uint32_t>(127 * 2 - 128 * 3 - 1 * 4 + 5 + 10)}));
}

// --- launches -------------------------------------------------------------------------------------------------------

__global__ void large_shared_kernel(int* y, int words) {
  WEIR_DYNAMIC_SHARED(int, memory);
  for (int i = static_cast<int>(threadIdx.x); i < words; i += static_cast<int>(blockDim.x)) memory[i] = i;
  __syncthreads();
  if (threadIdx.x == 0) *y = memory[words - 1];
}

TEST_F(Kernel, SharedMemoryIsAllowedFirst) {
  DeviceArray<int> out(1);
  const int bytes = 200 << 10;
  StreamOwner refused;
  launch(refused, {.grid = 1, .block = 256, .shared_bytes = bytes}, large_shared_kernel, out.device(), bytes / 4);
  EXPECT_NE(refused.first_error, 0);
  cudaGetLastError();
  EXPECT_EQ(allow_shared(large_shared_kernel, bytes), cudaSuccess);
  launch(owner, {.grid = 1, .block = 256, .shared_bytes = bytes}, large_shared_kernel, out.device(), bytes / 4);
  EXPECT_EQ(out.host()[0], bytes / 4 - 1);
  EXPECT_NE(allow_shared(large_shared_kernel, 1 << 20), cudaSuccess);
  cudaGetLastError();
}

TEST_F(Kernel, ImpossibleLaunchesAreRefused) {
  DeviceArray<int> out(1);
  for (const LaunchShape& shape : {LaunchShape{.grid = 0}, LaunchShape{.block = 2048}}) {
    StreamOwner refused;
    launch(refused, shape, large_shared_kernel, out.device(), 1);
    EXPECT_NE(refused.first_error, 0);
    cudaGetLastError();
  }
}

__global__ void add_kernel(int* y, int value) {
  ptx::wait_for_previous();
  *y += value;
  ptx::let_next_start();
}

TEST_F(Kernel, OverlappingLaunchesStayInOrder) {
  DeviceArray<int> out(std::vector<int>{0});
  for (int i = 0; i < 20; ++i) launch(owner, {.overlap = true}, add_kernel, out.device(), i);
  EXPECT_EQ(out.host()[0], 190);
}

TEST_F(Kernel, GraphsRepeatWhatWasCaptured) {
  struct Captured : StreamOwner {
    cudaStream_t stream() const { return own; }
    cudaStream_t own = nullptr;
  } captured;
  DeviceArray<int> out(std::vector<int>{0});
  ASSERT_EQ(cudaStreamCreateWithFlags(&captured.own, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(captured.own, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  launch(captured, {}, add_kernel, out.device(), 3);
  launch(captured, {.overlap = true}, add_kernel, out.device(), 4);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(captured.own, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cudaGraphLaunch(executable, captured.own), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(captured.own), cudaSuccess);
  EXPECT_EQ(captured.first_error, 0);
  EXPECT_EQ(out.host()[0], 21);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(captured.own);
}

}  // namespace
}  // namespace weir::cuda
