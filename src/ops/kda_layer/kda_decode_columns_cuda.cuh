// What the decode kernels of KDA and GDN layers do by value columns. A block has the 128 columns of a head, warp w the
// columns 32 w to 32 w + 31: two tiles of 16 for the tensor core, and one column a lane otherwise: 8 c + g in lane
// 4 g + c, of which every lane of the four has the sums.
#pragma once

#include "ops/kda_layer/kda_cuda.cuh"

namespace weir::kda {

constexpr int kDecodeWarps = 4, kDecodeThreads = kDecodeWarps * 32, kDecodeColumns = kDim / kDecodeWarps;
constexpr int kUpdatePitch = 40;  // of rows, without bank conflicts

// -Lb, A and A T of the row; each warp has its own.
struct PairWeights {
  alignas(16) float updates[kChunk], products[kChunk];  // of earlier rows, else -0 (x + -0 = x, always) and 0
  alignas(16) uint16_t outputs[kChunk];
  float own;  // A of the row with itself
};
struct ColumnsShared {
  alignas(128) uint4 high[8][8][32];                                 // hi(S): [tile][step][lane]
  alignas(16) uint16_t updates[kDecodeWarps][kChunk][kUpdatePitch];  // w of the chunk's rows, 0 where not yet
  alignas(16) float inverse[kChunk - 1][kChunk];                     // T from row 1 on, 0 where not yet
  PairWeights pairs[kDecodeWarps];
  float squares[8];
  uint64_t fetched;  // hi(S)
};

// lo(S) of a warp's columns on its way, four steps ahead.
class LowPlane {
 public:
  __device__ void fetch(const uint4* plane, int warp, int lane) {
    from_ = plane == nullptr ? nullptr : plane + 2 * warp * kPlaneColumns + lane;
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      for (int tile = 0; tile < 2; ++tile) load(k, tile);
    }
  }
  __device__ uint4 take(int k, int tile) {
    const uint4 x = steps_[k % kAhead][tile];
    if (k + kAhead < 8) load(k + kAhead, tile);
    return x;
  }

 private:
  static constexpr int kAhead = 4;

  __device__ void load(int k, int tile) {
    if (from_ != nullptr) steps_[k % kAhead][tile] = ptx::load_stream(from_ + (tile * 8 + k) * 32);
  }

  const uint4* from_ = nullptr;
  uint4 steps_[kAhead][2] = {};
};

class Columns {
 public:
  __device__ explicit Columns(ColumnsShared& shared)
      : thread(static_cast<int>(threadIdx.x)),
        warp(thread / 32),
        lane(thread % 32),
        g(lane / 4),
        c(lane % 4),
        local(8 * c + g),
        column(warp * kDecodeColumns + local),
        shared_(shared),
        updates_(shared.updates[warp]) {}

  const int thread, warp, lane, g, c;
  const int local, column;  // of this lane, in the warp and in the head

  // Starts the copy of hi, and of lo behind it as far as the L2 cache where that is wanted; without planes S is zeros.
  __device__ void fetch_plane(const uint4* plane, bool both) const {
    if (plane == nullptr) {
      for (int i = thread; i < kPlane; i += kDecodeThreads) shared_.high[0][0][i] = make_uint4(0, 0, 0, 0);
    } else if (thread == 0) {
      ptx::mbarrier_init(&shared_.fetched, 1);
      ptx::mbarrier_fence_init();
      ptx::mbarrier_arrive_expect(&shared_.fetched, kPlaneBytes);
      ptx::bulk_load(shared_.high, plane, kPlaneBytes, &shared_.fetched);
      if (both) ptx::bulk_prefetch(plane + kPlane, kPlaneBytes);
    }
  }
  // After the block's barrier.
  __device__ void wait_for_plane(const uint4* plane) const {
    if (plane != nullptr) ptx::mbarrier_wait(&shared_.fetched, 0);
    __syncwarp();
  }

