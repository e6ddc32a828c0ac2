// Launches of linear_multiply.h.
#include "ops/linear/linear_multiply.h"

#include <algorithm>

#include "ops/linear/linear_few_cuda.cuh"
#include "ops/linear/linear_launch_cuda.h"
#include "ops/linear/linear_wide_cuda.cuh"

namespace weir {
namespace {

inline constexpr int32_t kFewRows = 8;          // at most, of the kernel for few
inline constexpr int32_t kMostSplitRows = 512;  // of launches whose blocks may take one segment
inline constexpr int kRoundThreads = 256;
inline constexpr int kMostMeeting = 64;  // runs of a block whose sums meet, with few rows

int64_t rounded_stride(const MultiplyArgs& args) { return (args.in + 7) / 8 * 8; }

// Rows of x as BF16, a thread for eight elements.
__global__ void round_rows(const StepView* step, RowSet set, const float* x, int64_t x_stride, int64_t in, uint16_t* to,
                           int64_t stride) {
  cuda::ptx::let_next_start();
  cuda::ptx::wait_for_previous();
  const int64_t row = blockIdx.y, k = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * 8;
  if (row >= row_count(*step, set) || k >= in) return;
  *reinterpret_cast<uint4*>(to + row * stride + k) = round_eight(x + row * x_stride, k, in);
}

bool same_x(const LinearPart& a, const LinearPart& b) { return a.x == b.x && a.x_stride == b.x_stride; }

int64_t rounded_bytes(const MultiplyArgs& args, int32_t rows) {
  if (args.x_type == RowType::kBf16) return 0;
  return (different_x(args) * rows * rounded_stride(args) * 2 + 255) / 256 * 256;
}

// A part's rows of x in BF16: as they are, or rounded into `to`.
cuda::Matrix bf16_rows(CudaDevice& device, const MultiplyArgs& args, const LinearPart& part, uint16_t* to,
                       int32_t rows) {
  if (args.x_type == RowType::kBf16) return {static_cast<const uint16_t*>(part.x), rows, args.in, part.x_stride};
  const int64_t stride = rounded_stride(args), blocks = (stride / 8 + kRoundThreads - 1) / kRoundThreads;
  cuda::launch(device, {.grid = {blocks, rows}, .block = kRoundThreads, .overlap = true}, round_rows, args.step,
               args.rows, static_cast<const float*>(part.x), part.x_stride, args.in, to, stride);
  return {to, rows, args.in, stride};
}

}  // namespace

int different_x(const MultiplyArgs& args) {
  int count = 1;
  for (int p = 1; p < args.part_count; ++p) count += same_x(args.parts[p], args.parts[p - 1]) ? 0 : 1;
  return count;
}

void place_parts(MultiplyArgs& args, int block_strips) {
  args.block_strips = block_strips;
  args.places = 0;
  for (int p = 0; p < args.part_count; ++p) {
    if (p > 0 && !same_x(args.parts[p], args.parts[p - 1])) {
      args.places = (args.places + block_strips - 1) / block_strips * block_strips;
    }
    args.parts[p].first_place = args.places;
    args.places += args.parts[p].strips();
  }
}

bool map_rows(CudaDevice& device, const MultiplyArgs& args, std::byte* workspace, int32_t rows, int32_t box_rows,
              WideX& maps) {
  auto* rounded = reinterpret_cast<uint16_t*>(workspace);
  cuda::Matrix x;
  for (int p = 0; p < args.part_count; ++p) {
    if (p == 0 || !same_x(args.parts[p], args.parts[p - 1])) {
      x = bf16_rows(device, args, args.parts[p], rounded, rows);
      rounded += rows * rounded_stride(args);
    }
    if (const int error = cuda::map_tensor(maps.of_part[p], x, box_rows); error != 0) {
      device.launched(error);
      return false;
    }
  }
  return true;
}

namespace {

// --- few rows

struct FewGrid {
  int cluster = 0;  // blocks; 0: x has no room
  int cluster_strips = 0, runs = 0;
  bool whole_strips = false;
  int64_t meeting_bytes = 0, x_bytes = 0, ring_bytes = 0;
};

// With clusters of so many blocks, one block for each multiprocessor.
FewGrid few_grid_of(CudaDevice& device, const MultiplyArgs& args, int cluster, int32_t rows) {
  FewGrid grid{.cluster = cluster};
  const int clusters = device.sm_count() / cluster;
  grid.cluster_strips = (args.strips + clusters - 1) / clusters;
  grid.runs = (grid.cluster_strips * args.segments + cluster - 1) / cluster;
  grid.whole_strips = args.segments == 1 || (cluster == 1 && grid.runs > kMostMeeting);
  if (!grid.whole_strips) {
    grid.meeting_bytes = int64_t{(grid.cluster_strips + cluster - 1) / cluster} * args.segments * 512 + 16;
  }
  int segments = 0;
  for (int rank = 0; rank < cluster; ++rank) {
    segments =
        std::max(segments, (args.segments * (rank + 1) + cluster - 1) / cluster - args.segments * rank / cluster);
  }
  grid.x_bytes = few_x_bytes(args, segments, rows);
  grid.ring_bytes = (device.shared_limit() - 1024) / 2 - grid.x_bytes - grid.meeting_bytes;
  return grid;
}

// Pairs of blocks: larger clusters come to lie twice on some multiprocessors while others have none (measured), so they
// are for rows of x that have no room otherwise, and single blocks for rows of one segment.
FewGrid few_grid(CudaDevice& device, const MultiplyArgs& args, int32_t rows) {
  constexpr int64_t kLeastRing = 28 << 10;
  if (args.segments == 1) return few_grid_of(device, args, 1, rows);
  for (const int cluster : {2, 4}) {
    const FewGrid grid = few_grid_of(device, args, cluster, rows);
    if (cluster <= args.segments && grid.ring_bytes >= kLeastRing) return grid;
  }
  const FewGrid grid = few_grid_of(device, args, 1, rows);
  return grid.whole_strips && grid.ring_bytes >= kLeastRing ? grid : FewGrid{};
}

// Sixteen-bit weights need no decoding: but for one or two rows of matrices that are not large and keep most blocks
// busy, groups of four warps are ahead (measured).
bool few_rows_pay(CudaDevice& device, TileFormat format, const MultiplyArgs& args, int32_t rows) {
  if (rows > kFewRows) return false;
  const FewGrid grid = few_grid(device, args, rows);
  if (grid.cluster == 0) return false;
  if (format != TileFormat::kBf16 && format != TileFormat::kF16) return true;
  const int blocks = (args.strips + grid.cluster_strips - 1) / grid.cluster_strips * grid.cluster;
  return rows <= 2 && grid.runs <= 32 && (grid.cluster_strips <= 2 || blocks * 5 >= device.sm_count() * 4);
}

void launch_few_rows(CudaDevice& device, TileFormat format, MultiplyArgs args, int32_t rows) {
  const FewRowsKernel kernel = few_rows_kernel(format);
  const FewGrid grid = few_grid(device, args, rows);
  place_parts(args, grid.cluster_strips);
  args.cluster = grid.cluster;
  args.whole_strips = grid.whole_strips;
  args.meeting_bytes = static_cast<int32_t>(grid.meeting_bytes);
  args.x_rows = rows;
  const int clusters = (args.places + grid.cluster_strips - 1) / grid.cluster_strips;
  const int work = grid.whole_strips ? grid.cluster_strips : grid.runs;
  const int rounds = (work + kFewWarps - 1) / kFewWarps;
  const int warps = (work + rounds - 1) / rounds;  // all have as much to do
  const int64_t warp_stages =
      (args.segment_tiles + kernel.stage_tiles - 1) / kernel.stage_tiles * ((grid.runs + warps - 1) / warps);
  const int64_t fit = grid.ring_bytes / (warps * (kernel.stage_bytes + 16));
  args.ring_stages = static_cast<int32_t>(std::clamp<int64_t>(fit, 1, warp_stages));
  const int64_t shared_bytes = grid.x_bytes + grid.meeting_bytes + args.ring_stages * warps * (kernel.stage_bytes + 16);
  cuda::launch(device,
               {.grid = std::max(clusters, device.sm_count() / grid.cluster) * grid.cluster,
                .block = 32 * warps,
                .shared_bytes = std::max(shared_bytes, kLeastShared),
                .cluster = static_cast<unsigned>(grid.cluster),
                .overlap = true},
               kernel.kernel, args);
}

// --- more

struct WideGrid {
  int units = 0;           // blocks' work with all segments
  int block_segments = 1;  // that they take

