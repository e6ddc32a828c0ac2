// Routed experts on the GPU: what the launches of a step hand each other (moe.h, "On CUDA").
//
//   plan and round   which rows an expert has; x in BF16, in the order in which products read it
//   gate and up      h of every pair (row, slot), in BF16, in the same order
//   down             z of every pair, FP32
//   sum              y
//
// Which experts have rows is known on the device alone, so grids come from the bounds and the work from the plan. A
// step's pairs are numbered by expert, rows ascending within one.
#pragma once

#include "device/cuda/kernel.h"
#include "ops/activation/element_cuda.cuh"
#include "ops/linear/linear_operand_cuda.cuh"
#include "ops/moe/moe.h"

namespace weir {

// Pairs [first_pair, first_pair + rows) of an expert: no more than a kernel multiplies at once.
struct PairTile {
  int32_t expert = 0;
  int32_t first_pair = 0;
  int32_t rows = 0;
  int32_t first_column = 0;  // eights of rows before it, each expert's beginning anew

  __host__ __device__ int32_t columns() const { return (rows + 7) / 8; }
};

// A step's plan, in the workspace.
struct PairPlan {
  int32_t* tile_count = nullptr;  // [1]
  PairTile* tiles = nullptr;      // [tiles]; experts ascending
  int32_t* row_of = nullptr;      // [pairs]
  int32_t* places = nullptr;      // [rows, top_k]: pairs of a row
};

// Rows of BF16 as operands of mma m16n8k16: `tiles` tiles of 64 elements, 128 bytes each. Lane quad q of a warp needs
// of step s (16 elements) the elements 16 s + 2q, + 1, + 8, + 9; those of steps 0 and 1 lie together, 16 bytes at 16 q,
// those of steps 2 and 3 64 bytes further.
__host__ __device__ inline int64_t fragment_order(int64_t k) {
  const int64_t in_step = k % 16;
  return k / 32 * 32 + in_step % 8 / 2 * 8 + k % 32 / 16 * 4 + in_step / 8 * 2 + in_step % 2;
}

// Rows of BF16 of a tile of pairs as wgmma reads them: per 64 elements of all rows the columns, eight rows each, of
// eight matrices of 8 rows x 8 elements (linear_tile_cuda.cuh). Tiles lie one after the other.
__host__ __device__ inline int64_t column_order(const PairTile& tile, int32_t r, int64_t k, int64_t width) {
  return tile.first_column * width * 8 + (k / 64 * tile.columns() + r / 8) * 512 + k % 64 / 8 * 64 + r % 8 * 8 + k % 8;
}

// One side of the experts: gate with up, or down. Of gate with up strip s holds rows 8 s to 8 s + 7 of gate, then those
// of up: the two values of an output meet in one lane.
struct ExpertTiles {
  TileFormat format = TileFormat::kBf16;
  const std::byte* tiles = nullptr;  // [experts, strips, k_tiles]
  int32_t strips = 0;                // of an expert
  int32_t segments = 0;              // of k
  int32_t segment_tiles = 0;

  __host__ __device__ int32_t k_tiles() const { return segments * segment_tiles; }
  __host__ __device__ int64_t width() const { return int64_t{k_tiles()} * kTileIns; }  // of a row of x, with padding
};

// activation.h: GluFunction, whose kind is known when it runs.
__device__ inline float glu(const GluFunction& f, float g, float u) {
  using enum ElementwiseKind;
  switch (f.kind) {
    case kSitu:
      return cuda::element<kSitu>(g, u, f.beta, f.linear_beta);
    case kGeGlu:
      return cuda::element<kGeGlu>(g, u, f.beta, f.linear_beta);
    case kClampedSwiGlu:
      return cuda::element<kClampedSwiGlu>(g, u, f.beta, f.linear_beta);
    default:
      return cuda::element<kSwiGlu>(g, u, f.beta, f.linear_beta);
  }
}

// Gate with up: h, and what else its epilogue needs.
struct HiddenOut {
  GluFunction act;
  const float* gate_bias = nullptr;  // [experts, inter], with up_bias, or none
  const float* up_bias = nullptr;
  int64_t inter = 0;
  uint16_t* h = nullptr;  // [pairs, width], in fragment order; or in columns
  int64_t width = 0;      // inter, padded for down
  bool columns = false;

  // Element o of row r of a tile.
  __device__ uint16_t& at(const PairTile& tile, int32_t r, int64_t o) const {
    return h[columns ? column_order(tile, r, o, width) : (tile.first_pair + r) * width + fragment_order(o)];
  }
};
// Down: z.
struct PairOut {
  const float* bias = nullptr;  // [experts, out]
  int64_t out = 0;
  float* z = nullptr;  // [pairs, out]
};

// What becomes of the sums: h or z.
struct ExpertOut {
  bool hidden = false;
  HiddenOut h;
  PairOut z;

