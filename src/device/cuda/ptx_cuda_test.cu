#include "device/cuda/ptx.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "device/cuda/posts.h"
#include "device/cuda/testing.h"

namespace weir::cuda {
namespace {

using Ptx = KernelTest;

// --- fragments ------------------------------------------------------------------------------------------------------

// Eight 8x8 matrices, element (i, j) of matrix m = 64 m + 8 i + j, rows in an order of their own.
__device__ void fill_matrices(uint16_t* matrices) {
  for (unsigned i = threadIdx.x; i < 512; i += blockDim.x) matrices[i] = static_cast<uint16_t>(i);
  __syncthreads();
}

__global__ void load_matrix_kernel(uint32_t* y) {
  WEIR_DYNAMIC_SHARED(uint16_t, matrices);
  fill_matrices(matrices);
  const unsigned lane = threadIdx.x;
  const uint32_t row = ptx::shared_address(matrices + lane * 8);
  uint32_t r[4];
  uint32_t* to = y + lane * 14;
  ptx::load_matrix_x1(r, row);
  to[0] = r[0];
  ptx::load_matrix_x1_transposed(r, row);
  to[1] = r[0];
  ptx::load_matrix_x2(r, row);
  for (int i = 0; i < 2; ++i) to[2 + i] = r[i];
  ptx::load_matrix_x2_transposed(r, row);
  for (int i = 0; i < 2; ++i) to[4 + i] = r[i];
  ptx::load_matrix_x4(r, row);
  for (int i = 0; i < 4; ++i) to[6 + i] = r[i];
  ptx::load_matrix_x4_transposed(r, row);
  for (int i = 0; i < 4; ++i) to[10 + i] = r[i];
}

uint32_t pair(uint32_t low, uint32_t high) { return low | high << 16; }

TEST_F(Ptx, LoadsMatrices) {
  DeviceArray<uint32_t> out(32 * 14);
  launch(owner, {.grid = 1, .block = 32, .shared_bytes = 1024}, load_matrix_kernel, out.device());
  const std::vector<uint32_t>& y = out.host();
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const uint32_t g = lane / 4, c = lane % 4;
    for (uint32_t i = 0; i < 14; ++i) {
      const bool transposed = i == 1 || i == 4 || i == 5 || i >= 10;
      const uint32_t m = i < 2 ? 0 : i < 6 ? i % 2 : (i - 6) % 4;
      const uint32_t first = transposed ? 64 * m + 16 * c + g : 64 * m + 8 * g + 2 * c;
      EXPECT_EQ(y[lane * 14 + i], pair(first, first + (transposed ? 8 : 1))) << "lane " << lane << " value " << i;
    }
  }
}

__global__ void store_matrix_kernel(uint16_t* y) {
  WEIR_DYNAMIC_SHARED(uint16_t, matrices);
  const unsigned lane = threadIdx.x, g = lane / 4, c = lane % 4;
  uint32_t r[4], transposed[4];
  for (uint32_t m = 0; m < 4; ++m) {
    r[m] = (64 * m + 8 * g + 2 * c) | (64 * m + 8 * g + 2 * c + 1) << 16;
    transposed[m] = (64 * m + 16 * c + g) | (64 * m + 16 * c + 8 + g) << 16;
  }
  ptx::store_matrix_x4(ptx::shared_address(matrices + lane * 8), r);
  ptx::store_matrix_x4_transposed(ptx::shared_address(matrices + 256 + lane * 8), transposed);
  __syncwarp();
  for (unsigned i = lane; i < 512; i += 32) y[i] = matrices[i];
}

TEST_F(Ptx, StoresMatrices) {
  DeviceArray<uint16_t> out(512);
  launch(owner, {.grid = 1, .block = 32, .shared_bytes = 1024}, store_matrix_kernel, out.device());
  for (size_t i = 0; i < 512; ++i) EXPECT_EQ(out.host()[i], i % 256) << i;
}

// --- products -------------------------------------------------------------------------------------------------------

template <bool kBf16>
__global__ void mma_kernel(float* y) {
  const unsigned lane = threadIdx.x, g = lane / 4, c = lane % 4;
  const auto pack = [](uint32_t i, uint32_t j) {
    const float low = static_cast<float>(static_cast<int>(i * 2654435761u >> 16) % 7 - 3);
    const float high = static_cast<float>(static_cast<int>(j * 2654435761u >> 16) % 7 - 3);
    return kBf16 ? pack_bf16(low, high) : pack_f16(low, high);
  };
  uint32_t a[4], b[2];
  for (unsigned r = 0; r < 4; ++r) {
    const unsigned at = (g + r % 2 * 8) * 16 + 2 * c + r / 2 * 8;
    a[r] = pack(at, at + 1);
  }
  for (unsigned r = 0; r < 2; ++r) {
    const unsigned at = 256 + (2 * c + 8 * r) * 8 + g;
    b[r] = pack(at, at + 8);
  }
  float d[4] = {0.5f, 1.5f, 2.5f, 3.5f};
  if (kBf16) {
    ptx::mma_bf16(d, a, b[0], b[1]);
  } else {
    ptx::mma_f16(d, a, b[0], b[1]);
  }
  for (unsigned i = 0; i < 4; ++i) y[(g + i / 2 * 8) * 8 + 2 * c + i % 2] = d[i] - (0.5f + static_cast<float>(i));
}

TEST_F(Ptx, MultipliesTiles) {
  for (const bool bf16 : {true, false}) {
    DeviceArray<float> out(128);
    launch(owner, {.grid = 1, .block = 32}, bf16 ? mma_kernel<true> : mma_kernel<false>, out.device());
    for (uint32_t row = 0; row < 16; ++row) {
      for (uint32_t column = 0; column < 8; ++column) {
        int sum = 0;
        for (uint32_t k = 0; k < 16; ++k) sum += small_integer(row * 16 + k) * small_integer(256 + k * 8 + column);
        EXPECT_EQ(out.host()[row * 8 + column], static_cast<float>(sum)) << row << ", " << column;
      }
    }
  }
}

// --- arithmetic -----------------------------------------------------------------------------------------------------

__global__ void scale_pairs_kernel(uint32_t* y, uint32_t pairs, uint32_t factors) {
  y[0] = ptx::mul_bf16x2(pairs, factors);
  y[1] = ptx::mul_bf16x2(pairs, ptx::both_halves<0>(factors));
  y[2] = ptx::mul_bf16x2(pairs, ptx::both_halves<1>(factors));
}

TEST_F(Ptx, MultipliesPairsByBothOrOneOfAPair) {
  constexpr uint32_t kOneAndAHalf = 0x3fc0, kMinusTwo = 0xc000, kFour = 0x4080, kHalf = 0x3f00;
  DeviceArray<uint32_t> out(3);
  launch(owner, {.grid = 1, .block = 1}, scale_pairs_kernel, out.device(), pair(kOneAndAHalf, kMinusTwo),
         pair(kFour, kHalf));
  EXPECT_EQ(out.host(), (std::vector<uint32_t>{pair(0x40c0, 0xbf80), pair(0x40c0, 0xc100), pair(0x3f40, 0xbf80)}));
}

__global__ void approximate_kernel(float* y, const float* x) {
  y[2 * threadIdx.x] = ptx::exp2_approx(x[threadIdx.x]);
  y[2 * threadIdx.x + 1] = ptx::reciprocal_approx(x[threadIdx.x]);
}

TEST_F(Ptx, ApproximatesWithinItsBounds) {
  std::vector<float> x(256);
  for (size_t i = 0; i < 256; ++i) x[i] = (static_cast<float>(i) - 127.6f) * 0.97f;
  const DeviceArray<float> in(x);
  DeviceArray<float> out(512);
  launch(owner, {.grid = 1, .block = 256}, approximate_kernel, out.device(), in.device());
  for (size_t i = 0; i < 256; ++i) {
    EXPECT_NEAR(out.host()[2 * i] / std::exp2(static_cast<double>(x[i])), 1., 0x1p-22) << x[i];
    EXPECT_NEAR(out.host()[2 * i + 1] * static_cast<double>(x[i]), 1., 0x1p-22) << x[i];
  }
}

// --- global memory --------------------------------------------------------------------------------------------------

__global__ void stream_kernel(uint4* y, const uint4* x) {
  const unsigned i = threadIdx.x;
  uint4 v = ptx::load_stream(x + i);
  const uint2 low = ptx::load_stream(reinterpret_cast<const uint2*>(x + i));
  const float4 f = ptx::load_stream(reinterpret_cast<const float4*>(x + i));
  v.x += low.x - __float_as_uint(f.x);
  v.w += low.y - __float_as_uint(f.y);
  ptx::store_stream(y + i, v);
  ptx::store_stream(reinterpret_cast<float4*>(y + 32 + i), f);
}

TEST_F(Ptx, StreamsVectors) {
  std::vector<uint4> x(32);
  for (unsigned i = 0; i < 32; ++i) x[i] = make_uint4(i, 100 + i, 200 + i, 300 + i);
  const DeviceArray<uint4> in(x);
  DeviceArray<uint4> out(64);
  launch(owner, {.grid = 1, .block = 32}, stream_kernel, out.device(), in.device());
  EXPECT_EQ(std::memcmp(out.host().data(), x.data(), 512), 0);
  EXPECT_EQ(std::memcmp(out.host().data() + 32, x.data(), 512), 0);
}

// --- asynchronous copies --------------------------------------------------------------------------------------------

constexpr int kTiles = 11, kTileBytes = 512;

// A ring of three stages of cp.async, a group for each tile; every second 16 bytes are filled with zeros.
__global__ void copy_ring_kernel(uint4* y, const uint4* x) {
  WEIR_DYNAMIC_SHARED(uint4, stages);
  const unsigned lane = threadIdx.x;
  const auto fetch = [&](int tile) {
    if (tile < kTiles) {
      const bool live = lane % 2 == 0;
      ptx::copy_async16(ptx::shared_address(stages + tile % 3 * 32 + lane), live ? x + tile * 32 + lane : nullptr,
                        live);
    }
    ptx::commit_copies();
  };
  fetch(0);
  fetch(1);
  for (int tile = 0; tile < kTiles; ++tile) {
    ptx::wait_copies<1>();
    __syncwarp();
    y[tile * 32 + lane] = stages[tile % 3 * 32 + (lane ^ 2)];
    fetch(tile + 2);
  }
}

std::vector<uint4> tiles() {
  std::vector<uint4> x(kTiles * kTileBytes / 16);
  for (unsigned i = 0; i < x.size(); ++i) x[i] = make_uint4(i, i * 3 + 1, ~i, i * i);
  return x;
}

TEST_F(Ptx, CopiesThroughARing) {
  const std::vector<uint4> x = tiles();
  const DeviceArray<uint4> in(x);
  DeviceArray<uint4> out(x.size());
  launch(owner, {.grid = 1, .block = 32, .shared_bytes = 3 * kTileBytes}, copy_ring_kernel, out.device(), in.device());
  for (size_t i = 0; i < x.size(); ++i) {
    const uint4 expected = i % 2 == 0 ? x[i ^ 2] : make_uint4(0, 0, 0, 0);
    EXPECT_EQ(std::memcmp(&out.host()[i], &expected, 16), 0) << i;
  }
}

// One warp fetches with bulk loads, two others read each tile and the last stage goes out by a bulk store.
__global__ void bulk_ring_kernel(uint4* y, const uint4* x, uint4* last) {
  constexpr int kStages = 3;
  WEIR_DYNAMIC_SHARED(uint4, stages);
  __shared__ uint64_t full[kStages], empty[kStages];
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      ptx::mbarrier_init(full + s, 1);
      ptx::mbarrier_init(empty + s, 64);
    }
    ptx::mbarrier_fence_init();
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    if (threadIdx.x == 0) {
      for (int tile = 0; tile < kTiles; ++tile) {
        const int s = tile % kStages, round = tile / kStages;
        ptx::mbarrier_wait(empty + s, (round + 1) % 2);
        ptx::mbarrier_arrive_expect(full + s, kTileBytes);
        ptx::bulk_load(stages + s * 32, x + tile * 32, kTileBytes / 2, full + s);
        ptx::bulk_load(stages + s * 32 + 16, x + tile * 32 + 16, kTileBytes / 2, full + s, ptx::read_once());
      }
    }
  } else {
    const unsigned i = threadIdx.x - 32;
    for (int tile = 0; tile < kTiles; ++tile) {
      const int s = tile % kStages, round = tile / kStages;
      ptx::mbarrier_wait(full + s, round % 2);
      if (i < 32) y[tile * 32 + i] = stages[s * 32 + 31 - i];
      ptx::mbarrier_arrive(empty + s);
    }
    if (i < 32) stages[32 * kStages + i] = make_uint4(i, 1, 2, 3);
    ptx::fence_async_shared();
    ptx::named_barrier_sync(1, 64);
    if (i == 0) {
      ptx::bulk_store(last, stages + 32 * kStages, kTileBytes);
      ptx::commit_bulk_stores();
      ptx::wait_bulk_stores<0>();
    }
  }
}