  // Starts the copies of the warp's part of w: rows below `count`, kDim apart.
  __device__ void fetch_updates(const uint16_t* from, int count) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 8 * i + lane / 4, part = lane % 4 * 8;
      const bool live = row < count;
      ptx::copy_async16(ptx::shared_address(&updates_[row][part]),
                        live ? from + row * kDim + warp * kDecodeColumns + part : nullptr, live);
    }
  }
  // Starts the copy of T's rows below `count`.
  __device__ void fetch_inverse(const float* from, int count) const {
    const int row = 1 + thread / 4, part = thread % 4 * 4;
    if (row >= kChunk) return;
    ptx::copy_async16(ptx::shared_address(&shared_.inverse[row - 1][part]),
                      row < count ? from + row * kChunk + part : nullptr, row < count);
  }
  __device__ void clear_updates() const {
    __syncwarp();
    for (int i = 0; i < 2; ++i) {
      *reinterpret_cast<uint4*>(&updates_[8 * i + lane / 4][lane % 4 * 8]) = make_uint4(0, 0, 0, 0);
    }
    __syncwarp();
  }
  // w of a tile as an operand, columns by rows.
  __device__ void load_updates(uint32_t* a, int tile) const {
    ptx::load_matrix_x4_transposed(
        a, ptx::shared_address(&updates_[lane % 8 + lane / 16 * 8][16 * tile + lane / 8 % 2 * 8]));
  }

  // This lane's column out of both tiles' fragments; column `n` of each pair.
  __device__ float pick(const float (*d)[4], int n) const {
    const float low = c / 2 == 0 ? d[0][n] : d[1][n], high = c / 2 == 0 ? d[0][2 + n] : d[1][2 + n];
    return c % 2 == 0 ? low : high;
  }

  // The commit: S, decayed, and keys times updates. `decay(k)` gives the factors of this lane's four channels of step
  // k, keys are by rows, in the order of operands, `pitch` apart. The plane becomes the new one.
  template <class Decay>
  __device__ void commit(LowPlane& low, const uint32_t (*updates)[4], const uint16_t* keys, int pitch,
                         const Decay& decay, uint4* next) const {
    const uint32_t key_rows = ptx::shared_address(keys + lane % 16 * pitch + lane / 16 * 8);
    const int at = 2 * warp * kPlaneColumns + lane;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float4 e = decay(k);
      uint32_t b[4];
      ptx::load_matrix_x4_transposed(b, key_rows + 32 * k);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        uint4& high = shared_.high[2 * warp + tile][k][lane];
        const uint4 x = high, y = low.take(k, tile);
        float s[8];
        join_planes(x.x, y.x, s[0], s[1]);
        join_planes(x.y, y.y, s[2], s[3]);
        join_planes(x.z, y.z, s[4], s[5]);
        join_planes(x.w, y.w, s[6], s[7]);
        s[0] *= e.x, s[1] *= e.y, s[2] *= e.x, s[3] *= e.y;
        s[4] *= e.z, s[5] *= e.w, s[6] *= e.z, s[7] *= e.w;
        ptx::mma_bf16(s, updates[tile], b[0], b[1]);
        ptx::mma_bf16(s + 4, updates[tile], b[2], b[3]);
        high = {high_planes(s[0], s[1]), high_planes(s[2], s[3]), high_planes(s[4], s[5]), high_planes(s[6], s[7])};
        if (next == nullptr) continue;
        ptx::store_stream(
            next + at + kPlane + (tile * 8 + k) * 32,
            uint4{low_planes(s[0], s[1]), low_planes(s[2], s[3]), low_planes(s[4], s[5]), low_planes(s[6], s[7])});
      }
    }
    ptx::fence_async_shared();
    __syncwarp();
    if (lane != 0 || next == nullptr) return;
    ptx::bulk_store(next + 2 * warp * kPlaneColumns, shared_.high[2 * warp], 2 * kPlaneColumns * 16);
    ptx::commit_bulk_stores();
  }
  // Before the block ends: what is stored has been read.
  __device__ void finish() const {
    if (lane == 0) ptx::wait_bulk_stores_read<0>();
  }

  // u of a whole chunk as an operand, from w: sums[8 x + 2 c + e] of the tensor core are rows of T as columns. factors:
  // of rows 2 c, 2 c + 1, 8 + 2 c, 9 + 2 c.
  __device__ void combine(uint32_t* u, const uint32_t* w, const float* factors = nullptr) const {
    float sums[8] = {};
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const int row = 8 * x + g;
      ptx::mma_bf16(sums + 4 * x, w, pack_bf16(inverse(row, 2 * c), inverse(row, 2 * c + 1)),
                    pack_bf16(inverse(row, 8 + 2 * c), inverse(row, 9 + 2 * c)));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* f = factors + i / 2 * 2;
      u[i] = factors == nullptr ? pack_bf16(sums[2 * i], sums[2 * i + 1])
                                : pack_bf16(sums[2 * i] * f[0], sums[2 * i + 1] * f[1]);
    }
  }

  // This lane's column of T's earlier rows: half of the lanes have them for T, half for A T.
  struct Inverse {
    float rows[kChunk - 1];  // from row 0 on
  };
  __device__ Inverse load_inverse() const {
    Inverse x;
#pragma unroll
    for (int m = 0; m < kChunk - 1; ++m) x.rows[m] = inverse(m, lane % kChunk);
    return x;
  }
  // Row t of T, kept in the journal at `to` if that is not null, and of A T, from Lb and A. Rows that are not earlier
  // count nothing.
  __device__ void invert(const Inverse& x, int t, float* to) const {
    PairWeights& weights = shared_.pairs[warp];
    const int j = lane % kChunk;
    const float4* from = reinterpret_cast<const float4*>(lane < kChunk ? weights.updates : weights.products);
    float sum = 0.f;
#pragma unroll
    for (int part = 0; part < kChunk / 4; ++part) {
      const float4 w = from[part];
      sum = fmaf(w.x, x.rows[4 * part], sum);
      sum = fmaf(w.y, x.rows[4 * part + 1], sum);
      sum = fmaf(w.z, x.rows[4 * part + 2], sum);
      if (4 * part + 3 < kChunk - 1) sum = fmaf(w.w, x.rows[4 * part + 3], sum);
    }
    if (lane < kChunk && j == t) sum = 1.f;
    const float own = __shfl_sync(kAllLanes, sum, j);
    if (lane >= kChunk) {
      weights.outputs[j] = static_cast<uint16_t>(pack_bf16(fmaf(weights.own, own, sum), 0.f));
    } else if (warp == 0 && to != nullptr) {
      to[j] = own;
    }
    __syncwarp();
  }
  // w of this lane's column.
  __device__ void store_update(uint16_t update, int row) const {
    updates_[row][local] = update;
    __syncwarp();
  }

  // The row's output in this lane's column, normed. d: odd columns of pairs hold the anchor's term.
  __device__ float output(float (*d)[4], float norm_eps) const {
    const uint32_t* weights = reinterpret_cast<const uint32_t*>(shared_.pairs[warp].outputs);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      uint32_t u[4];
      load_updates(u, tile);
      ptx::mma_bf16(d[tile], u, weights[c], weights[c + 4]);
    }
    const float low = c / 2 == 0 ? d[0][1] : d[1][1], high = c / 2 == 0 ? d[0][3] : d[1][3];
    const float squares = column_squares(low, high);
    if (lane == 0 || lane == 2) shared_.squares[2 * warp + lane / 2] = squares;
    __syncthreads();
    return (c % 2 == 0 ? low : high) * norm_factor(shared_.squares, 1, norm_eps);
  }

 private:
  __device__ float inverse(int row, int j) const {
    if (row > 0) return shared_.inverse[row - 1][j];
    return j == 0 ? 1.f : 0.f;
  }

  ColumnsShared& shared_;
  uint16_t (*const updates_)[kUpdatePitch];
};

}  // namespace weir::kda
