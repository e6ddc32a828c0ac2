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

// --- x: 64 k of eight rows are eight matrices of 8 rows x 8 k, 128 bytes each, k ascending

inline constexpr int kColumnTileBytes = 1024;  // 8 rows x 64 k

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

template <class Operand>
__device__ inline void add_group(const Operand& w, int group, const float (&product)[4], const float (&total)[4],
                                 float (&sum)[4]) {
  for (int i = 0; i < 4; ++i) sum[i] = fmaf(w.scale(group, i / 2), product[i], sum[i]);
  if constexpr (Operand::kMinima) {
    for (int i = 0; i < 4; ++i) sum[i] = fmaf(-w.min(group, i / 2), total[i], sum[i]);
  }
}

// A tile of x in shared memory: 64 k of eight rows, the next eight kColumnTileBytes further. Or of a column alone that
// has fewer rows, 1, 2 or 4: matrices have as many, which stand for all eight.
struct SharedX {
  uint32_t at;
  int pair_bytes;

  __device__ explicit SharedX(const std::byte* x, int rows = 8)
      : at(cuda::ptx::shared_address(x) + (lane_index() / 8 * rows + (lane_index() & (rows - 1))) * 16),
        pair_bytes(64 * rows) {}
  // B fragments of column c: of the steps 2 pair and 2 pair + 1, two registers each.
  __device__ void load(int c, int pair, uint32_t (&b)[4]) const {
    cuda::ptx::load_matrix_x4(b, at + c * kColumnTileBytes + pair * pair_bytes);
  }
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
inline constexpr int kRingStages = kStageTiles<Operand> == 4 ? 4 : 8;
template <class Operand>
inline constexpr int kStageBytes = kStageTiles<Operand>* Operand::kBytes;
// Shared memory of a warp's ring: its stages, then a barrier for each.
template <class Operand>
inline constexpr int kRingBytes = (kRingStages<Operand> * (kStageBytes<Operand> + 8) + 127) / 128 * 128;

// A warp reads runs of tiles one after the other. Run is a functor: run(i) gives the i-th, with tiles == 0 after the
// last. All lanes call all functions together.
struct TileRun {
  const std::byte* tiles = nullptr;
  int count = 0;
};

template <class Operand, class Runs>
class TileRing {
 public:
  // `shared`: kRingBytes, or kStageBytes and 8 for each of other numbers of stages, at a multiple of 16.
  __device__ TileRing(std::byte* shared, const Runs& runs, int stages = kRingStages<Operand>)
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
      cuda::ptx::bulk_load(stages_ + slot * kStageBytes<Operand>, ahead_.tiles, bytes, full_ + slot);
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

// Rows that the matrices of a column with so many rows have.
WEIR_HD inline int matrix_rows(int rows) { return rows > 4 ? 8 : rows > 2 ? 4 : rows > 1 ? 2 : 1; }

// x that lies in shared memory as a whole, tile after tile, for one column.
struct ResidentX {
  const std::byte* tiles;
  int rows;  // matrix_rows
  const std::byte* next = nullptr;

  __device__ void begin_run(int first_tile) { next = tiles + first_tile * 128 * rows; }
  __device__ SharedX acquire() {
    const std::byte* tile = next;
    next += 128 * rows;
    return SharedX(tile, rows);
  }
  __device__ void release() {}
};

// A stage's tiles with as many of x, of one column: a tile is loaded while the one before is multiplied.
template <class Operand, class X>
__device__ inline void multiply_stage(const std::byte* tiles, X& x, Sums<1>& sums) {
  Operand w(tiles);
  LoadedX loaded(x.acquire());
  x.release();
#pragma unroll
  for (int t = 1; t < kStageTiles<Operand>; ++t) {
    const Operand next(tiles + t * Operand::kBytes);
    const LoadedX next_loaded(x.acquire());
    x.release();
    multiply_tile(w, loaded, sums);
    w = next;
    loaded = next_loaded;
  }
  multiply_tile(w, loaded, sums);
}

// Multiplies a run of `count` tiles that the ring brings with as many tiles of x (ResidentX, or a ring of its own).
template <class Operand, int kColumns, class Ring, class X>
__device__ inline void multiply_run(Ring& ring, int count, X& x, Sums<kColumns>& sums) {
  for (; count > 0; count -= kStageTiles<Operand>) {
    const std::byte* tiles = ring.acquire();
    if (kColumns == 1 && count >= kStageTiles<Operand>) {
      if constexpr (kColumns == 1) multiply_stage<Operand>(tiles, x, sums);
    } else {
#pragma unroll
      for (int t = 0; t < kStageTiles<Operand>; ++t) {
        if (t >= count) break;
        multiply_tile<Operand>(tiles + t * Operand::kBytes, x.acquire(), sums);
        x.release();
      }
    }
    ring.release();
  }
}

}  // namespace weir