  int items(const MultiplyArgs& args) const { return units * ((args.segments + block_segments - 1) / block_segments); }
};

// Blocks take all segments where there are enough, or as few as let all blocks run at once. Places the parts.
WideGrid wide_grid(CudaDevice& device, const WideKernel& kernel, MultiplyArgs& args, int32_t rows) {
  place_parts(args, kernel.strips);
  WideGrid grid;
  grid.units = (rows + kernel.rows - 1) / kernel.rows * ((args.places + kernel.strips - 1) / kernel.strips);
  const int most = device.sm_count() * kernel.blocks;
  while (grid.block_segments < args.segments && (rows > kMostSplitRows || grid.items(args) > most)) {
    ++grid.block_segments;
  }
  return grid;
}

// Where blocks take a segment each.
int64_t partial_bytes(CudaDevice& device, TileFormat format, MultiplyArgs args, int32_t rows) {
  if (args.segments == 1) return 0;
  int64_t eights = 0;
  for (const int32_t most : {16, 32, 64, 128, 256, 384, 512}) {  // rows that are served alike
    const WideKernel kernel = wide_kernel(format, most);
    const WideGrid grid = wide_grid(device, kernel, args, most);
    if (grid.block_segments < args.segments) {
      const int64_t row_tiles = (most + kernel.rows - 1) / kernel.rows;
      eights = std::max(eights, row_tiles * args.strips * (kernel.rows / 8));
    }
    if (most >= rows) break;
  }
  return int64_t{128} * 4 * args.segments * eights;
}

void launch_wide(CudaDevice& device, TileFormat format, MultiplyArgs args, std::byte* workspace, int32_t rows) {
  const WideKernel kernel = wide_kernel(format, rows);
  const WideGrid grid = wide_grid(device, kernel, args, rows);
  args.block_segments = grid.block_segments;
  WideX x_maps;
  if (!map_rows(device, args, workspace, rows, kernel.rows, x_maps)) return;
  // No more blocks are let onto one multiprocessor than are needed, while others have fewer.
  const int resident = std::min((grid.items(args) + device.sm_count() - 1) / device.sm_count(), kernel.blocks);
  const int64_t one_less = resident > 1
                               ? (device.shared_limit() + kReservedShared) / (resident + 1) - kReservedShared + 16
                               : kernel.shared_bytes;
  cuda::launch(device,
               {.grid = std::min(grid.items(args), device.sm_count() * kernel.blocks),
                .block = kernel.threads,
                .shared_bytes = std::max(kernel.shared_bytes, one_less / 16 * 16),
                .overlap = true},
               kernel.kernel, args, x_maps);
}

}  // namespace

void prepare_multiply(CudaDevice& device, TileFormat format) {
  cuda::allow_shared(few_rows_kernel(format).kernel, device.shared_limit());
  for (const int32_t rows : {16, 32, 64, 128}) {
    cuda::allow_shared(wide_kernel(format, rows).kernel, device.shared_limit());
  }
  prepare_packed(device, format);
}

int64_t multiply_bytes(CudaDevice& device, TileFormat format, const MultiplyArgs& args, int32_t rows) {
  return rounded_bytes(args, rows) + partial_bytes(device, format, args, rows);
}

void multiply_tiles(CudaDevice& device, TileFormat format, MultiplyArgs args, std::byte* workspace, int32_t rows) {
  if (rows == 0) return;
  args.partials = reinterpret_cast<float*>(workspace + rounded_bytes(args, rows));
  args.posts = device.posts();
  if (launch_packed(device, format, args, workspace, rows)) return;
  if (few_rows_pay(device, format, args, rows)) return launch_few_rows(device, format, args, rows);
  launch_wide(device, format, args, workspace, rows);
}

}  // namespace weir
