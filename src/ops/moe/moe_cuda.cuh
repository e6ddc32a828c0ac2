// Routed experts on the GPU: what the launches of a step hand each other (moe.h, "On CUDA").
//
//   plan             which rows an expert has, and x in BF16; a step of few pairs has no such launch (SmallPlan)
//   gate and up      h of every pair (row, slot), in BF16
//   down             z of every pair, FP32
//   sum              y
//
// Which experts have rows is known on the device alone, so grids come from the bounds and the work from the plan. A
// pair's number is row * top_k + slot; the plan lists them by expert, rows ascending within one.
#pragma once

#include "device/cuda/kernel.h"
#include "ops/activation/element_cuda.cuh"
#include "ops/linear/linear_operand_cuda.cuh"
#include "ops/moe/moe.h"

namespace weir {

// Some pairs of an expert, no more than a kernel multiplies at once.
struct PairTile {
  int32_t expert = 0;
  int32_t first = 0;  // in the plan's list
  int32_t rows = 0;
};

// A step's plan, in the workspace or in a block's shared memory.
struct PairPlan {
  int32_t* tile_count = nullptr;  // [1]
  PairTile* tiles = nullptr;      // [tiles]; experts ascending
  int32_t* pairs = nullptr;       // [pairs]; by expert, ascending
};

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
  uint16_t* h = nullptr;  // [pairs, width]
  int64_t width = 0;      // inter, padded for down
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
  int32_t strips = 0;  // of an expert
  HiddenOut h;
  PairOut z;

  // A strip's sums for a tile of pairs, as the mma's C fragments: sums[c][i] of outputs lane / 4 + 8 (i / 2) and pair
  // 8 c + lane % 4 * 2 + i % 2. A loop that moves the sums: the code for each of them would be too long for the
  // instruction cache. pairs: the tile's.
  template <int kColumns>
  __device__ void store(const PairTile& tile, const int32_t* pairs, int strip, float (&sums)[kColumns][4]) const {
#pragma unroll 1
    for (int column = 0; column * 8 < tile.rows; ++column) {
      store_column(tile, ColumnPairs(tile, pairs, column), strip, sums[0]);
#pragma unroll
      for (int c = 0; c + 1 < kColumns; ++c) {
        for (int i = 0; i < 4; ++i) sums[c][i] = sums[c + 1][i];
      }
    }
    pad(tile, pairs, strip);
  }

  // The same by columns, then pad().
  struct ColumnPairs {
    int32_t pair[2];  // negative: none

    __device__ ColumnPairs(const PairTile& tile, const int32_t* pairs, int column) {
      for (int i = 0; i < 2; ++i) {
        const int r = column * 8 + lane_index() % 4 * 2 + i;
        pair[i] = r < tile.rows ? pairs[r] : -1;
      }
    }
  };
  __device__ void store_column(const PairTile& tile, const ColumnPairs& column, int strip, const float (&v)[4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (column.pair[i] >= 0) store_pair(tile.expert, strip, column.pair[i], v[i], v[2 + i]);
    }
  }
  // By the warp of the tile's last strip: h is padded with zeros, which down multiplies too.
  __device__ void pad(const PairTile& tile, const int32_t* pairs, int strip) const {
    if (strip < strips - 1 || !hidden || h.inter == h.width) return;
    for (int32_t r = 0; r < tile.rows; ++r) {
      uint16_t* row = h.h + int64_t{pairs[r]} * h.width;
      for (int64_t o = h.inter + lane_index(); o < h.width; o += 32) row[o] = 0;
    }
  }

 private:
  // Rows `lane / 4` and 8 more of the strip.
  __device__ void store_pair(int32_t expert, int strip, int64_t pair, float first, float second) const {
    const int row = lane_index() / 4;
    if (hidden) {
      store_hidden(expert, int64_t{strip} * 8 + row, pair, first, second);
    } else {
      store_output(expert, int64_t{strip} * 16 + row, pair, first);
      store_output(expert, int64_t{strip} * 16 + row + 8, pair, second);
    }
  }
  __device__ void store_hidden(int32_t expert, int64_t o, int64_t pair, float gate, float up) const {
    if (o >= h.inter) return;
    if (h.gate_bias != nullptr) {
      gate = gate + h.gate_bias[expert * h.inter + o];
      up = up + h.up_bias[expert * h.inter + o];
    }
    h.h[pair * h.width + o] = f32_to_bf16(glu(h.act, gate, up));
  }
  __device__ void store_output(int32_t expert, int64_t o, int64_t pair, float v) const {
    if (o >= z.out) return;
    z.z[pair * z.out + o] = z.bias == nullptr ? v : v + z.bias[expert * z.out + o];
  }
};

