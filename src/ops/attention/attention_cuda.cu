#include <algorithm>

#include "base/error.h"
#include "ops/attention/attention_mma.h"
#include "ops/cuda_op.h"

namespace weir {
namespace {

using cuda::launch;

class PlainCudaAttention final : public CudaOp {
 public:
  PlainCudaAttention(CudaDevice& device, std::string name, const AttentionArgs& args, const SelectedRows& selected)
      : CudaOp(device, std::move(name)), args_(args), selected_(selected) {
    prepare_plain_attention(args);
  }

  void enqueue(const StepBounds& bounds) override { launch_plain_attention(device(), bounds, args_, selected_); }
  Cost cost(int32_t rows, int64_t position) const override { return attention_cost(args_, rows, position); }

 private:
  AttentionArgs args_;
  SelectedRows selected_;
};

// Kernels for heads of these dimensions.
MmaKernels find_kernels(const AttentionArgs& args, bool many) {
  const int64_t dim = std::max(args.key_dim, args.value_dim);
  if (dim > 256) return latent_kernels();
  return dim <= 64 ? mma_kernels_64(many) : dim <= 128 ? mma_kernels_128(many) : mma_kernels_256(many);
}

class MmaCudaAttention final : public CudaOp {
 public:
  MmaCudaAttention(CudaDevice& device, std::string name, const AttentionArgs& args, const SelectedRows& selected,
                   const MmaKernels& few, const MmaKernels& many)
      : CudaOp(device, std::move(name)), few_(variant(args, selected, few)), many_(variant(args, selected, many)) {}

  void enqueue(const StepBounds& bounds) override {
    if (bounds.rows == 0) return;
    const int64_t shared_queries = few_.attention.geometry.q_per_kv * longest_run(bounds);
    Variant& variant = shared_queries <= few_.kernels.slot.queries ? few_ : many_;
    const MmaKernels& kernels = variant.kernels;
    MmaAttention a = variant.attention;
    a.merge_rows = reinterpret_cast<MergeRow*>(device().workspace());
    a.partials = reinterpret_cast<float*>(device().workspace() + row_bytes(a.args.max_rows));
    a.nodes = a.partials + a.slots * a.slot.floats();
    a.tile_weights = reinterpret_cast<std::byte*>(a.nodes);  // there are no nodes then
    if (splits(variant, bounds)) return enqueue_split(variant, a, bounds);
    const int64_t most_pieces = pieces(a, bounds);
    const int64_t units = bounds.rows * a.geometry.tiles() * most_pieces;
    const int64_t grid = std::min<int64_t>(units, resident(kernels));
    const bool single = longest_run(bounds) == 1 && a.selected.list == nullptr && kernels.attend_single != nullptr;
    launch(device(), {.grid = grid, .block = kernels.threads, .shared_bytes = kernels.shared_bytes, .overlap = true},
           single ? kernels.attend_single : kernels.attend, device().step(), a);
    if (most_pieces > 1) merge(variant, a, bounds);
  }

  Cost cost(int32_t rows, int64_t position) const override {
    return attention_cost(few_.attention.args, rows, position);
  }

 private:
  static constexpr int64_t kPartialBytes = int64_t{128} << 20;
  static constexpr int64_t kMostPieces = 65;
  static constexpr int64_t kMostSplitRows = 32, kMostSplitPieces = 40, kSplitTiles = 8192;

  struct Variant {
    MmaKernels kernels;
    MmaAttention attention;
  };

  void merge(const Variant& variant, const MmaAttention& a, const StepBounds& bounds) {
    launch(device(), {.grid = {bounds.rows, a.args.heads}, .block = std::max(32, a.slot.dims / 4), .overlap = true},
           variant.kernels.merge, device().step(), a);
  }

  // Most positions that a row sees, and their pieces; without a window.
  static int64_t most_seen(const MmaAttention& a, const StepBounds& bounds) {
    return a.selected.list != nullptr ? std::min(a.selected.top_k, bounds.longest_context) : bounds.longest_context;
  }
  static int64_t full_pieces(const MmaAttention& a, const StepBounds& bounds) {
    const int64_t least = a.geometry.piece(0);
    return std::min((most_seen(a, bounds) + least - 1) / least, (kMostPieces >> a.geometry.piece_shift) + 1);
  }
  static int64_t weight_tiles(const MmaAttention& a, const StepBounds& bounds) {
    return bounds.rows * a.geometry.tiles() * ((most_seen(a, bounds) + kKeyTile - 1) / kKeyTile);
  }
  // Is a piece so long, and are there so few, that weights of all tiles are made first?
  bool splits(const Variant& variant, const StepBounds& bounds) const {
    const MmaAttention& a = variant.attention;
    if (variant.kernels.weigh == nullptr || a.geometry.piece_shift <= 1 || a.geometry.window > 0) return false;
    const int64_t seen = most_seen(a, bounds), piece = std::min(a.geometry.piece(seen - 1), seen);
    if ((a.selected.list != nullptr ? piece : piece / kPagePositions) > kMostSplitEntries) return false;
    return longest_run(bounds) == 1 && bounds.rows <= kMostSplitRows && weight_tiles(a, bounds) <= kSplitTiles &&
           bounds.rows * a.geometry.tiles() * full_pieces(a, bounds) <= kMostSplitPieces;
  }
  void enqueue_split(const Variant& variant, MmaAttention a, const StepBounds& bounds) {
    const MmaKernels& kernels = variant.kernels;
    const int64_t pieces = full_pieces(a, bounds);
    launch(device(),
           {.grid = std::min(weight_tiles(a, bounds), resident(kernels)),
            .block = kernels.threads / 2,
            .shared_bytes = kernels.shared_bytes,
            .overlap = true},
           kernels.weigh, device().step(), a);
    launch(device(),
           {.grid = bounds.rows * a.geometry.tiles() * pieces * (a.slot.dims / 64),
            .block = kernels.add_threads,
            .shared_bytes = kernels.add_shared_bytes,
            .overlap = true},
           kernels.add, device().step(), a);
    if (pieces > 1) merge(variant, a, bounds);
  }

