#include "ops/attention/attention.h"

#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ops/attention/attention_kernel.h"

namespace weir {

namespace reference {
void attention_row(const AttentionArgs& args, const StepView& step, int64_t row, int64_t head, float* scratch);
}
namespace avx2 {
void attention_pieces(const AttentionTask& task);
void attention_merge(const AttentionTask& task, float* partials, int64_t piece_stride, int64_t first, int64_t end);
}  // namespace avx2
namespace avx512 {
void attention_pieces(const AttentionTask& task);
void attention_merge(const AttentionTask& task, float* partials, int64_t piece_stride, int64_t first, int64_t end);
}  // namespace avx512

void check_cpu_state(const std::string& name, StateDtype dtype) {
  if (dtype == StateDtype::kBf16) fail(name, ": expected state in F32 or F16 on the CPU, found BF16");
}

bool attention_shares_rows(const AttentionArgs& args) {
  return args.kv_heads == 1 && args.value_dim <= args.key_dim && args.key.group == args.value.group &&
         args.key.offset == args.value.offset;
}

bool attention_rounds(const AttentionArgs& args) {
  if (args.activations != Activations::kAuto) return false;
  return std::max(args.key_dim, args.value_dim) <= 256 ||
         (attention_shares_rows(args) && args.key_dim == 576 && args.value_dim == 512);
}

static int64_t bytes_per_position(const AttentionArgs& args) {
  const int64_t elements = args.kv_heads * (args.key_dim + (attention_shares_rows(args) ? 0 : args.value_dim));
  return elements * state_dtype_bytes(args.dtype);
}

Cost attention_cost(const AttentionArgs& args, int32_t rows, int64_t position) {
  const auto n = static_cast<double>(rows);
  double positions = n * static_cast<double>(position + 1) - n * (n - 1) / 2;  // of all rows
  if (args.window > 0) positions = std::min(positions, n * static_cast<double>(args.window));
  const int64_t first = first_visible(std::max<int64_t>(position - rows + 1, 0), args.window);
  return {.state_bytes = (position + 1 - first) * bytes_per_position(args),
          .flops = 2. * static_cast<double>(args.heads * (args.key_dim + args.value_dim)) * positions};
}

namespace {

constexpr int64_t kMaxPieces = 66;    // of a block of rows: a window of 64 pieces, moved by less than one
constexpr int64_t kMergeQueries = 4;  // per item of the loop that merges

AttentionKernel kernel_of(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
      return {};
    case KernelSet::kAvx2:
      return {avx2::attention_pieces, avx2::attention_merge};
    case KernelSet::kAvx512:
      return {avx512::attention_pieces, avx512::attention_merge};
  }
  return {};
}

class ReferenceAttention final : public BoundOp {
 public:
  ReferenceAttention(CpuDevice& device, std::string name, const AttentionArgs& args)
      : BoundOp(std::move(name)), device_(device), args_(args) {
    device.reserve_scratch(2 * args.value_dim * 4);
  }

  void run(const StepView& step) override {
    for (int64_t position : step.positions) {
      const int64_t positions = position + 1 - first_visible(position, args_.window);
      device_.counters().state_bytes_read += positions * bytes_per_position(args_);
    }
    device_.pool().parallel_for(step.rows * args_.heads, [&](int64_t i, int thread) {
      float* scratch = reinterpret_cast<float*>(device_.scratch(thread));
      reference::attention_row(args_, step, i / args_.heads, i % args_.heads, scratch);
    });
  }

  Cost cost(int32_t rows, int64_t position) const override { return attention_cost(args_, rows, position); }

 private:
  CpuDevice& device_;
  AttentionArgs args_;
};

// Consecutive rows of a span whose pieces have the same size.
struct Block {
  const SpanView* span;
  int64_t row;
  int64_t rows;
  int64_t position;
  int64_t visible;  // the first position that the first row sees
  int64_t piece;
  int64_t unit_kv_heads;  // KV heads of a unit
  int64_t units;
  bool split;  // its pieces are computed side by side

