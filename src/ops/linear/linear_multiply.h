// Products of tiled weights on the tensor cores (linear_tiles.h), in five kernels with the same bits:
//
// Few rows, at most eight: bound by the weights. Warps multiply strips of sixteen outputs, each by itself: its ring
// brings their tiles. x lies in its block's shared memory as BF16; the block's threads bring it, since the copy engine
// has the next kernel's weights to bring first. The runs of some strips, a segment of a strip each, are shared by a
// cluster of blocks, whose sums meet in the shared memory of one of them, which adds them in the order of the segments;
// with very many strips a warp takes all segments of a strip. A multiprocessor has room for two blocks, so that the
// next kernel's block is there, its ring full of weights, when the one before ends.
//
// Packed weights of several segments, with up to 16 rows: a block has one segment of some strips, or the end of one and
// the beginning of the next, whose x stays in its shared memory. Sums are left in memory for blocks that add them
// (cuda/posts.h). Clusters would lay two blocks on one multiprocessor and none on others (measured).
//
// Others with up to 64 rows, where decoding or many segments decide: clusters of blocks, a block a segment of
// some strips, whose sums meet through their shared memory.
//
// Packed weights with 17 to 64 rows, of large matrices where these are more than 32: a block on each multiprocessor,
// which keeps one segment of x in shared memory and multiplies its share of the outputs with it. Sums meet as those
// before. With up to 32 rows and few outputs there is room for the next kernel's block.
//
// More, or 16-bit weights of large matrices: groups of four warps multiply 64 outputs each with up to 128 rows of BF16
// (FP32 ones a kernel before has rounded), which a block's groups share. A block takes all segments one after the
// other, or some; with few rows' order of sums, and so the same bits.
#pragma once

#include "base/step_view.h"
#include "device/cuda_device.h"
#include "ops/linear/linear.h"
#include "ops/linear/linear_tiles.h"

namespace weir {

inline constexpr int kMostLinearParts = 6;

// One of the matrices that are multiplied together.
struct LinearPart {
  const std::byte* tiles = nullptr;
  const float* bias = nullptr;
  const void* x = nullptr;
  int64_t x_stride = 0;
  void* y = nullptr;
  int64_t y_stride = 0;
  RowType y_type = RowType::kF32;
  int32_t out = 0;
  int32_t first_strip = 0;  // of all parts' strips
  int32_t first_place = 0;  // the same where blocks deal strips out: a part with another x begins with a block

  WEIR_HD int32_t strips() const { return static_cast<int32_t>((out + kTileOuts - 1) / kTileOuts); }
};

struct MultiplyArgs {
  LinearPart parts[kMostLinearParts];
  int32_t part_count = 0;
  int32_t strips = 0;  // of all parts
  int32_t in = 0;
  int32_t segments = 0;
  int32_t segment_tiles = 0;
  RowType x_type = RowType::kF32;
  uint32_t* counters = nullptr;  // [counter_count()], zero between launches
  const StepView* step = nullptr;
  RowSet rows = RowSet::kAll;

  // Set by multiply_tiles.
  int32_t places = 0;          // strips with the gaps between parts
  int32_t block_strips = 0;    // that a block, with few rows a cluster, takes together
  int32_t block_segments = 0;  // the same; wide: one or all; in segments: one or two
  int32_t cluster = 0;         // blocks, with few rows
  int32_t splits = 0;          // blocks of a team, or of a segment
  int32_t meeting_bytes = 0;   // with few rows: of a block, where sums of segments meet
  int32_t ring_stages = 0;     // with few rows, in teams and in segments: of a warp
  int32_t x_rows = 0;          // with few rows and in segments: to be read, at least the step's
  int32_t x_stages = 0;        // of x, in teams
  bool whole_strips = false;   // a warp takes all segments of a strip, with few rows
  float* partials = nullptr;   // sums of segments
  std::byte* posts = nullptr;  // the same, of the device's posts

  // Of strips, for each tile of rows that blocks with a segment each may have.
  int64_t counter_count() const { return int64_t{4} * strips; }
};

// When an op with such tiles is bound.
void prepare_multiply(CudaDevice& device, TileFormat format);

// Queues the product for at most `rows` rows; `workspace` has multiply_bytes.
void multiply_tiles(CudaDevice& device, TileFormat format, MultiplyArgs args, std::byte* workspace, int32_t rows);
// Enough for any number up to `rows`.
int64_t multiply_bytes(CudaDevice& device, TileFormat format, const MultiplyArgs& args, int32_t rows);
// The same of the device's posts (linear_packed_cuda.cu).
int64_t multiply_posts(TileFormat format, const MultiplyArgs& args, int32_t rows);

}  // namespace weir
