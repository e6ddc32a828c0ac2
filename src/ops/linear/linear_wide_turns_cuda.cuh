// Products of segments in the kernel of linear_wide_cuda.cuh.
#pragma once

#include "ops/linear/linear_sums_cuda.cuh"
#include "ops/linear/linear_wide_stages_cuda.cuh"

namespace weir {

// Where x lies for the step `step` of a tile.
__device__ inline uint64_t x_descriptor(const std::byte* x, int step) {
  return cuda::ptx::wgmma_descriptor(cuda::ptx::shared_address(x), 0, 1024, cuda::ptx::Swizzle::k128) + step * 2;
}

// A tile's four steps, of BF16 weights where they lie: queued.
template <int kRows>
__device__ inline void multiply_wide(const std::byte* weights, const std::byte* x, bool fresh, StripSums<kRows>& sums) {
  const int group = static_cast<int>(threadIdx.x) / 128;
  const uint64_t a = cuda::ptx::wgmma_descriptor(cuda::ptx::shared_address(weights + group * 4 * Bf16Operand::kBytes),
                                                 128, 1024, cuda::ptx::Swizzle::kNone);
  cuda::ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    cuda::ptx::wgmma_bf16_shared<kRows>(sums, a + step * 16, x_descriptor(x, step), !(fresh && step == 0));
  }
  cuda::ptx::wgmma_commit();
}

__device__ inline void release(uint64_t* barrier) {
  if (lane_index() == 0) cuda::ptx::mbarrier_arrive(barrier);
}

// A turn of weights that become BF16 in registers: a group of steps with a scale, or a tile.
template <class Operand, int kRows>
struct WideTurn {
  static constexpr bool kScaled = Operand::kGroupSteps > 0;
  static constexpr int kSteps = kScaled ? Operand::kGroupSteps : 4;
  static constexpr int kOfTile = 4 / kSteps;

  uint32_t a[kSteps][Operand::kParts][4];
  float product[kScaled ? kRows / 2 : 1];  // from zero
  float scale[2], minus[2];
  const float* totals;
  uint64_t* used_x;  // free after the turn, or null

  // Queues the products of turn `turn` of a tile.
  __device__ void queue(const Operand& w, int turn, const std::byte* x, bool fresh, StripSums<kRows>& sums) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      for (int part = 0; part < Operand::kParts; ++part) w.a(turn * kSteps + s, part, a[s][part]);
    }
    if constexpr (kScaled) {
      for (int half = 0; half < 2; ++half) scale[half] = w.scale(turn, half);
    }
    if constexpr (Operand::kMinima) {
      for (int half = 0; half < 2; ++half) minus[half] = -w.min(turn, half);
    }
    cuda::ptx::pin<kSteps * Operand::kParts * 4>(a[0][0]);
    cuda::ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      for (int part = 0; part < Operand::kParts; ++part) {
        const bool begins = (kScaled || fresh) && s == 0 && part == 0;
        cuda::ptx::wgmma_bf16<kRows>(kScaled ? product : sums, a[s][part], x_descriptor(x, turn * kSteps + s), !begins);
      }
    }
    cuda::ptx::wgmma_commit();
  }
  // When they are done.
  __device__ void end(StripSums<kRows>& sums) {
    if constexpr (kScaled) {
      cuda::ptx::pin<kRows / 2>(product);
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) sums[i] = fmaf(scale[i / 2 % 2], product[i], sums[i]);
    }
    if constexpr (Operand::kMinima) {
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
        const float2 total = *reinterpret_cast<const float2*>(totals + lane_index() % 4 * 2 + j * 8);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          sums[4 * j + i] = fmaf(minus[i / 2], i % 2 == 0 ? total.x : total.y, sums[4 * j + i]);
      }
    }
    if (used_x == nullptr) return;
    __syncwarp();
    release(used_x);
  }
};