  int64_t positions() const { return position + rows - visible; }
  int64_t first_piece() const { return visible / piece; }
  int64_t end_piece() const { return (position + rows - 1) / piece + 1; }
  int64_t pieces() const { return end_piece() - first_piece(); }
};

int64_t padded16(int64_t n) { return (n + 15) / 16 * 16; }
// Queries of a KV head as the kernels count them.
int64_t padded_queries(int64_t n) { return n <= 2 ? n : (n + 3) / 4 * 4; }

// A unit of work is a block of rows times some heads: many rows of one KV head, or few rows of several KV heads, whose
// rows in the pages are then read as one stream. Usually a unit is one task, which merges its pieces as it goes. A unit
// that would keep the others waiting (one long sequence) is split into a task per piece; those leave their results in a
// buffer for a second loop that merges them. The buffer holds a bounded number of pieces, so split units may take
// several waves. It lies in thread 0's scratch behind that thread's own part: no other op runs between the two loops,
// and all layers share it.
class Attention final : public BoundOp {
 public:
  Attention(CpuDevice& device, std::string name, const AttentionArgs& args)
      : BoundOp(std::move(name)),
        device_(device),
        args_(args),
        kernel_(kernel_of(device.kernels())),
        shared_(attention_shares_rows(args)),
        q_per_kv_(args.heads / args.kv_heads) {
    const int64_t groups = (q_per_kv_ + kMostHeads - 1) / kMostHeads;
    most_heads_ = (q_per_kv_ + groups - 1) / groups;
    block_rows_ = kAttentionQueries / most_heads_;
    while (padded_queries(block_rows_ * most_heads_) > kAttentionQueries) --block_rows_;
    piece_stride_ = kAttentionQueries * (padded16(args.value_dim) + 16);
    wave_pieces_ = std::max<int64_t>(kMaxPieces, 4 * device.threads());
    blocks_.resize(static_cast<size_t>(args.max_rows));
    wave_.resize(static_cast<size_t>(wave_pieces_));
    wave_units_.resize(static_cast<size_t>(wave_pieces_));
    task_floats_ = carve(nullptr, nullptr);
    device.reserve_scratch((task_floats_ + wave_pieces_ * piece_stride_) * 4);
  }

  void run(const StepView& step) override {
    assert(step.rows <= args_.max_rows);
    cut_blocks(step);
    choose_units();
    // Unit by unit of all blocks, so that the blocks of a span find its pages in cache; longest first: the later blocks
    // of a span see more positions.
    device_.pool().parallel_for(block_count_ * most_units_, [&](int64_t i, int thread) {
      const Block& block = blocks_[static_cast<size_t>(block_count_ - 1 - i % block_count_)];
      const int64_t unit = i / block_count_;
      if (unit >= block.units || block.split) return;
      kernel_.pieces(task(step, block, unit, block.first_piece(), block.end_piece(), thread));
    });
    if (split_count_ > 0) run_split(step);
  }

  Cost cost(int32_t rows, int64_t position) const override { return attention_cost(args_, rows, position); }

 private:
  // Heads of a unit that share a KV head: more would gain nothing, and there are more units this way.
  static constexpr int64_t kMostHeads = 32;
  // K and V of a tile, of all KV heads of a unit, must stay in L2.
  static constexpr int64_t kTileBytes = 512 << 10;

  struct UnitInWave {
    const Block* block;
    int64_t unit;
    int64_t first;  // entry of its first piece
  };
  struct PieceInWave {
    int64_t unit;  // in wave_units_
    int64_t piece;
  };

  int64_t head_groups() const { return (q_per_kv_ + group_heads_ - 1) / group_heads_; }

  void cut_blocks(const StepView& step) {
    block_count_ = 0;
    for (const SpanView& span : step.spans) {
      for (int64_t r = 0; r < span.rows;) {
        const int64_t position = span.first_position + r;
        Block block{.span = &span,
                    .row = span.first_row + r,
                    .position = position,
                    .visible = first_visible(position, args_.window),
                    .piece = attention_piece(position, args_.window)};
        while (r < span.rows && block.rows < block_rows_ &&
               attention_piece(position + block.rows, args_.window) == block.piece) {
          ++block.rows;
          ++r;
        }
        device_.counters().state_bytes_read += block.positions() * bytes_per_position(args_);
        blocks_[static_cast<size_t>(block_count_++)] = block;
      }
    }
  }

  // Decides how many heads a unit has, so that there is enough to share out, and which units are split.
  void choose_units() {
    const int64_t tile_bytes = kAttentionTile * bytes_per_position(args_) / args_.kv_heads;
    int64_t most_kv = std::clamp<int64_t>(kTileBytes / tile_bytes, 1, args_.kv_heads);
    group_heads_ = most_heads_;
    while (count_units(most_kv) < 4 * device_.threads() && most_kv > 1) most_kv = (most_kv + 1) / 2;
    // Each unit widens the keys for itself: fewer heads of a KV head only where threads would be idle.
    while (count_units(most_kv) < 2 * device_.threads() && group_heads_ > 4) group_heads_ = (group_heads_ + 1) / 2;
    int64_t work = 0;
    for (int64_t b = 0; b < block_count_; ++b) {
      const Block& block = blocks_[static_cast<size_t>(b)];
      work += block.rows * block.positions() * args_.kv_heads * head_groups();
    }
    split_count_ = 0;
    for (int64_t b = 0; b < block_count_; ++b) {
      Block& block = blocks_[static_cast<size_t>(b)];
      const int64_t unit_work = block.rows * block.positions() * block.unit_kv_heads;
      block.split = device_.threads() > 1 && block.pieces() > 1 && 4 * device_.threads() * unit_work > work;
      split_count_ += block.split;
    }
  }

