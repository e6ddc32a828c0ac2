// Attention over latents, keys of 576 whose first 512 elements are the values, by wgmma; numeric specification in
// attention.h. A block has four warpgroups, which hand tiles of 64 positions on to each other:
//   one copies tiles from the pages into two stages of shared memory;
//   one multiplies its 64 queries (rows of a span times heads) by a tile's keys and makes weights of the scores, which
//   take the place of the keys' last 64 elements in the stage;
//   two multiply the weights by the tile's values, each half of the dimensions, and merge pieces. They give a stage
//   back page by page, so that the next copies begin early.
// Pieces are merged as a tree. A node is left in a slot as the threads have it: of each half of the dimensions and h
// the thread's numbers by fours (slot_offset), then m and l of the queries for each half.
#pragma once

#include "ops/attention/attention_latent_weights_cuda.cuh"

namespace weir::latent {

// --- weights --------------------------------------------------------------------------------------------------------

class Weigher {
 public:
  __device__ Weigher(const MmaAttention& a, std::byte* shared, Exchange& exchange)
      : a_(a), queries_(ptx::shared_address(shared)), to_(exchange) {}

  __device__ void run(const AttentionWork& unit, Turn& turn) {
    softmax_.start_unit(a_, unit, thread_query(unit, 0), thread_query(unit, 1));
#pragma unroll 1
    for (int tile = unit.first_tile(); tile <= unit.last; tile += kKeyTile, turn.next()) {
      if (unit.starts_piece(tile)) piece_[0] = piece_[1] = {};
      add_tile(tile, unit.ends_piece(tile), !few_queries(unit), turn);
    }
  }

 private:
  __device__ void add_tile(int tile, bool ends_piece, bool both, const Turn& turn) {
    const uint32_t keys = queries_ + kTileBytes * (1 + turn.stage());
    float scores[kKeyTile / 8][4];
    ptx::mbarrier_wait(&to_.full[turn.stage()], turn.parity());
    ptx::fence_async_shared();
    multiply_keys(queries_, keys, scores);
    softmax_.mask(tile, scores, both);
    TileWeights weights;
    float max[2];
    weights.make(scores, a_.scale2, both, max);
    Join join[2];
    join[0] = Join(piece_[0].m, max[0]);
    if (both) join[1] = Join(piece_[1].m, max[1]);
    weights.scale(join);
    if (ends_piece) weights.add_to(piece_, join);
    // The keys' last elements have been used by the other warps too.
    ptx::named_barrier_sync(3, kGroup);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const uint32_t to = keys + kWeightsAt + lane / 16 * Rows8::kBytes + (warp * 16 + lane % 16) * 16;
#pragma unroll
    for (int k = 0; k < kTilePages; ++k) ptx::store_matrix_x4(to + k * kPageBytes, weights.fragments[k]);
    // racecheck scales: read before the stage's pages were given back (`empty`), so before they were `full` again, for
    // which this warp has waited; and after `weights_full`.
    Exchange::Scales& scales = to_.scales[turn.stage()];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (lane % 4 != 0) continue;
      scales.scale[thread_row(h)] = join[h].keep;
      if (ends_piece) scales.piece[thread_row(h)] = piece_[h];
    }
    ptx::fence_async_shared();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(&to_.weights_full[turn.stage()]);
    if (!ends_piece) weights.add_to(piece_, join);  // behind what others wait for
  }

  const MmaAttention& a_;
  uint32_t queries_;
  Exchange& to_;
  mma::Softmax softmax_;  // what the thread's queries see
  mma::MaxSum piece_[2];
};

// --- values ---------------------------------------------------------------------------------------------------------

class Adder {
 public:
  // half: which dimensions.
  __device__ Adder(const MmaAttention& a, int half, std::byte* shared, Exchange& exchange)
      : a_(a),
        half_(half),
        stages_(ptx::shared_address(shared) + kTileBytes),
        from_(exchange),
        nodes_(a.nodes + static_cast<int64_t>(blockIdx.x) * kTreeLevels * a.slot.floats()) {}

