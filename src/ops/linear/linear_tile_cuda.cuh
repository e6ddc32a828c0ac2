// The heart of every tensor-core product with few rows: a warp multiplies strips of weights (linear_tiles.h) that the
// copy engine brings into its ring of shared memory, with rows of x that lie in shared memory as BF16.
//
// Numeric specification (linear.h, "On CUDA"): per segment, k ascending in steps of 16,
//   no groups:  sum = mma(w, x, sum) from zero
//   groups:     group = mma(w, x, group) from zero over the group's steps; sum = fma(scale, group, sum); with minima
//               sum = fma(-min, total, sum), total = mma(1, x, total) from zero over the same steps
// and the segments' sums are added in ascending order. A column of x does not touch another's bits.
#pragma once

#include "device/cuda/kernel.h"
#include "device/cuda/ptx.h"
#include "ops/linear/linear_operand_cuda.cuh"

namespace weir {

// --- x

inline constexpr int kRowGap = 16;

__device__ inline uint4 pack_eight(const float4& low, const float4& high) {
  return {cuda::pack_bf16(low.x, low.y), cuda::pack_bf16(low.z, low.w), cuda::pack_bf16(high.x, high.y),
          cuda::pack_bf16(high.z, high.w)};
}

// Eight k of a row: from FP32 to their sixteen bytes. Elements at and beyond `in` are zero.
__device__ inline uint4 round_eight(const float* x, int64_t k, int64_t in) {
  if (k + 8 <= in && reinterpret_cast<uintptr_t>(x + k) % 16 == 0) {
    return pack_eight(*reinterpret_cast<const float4*>(x + k), *reinterpret_cast<const float4*>(x + k + 4));
  }
  float v[8];
  for (int i = 0; i < 8; ++i) v[i] = k + i < in ? x[k + i] : 0.f;
  return pack_eight({v[0], v[1], v[2], v[3]}, {v[4], v[5], v[6], v[7]});
}

// The same of a row that is BF16 already; x is at a multiple of 16 bytes.
__device__ inline uint4 load_eight(const uint16_t* x, int64_t k, int64_t in) {
  if (k + 8 <= in) return *reinterpret_cast<const uint4*>(x + k);
  uint32_t v[8];
  for (int i = 0; i < 8; ++i) v[i] = k + i < in ? x[k + i] : 0;
  return {v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16};
}

// --- the product of a tile

// sums[c][i]: of output lane / 4 + 8 (i / 2) and row c * 8 + lane % 4 * 2 + i % 2 (the mma's C fragment).
template <int kColumns>
struct Sums {
  float value[kColumns][4];

  __device__ void clear() {
    for (auto& column : value) {
      for (float& v : column) v = 0;
    }
  }
  __device__ void add(const Sums& other) {
    for (int c = 0; c < kColumns; ++c) {
      for (int i = 0; i < 4; ++i) value[c][i] += other.value[c][i];
    }
  }
};

// Sums of a tile of x over groups, for minima: of eight rows, whose B fragments `b` has. Rows 2 i and 2 i + 1 of a
// group go to totals[group * pitch + i * pair_pitch].
template <class Operand>
__device__ inline void sum_groups(const uint32_t (&b)[2][4], float* totals, int pitch, int pair_pitch) {
  constexpr uint32_t kOnes[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
  constexpr int kGroup = Operand::kGroupSteps;
  float total[4] = {};
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    cuda::ptx::mma_bf16(total, kOnes, b[step / 2][step % 2 * 2], b[step / 2][step % 2 * 2 + 1]);
    if ((step + 1) % kGroup != 0) continue;
    float* to = totals + step / kGroup * pitch + lane_index() * pair_pitch;
    if (lane_index() < 4) *reinterpret_cast<float2*>(to) = {total[0], total[1]};
    for (float& sum : total) sum = 0;
  }
}

template <class Operand>
__device__ inline void add_group(const Operand& w, int group, const float (&product)[4], const float (&total)[4],
                                 float (&sum)[4]) {
  for (int i = 0; i < 4; ++i) sum[i] = fmaf(w.scale(group, i / 2), product[i], sum[i]);
  if constexpr (Operand::kMinima) {
    for (int i = 0; i < 4; ++i) sum[i] = fmaf(-w.min(group, i / 2), total[i], sum[i]);
  }
}

// A tile of x in shared memory, for one column: rows lie side by side, kRowGap apart beyond a multiple of 128 bytes, so
// that eight of them lie in different banks. Of fewer rows the last stands for those that there are not.
struct SharedX {
  uint32_t at;