  // Sets the units of all blocks, with at most `most_kv` KV heads each; returns how many tasks there can be.
  int64_t count_units(int64_t most_kv) {
    int64_t tasks = 0;
    most_units_ = 0;
    for (int64_t b = 0; b < block_count_; ++b) {
      Block& block = blocks_[static_cast<size_t>(b)];
      const int64_t fit = kAttentionQueries / padded_queries(block.rows * group_heads_);
      block.unit_kv_heads = head_groups() > 1 ? 1 : std::clamp<int64_t>(fit, 1, most_kv);
      block.units = (args_.kv_heads + block.unit_kv_heads - 1) / block.unit_kv_heads * head_groups();
      most_units_ = std::max(most_units_, block.units);
      tasks += block.units * block.pieces();
    }
    return tasks;
  }

  void run_split(const StepView& step) {
    int64_t pieces = 0;
    int64_t units = 0;
    for (int64_t b = 0; b < block_count_; ++b) {
      const Block& block = blocks_[static_cast<size_t>(b)];
      if (!block.split) continue;
      for (int64_t u = 0; u < block.units; ++u) {
        if (pieces + block.pieces() > wave_pieces_) {
          run_wave(step, pieces, units);
          pieces = units = 0;
        }
        wave_units_[static_cast<size_t>(units)] = {&block, u, pieces};
        for (int64_t piece = block.first_piece(); piece < block.end_piece(); ++piece) {
          wave_[static_cast<size_t>(pieces++)] = {units, piece};
        }
        ++units;
      }
    }
    run_wave(step, pieces, units);
  }

  void run_wave(const StepView& step, int64_t pieces, int64_t units) {
    float* partials = reinterpret_cast<float*>(device_.scratch(0)) + task_floats_;
    device_.pool().parallel_for(pieces, [&](int64_t i, int thread) {
      const PieceInWave& entry = wave_[static_cast<size_t>(i)];
      const UnitInWave& unit = wave_units_[static_cast<size_t>(entry.unit)];
      AttentionTask piece = task(step, *unit.block, unit.unit, entry.piece, entry.piece + 1, thread);
      piece.partial = partials + i * piece_stride_;
      kernel_.pieces(piece);
    });
    const int64_t parts = kAttentionQueries / kMergeQueries;
    device_.pool().parallel_for(units * parts, [&](int64_t i, int thread) {
      const UnitInWave& unit = wave_units_[static_cast<size_t>(i / parts)];
      const int64_t first_piece = unit.block->first_piece();
      const AttentionTask whole = task(step, *unit.block, unit.unit, first_piece, first_piece, thread);
      const int64_t first = i % parts * kMergeQueries;
      const int64_t end = std::min(first + kMergeQueries, whole.kv_heads * whole.per_kv);
      if (first < end) kernel_.merge(whole, partials + unit.first * piece_stride_, piece_stride_, first, end);
    });
  }

  AttentionTask task(const StepView& step, const Block& block, int64_t unit, int64_t first_piece, int64_t end_piece,
                     int thread) {
    const int64_t kv_head = unit / head_groups() * block.unit_kv_heads;
    const int64_t in_kv_head = unit % head_groups() * group_heads_;
    const int64_t heads = std::min(group_heads_, q_per_kv_ - in_kv_head);
    const auto key_group = static_cast<size_t>(args_.key.group);
    const auto value_group = static_cast<size_t>(args_.value.group);
    AttentionTask t{.args = &args_,
                    .key_pool = step.page_pools[key_group],
                    .value_pool = step.page_pools[value_group],
                    .key_pages = block.span->pages[key_group].data(),
                    .value_pages = block.span->pages[value_group].data(),
                    .row = block.row,
                    .rows = block.rows,
                    .position = block.position,
                    .visible = block.visible,
                    .piece = block.piece,
                    .kv_head = kv_head,
                    .kv_heads = std::min(block.unit_kv_heads, args_.kv_heads - kv_head),
                    .head = kv_head * q_per_kv_ + in_kv_head,
                    .heads = heads,
                    .per_kv = padded_queries(block.rows * heads),
                    .shared = shared_,
                    .first_piece = first_piece,
                    .end_piece = end_piece,
                    .partial = nullptr,
                    .scratch = {}};
    carve(reinterpret_cast<float*>(device_.scratch(thread)), &t.scratch);
    return t;
  }

