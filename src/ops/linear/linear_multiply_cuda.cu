// Launches of linear_multiply.h.
#include "ops/linear/linear_multiply.h"

#include <algorithm>

#include "ops/linear/linear_few_cuda.cuh"
#include "ops/linear/linear_kernels.h"
#include "ops/linear/linear_many_cuda.cuh"

namespace weir {
namespace {

// x of `columns` eights of rows as BF16 tiles, a thread for eight k of a row.
__global__ void round_rows(const __grid_constant__ MultiplyArgs args) {
  cuda::ptx::wait_for_previous();
  cuda::ptx::let_next_start();
  const int row = static_cast<int>(blockIdx.y) * 8 + static_cast<int>(threadIdx.x) % 8;
  const int64_t eight = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 8) + threadIdx.x / 8;
  const int64_t tile = eight / 8;
  if (row >= step_rows(args) || tile >= static_cast<int64_t>(args.segments) * args.segment_tiles) return;
  std::byte* to = args.rounded + (tile * args.columns + blockIdx.y) * kColumnTileBytes + eight % 8 * 128 + row % 8 * 16;
  const int64_t at = row * args.x_stride;
  *reinterpret_cast<uint4*>(to) = args.x_type == RowType::kBf16
                                      ? load_eight(static_cast<const uint16_t*>(args.x) + at, eight * 8, args.in)
                                      : round_eight(static_cast<const float*>(args.x) + at, eight * 8, args.in);
}

constexpr int kRoundThreads = 256;

void launch_rounding(CudaDevice& device, const MultiplyArgs& args) {
  const int64_t threads = int64_t{8} * args.segments * args.segment_tiles * 8;
  const int64_t blocks = (threads + kRoundThreads - 1) / kRoundThreads;
  cuda::launch(device, {.grid = {blocks, args.columns}, .block = kRoundThreads, .overlap = true}, round_rows, args);
}

int columns_of(int32_t rows) { return (rows + 7) / 8; }
int row_tiles(int32_t rows) { return (rows + kRowTile - 1) / kRowTile; }
// Instances there are: 1, 2, 4 or 8 columns.
int kernel_columns(int32_t rows) {
  const int columns = columns_of(rows);
  return columns > 4 ? 8 : columns > 2 ? 4 : columns;
}

int64_t rounded_bytes(const MultiplyArgs& args, int32_t rows) {
  return int64_t{args.segments} * args.segment_tiles * columns_of(rows) * kColumnTileBytes;
}
// Of either kernel where blocks take a segment each.
int64_t partial_bytes(CudaDevice& device, const MultiplyArgs& args, int32_t rows) {
  if (args.segments == 1) return 0;
  const int64_t few = int64_t{args.strips} * kernel_columns(std::min(rows, kRowTile));
  const int64_t tiles = (std::min(rows, kFewerManyRows) + kFewerManyRows / 4 - 1) / (kFewerManyRows / 4);
  const int64_t many = std::min(tiles * args.strips, int64_t{kManyStrips} * device.sm_count()) * (kFewerManyRows / 32);
  return int64_t{128} * 4 * args.segments * std::max(few, many);
}

// Of the other kernel where blocks take all segments and no y can keep sums.
int64_t running_bytes(const MultiplyArgs& args, int32_t rows) {
  if (args.segments == 1) return 0;
  const auto rounds = [](const LinearPart& part) { return part.y_type == RowType::kBf16; };
  return std::any_of(args.parts, args.parts + args.part_count, rounds) ? int64_t{rows} * args.strips * kTileOuts * 4
                                                                       : 0;
}

void launch_few_rows(CudaDevice& device, TileFormat format, MultiplyArgs args, int32_t rows) {
  const int columns = kernel_columns(rows);
  const FewRowsKernel kernel = few_rows_kernel(format, columns);
  const int sms = device.sm_count(), k_tiles = args.segments * args.segment_tiles;
  int warps = kMostWarps;
  const auto groups = [&] { return (args.strips + warps - 1) / warps; };
  // Segments go to blocks of their own unless there are strips enough; then their sums need no memory.
  const bool whole = row_tiles(rows) > 1 || (groups() >= 8 * sms && (columns > 1 || k_tiles <= kMostResidentTiles));
  args.block_segments = whole ? args.segments : 1;
  const int splits = args.segments / args.block_segments;
  // As many strips to a block, which share x, as leave a block for most multiprocessors.
  while (warps > 1 && groups() * splits * row_tiles(rows) * 4 < sms * 3) warps /= 2;
  const int64_t x_bytes = columns > 1 ? kXStages * columns * kColumnTileBytes + 128
                                      : int64_t{args.block_segments} * args.segment_tiles * 128 * matrix_rows(rows);
  int64_t shared_bytes = warps * kernel.ring_bytes + x_bytes;
  // Blocks that find room at once; each takes as many groups of strips as any other, or one less. Of the numbers for a
  // multiprocessor the one whose busiest has least to do, of equal ones the largest.
  const int room =
      static_cast<int>(std::clamp<int64_t>(device.shared_limit() / (shared_bytes + 1024), 1, kernel.most_blocks));
  const int tiles = splits * row_tiles(rows);
  int blocks = 1, least = INT32_MAX, resident = 1;
  for (int per_sm = 1; per_sm <= room; ++per_sm) {
    const int most = std::max(1, per_sm * sms / tiles);
    const int rounds = (groups() + most - 1) / most;
    const int even = (groups() + rounds - 1) / rounds;
    const int busiest = (even * tiles + sms - 1) / sms;
    const int cost = busiest == 1 ? 3 * rounds : 2 * rounds * busiest;  // a block alone keeps less memory under way
    if (cost > least) continue;
    least = cost;
    blocks = even;
    resident = busiest;
  }
  // No more than that many are let onto one multiprocessor while others have fewer.
  constexpr int64_t kReserved = 1024;  // of shared memory, by the system for each block
  const int64_t one_less = (device.shared_limit() + kReserved) / (resident + 1) - kReserved + 16;
  if (resident > 1) shared_bytes = std::max(shared_bytes, one_less / 16 * 16);
  cuda::launch(device,
               {.grid = {blocks, splits, row_tiles(rows)},
                .block = 32 * (warps + (columns > 1 ? 1 : 0)),
                .shared_bytes = shared_bytes,
                .overlap = true},
               kernel.kernel, args);
}

struct ManyGrid {
  int row_tiles, groups, splits;