  __device__ SharedX(const std::byte* x, int rows, int row_bytes)
      : at(cuda::ptx::shared_address(x) + lane_index() / 8 * 16 +
           (lane_index() % 8 < rows ? lane_index() % 8 : rows - 1) * row_bytes) {}
  __device__ void advance(int tiles) { at += tiles * 128; }
  // B fragments of the steps 2 pair and 2 pair + 1, two registers each.
  __device__ void load(int, int pair, uint32_t (&b)[4]) const { cuda::ptx::load_matrix_x4(b, at + pair * 64); }
};

// A tile of x of one column in registers.
struct LoadedX {
  uint32_t fragments[2][4];

  __device__ explicit LoadedX(const SharedX& x) {
    for (int pair = 0; pair < 2; ++pair) x.load(0, pair, fragments[pair]);
  }
  __device__ void load(int, int pair, uint32_t (&b)[4]) const {
    for (int i = 0; i < 4; ++i) b[i] = fragments[pair][i];
  }
};

// One tile of 16 outputs x 64 k times a tile of x (SharedX, or what else gives fragments so).
template <class Operand, int kColumns, class X>
__device__ inline void multiply_tile(const Operand& w, const X& x, Sums<kColumns>& sums) {
  constexpr int kGroup = Operand::kGroupSteps;
  constexpr uint32_t kOnes[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
  Sums<kColumns> tile_sums;
  if constexpr (kGroup == 4) tile_sums.clear();
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {  // of steps: as many as one load of x brings
    uint32_t a[2][Operand::kParts][4];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      for (int part = 0; part < Operand::kParts; ++part) w.a(2 * pair + s, part, a[s][part]);
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      uint32_t b[4];
      x.load(c, pair, b);
      float product[4] = {}, total[4] = {};
      float(&chain)[4] = kGroup == 0 ? sums.value[c] : kGroup == 4 ? tile_sums.value[c] : product;
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        for (int part = 0; part < Operand::kParts; ++part)
          cuda::ptx::mma_bf16(chain, a[s][part], b[2 * s], b[2 * s + 1]);
        if constexpr (Operand::kMinima) cuda::ptx::mma_bf16(total, kOnes, b[2 * s], b[2 * s + 1]);
        if constexpr (kGroup == 1) {
          add_group(w, 2 * pair + s, product, total, sums.value[c]);
          for (int i = 0; i < 4; ++i) product[i] = total[i] = 0;
        }
      }
      if constexpr (kGroup == 2) add_group(w, pair, product, total, sums.value[c]);
    }
  }
  if constexpr (kGroup == 4) {
    const float none[4] = {};
#pragma unroll
    for (int c = 0; c < kColumns; ++c) add_group(w, 0, tile_sums.value[c], none, sums.value[c]);
  }
}

template <class Operand, int kColumns, class X>
__device__ inline void multiply_tile(const std::byte* tile, const X& x, Sums<kColumns>& sums) {
  multiply_tile(Operand(tile), x, sums);
}

// --- a warp's ring: stages of tiles on their way from memory

// Tiles of a stage: about 2 KB.
template <class Operand>
inline constexpr int kStageTiles = Operand::kBytes > 1200  ? 1
                                   : Operand::kBytes > 800 ? 2
                                                           : 4;