  // Lays a task's buffers out from `base`; returns the floats they take. Every part is a multiple of 64 bytes.
  int64_t carve(float* base, AttentionScratch* scratch) const {
    const int64_t key_width = padded16(args_.key_dim);
    const int64_t value_width = padded16(args_.value_dim);
    int64_t used = 0;
    const auto take = [&](int64_t floats) { return std::exchange(used, used + floats); };
    const int64_t q = take(kAttentionQueries * key_width);
    const int64_t scores = take(kAttentionQueries * kAttentionTile);
    const int64_t acc = take(2 * kAttentionQueries * value_width);
    const int64_t max_sum = take(4 * kAttentionQueries);
    const int64_t next = take(2 * kAttentionQueries);
    const int64_t scale = take(kAttentionQueries);
    const int64_t position = take(2 * kAttentionQueries);
    const int64_t from = take(2 * kAttentionQueries);
    const int64_t present = take(2 * kAttentionQueries);
    const int64_t wide = take(kAttentionTile * std::max(key_width, value_width));
    if (scratch) {
      *scratch = {.q = base + q,
                  .scores = base + scores,
                  .acc = base + acc,
                  .max_sum = base + max_sum,
                  .next = base + next,
                  .scale = base + scale,
                  .position = reinterpret_cast<int64_t*>(base + position),
                  .from = reinterpret_cast<int64_t*>(base + from),
                  .present = reinterpret_cast<int64_t*>(base + present),
                  .wide = base + wide};
    }
    return used;
  }

  CpuDevice& device_;
  AttentionArgs args_;
  AttentionKernel kernel_;
  bool shared_;
  int64_t q_per_kv_;
  int64_t most_heads_;    // of a KV head in a unit
  int64_t block_rows_;    // most
  int64_t piece_stride_;  // floats
  int64_t wave_pieces_;
  int64_t task_floats_;
  // The plan of a step.
  int64_t group_heads_ = 1;  // heads of a KV head in a unit
  int64_t block_count_ = 0;
  int64_t most_units_ = 0;
  int64_t split_count_ = 0;
  std::vector<Block> blocks_;
  std::vector<PieceInWave> wave_;
  std::vector<UnitInWave> wave_units_;
};

void check_field(const std::string& name, const char* what, const PageField& field, int64_t elements,
                 StateDtype dtype) {
  if (field.group < 0 || field.group >= kMaxPageGroups) fail(name, ": ", what, ": no page group ", field.group);
  if (elements * state_dtype_bytes(dtype) > field.row_bytes) {
    fail(name, ": ", what, ": a page row of ", field.row_bytes, " bytes is too short for ", elements, " elements");
  }
}

}  // namespace

std::unique_ptr<BoundOp> bind_attention(Device& device, std::string name, const AttentionArgs& args) {
  if (args.kv_heads <= 0 || args.heads <= 0 || args.heads % args.kv_heads != 0) {
    fail(name, ": expected heads to be a multiple of KV heads, found ", args.heads, " and ", args.kv_heads);
  }
  if (args.key_dim <= 0 || args.value_dim <= 0) {
    fail(name, ": expected positive head dimensions, found ", args.key_dim, " and ", args.value_dim);
  }
  if (args.max_rows <= 0) fail(name, ": expected room for at least one row, found ", args.max_rows);
  if (args.window < 0) fail(name, ": expected a window of at least one position, or 0 for none, found ", args.window);
  check_field(name, "keys", args.key, args.kv_heads * args.key_dim, args.dtype);
  check_field(name, "values", args.value, (args.kv_heads - 1) * args.value_head_stride + args.value_dim, args.dtype);
  assert(args.q && args.out);
  if (device.is_cuda()) return bind_attention_cuda(device.cuda(), std::move(name), args);
  check_cpu_state(name, args.dtype);
  CpuDevice& cpu = device.cpu();
  if (cpu.kernels() == KernelSet::kReference) return std::make_unique<ReferenceAttention>(cpu, std::move(name), args);
  return std::make_unique<Attention>(cpu, std::move(name), args);
}

}  // namespace weir