  int blocks() const { return row_tiles * groups * splits; }
};

// Blocks take all segments, or one each where the multiprocessors, with room for a block, are done sooner.
ManyGrid many_grid(CudaDevice& device, const MultiplyArgs& args, int32_t block_rows, int32_t rows) {
  ManyGrid grid{(rows + block_rows - 1) / block_rows, (args.strips + kManyStrips - 1) / kManyStrips, 1};
  const int sms = device.sm_count();
  const auto rounds = [&](int splits) { return (grid.blocks() * splits + sms - 1) / sms; };
  if (block_rows <= kMostSplitRows && rows <= kFewerManyRows && rounds(1) == 1 && rounds(args.segments) < args.segments)
    grid.splits = args.segments;
  return grid;
}

void launch_many_rows(CudaDevice& device, const ManyRowsKernel& kernel, MultiplyArgs args, int32_t rows) {
  const ManyGrid grid = many_grid(device, args, kernel.rows, rows);
  args.block_segments = args.segments / grid.splits;
  cuda::launch(device,
               {.grid = {grid.row_tiles, grid.groups, grid.splits},
                .block = kManyThreads,
                .shared_bytes = kernel.shared_bytes,
                .overlap = true},
               kernel.kernel, args);
}

// Whether blocks of many rows are enough to keep a third of the GPU busy: they are that much faster.
bool many_rows_pay(CudaDevice& device, const ManyRowsKernel& kernel, const MultiplyArgs& args, int32_t rows) {
  return rows > kRowTile && many_grid(device, args, kernel.rows, rows).blocks() * 3 >= device.sm_count();
}

}  // namespace

void prepare_multiply(CudaDevice& device, TileFormat format) {
  for (const int columns : {1, 2, 4, 8}) {
    cuda::allow_shared(few_rows_kernel(format, columns).kernel, device.shared_limit());
  }
  for (const int32_t rows : {kFewerManyRows, kFewerManyRows + 1}) {
    const ManyRowsKernel kernel = many_rows_kernel(format, rows);
    if (kernel.kernel != nullptr) cuda::allow_shared(kernel.kernel, device.shared_limit());
  }
}

int64_t multiply_bytes(CudaDevice& device, const MultiplyArgs& args, int32_t rows) {
  return rounded_bytes(args, rows) + partial_bytes(device, args, rows) + running_bytes(args, rows);
}

bool multiply_tiles(CudaDevice& device, TileFormat format, MultiplyArgs args, std::byte* workspace, int32_t rows,
                    MultiplyKernel kernel) {
  if (rows == 0) return true;
  const ManyRowsKernel many = many_rows_kernel(format, rows);
  if (kernel == MultiplyKernel::kManyRows && many.kernel == nullptr) return false;
  const bool use_many =
      kernel == MultiplyKernel::kManyRows ||
      (kernel == MultiplyKernel::kBest && many.kernel != nullptr && many_rows_pay(device, many, args, rows));
  args.columns = columns_of(rows);
  args.rounded = workspace;
  args.partials = reinterpret_cast<float*>(workspace + rounded_bytes(args, rows));
  args.running = reinterpret_cast<float*>(workspace + rounded_bytes(args, rows) + partial_bytes(device, args, rows));
  if (rows > 8 || use_many) launch_rounding(device, args);
  if (use_many) {
    launch_many_rows(device, many, args, rows);
  } else {
    launch_few_rows(device, format, args, rows);
  }
  return true;
}

}  // namespace weir