TEST_F(Ptx, BulkCopiesThroughARing) {
  const std::vector<uint4> x = tiles();
  const DeviceArray<uint4> in(x);
  DeviceArray<uint4> out(x.size()), last(32);
  launch(owner, {.grid = 2, .block = 96, .shared_bytes = 4 * kTileBytes}, bulk_ring_kernel, out.device(), in.device(),
         last.device());
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(std::memcmp(&out.host()[i], &x[i / 32 * 32 + 31 - i % 32], 16), 0) << i;
  }
  for (unsigned i = 0; i < 32; ++i) {
    const uint4 expected = make_uint4(i, 1, 2, 3);
    EXPECT_EQ(std::memcmp(&last.host()[i], &expected, 16), 0) << i;
  }
}

// Each block of a launch leaves four numbers a lane for every block, which adds them up.
__global__ void posts_kernel(uint4* posts, float4* y) {
  const unsigned lane = threadIdx.x, block = blockIdx.x, blocks = gridDim.x;
  const float own[4] = {static_cast<float>(block + 1), static_cast<float>(lane) + 0.25f,
                        __uint_as_float(block == 2 && lane == 5 ? ~0u : 0u), -0.f};
  for (unsigned to = 0; to < blocks; ++to) Post::store(posts + (to * blocks + block) * 32 + lane, own);
  y[block * 32 + lane] = take_posts(posts + block * blocks * 32 + lane, static_cast<int>(blocks), 32);
}