  static int64_t row_bytes(int64_t rows) { return (rows * static_cast<int64_t>(sizeof(MergeRow)) + 255) / 256 * 256; }
  // Do all heads of all rows begin at multiples of this many elements?
  static bool aligned(const float* x, RowType type, int64_t stride, int64_t dim, int64_t elements) {
    const int64_t size = std::min<int64_t>(elements * (type == RowType::kBf16 ? 2 : 4), 16);
    return reinterpret_cast<uintptr_t>(x) % static_cast<uintptr_t>(size) == 0 && stride % elements == 0 &&
           dim % elements == 0;
  }
  int64_t resident(const MmaKernels& kernels) const {
    return static_cast<int64_t>(device().sm_count()) * kernels.blocks_per_sm;
  }
  // Rows that may share a tile.
  int64_t longest_run(const StepBounds& bounds) const {
    return few_.attention.selected.list != nullptr ? 1 : bounds.longest_span;
  }
  // Most pieces of a row.
  static int64_t pieces(const MmaAttention& a, const StepBounds& bounds) {
    if (a.geometry.window == 0 && bounds.longest_context <= a.geometry.piece(0)) return 1;
    return kMostPieces;
  }

  // As attention.h has it.
  static int32_t piece_shift(const AttentionArgs& args) {
    const int64_t heads = args.heads / args.kv_heads;
    return args.value_dim <= 256 ? 0 : heads <= 32 ? 1 : heads <= 96 ? 2 : 3;
  }

  Variant variant(const AttentionArgs& args, const SelectedRows& selected, const MmaKernels& kernels) {
    const auto q_per_kv = static_cast<int32_t>(args.heads / args.kv_heads);
    const int32_t groups = (q_per_kv + kernels.slot.queries - 1) / kernels.slot.queries;
    const int32_t tile_heads = (q_per_kv + groups - 1) / groups;
    const AttentionGeometry geometry{.tile_heads = tile_heads,
                                     .head_groups = groups,
                                     .block_rows = kernels.slot.queries / tile_heads,
                                     .q_per_kv = q_per_kv,
                                     .kv_heads = static_cast<int32_t>(args.kv_heads),
                                     .piece_shift = piece_shift(args),
                                     .unit_logs = kernels.tree ? kMostUnitLogs : 1,
                                     .window = args.window};
    const int64_t most = args.max_rows * geometry.tiles() * kMostPieces;
    const int64_t slots =
        std::max(std::min(kPartialBytes / (kernels.slot.floats() * 4), most), resident(kernels) * kernels.workers);
    const int64_t nodes = kernels.tree ? resident(kernels) * kTreeLevels : 0;
    const int64_t weight_bytes = kernels.weigh != nullptr ? kSplitTiles * kTileWeightBytes : 0;
    const int64_t node_bytes = std::max(nodes * kernels.slot.floats() * 4, weight_bytes);
    device().reserve_workspace(row_bytes(args.max_rows) + slots * kernels.slot.floats() * 4 + node_bytes);
    return {.kernels = kernels,
            .attention = {.args = args,
                          .selected = selected,
                          .geometry = geometry,
                          .scale2 = args.scale * 1.44269504088896341f,
                          .vectors = aligned(args.q, args.q_type, args.q_stride, args.key_dim,
                                             args.q_type == RowType::kBf16 ? 8 : 4),
                          .out_chunks = args.out_type == RowType::kBf16 &&
                                        aligned(args.out, args.out_type, args.out_stride, args.value_dim, 8),
                          .out_pairs = aligned(args.out, args.out_type, args.out_stride, args.value_dim, 2),
                          .slot = kernels.slot,
                          .slots = slots}};
  }

  Variant few_, many_;
};

}  // namespace

std::unique_ptr<BoundOp> make_cuda_attention(CudaDevice& device, std::string name, const AttentionArgs& args,
                                             const SelectedRows& selected) {
  if (!(args.scale > 0)) fail(name, ": scale: expected a positive number, found ", args.scale);
  AttentionArgs on_device = args;
  on_device.sinks = device.upload(args.sinks, args.heads);
  if (attention_rounds(args)) {
    return std::make_unique<MmaCudaAttention>(device, std::move(name), on_device, selected, find_kernels(args, false),
                                              find_kernels(args, true));
  }
  if (args.q_type != RowType::kF32 || args.out_type != RowType::kF32) fail(name, ": expected FP32 rows, found BF16");
  return std::make_unique<PlainCudaAttention>(device, std::move(name), on_device, selected);
}

std::unique_ptr<BoundOp> bind_attention_cuda(CudaDevice& device, std::string name, const AttentionArgs& args) {
  return make_cuda_attention(device, std::move(name), args, {});
}

}  // namespace weir