// The rows that a product multiplies: rounded, or of few pairs as they are.
struct PairRows {
  const uint16_t* rounded = nullptr;  // [rows, width]
  const float* exact = nullptr;       // [rows, in]
  int64_t exact_stride = 0;
  int64_t in = 0;
  int32_t pairs_per_row = 1;
};

// The most pairs of a step in which every block plans by itself.
inline constexpr int32_t kMostSmallPairs = 128;

// One product of a step: gate with up, or down.
struct ExpertProduct {
  ExpertTiles experts;
  PairPlan plan;                 // none: SmallPlan
  const int32_t* ids = nullptr;  // [rows, top_k]
  int32_t top_k = 0;
  int32_t most_pairs = 0;  // of the step
  int32_t tile_rows = 0;
  // All but the rows was written before the launch that comes before this one.
  bool planned_before = false;
  PairRows x;
  ExpertOut out;
};

// --- the launches

// What follows from a step's bound of rows.
struct StepShape {
  int32_t rows = 0;
  int32_t pairs = 0;
  int32_t wanted_tile_rows = 0;  // of warps: 8 or 32, or the step's if there are fewer
  int32_t tile_rows = 0;
  bool small = false;  // blocks plan by themselves
  bool many = false;   // rows an expert: blocks multiply (moe_many_cuda.cu), else warps (moe_few_cuda.cuh)
};

struct PlanArgs {
  const int32_t* ids = nullptr;  // [rows, top_k]
  int32_t experts = 0;
  int32_t top_k = 0;
  int32_t tile_rows = 0;
  const float* x = nullptr;  // none: nothing is rounded
  int64_t x_stride = 0;
  int64_t in = 0;
  uint16_t* rounded = nullptr;  // [rows, width]
  int64_t width = 0;
  bool routed_before = false;  // MoeArgs
};
void plan_pairs(CudaDevice& device, int32_t rows, const PlanArgs& args, const PairPlan& plan);
// Before the first plan of so many experts. Error when it does not fit into shared memory.
void allow_plan(const CudaDevice& device, const std::string& name, int64_t experts);

// Before the first product with a side's experts; Error when its rows are too long.
void allow_few(const CudaDevice& device, const std::string& name, const ExpertTiles& side);
void allow_many(TileFormat format);
// The most rows of a tile, with so many pairs: of warps `wanted` or as many as there is room for; of blocks as many as
// their kernel takes, 0 where there is none for the format.
int32_t few_tile_rows(const CudaDevice& device, int32_t wanted, int32_t pairs, const ExpertTiles& side);
int32_t many_tile_rows(TileFormat format);
void multiply_few_pairs(CudaDevice& device, const StepShape& shape, const ExpertProduct& product);
void multiply_many_pairs(CudaDevice& device, const ExpertProduct& product);
// y = sum over a row's pairs of weights * z.
void sum_pairs(CudaDevice& device, int32_t rows, const MoeArgs& args, const float* z);

// The same with what follows (MoeArgs), where sum_norm_fits and rows are few: the same bits as one after the other.
bool sum_norm_fits(const MoeArgs& args);
inline constexpr int32_t kMostSumNormRows = 96;
// norm_weight: on the device.
void sum_norm_pairs(CudaDevice& device, int32_t rows, const MoeArgs& args, const float* norm_weight, const float* z);

// FP32 products of any matrices (moe.h, "On CUDA", f32). experts: on the device.
void multiply_plain(CudaDevice& device, int32_t rows, const MoeArgs& args, const ExpertWeights* experts, float* h,
                    float* z);

// The experts of a layer as tiles: of gate with up, and of down. `uniform`: whether the formats allow it, which is when
// each side has one.
struct TiledExperts {
  ExpertTiles gate_up, down;
};
TiledExperts upload_experts(CudaDevice& device, const MoeArgs& args);

// What lies between a step's launches.
struct StepBuffers {
  PairPlan plan;
  uint16_t* x = nullptr;  // [rows, in with padding]
  uint16_t* h = nullptr;  // [pairs, inter with padding]
  float* z = nullptr;     // [pairs, out]
};

// The launches of a step.
class ExpertStep {
 public:
  // args: but for the experts, whose number is `count`.
  ExpertStep(CudaDevice& device, int32_t rows, const MoeArgs& args, int64_t count, const TiledExperts& experts,
             const StepBuffers& buffers);
  void plan() const;
  void gate_up() const;
  void down() const;
  void sum() const;

 private:
  ExpertProduct product(const ExpertTiles& side) const;
  void multiply(const ExpertProduct& product) const;

  CudaDevice& device_;
  const MoeArgs& args_;
  const TiledExperts& experts_;
  StepBuffers buffers_;
  StepShape shape_;
  PlanArgs plan_;
};

}  // namespace weir