TEST_F(Ptx, PostsReachAllBlocksAndAreLeftZero) {
  constexpr unsigned kBlocks = 11;  // more than are read at once
  DeviceArray<uint4> posts(std::vector<uint4>(kBlocks * kBlocks * 32, make_uint4(0, 0, 0, 0)));
  DeviceArray<float4> out(kBlocks * 32);
  for (int time = 0; time < 2; ++time) {
    launch(owner, {.grid = kBlocks, .block = 32, .together = true}, posts_kernel, posts.device(), out.device());
    for (unsigned i = 0; i < kBlocks * 32; ++i) {
      const float4 sum = out.host()[i];
      EXPECT_EQ(sum.x, 66.f) << i;
      EXPECT_EQ(sum.y, 11 * (static_cast<float>(i % 32) + 0.25f)) << i;
      EXPECT_EQ(std::isnan(sum.z), i % 32 == 5) << i;
      EXPECT_TRUE(sum.w == 0 && std::signbit(sum.w)) << i;
    }
    for (const uint4& post : posts.host()) EXPECT_EQ(post.x | post.y | post.z | post.w, 0u);
  }
}

// Each block of a cluster gives every block a part of its numbers in three ways, and reads one back.
__global__ void cluster_kernel(float4* y, const __grid_constant__ TensorMap map) {
  struct Shared {
    uint16_t box[8 * 64];
    float4 stored[4], sent[4], own;
    uint64_t sent_full, box_full, arrived;
  };
  WEIR_DYNAMIC_SHARED(Shared, shared);
  const uint32_t rank = ptx::cluster_rank();
  const int thread = static_cast<int>(threadIdx.x);
  const auto in = [&](const void* p, int of) {
    return ptx::shared_of_rank(ptx::shared_address(p), static_cast<uint32_t>(of));
  };
  if (thread == 0) {
    ptx::mbarrier_init(&shared->sent_full, 1);
    ptx::mbarrier_init(&shared->box_full, 1);
    ptx::mbarrier_init(&shared->arrived, 4);
    ptx::mbarrier_fence_init();
    ptx::mbarrier_arrive_expect(&shared->sent_full, 4 * 16);
    ptx::mbarrier_arrive_expect(&shared->box_full, 8 * 128);
  }
  ptx::cluster_sync();
  const float value = 100.f * static_cast<float>(blockIdx.x);
  if (thread < 4) {
    const float4 mine = {value + static_cast<float>(thread), value, 2, 3};
    ptx::cluster_store16(in(&shared->stored[rank], thread), mine);
    ptx::cluster_store16_async(in(&shared->sent[rank], thread), mine, in(&shared->sent_full, thread));
    ptx::mbarrier_arrive_cluster(in(&shared->arrived, thread));
  }
  if (thread == 32) {
    shared->own = {value, 0, 0, 1};
    if (rank == 1) ptx::tensor_load_multicast(shared->box, &map, 0, 0, &shared->box_full, 0b1011);
  }
  ptx::cluster_arrive();
  ptx::mbarrier_wait(&shared->sent_full, 0);
  ptx::mbarrier_wait_cluster(&shared->arrived, 0);
  if (thread < 4) {
    y[blockIdx.x * 16 + thread] = shared->stored[thread];
    y[blockIdx.x * 16 + 4 + thread] = shared->sent[thread];
  }
  ptx::cluster_wait();
  if (thread < 4) y[blockIdx.x * 16 + 8 + thread] = ptx::cluster_load16(in(&shared->own, thread));
  if (rank != 2) {
    ptx::mbarrier_wait(&shared->box_full, 0);
    if (thread < 4) {
      const uint32_t at = ptx::swizzle128(static_cast<uint32_t>(thread * 128 + 16 * thread)) / 2;
      y[blockIdx.x * 16 + 12 + thread] = make_float4(static_cast<float>(shared->box[at]), 0, 0, 0);
    }
  }
  ptx::cluster_sync();
}