template <class Operand>
inline constexpr int kStageBytes = kStageTiles<Operand>* Operand::kBytes;
// A warp reads runs of tiles one after the other. Runs is a functor: runs(i) gives the i-th, without tiles after the
// last. All lanes call all functions together.
struct TileRun {
  const std::byte* tiles = nullptr;
  int count = 0;
};

template <class Operand, class Runs>
class TileRing {
 public:
  // `shared`: kStageBytes and 8 for each stage, at a multiple of 16.
  __device__ TileRing(std::byte* shared, const Runs& runs, int stages)
      : stages_(shared),
        full_(reinterpret_cast<uint64_t*>(shared + stages * kStageBytes<Operand>)),
        stage_count_(stages),
        runs_(runs),
        ahead_(runs(0)) {
    if (lane_index() == 0) {
      for (int i = 0; i < stages; ++i) cuda::ptx::mbarrier_init(full_ + i, 1);
      cuda::ptx::mbarrier_fence_init();
    }
    __syncwarp();
    for (int i = 0; i < stages; ++i) fetch(i);
  }

  // The next stage of the current run; give it back with release() before the next.
  __device__ const std::byte* acquire() {
    cuda::ptx::mbarrier_wait(full_ + slot_, phase_);
    return stages_ + slot_ * kStageBytes<Operand>;
  }
  __device__ void release() {
    __syncwarp();  // racecheck ring: a stage is fetched into when all lanes have read it; the tool misses that
    fetch(slot_);
    if (++slot_ == stage_count_) {
      slot_ = 0;
      phase_ ^= 1;
    }
  }

 private:
  __device__ void fetch(int slot) {
    if (ahead_.count == 0) return;
    const int tiles = ahead_.count < kStageTiles<Operand> ? ahead_.count : kStageTiles<Operand>;
    const int bytes = tiles * Operand::kBytes;
    if (lane_index() == 0) {
      cuda::ptx::mbarrier_arrive_expect(full_ + slot, bytes);
      cuda::ptx::bulk_load(stages_ + slot * kStageBytes<Operand>, ahead_.tiles, bytes, full_ + slot,
                           cuda::ptx::read_once());
    }
    ahead_.tiles += bytes;
    ahead_.count -= tiles;
    if (ahead_.count == 0) ahead_ = runs_(++run_);
  }

  std::byte* stages_;
  uint64_t* full_;
  int stage_count_;
  Runs runs_;
  TileRun ahead_;  // what is left to fetch of run run_
  int run_ = 0;
  int slot_ = 0;
  uint32_t phase_ = 0;
};

// Multiplies a run of `count` tiles that the ring brings with as many of x. A tile is read from shared memory while the
// one before is multiplied; where registers hold all of it, the first of a stage too.
template <class Operand, class Ring>
__device__ inline void multiply_run(Ring& ring, int count, SharedX x, Sums<1>& sums) {
  constexpr int kStage = kStageTiles<Operand>;
  const std::byte* tiles = ring.acquire();
  Operand w(tiles);
  LoadedX loaded(x);
  const auto turn_to = [&](const std::byte* tile) {
    const Operand next(tile);
    x.advance(1);
    const LoadedX next_loaded(x);
    multiply_tile(w, loaded, sums);
    w = next;
    loaded = next_loaded;
  };
  for (; count > kStage; count -= kStage) {
#pragma unroll
    for (int t = 1; t < kStage; ++t) turn_to(tiles + t * Operand::kBytes);
    if constexpr (Operand::kInRegisters) {
      ring.release();
      tiles = ring.acquire();
      turn_to(tiles);
    } else {
      multiply_tile(w, loaded, sums);
      ring.release();
      tiles = ring.acquire();
      w = Operand(tiles);
      x.advance(1);
      loaded = LoadedX(x);
    }
  }
#pragma unroll
  for (int t = 1; t < kStage; ++t) {
    if (t == count) break;
    turn_to(tiles + t * Operand::kBytes);
  }
  multiply_tile(w, loaded, sums);
  ring.release();
}

}  // namespace weir
