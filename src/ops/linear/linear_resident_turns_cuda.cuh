// Products of segments in the kernel of linear_resident_cuda.cuh.
#pragma once

#include "ops/linear/linear_resident_stages_cuda.cuh"
#include "ops/linear/linear_sums_cuda.cuh"

namespace weir {

// Products of a segment. A turn is a tile, or a group of steps with a scale but at most two; while one turn multiplies,
// the weights of the next become BF16.
template <class Operand, int kRows>
class ResidentProduct {
 public:
  static constexpr int kGroupSteps = Operand::kGroupSteps;
  static constexpr bool kScaled = kGroupSteps > 0;
  static constexpr int kSteps = kGroupSteps == 1 ? 1 : kScaled ? 2 : 4;  // of a turn
  static constexpr int kTurns = 4 / kSteps;                              // of a tile
  static constexpr int kGroupTurns = kScaled ? kGroupSteps / kSteps : 0;

  __device__ explicit ResidentProduct(const ResidentX<Operand, kRows>& x)
      : x_(x), b_((cuda::ptx::shared_address(x.tiles) & 0x3ffff) >> 4) {}

  template <class Ring>
  __device__ __forceinline__ void multiply_segment(Ring& ring, int tiles, bool x_is_new, StripSums<kRows>& sums) {
    constexpr int kStage = Ring::kStageTiles;
    Turns turns;
    for (float& sum : sums) sum = 0;
    if constexpr (kScaled) {
      for (float& p : turns.product) p = 0;
      turns.scale[0] = turns.scale[1] = 0;
    }
    if constexpr (Operand::kMinima) {
      turns.totals = reinterpret_cast<const float4*>(x_.totals) + lane_index() % 4;
      turns.minus[0] = turns.minus[1] = 0;
    }
    uint32_t b = b_;
    const int whole = tiles / kStage * kStage;
    int t = 0;
#pragma unroll 1
    for (; t < whole; t += kStage) {
      multiply_stage(ring, x_is_new, t, b, turns, sums);
      b += kStage * kXStep;
    }
    if (t < tiles) multiply_rest(ring, tiles, x_is_new, t, b, turns, sums);
    cuda::ptx::wgmma_wait<0>();
    if constexpr (kScaled) {
      add(turns, sums);
      if constexpr (Operand::kMinima) add_totals(turns, sums);
    } else {
      cuda::ptx::pin<kRows / 2>(sums);
    }
  }

 private:
  struct Turns {
    uint32_t a[2][kSteps][4];
    float product[kScaled ? kRows / 2 : 1];  // of the group before, from zero
    float scale[2];
    float minus[2];
    const float4* totals;
  };

  template <class Ring>
  __device__ void multiply_stage(Ring& ring, bool x_is_new, int t, uint32_t b, Turns& turns, StripSums<kRows>& sums) {
    constexpr int kAtOnce = Operand::kBytes < 800 ? 2 : 1;
    ring.wait();
#pragma unroll
    for (int i = 0; i < Ring::kStageTiles; i += kAtOnce) {
      const Operand first = ring.tile(i), second = ring.tile(i + kAtOnce - 1);
      if (i + kAtOnce == Ring::kStageTiles) ring.pass();
      if (x_is_new) {
        for (int own = 0; own < kAtOnce; ++own) x_.wait(t + i + own);
      }
      multiply_tile(first, i * kTurns, b + i * kXStep, turns, sums);
      if constexpr (kAtOnce == 2) multiply_tile(second, (i + 1) * kTurns, b + (i + 1) * kXStep, turns, sums);
    }
  }
  // A stage that isn't full.
  template <class Ring>
  __device__ void multiply_rest(Ring& ring, int tiles, bool x_is_new, int t, uint32_t b, Turns& turns,
                                StripSums<kRows>& sums) {
    ring.wait();
#pragma unroll 1
    for (int i = 0; t + i < tiles; ++i) {
      if constexpr (!kScaled) cuda::ptx::wgmma_wait<0>();
      if (x_is_new) x_.wait(t + i);
      multiply_tile(ring.tile(i), 0, b + i * kXStep, turns, sums);
    }
    ring.pass();
  }
  __device__ static void multiply_tile(const Operand& w, int first_turn, uint32_t b, Turns& turns,
                                       StripSums<kRows>& sums) {
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      uint32_t(&own)[kSteps][4] = turns.a[(first_turn + turn) % 2];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) w.a(turn * kSteps + s, 0, own[s]);
      cuda::ptx::pin<kSteps * 4>(own[0]);
      if constexpr (!kScaled) {
        queue(sums, own, b + turn * kSteps * 2, true);
        cuda::ptx::wgmma_wait<1>();
      } else if (turn % kGroupTurns == 0) {
        cuda::ptx::wgmma_wait<0>();
        add(turns, sums);
        queue(turns.product, own, b + turn * kSteps * 2, false);
        if constexpr (Operand::kMinima) {
          add_totals(turns, sums);
          for (int half = 0; half < 2; ++half) turns.minus[half] = -w.min(turn / kGroupTurns, half);
        }
        for (int half = 0; half < 2; ++half) turns.scale[half] = w.scale(turn / kGroupTurns, half);
      } else {
        queue(turns.product, own, b + turn * kSteps * 2, true);
        cuda::ptx::wgmma_wait<1>();
      }
    }
  }
  __device__ static void queue(float* d, const uint32_t (&a)[kSteps][4], uint32_t b, bool more) {
    cuda::ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      cuda::ptx::wgmma_bf16<kRows>(d, a[s], uint64_t{kUpper} << 32 | (b + s * 2), more || s > 0);
    }
    cuda::ptx::wgmma_commit();
  }
  __device__ static void add(Turns& turns, StripSums<kRows>& sums) {
    cuda::ptx::pin<kRows / 2>(turns.product);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) sums[i] = fmaf(turns.scale[i / 2 % 2], turns.product[i], sums[i]);
  }
  // Minima of the group before; they need not be waited for by the next one's products.
  __device__ static void add_totals(Turns& turns, StripSums<kRows>& sums) {
#pragma unroll
    for (int j = 0; j < kRows / 16; ++j) {
      const float4 total = turns.totals[j * 4];
      const float of_row[4] = {total.x, total.y, total.z, total.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        sums[8 * j + i] = fmaf(turns.minus[i / 2 % 2], of_row[i / 4 * 2 + i % 2], sums[8 * j + i]);
      }
    }
    turns.totals += kRows / 4;
  }

  static constexpr int kXStep = ResidentX<Operand, kRows>::kTileBytes / 16;  // of descriptors
  // Of a descriptor: 1024 bytes from eight rows to the next, swizzled.
  static constexpr uint32_t kUpper =
      static_cast<uint32_t>(cuda::ptx::wgmma_descriptor(0, 0, 1024, cuda::ptx::Swizzle::k128) >> 32);

  const ResidentX<Operand, kRows>& x_;
  uint32_t b_;  // the lower half, for the first tile of x
};

}  // namespace weir