  __device__ void run(const AttentionWork& unit, float* slot, Turn& turn) {
#pragma unroll 1
    for (int tile = unit.first_tile(); tile <= unit.last; tile += kKeyTile, turn.next()) {
      ptx::mbarrier_wait(&from_.weights_full[turn.stage()], turn.parity());
      const Exchange::Scales& scales = from_.scales[turn.stage()];
      const bool starts_piece = unit.starts_piece(tile);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (!starts_piece) rescale(acc_, h, scales.scale[thread_row(h)]);
      }
      const bool ends_piece = unit.ends_piece(tile);
      if (ends_piece) node_[0] = scales.piece[thread_row(0)], node_[1] = scales.piece[thread_row(1)];
      multiply(turn, starts_piece);
      if (ends_piece) end_piece(unit, tile, slot);
    }
  }

 private:
  __device__ void multiply(const Turn& turn, bool starts_piece) {
    ptx::mbarrier_wait(&from_.full[turn.stage()], turn.parity());
    const uint32_t stage = stages_ + turn.stage() * kTileBytes, weights = stage + kWeightsAt;
    const uint32_t values = stage + half_ * (kHalf / 64) * Rows8::kColumnBytes;
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTilePages; ++k) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {  // ptxas refuses 256 dimensions at once in so large a block
        const uint32_t at = values + part * (kHalf / 2 / 64) * Rows8::kColumnBytes + k * kPageBytes;
        ptx::wgmma_bf16_shared<kHalf / 2, ptx::Major::kK, ptx::Major::kMN>(
            acc_ + part * (kHalf / 4),
            ptx::wgmma_descriptor(weights + k * kPageBytes, Rows8::kBytes, 128, ptx::Swizzle::kNone),
            ptx::wgmma_descriptor(at, Rows8::kColumnBytes, Rows8::kBytes, ptx::Swizzle::k128), !starts_piece || k > 0);
      }
      ptx::wgmma_commit();
    }
    give_back<3>(turn, 0);
    give_back<2>(turn, 1);
    give_back<1>(turn, 2);
    give_back<0>(turn, 3);
    ptx::pin<kHalf / 2>(acc_);
  }

  // Page p of the stage, once no more than kPending products are under way.
  template <int kPending>
  __device__ void give_back(const Turn& turn, int p) {
    ptx::wgmma_wait<kPending>();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&from_.empty[turn.stage()][p]);
  }

  // The piece, a leaf of the tree, becomes the largest node that it ends: it takes in the nodes to its left. What lies
  // to the left of the unit is not its matter.
  __device__ void end_piece(const AttentionWork& unit, int tile, float* slot) {
    const int piece = tile >> unit.piece_log;
    const bool last = unit.is_last(tile);
#pragma unroll 1
    for (int level = 0; level < kTreeLevels; ++level) {
      const bool top = level == kTreeLevels - 1, right = top || (piece >> level & 1) != 0;
      const float* const left = nodes_ + level * a_.slot.floats();
      if (right && piece >> level << level > unit.first_piece) merge(left, unit);
      if (!last && (top || !right)) return leave(nodes_ + level * a_.slot.floats(), unit);
    }
    if (!unit.whole()) return leave(slot, unit);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (any(unit, h)) store_out(a_, unit, h, half_ * kHalf, acc_, node_[h]);
    }
  }

  // Does the warp have queries of h?
  static __device__ bool any(const AttentionWork& unit, int h) {
    return (h == 0 || !few_queries(unit)) &&
           thread_query(unit, h) - static_cast<int>(threadIdx.x) % 32 / 4 < unit.count;
  }

  // acc becomes what is in the slot merged with acc.
  __device__ void merge(const float* slot, const AttentionWork& unit) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!any(unit, h)) continue;
      mma::MaxSum left = reinterpret_cast<const mma::MaxSum*>(slot + slot_sums(half_))[thread_row(h)];
      const mma::Merge merge = mma::merge(left, node_[h]);
      node_[h] = left;
      constexpr int kBatch = 8;  // loads under way together
#pragma unroll
      for (int first = 0; first < kHalf / 16; first += kBatch) {
        float4 before[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          before[i] = *reinterpret_cast<const float4*>(slot + slot_offset(half_, h, first + i, thread()));
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          float* const pair = acc_ + 8 * (first + i) + 2 * h;
          pair[0] = fmaf(before[i].x, merge.keep, pair[0] * merge.add);
          pair[1] = fmaf(before[i].y, merge.keep, pair[1] * merge.add);
          pair[4] = fmaf(before[i].z, merge.keep, pair[4] * merge.add);
          pair[5] = fmaf(before[i].w, merge.keep, pair[5] * merge.add);
        }
        ptx::pin<kBatch * 8>(acc_ + 8 * first);
      }
    }
  }

  __device__ void leave(float* slot, const AttentionWork& unit) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!any(unit, h)) continue;
#pragma unroll
      for (int i = 0; i < kHalf / 16; ++i) {
        *reinterpret_cast<float4*>(slot + slot_offset(half_, h, i, thread())) = four(acc_ + 8 * i, h);
      }
      reinterpret_cast<mma::MaxSum*>(slot + slot_sums(half_))[thread_row(h)] = node_[h];  // the same by four threads
    }
  }

  static __device__ int thread() { return static_cast<int>(threadIdx.x) % kGroup; }

  const MmaAttention& a_;
  int half_;
  uint32_t stages_;
  Exchange& from_;
  float* nodes_;
  mma::MaxSum node_[2];
  float acc_[kHalf / 2];
};

}  // namespace weir::latent