TEST_F(Ptx, BlocksOfAClusterReachEachOther) {
  std::vector<uint16_t> elements(8 * 64);
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<uint16_t>(i);
  const DeviceArray<uint16_t> matrix(elements);
  TensorMap map;
  ASSERT_EQ(map_tensor(map, {matrix.device(), 8, 64, 64}, 8), 0);
  DeviceArray<float4> out(8 * 16);
  launch(owner, {.grid = 8, .block = 64, .shared_bytes = 2048, .cluster = 4}, cluster_kernel, out.device(), map);
  const std::vector<float4> y = out.host();
  for (int block = 0; block < 8; ++block) {
    const int rank = block % 4, first = block - rank;
    for (int i = 0; i < 4; ++i) {
      const auto at = static_cast<size_t>(block * 16 + i);
      const float there = 100.f * static_cast<float>(first + i);
      EXPECT_EQ(y[at].x, there + static_cast<float>(rank)) << block << " " << i;
      EXPECT_EQ(y[at + 4].x, there + static_cast<float>(rank)) << block << " " << i;
      EXPECT_EQ(y[at + 4].y, there) << block << " " << i;
      EXPECT_EQ(y[at + 8].x, there) << block << " " << i;
      if (rank != 2) {
        EXPECT_EQ(y[at + 12].x, static_cast<float>(72 * i)) << block << " " << i;
      }
    }
  }
}

