// Launches of linear_multiply.h.
#include "ops/linear/linear_multiply.h"

#include <algorithm>

#include "ops/linear/linear_few_cuda.cuh"
#include "ops/linear/linear_kernels.h"
#include "ops/linear/linear_wide_cuda.cuh"

namespace weir {
namespace {

inline constexpr int32_t kFewRows = 8;          // at most, of the kernel for few
inline constexpr int32_t kMostSplitRows = 512;  // of launches whose blocks may take one segment
inline constexpr int kRoundThreads = 256;

int64_t rounded_stride(const MultiplyArgs& args) { return (args.in + 7) / 8 * 8; }

// Rows of x as BF16, a thread for eight elements.
__global__ void round_rows(const __grid_constant__ MultiplyArgs args, uint16_t* to, int64_t stride) {
  cuda::ptx::let_next_start();
  cuda::ptx::wait_for_previous();
  const int64_t row = blockIdx.y, k = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
  if (row >= step_rows(args) || k >= args.in) return;
  const auto* x = static_cast<const float*>(args.x) + row * args.x_stride;
  *reinterpret_cast<uint4*>(to + row * stride + k) = round_eight(x, k, args.in);
}

// Rows of x in BF16: as they are, or rounded into the workspace.
cuda::Matrix bf16_rows(CudaDevice& device, const MultiplyArgs& args, std::byte* workspace, int32_t rows) {
  if (args.x_type == RowType::kBf16) return {static_cast<const uint16_t*>(args.x), rows, args.in, args.x_stride};
  auto* to = reinterpret_cast<uint16_t*>(workspace);
  const int64_t stride = rounded_stride(args), blocks = (stride / 8 + kRoundThreads - 1) / kRoundThreads;
  cuda::launch(device, {.grid = {blocks, rows}, .block = kRoundThreads, .overlap = true}, round_rows, args, to, stride);
  return {to, rows, args.in, stride};
}

int64_t rounded_bytes(const MultiplyArgs& args, int32_t rows) {
  return args.x_type == RowType::kBf16 ? 0 : (rows * rounded_stride(args) * 2 + 255) / 256 * 256;
}

void launch_few_rows(CudaDevice& device, TileFormat format, MultiplyArgs args) {
  const FewRowsKernel kernel = few_rows_kernel(format);
  const int sms = device.sm_count(), k_tiles = args.segments * args.segment_tiles;
  int warps = kMostWarps;
  const auto groups = [&] { return (args.strips + warps - 1) / warps; };
  // Segments go to blocks of their own unless there are strips enough; then their sums need no memory.
  const bool whole = groups() >= 8 * sms && k_tiles <= kMostResidentTiles;
  args.block_segments = whole ? args.segments : 1;
  const int splits = args.segments / args.block_segments;
  // As many strips to a block, which share x, as leave a block for most multiprocessors.
  while (warps > 1 && groups() * splits * 4 < sms * 3) warps /= 2;
  const int64_t x_bytes = int64_t{args.block_segments} * args.segment_tiles * 128 * kFewRows;
  int64_t shared_bytes = warps * kernel.ring_bytes + x_bytes;
  // Blocks that find room at once; each takes as many groups of strips as any other, or one less. Of the numbers for a
  // multiprocessor the one whose busiest has least to do, of equal ones the largest.
  const int room =
      static_cast<int>(std::clamp<int64_t>(device.shared_limit() / (shared_bytes + 1024), 1, kernel.most_blocks));
  int blocks = 1, least = INT32_MAX, resident = 1;
  for (int per_sm = 1; per_sm <= room; ++per_sm) {
    const int most = std::max(1, per_sm * sms / splits);
    const int rounds = (groups() + most - 1) / most;
    const int even = (groups() + rounds - 1) / rounds;
    const int busiest = (even * splits + sms - 1) / sms;
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
  cuda::launch(device, {.grid = {blocks, splits}, .block = 32 * warps, .shared_bytes = shared_bytes, .overlap = true},
               kernel.kernel, args);
}

struct WideGrid {
  int units = 0, splits = 1;  // blocks' work without splits
};

// Blocks take all segments, or one each where that ends sooner.
WideGrid wide_grid(CudaDevice& device, const WideKernel& kernel, const MultiplyArgs& args, int32_t rows) {
  WideGrid grid{(rows + kernel.rows - 1) / kernel.rows * ((args.strips + kernel.strips - 1) / kernel.strips)};
  const int places = device.sm_count() * kernel.blocks;
  const auto rounds = [&](int splits) { return (grid.units * splits + places - 1) / places; };
  if (rows <= kMostSplitRows && grid.units < places && rounds(args.segments) < args.segments)
    grid.splits = args.segments;
  return grid;
}

// Of either kernel where blocks take a segment each.
int64_t partial_bytes(CudaDevice& device, TileFormat format, const MultiplyArgs& args, int32_t rows) {
  if (args.segments == 1) return 0;
  int64_t eights = args.strips;
  for (int32_t many = 16; many <= kMostSplitRows && rows > kFewRows; many *= 2) {
    const WideKernel kernel = wide_kernel(format, many);
    const WideGrid grid = wide_grid(device, kernel, args, std::min(rows, many));
    if (grid.splits > 1) eights = std::max(eights, int64_t{grid.units} * kernel.strips * (kernel.rows / 8));
  }
  return int64_t{128} * 4 * args.segments * eights;
}

void launch_wide(CudaDevice& device, TileFormat format, MultiplyArgs args, std::byte* workspace, int32_t rows) {
  const WideKernel kernel = wide_kernel(format, rows);
  const WideGrid grid = wide_grid(device, kernel, args, rows);
  args.block_segments = args.segments / grid.splits;
  cuda::TensorMap x_map;
  if (const int error = cuda::map_tensor(x_map, bf16_rows(device, args, workspace, rows), kernel.rows); error != 0) {
    return device.launched(error);
  }
  cuda::launch(device,
               {.grid = std::min(grid.units * grid.splits, device.sm_count() * kernel.blocks),
                .block = kernel.threads,
                .shared_bytes = kernel.shared_bytes,
                .overlap = true},
               kernel.kernel, args, x_map);
}

}  // namespace

void prepare_multiply(CudaDevice& device, TileFormat format) {
  cuda::allow_shared(few_rows_kernel(format).kernel, device.shared_limit());
  for (const int32_t rows : {16, 32, 64, 128}) {
    cuda::allow_shared(wide_kernel(format, rows).kernel, device.shared_limit());
  }
}

int64_t multiply_bytes(CudaDevice& device, TileFormat format, const MultiplyArgs& args, int32_t rows) {
  return rounded_bytes(args, rows) + partial_bytes(device, format, args, rows);
}

void multiply_tiles(CudaDevice& device, TileFormat format, MultiplyArgs args, std::byte* workspace, int32_t rows) {
  if (rows == 0) return;
  args.partials = reinterpret_cast<float*>(workspace + rounded_bytes(args, rows));
  if (rows <= kFewRows) return launch_few_rows(device, format, args);
  launch_wide(device, format, args, workspace, rows);
}

}  // namespace weir