// A segment of the warp's strip from zero; `tile` counts those of the item, which has `tiles`. While a turn multiplies,
// the weights of the next are converted, where registers suffice for two.
template <class Operand, int kRows, class Stages>
__device__ inline void multiply_segment(Stages& stages, int& tile, int segment_tiles, int tiles,
                                        StripSums<kRows>& sums) {
  using Shape = typename Stages::Shape;
  using Turn = WideTurn<Operand, kRows>;
  constexpr int kTurns = kRows <= 64 || !Turn::kScaled ? 2 : 1;
  const int warp = static_cast<int>(threadIdx.x) / 32, end = tile + segment_tiles;
  Turn turns[kTurns];
  if constexpr (Turn::kScaled) {
    for (float& sum : sums) sum = 0;
  }
  // kFirst: the set of the first turn; kFresh: of the first tile.
  const auto multiply_tile = [&]<int kFirst, bool kFresh>() {
    const int at = tile % Shape::kStageTiles;
    if (at == 0) stages.weight_ring.wait_full();
    const Operand w(stages.weights() + (warp * Shape::kStageTiles + at) * Operand::kBytes);
    stages.x_ring.wait_full();
    if constexpr (Operand::kMinima) cuda::ptx::mbarrier_wait(stages.totals_full(), stages.x_ring.phase);
#pragma unroll
    for (int t = 0; t < Turn::kOfTile; ++t) {
      Turn& turn = turns[(kFirst + t) % kTurns];
      turn.totals = stages.totals() + t * kRows;
      turn.used_x = t == Turn::kOfTile - 1 ? stages.x_ring.empty() : nullptr;
      turn.queue(w, t, stages.x(), kFresh && t == 0, sums);
      if constexpr (kTurns == 1) {
        cuda::ptx::wgmma_wait<0>();
        turn.end(sums);
      } else if (Turn::kOfTile == 1 ? !kFresh : t > 0) {
        cuda::ptx::wgmma_wait<1>();
        turns[(kFirst + t + 1) % kTurns].end(sums);
      }
    }
    if constexpr (kTurns == 2 && Turn::kOfTile > 1) {
      cuda::ptx::wgmma_wait<0>();
      turns[1].end(sums);
    }
    stages.x_ring.advance();
    if (at + 1 == Shape::kStageTiles || tile + 1 == tiles) {
      __syncwarp();
      release(stages.weight_ring.empty());
      stages.weight_ring.advance();
    }
    ++tile;
  };
  multiply_tile.template operator()<0, true>();
  if constexpr (kTurns == 1 || Turn::kOfTile > 1) {
    while (tile < end) multiply_tile.template operator()<0, false>();
  } else {
    const auto end_last = [&]<int kSet>() {
      cuda::ptx::wgmma_wait<0>();
      turns[kSet].end(sums);
    };
    for (;;) {  // the compiler must see that the sets alternate
      if (tile == end) return end_last.template operator()<0>();
      multiply_tile.template operator()<1, false>();
      if (tile == end) return end_last.template operator()<1>();
      multiply_tile.template operator()<0, false>();
    }
  }
}

// The same of BF16 tiles, operands where they lie.
template <int kRows, class Stages>
__device__ inline void multiply_segment_in_place(Stages& stages, int segment_tiles, StripSums<kRows>& sums) {
  uint64_t *used_weights = nullptr, *used_x = nullptr;  // by products that may not be done yet
  for (int t = 0; t < segment_tiles; ++t) {
    stages.weight_ring.wait_full();
    stages.x_ring.wait_full();
    multiply_wide<kRows>(stages.weights(), stages.x(), t == 0, sums);
    cuda::ptx::wgmma_wait<1>();
    if (t > 0) release(used_weights), release(used_x);
    used_weights = stages.weight_ring.empty(), used_x = stages.x_ring.empty();
    stages.weight_ring.advance();
    stages.x_ring.advance();
  }
  cuda::ptx::wgmma_wait<0>();
  release(used_weights), release(used_x);
}

}  // namespace weir
