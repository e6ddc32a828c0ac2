// Launches of linear_multiply.h for packed weights with few rows.
#include <algorithm>
#include <bit>

#include "ops/linear/linear_launch_cuda.h"
#include "ops/linear/linear_resident_stages_cuda.cuh"
#include "ops/linear/linear_segment_x_cuda.cuh"

namespace weir {
namespace {

bool is_packed(TileFormat format) { return format != TileFormat::kBf16 && format != TileFormat::kF16; }
bool is_narrow(TileFormat format) { return tile_bytes(format) < 1024; }

// --- teams

constexpr int32_t kLeastTeamRows = 2, kTeamRows = 64;
constexpr int kMostTeamBlocks = 16;  // of a cluster: a segment each

struct TeamGrid {
  int strips, teams, splits;

  TeamGrid(MultiplyArgs& args, int strips_) : strips(strips_), splits(args.segments) {
    place_parts(args, strips);
    teams = (args.places + strips - 1) / strips;
  }
  int blocks() const { return teams * splits; }
};

// Fewer strips, more blocks, where multiprocessors would be idle or have an uneven number (measured).
TeamGrid team_grid(CudaDevice& device, TileFormat format, MultiplyArgs& args, int32_t rows) {
  const TeamGrid many(args, 8);
  if (!is_narrow(format) || rows > 16) return many;
  const TeamGrid few(args, 4);
  const bool four = rows <= 8 ? many.blocks() > device.sm_count() : few.blocks() <= 2 * device.sm_count();
  return four ? few : TeamGrid(args, 8);
}

// Where decoding takes most of the time, and where the segments are too many for the other kernel's blocks to have one
// each, but not for these (measured).
bool team_pays(CudaDevice& device, TileFormat format, MultiplyArgs args, int32_t rows) {
  if (!is_packed(format) || rows > kTeamRows) return false;
  if (rows < kLeastTeamRows || args.segments == 1 || args.segments > kMostTeamBlocks) return false;
  if (team_kernel(format, rows).kernel == nullptr) return false;
  const int full = device.sm_count(), blocks = TeamGrid(args, 8).blocks();
  if (rows <= 8) {
    if (is_narrow(format)) return blocks <= 2 * full;
    return args.segments > 4 && blocks <= (rows > 4 ? 3 * full / 2 : full);
  }
  if (is_narrow(format) && rows <= 16) return blocks <= 4 * full;
  return (args.strips + 3) / 4 * args.segments > 2 * full && blocks <= 2 * full;
}

void launch_team(CudaDevice& device, TileFormat format, MultiplyArgs args, std::byte* workspace, int32_t rows) {
  constexpr int kMostStages = 79;  // of weights, for whose barriers there is room
  const TeamKernel kernel = team_kernel(format, rows);
  const TeamGrid grid = team_grid(device, format, args, rows);
  args.block_strips = grid.strips;
  args.splits = grid.splits;
  const int tiles = args.segment_tiles;
  const auto x_stages = static_cast<uint32_t>((tiles + kernel.x_tiles - 1) / kernel.x_tiles);
  args.x_stages = static_cast<int32_t>(std::min<int64_t>(std::bit_ceil(x_stages), rows <= 16 ? 16 : 256 / kernel.rows));
  const int64_t units = (grid.strips * kernel.rows / 8 + grid.splits - 1) / grid.splits;
  const int64_t fixed = kernel.barrier_bytes + args.x_stages * kernel.x_bytes + units * args.segments * 512;
  const int64_t strip_stages = grid.strips * kernel.stage_bytes;
  const int64_t fit = ((device.shared_limit() - kReservedShared) / 2 - fixed) / strip_stages;  // two blocks
  const int64_t stages = (tiles + kernel.stage_tiles - 1) / kernel.stage_tiles;
  args.ring_stages =
      static_cast<int32_t>(std::min<int64_t>(std::clamp<int64_t>(fit, 2, kMostStages / grid.strips), stages));
  WideX x_maps;
  if (!map_rows(device, args, workspace, rows, kernel.rows, x_maps)) return;
  cuda::launch(device,
               {.grid = grid.blocks(),
                .block = 32 * grid.strips,
                .shared_bytes = fixed + args.ring_stages * strip_stages,
                .cluster = static_cast<unsigned>(grid.splits),
                .overlap = true},
               kernel.kernel, args, x_maps);
}

// --- x that stays in shared memory, more than sixteen rows

constexpr int32_t kLeastResidentRows = 17, kResidentRows = 64;

int resident_blocks(CudaDevice& device, const MultiplyArgs& args, int units) {
  return std::min(device.sm_count() / args.segments, units);  // of a segment
}

// Where segments meet, with more than 32 rows where blocks have several units; of one segment with up to 32 rows where
// tiles are narrow and groups of warps have several units (measured).
bool resident_pays(CudaDevice& device, TileFormat format, const MultiplyArgs& args, int32_t rows) {
  if (rows < kLeastResidentRows || rows > kResidentRows || different_x(args) > 1) return false;
  if (args.segments > device.sm_count() || args.segment_tiles * kTileIns > kSegmentIns) return false;
  if (resident_kernel(format, rows, kResidentGroups).kernel == nullptr) return false;
  const int units = (args.strips + 3) / 4;
  const int blocks = resident_blocks(device, args, units);
  if (args.segments > 1) return rows <= 32 || units > blocks;
  return rows <= 32 && units > 4 * blocks && is_narrow(format);
}

// As many blocks for each segment, of all as many as multiprocessors; a group of four warps for each unit, where there
// are that many.
void launch_resident(CudaDevice& device, TileFormat format, MultiplyArgs args, std::byte* workspace, int32_t rows) {
  place_parts(args, 4);
  const int all = (args.places + 3) / 4;
  args.splits = resident_blocks(device, args, all);
  const int units = (all + args.splits - 1) / args.splits;
  const int rounds = (units + kResidentGroups - 1) / kResidentGroups, groups = (units + rounds - 1) / rounds;
  const ResidentKernel kernel = resident_kernel(format, rows, units > kResidentGroups ? kResidentGroups : groups);
  WideX x_maps;
  if (!map_rows(device, args, workspace, rows, kernel.rows, x_maps)) return;
  const int64_t x_bytes = resident_x_bytes(args.segment_tiles, kernel.rows, kernel.x_groups);
  const int64_t stage_bytes = kernel.stage_bytes + 16;
  const int64_t limit = (device.shared_limit() + kReservedShared) / kernel.blocks - kReservedShared;
  const int64_t stages = int64_t{rounds} * ((args.segment_tiles + kernel.stage_tiles - 1) / kernel.stage_tiles);
  args.ring_stages = static_cast<int32_t>(std::min((limit - x_bytes) / (4 * groups * stage_bytes), stages));
  cuda::launch(device,
               {.grid = args.splits * args.segments,
                .block = 128 * groups,
                .shared_bytes = std::max(x_bytes + 4 * groups * args.ring_stages * stage_bytes, kLeastShared),
                .together = true,
                .overlap = true},
               kernel.kernel, args, x_maps);
}

// --- a segment a block, up to 16 rows

bool segments_pay(CudaDevice& device, TileFormat format, const MultiplyArgs& args, int32_t rows) {
  if (rows > kSegmentRows || args.segments == 1 || different_x(args) > 1) return false;
  if (args.segments > device.sm_count()) return false;
  return segment_kernel(format, rows, kSegmentWarps).kernel != nullptr;
}

// A block a multiprocessor, beside which the next kernel's fits; two where much has to be multiplied (measured).
void launch_segments(CudaDevice& device, TileFormat format, MultiplyArgs args, int32_t rows) {
  const int all = args.strips * args.segments;  // segments of strips
  const bool two = all / device.sm_count() > (rows > 8 ? 20 : 40);
  const int blocks = std::min(device.sm_count() * (two ? 2 : 1), all);
  const int segment_blocks = blocks / args.segments;
  const int apart = (args.strips + segment_blocks - 1) / segment_blocks;  // of a block with one segment, at most
  const int dealt = (all + blocks - 1) / blocks;                          // the same with up to two
  const bool deal = two && is_narrow(format) && dealt < apart;            // elsewhere more x costs more (measured)
  const int strips = deal ? dealt : apart;
  const int rounds = (strips + kSegmentWarps - 1) / kSegmentWarps;
  const int warps = (strips + rounds - 1) / rounds;  // all have as much to do
  const SegmentKernel kernel = segment_kernel(format, rows, warps);
  place_parts(args, strips);
  args.block_segments = deal ? 2 : 1;
  args.x_rows = rows;
  const int64_t x_bytes = args.block_segments * SegmentX::bytes(args, rows), stage_bytes = warps * kernel.stage_bytes;
  const int64_t fit = ((device.shared_limit() - kReservedShared) / 2 - x_bytes) / stage_bytes;
  int64_t stages = (args.segment_tiles + kernel.stage_tiles - 1) / kernel.stage_tiles * rounds;
  // More would come before the next kernel's x (measured).
  if (warps > kFewSegmentWarps) stages = std::min<int64_t>(stages, 2);
  args.ring_stages = static_cast<int32_t>(std::clamp<int64_t>(fit, 1, stages));
  cuda::launch(device,
               {.grid = blocks,
                .block = 32 * warps,
                .shared_bytes = std::max(x_bytes + args.ring_stages * stage_bytes, kLeastShared),
                .together = true,
                .overlap = true},
               kernel.kernel, args);
}

}  // namespace

void prepare_packed(CudaDevice& device, TileFormat format) {
  if (!is_packed(format)) return;
  for (const int32_t rows : {32, 64}) {
    for (int groups = 2; groups <= kResidentGroups; ++groups) {
      const ResidentKernel resident = resident_kernel(format, rows, groups);
      if (resident.kernel != nullptr) cuda::allow_shared(resident.kernel, device.shared_limit());
    }
  }
  for (const int32_t rows : {8, kSegmentRows}) {
    for (const int warps : {kFewSegmentWarps, kSomeSegmentWarps, kSegmentWarps}) {
      const SegmentKernel segment = segment_kernel(format, rows, warps);
      if (segment.kernel != nullptr) cuda::allow_shared(segment.kernel, device.shared_limit());
    }
  }
  for (const int32_t rows : {8, 16, 32, 64}) {
    const TeamKernel team = team_kernel(format, rows);
    if (team.kernel == nullptr) continue;
    cuda::allow_shared(team.kernel, device.shared_limit());
    cuda::allow_large_clusters(team.kernel);
  }
}

int64_t multiply_posts(TileFormat format, const MultiplyArgs& args, int32_t rows) {
  if (!is_packed(format) || args.segments == 1) return 0;
  int64_t eights = 0;
  for (const int32_t most : {8, kSegmentRows}) {
    if (segment_kernel(format, most, kSegmentWarps).kernel != nullptr) eights = (std::min(rows, most) + 7) / 8;
  }
  const ResidentKernel resident = resident_kernel(format, rows, kResidentGroups);
  if (rows >= kLeastResidentRows && resident.kernel != nullptr) eights = resident.rows / 8;
  return int64_t{512} * args.segments * args.strips * eights;
}

bool launch_packed(CudaDevice& device, TileFormat format, const MultiplyArgs& args, std::byte* workspace,
                   int32_t rows) {
  if (resident_pays(device, format, args, rows)) {
    launch_resident(device, format, args, workspace, rows);
  } else if (segments_pay(device, format, args, rows)) {
    launch_segments(device, format, args, rows);
  } else if (team_pays(device, format, args, rows)) {
    launch_team(device, format, args, workspace, rows);
  } else {
    return false;
  }
  return true;
}

}  // namespace weir
