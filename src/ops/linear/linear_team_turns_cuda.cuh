// Products of segments in the kernel of linear_team_cuda.cuh.
#pragma once

#include "ops/linear/linear_sums_cuda.cuh"
#include "ops/linear/linear_team_stages_cuda.cuh"

namespace weir {

// A tile of x as the copy engine leaves it, in B fragments of mma.
template <int kColumns>
struct TeamFragments {
  uint32_t fragments[kColumns][2][4];

  __device__ explicit TeamFragments(const std::byte* x) {
    const int lane = lane_index();
    const uint32_t at = cuda::ptx::shared_address(x) + lane % 8 * 128 + (lane / 8 ^ lane % 8) * 16;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      for (int pair = 0; pair < 2; ++pair) cuda::ptx::load_matrix_x4(fragments[c][pair], (at ^ pair * 64) + c * 1024);
    }
  }
  __device__ void load(int c, int pair, uint32_t (&b)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) b[i] = fragments[c][pair][i];
  }
};

// A segment from zero by a warp. A tile is loaded while the one before is multiplied.
template <class Operand, int kRows>
__device__ inline void multiply_by_warp(TeamReader<Operand, kRows>& reader, StripSums<kRows>& all) {
  using Shape = TeamShape<Operand, kRows>;
  constexpr int kColumns = kRows / 8;
  Sums<kColumns> sums;
  sums.clear();
  while (!reader.done()) {
    const int count = reader.left() < Shape::kStageTiles ? reader.left() : Shape::kStageTiles;
    Operand w = reader.weights();
    reader.wait_x();
    const std::byte* weights = reader.tile_weights();
    const std::byte* x = reader.stages().x(reader.x_slot());
    TeamFragments<kColumns> fragments(x);
#pragma unroll
    for (int t = 0; t < Shape::kStageTiles; ++t) {
      if (t + 1 >= count) {
        multiply_tile(w, fragments, sums);
        break;
      }
      const Operand next(weights + (t + 1) * Operand::kBytes);
      const TeamFragments<kColumns> next_fragments(x + (t + 1) * Shape::kXTileBytes);
      multiply_tile(w, fragments, sums);
      w = next;
      fragments = next_fragments;
    }
    reader.advance(count);
    if (!reader.done()) reader.release();
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    for (int i = 0; i < 4; ++i) all[4 * c + i] = sums.value[c][i];
  }
}

// Where x lies for a step of a tile in a slot, and 32 rows of it.
template <class Stages>
struct TeamX {
  uint32_t low;

  __device__ explicit TeamX(const Stages& stages, int slot)
      : low((cuda::ptx::shared_address(stages.memory) + Stages::kXAt) / 16 + slot * (Stages::Shape::kXBytes / 16)) {}
  __device__ uint64_t at(int step, int chunk) const {
    const uint64_t layout = cuda::ptx::wgmma_descriptor(0, 0, 1024, cuda::ptx::Swizzle::k128);
    return layout | (low + step * 2 + chunk * 256);
  }
};

// A segment from zero of weights without scales: products go to the sums. While a tile multiplies, the next is decoded.
template <class Operand, int kRows>
__device__ inline void multiply_plain(TeamReader<Operand, kRows>& reader, StripSums<kRows>& sums) {
  uint32_t a[2][4][4];
  const auto multiply_tile = [&]<int kSet, bool kFresh>() {
    const Operand w = reader.weights();
#pragma unroll
    for (int s = 0; s < 4; ++s) w.a(s, 0, a[kSet][s]);
    cuda::ptx::pin<16>(a[kSet][0]);
    reader.wait_x();
    const TeamX x(reader.stages(), reader.x_slot());
    cuda::ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      cuda::ptx::wgmma_bf16<kRows>(sums, a[kSet][s], x.at(s, 0), !(kFresh && s == 0));
    }
    cuda::ptx::wgmma_commit();
    if constexpr (!kFresh) {
      cuda::ptx::wgmma_wait<1>();
      reader.release();
    }
    reader.advance();
  };
  multiply_tile.template operator()<0, true>();
  for (;;) {  // the compiler must see that the sets alternate
    if (reader.done()) break;
    multiply_tile.template operator()<1, false>();
    if (reader.done()) break;
    multiply_tile.template operator()<0, false>();
  }
  cuda::ptx::wgmma_wait<0>();
  reader.release();
}

// A group of steps with a scale; its products with up to 32 rows at a time begin at zero.
template <class Operand, int kRows>
struct TeamTurn {
  static constexpr int kSteps = Operand::kGroupSteps, kOfTile = 4 / kSteps;
  static constexpr int kChunkRows = kRows < 32 ? kRows : 32, kChunks = kRows / kChunkRows;
  using Product = float[kChunkRows / 2];

  uint32_t a[kSteps][4];
  float scale[2];