// Copies of single threads counted on an mbarrier.
__global__ void counted_copies_kernel(uint32_t* y, const uint32_t* x) {
  __shared__ __align__(16) uint32_t tile[256];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&full, 64);
    ptx::mbarrier_fence_init();
  }
  __syncthreads();
  if (threadIdx.x < 64) {
    if (threadIdx.x < 32) {
      ptx::copy_async16(ptx::shared_address(tile + 4 * threadIdx.x), x + 4 * threadIdx.x);
    } else {
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned at = 128 + 32 * i + threadIdx.x - 32;
        ptx::copy_async4(ptx::shared_address(tile + at), x + at + 1);
      }
    }
    ptx::arrive_after_copies(&full);
  }
  ptx::mbarrier_wait(&full, 0);
  if (threadIdx.x >= 64) {
    for (unsigned i = threadIdx.x - 64; i < 256; i += 64) y[i] = tile[255 - i];
  }
}

TEST_F(Ptx, CopiesAreCountedOnABarrier) {
  std::vector<uint32_t> x(257);
  for (uint32_t i = 0; i < 257; ++i) x[i] = i * 7;
  const DeviceArray<uint32_t> in(x);
  DeviceArray<uint32_t> out(256);
  launch(owner, {.grid = 1, .block = 128}, counted_copies_kernel, out.device(), in.device());
  for (uint32_t i = 0; i < 256; ++i) {
    const uint32_t from = 255 - i;
    EXPECT_EQ(out.host()[i], x[from < 128 ? from : from + 1]) << i;
  }
}

__global__ void elect_kernel(int* y) {
  if (ptx::elect_one()) atomicAdd(y, 1);
}

TEST_F(Ptx, ElectsOneLaneOfAWarp) {
  DeviceArray<int> out(std::vector<int>{0});
  launch(owner, {.grid = 2, .block = 96}, elect_kernel, out.device());
  EXPECT_EQ(out.host()[0], 6);
}

}  // namespace
}  // namespace weir::cuda