  // Sums of row r of a tile: rows `lane / 4` and 8 more of the strip.
  __device__ void store(const PairTile& tile, int strip, int32_t r, float first, float second) const {
    const int row = lane_index() / 4;
    if (hidden) {
      store_hidden(tile, int64_t{strip} * 8 + row, r, first, second);
    } else {
      store_output(tile, int64_t{strip} * 16 + row, r, first);
      store_output(tile, int64_t{strip} * 16 + row + 8, r, second);
    }
  }
  __device__ void store_hidden(const PairTile& tile, int64_t o, int32_t r, float gate, float up) const {
    if (o >= h.inter) return;
    if (h.gate_bias != nullptr) {
      gate = gate + h.gate_bias[tile.expert * h.inter + o];
      up = up + h.up_bias[tile.expert * h.inter + o];
    }
    h.at(tile, r, o) = f32_to_bf16(glu(h.act, gate, up));
  }
  __device__ void store_output(const PairTile& tile, int64_t o, int32_t r, float v) const {
    if (o >= z.out) return;
    z.z[(int64_t{tile.first_pair} + r) * z.out + o] = z.bias == nullptr ? v : v + z.bias[tile.expert * z.out + o];
  }
  // By the warp of the tile's last strip: h is padded with zeros, which down multiplies too.
  __device__ void pad(const PairTile& tile) const {
    if (!hidden) return;
    for (int32_t r = 0; r < tile.rows; ++r) {
      for (int64_t o = h.inter + lane_index(); o < h.width; o += 32) h.at(tile, r, o) = 0;
    }
  }
};

// One product of a step: gate with up, or down.
struct ExpertProduct {
  ExpertTiles experts;
  PairPlan plan;
  const uint16_t* x = nullptr;      // [rows or pairs, width], in fragment order; with many rows a tile: in columns
  const int32_t* row_of = nullptr;  // of a pair; none: x has a row for every pair
  ExpertOut out;
};

// --- the launches; `bounds` as in CudaOp::enqueue

// Few rows an expert: warps multiply strips by themselves (moe_few_cuda.cuh). Many: blocks of them (moe_many_cuda.cuh),
// whose tiles of pairs have more than kMostFewRows.
inline constexpr int32_t kMostFewRows = 32;
// Rows of a tile, for steps of at most so many rows.
int32_t pair_tile_rows(int32_t rows, int64_t top_k, int64_t experts, TileFormat gate_up, TileFormat down);

struct PlanArgs {
  const int32_t* ids = nullptr;  // [rows, top_k]
  int32_t experts = 0;
  int32_t top_k = 0;
  int32_t tile_rows = 0;
  const float* x = nullptr;
  int64_t x_stride = 0;
  int64_t in = 0;
  uint16_t* rounded = nullptr;  // [rows, width], in fragment order; none: x is not rounded
  int64_t width = 0;
};
void plan_pairs(CudaDevice& device, int32_t rows, const PlanArgs& args, const PairPlan& plan);
// Before the first plan of so many experts. Error when it does not fit into shared memory.
void allow_plan(const CudaDevice& device, const std::string& name, int64_t experts);

// x of every pair in columns.
void gather_pairs(CudaDevice& device, int32_t rows, const PlanArgs& args, const PairPlan& plan, uint16_t* x);

// Before the first product with a format.
void allow_products(TileFormat format);
void allow_many(TileFormat format);
// The most rows of a tile for many; 0: there is no such kernel for the format.
int32_t many_tile_rows(TileFormat format);
void multiply_many_pairs(CudaDevice& device, const ExpertProduct& product);
// Tiles of at most tile_rows pairs.
void multiply_pairs(CudaDevice& device, int32_t tile_rows, const ExpertProduct& product);
// y = sum over a row's pairs of weights * z. places: of a row's pairs [rows, top_k]; none: pairs are numbered by row
// and slot.
void sum_pairs(CudaDevice& device, int32_t rows, const MoeArgs& args, const int32_t* places, const float* z);

// FP32 products of any matrices (moe.h, "On CUDA", f32). experts: on the device.
void multiply_plain(CudaDevice& device, int32_t rows, const MoeArgs& args, const ExpertWeights* experts, float* h,
                    float* z);

// The experts of a layer as tiles: of gate with up, and of down. `uniform`: whether the formats allow it, which is when
// each side has one.
struct TiledExperts {
  ExpertTiles gate_up, down;
};
bool uniform(const std::vector<ExpertWeights>& experts);
TiledExperts upload_experts(CudaDevice& device, const MoeArgs& args);

}  // namespace weir