  __device__ void decode(const Operand& w, int turn) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) w.a(turn * kSteps + s, 0, a[s]);
    for (int half = 0; half < 2; ++half) scale[half] = w.scale(turn, half);
    cuda::ptx::pin<kSteps * 4>(a[0]);
  }
  __device__ void queue(int turn, int chunk, const TeamX<TeamStages<Operand, kRows>>& x, Product& product) const {
    cuda::ptx::wgmma_fence();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      cuda::ptx::wgmma_bf16<kChunkRows>(product, a[s], x.at(turn * kSteps + s, chunk), s != 0);
    }
    cuda::ptx::wgmma_commit();
  }
  // When they are done.
  __device__ void end(int chunk, Product& product, StripSums<kRows>& all) const {
    cuda::ptx::pin<kChunkRows / 2>(product);
    float* sums = all + chunk * (kChunkRows / 2);
#pragma unroll
    for (int i = 0; i < kChunkRows / 2; ++i) sums[i] = fmaf(scale[i / 2 % 2], product[i], sums[i]);
    cuda::ptx::pin<kChunkRows / 2>(sums);  // before the next products
  }
};

// A segment from zero of weights with scales, some for each tile. While products of a chunk of rows are on their way,
// those before them are scaled, and the next weights are decoded.
template <class Operand, int kRows>
__device__ inline void multiply_groups(TeamReader<Operand, kRows>& reader, StripSums<kRows>& sums) {
  using Turn = TeamTurn<Operand, kRows>;
  constexpr int kOfTile = Turn::kOfTile, kChunks = Turn::kChunks;
  typename Turn::Product products[2];
  Turn turns[kOfTile == 1 ? 1 : 2];
  for (float& sum : sums) sum = 0;
  Operand w = reader.weights();
  turns[0].decode(w, 0);
  while (!reader.done()) {
    reader.wait_x();
    const TeamX x(reader.stages(), reader.x_slot());
    reader.advance();
#pragma unroll
    for (int t = 0; t < kOfTile; ++t) {
      const Turn& turn = turns[t % 2];
      turn.queue(t, 0, x, products[kChunks == 1 ? t % 2 : 0]);
      if (t > 0) {
        cuda::ptx::wgmma_wait<1>();
        turns[(t + 1) % 2].end(kChunks - 1, products[kChunks == 1 ? (t + 1) % 2 : 1], sums);
      }
      if constexpr (kChunks == 2) turn.queue(t, 1, x, products[1]);
      if (t + 1 < kOfTile) {
        turns[(t + 1) % 2].decode(w, t + 1);
      } else if (kOfTile > 1 && !reader.done()) {
        w = reader.weights();
        turns[0].decode(w, 0);
      }
      if constexpr (kChunks == 2) {
        cuda::ptx::wgmma_wait<1>();
        turn.end(0, products[0], sums);
      }
    }
    cuda::ptx::wgmma_wait<0>();
    turns[(kOfTile - 1) % 2].end(kChunks - 1, products[kOfTile > 1 || kChunks > 1], sums);
    reader.release();
    if (kOfTile == 1 && !reader.done()) turns[0].decode(reader.weights(), 0);
  }
}

// The same of weights with a scale for each tile.
template <class Operand, int kRows>
__device__ inline void multiply_scaled(TeamReader<Operand, kRows>& reader, StripSums<kRows>& sums) {
  using Turn = TeamTurn<Operand, kRows>;
  constexpr int kChunks = Turn::kChunks;
  typename Turn::Product products[2];
  Turn turns[2];
  for (float& sum : sums) sum = 0;
  // kSet: the tile's; kFirst: nothing is on its way.
  const auto multiply_tile = [&]<int kSet, bool kFirst>() {
    Turn& turn = turns[kSet];
    turn.decode(reader.weights(), 0);
    reader.wait_x();
    const TeamX x(reader.stages(), reader.x_slot());
    turn.queue(0, 0, x, products[kChunks == 1 ? kSet : 0]);
    if constexpr (!kFirst) {
      cuda::ptx::wgmma_wait<1>();
      turns[1 - kSet].end(kChunks - 1, products[kChunks == 1 ? 1 - kSet : 1], sums);
      reader.release();
    }
    if constexpr (kChunks == 2) {
      turn.queue(0, 1, x, products[1]);
      cuda::ptx::wgmma_wait<1>();
      turn.end(0, products[0], sums);
    }
    reader.advance();
  };
  const auto end_last = [&]<int kSet>() {
    cuda::ptx::wgmma_wait<0>();
    turns[kSet].end(kChunks - 1, products[kChunks == 1 ? kSet : 1], sums);
    reader.release();
  };
  multiply_tile.template operator()<0, true>();
  for (;;) {  // the compiler must see that the sets alternate
    if (reader.done()) return end_last.template operator()<0>();
    multiply_tile.template operator()<1, false>();
    if (reader.done()) return end_last.template operator()<1>();
    multiply_tile.template operator()<0, false>();
  }
}

}  // namespace weir
