// Attention of few queries, at most sixteen that share a KV head, on tensor cores (m16n8k16); numeric specification in
// attention.h. Each warp has units of its own, and a ring of stages in shared memory through which keys and values of
// all its units pass: it reads ahead over the ends of units, and waits for no other warp.
#pragma once

#include "ops/attention/attention_softmax_cuda.cuh"
#include "ops/attention/attention_units_cuda.cuh"

namespace weir::few {

namespace ptx = cuda::ptx;

inline constexpr int kWarps = 4, kThreads = 32 * kWarps, kQueries = 16;

// What a warp keeps in shared memory of its units: those that it has begun to read, and where it reads.
struct WarpUnits {
  static constexpr int kAhead = 4;  // more than stages can be of different units
  AttentionWork work[kAhead];
  mma::TileSource keys, values;
  int new_from;  // positions of this step: those before are as earlier steps have left them
};

template <int kDim_>
struct Shape {
  static constexpr int kDim = kDim_;                       // of keys and of values, padded with zeros
  static constexpr int kPositions = kDim > 128 ? 32 : 64;  // of a stage
  static constexpr int kParts = kKeyTile / kPositions;     // stages for the keys of a tile, or its values
  static constexpr int kStageBytes = kPositions * kDim * 2;
  static constexpr int kStages = (48 << 10) / kStageBytes;
  static constexpr int kQueryBytes = kQueries * kDim * 2;
  static constexpr int kWarpBytes = kQueryBytes + kStages * kStageBytes;
  static constexpr int kUnitsAt = kWarps * kWarpBytes;
  static constexpr int kPlanAt = kUnitsAt + kWarps * static_cast<int>(sizeof(WarpUnits));
  static constexpr int kSharedBytes = kPlanAt + static_cast<int>(sizeof(AttentionPlan));
};

// Units are dealt to the first warps of all blocks, then to the second ones.
__device__ inline int first_unit() { return threadIdx.x / 32 * gridDim.x + blockIdx.x; }

// Finds a warp's next unit, from `index` on, and where its keys and values are. Out of line: it is called from a loop
// that has to fit the instruction cache.
template <class S, class Units>
[[gnu::noinline]] __device__ void find_next(const MmaAttention& a, const StepView& step, Units& all, int index,
                                            AttentionWork& work, WarpUnits& units) {
  AttentionWork found = all.find(index, kWarps * gridDim.x);
  found.slot = all.split() ? found.index : first_unit();
  __syncwarp();
  work = found;
  if (!found.none()) {
    const SpanView& span = span_of(step, a.selected, found.entry);
    const AttentionArgs& args = a.args;
    const int32_t* list = a.selected.of(found.entry);
    units.keys = {paged_rows(step, span, args.key, list), args.dtype, found.kv_head * args.key_dim, args.key_dim,
                  S::kDim};
    units.new_from = static_cast<int>(span.first_position);
    units.values = {paged_rows(step, span, args.value, list), args.dtype, found.kv_head * args.value_head_stride,
                    args.value_dim, S::kDim};
  }
  __syncwarp();
}

// Copies the keys and values of a warp's units to its stages, in the order in which they are used.
template <class S, class Units>
class Reader {
 public:
  __device__ Reader(const MmaAttention& a, const StepView& step, const Units& all, std::byte* stages, WarpUnits& units)
      : a_(a), step_(step), all_(all), stages_(stages), units_(units) {
    start_unit(first_unit());
  }
  __device__ void fill() {
#pragma unroll 1
    for (int s = 0; s < S::kStages; ++s) read();
  }

  // For the kernel before this one, which has made what this one reads but for earlier steps' keys and values.
  __device__ void wait_for_previous() {
    if (!waited_) ptx::wait_for_previous();
    waited_ = true;
  }

  // Until the oldest stage has arrived; its address.
  __device__ uint32_t wait() const {
    ptx::wait_copies<S::kStages - 1>();
    __syncwarp();
    return ptx::shared_address(stages_ + stage_ * S::kStageBytes);
  }
  // The oldest stage has been used: fills it anew.
  __device__ void release() {
    __syncwarp();
    read();
  }

 private:
  __device__ void start_unit(int index) {
    AttentionWork& work = units_.work[++unit_ % WarpUnits::kAhead];
    find_next<S>(a_, step_, all_, index, work, units_);
    index_ = work.index, first_ = work.first, last_ = work.none() ? -1 : work.last;
    tile_ = work.first_tile(), part_ = 0;
  }

  __device__ void read() {
    if (tile_ <= last_) {
      if (a_.selected.list != nullptr || tile_ + kKeyTile > units_.new_from) wait_for_previous();
      const mma::TileSource& source = part_ < S::kParts ? units_.keys : units_.values;
      mma::load_tile<S::kDim, 32, mma::SwizzledRows<S::kDim>, S::kPositions>(
          source, tile_ + part_ % S::kParts * S::kPositions, first_, last_, stages_ + stage_ * S::kStageBytes,
          threadIdx.x % 32);
      if (++part_ == 2 * S::kParts) {
        part_ = 0;
        tile_ += kKeyTile;
        if (tile_ > last_) start_unit(index_ + kWarps * gridDim.x);
      }
    }
    ptx::commit_copies();
    stage_ = stage_ + 1 == S::kStages ? 0 : stage_ + 1;
  }

  const MmaAttention& a_;
  const StepView& step_;
  Units all_;
  std::byte* stages_;
  WarpUnits& units_;
  int stage_ = 0;  // the oldest, which is filled next
  int unit_ = -1;  // how many have been begun before this one
  int index_, first_, last_, tile_;
  int part_;  // of the tile: keys, then values
  bool waited_ = false;
};

// What a warp does with a unit.
template <class S, class Units>
class Attender {
 public:
  __device__ Attender(const MmaAttention& a, Reader<S, Units>& reader, std::byte* queries)
      : a_(a), reader_(reader), queries_(queries) {}

  __device__ void run(const AttentionWork& unit, float* slot) {
    __syncwarp();  // those of the unit before have been used
    mma::load_queries<S::kDim, kQueries, 4, mma::SwizzledRows<S::kDim>>(a_, unit, 0, queries_, lane(), 32);
    __syncwarp();
    softmax_.start_unit(a_, unit, query(0), query(1));
#pragma unroll 1
    for (int tile = unit.first_tile(); tile <= unit.last; tile += kKeyTile) {
      if (unit.starts_piece(tile)) start_piece();
      float scores[kKeyTile / 8][4];
      multiply_keys(scores);
      softmax_.mask(tile, scores);
      uint32_t weights[kKeyTile / 16][4];
      float scale[2];
      softmax_.weigh(scores, a_.scale2, weights, scale, unit.count > 8);
      rescale(0, scale[0]);
      rescale(1, scale[1]);
      multiply_values(weights);
      if (!unit.ends_piece(tile)) continue;
      end_piece(unit, tile, 0, slot);
      end_piece(unit, tile, 1, slot);
    }
  }

 private:
  __device__ static int lane() { return threadIdx.x % 32; }
  // The query that half h of this thread's numbers belong to.
  __device__ static int query(int h) { return lane() / 4 + 8 * h; }

  __device__ void start_piece() {
    softmax_.start_piece();
#pragma unroll
    for (int n = 0; n < S::kDim / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc_[n][i] = 0;
    }
  }

  __device__ void multiply_keys(float (&scores)[kKeyTile / 8][4]) {
    constexpr int kTiles = S::kPositions / 8;  // of eight positions, of a stage
    const uint32_t queries = ptx::shared_address(queries_);
    const int l = lane();
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) {
      const uint32_t keys = reader_.wait();
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[part * kTiles + n][i] = 0;
      }
#pragma unroll 2
      for (int k = 0; k < S::kDim / 16; ++k) {
        uint32_t a[4];
        ptx::load_matrix_x4(a, queries + mma::chunk_offset(l % 16, 2 * k + l / 16, S::kDim * 2));
#pragma unroll
        for (int n = 0; n < kTiles; n += 2) {
          uint32_t b[4];
          ptx::load_matrix_x4(b, keys + mma::chunk_offset(8 * n + l / 16 * 8 + l % 8, 2 * k + l / 8 % 2, S::kDim * 2));
          ptx::mma_bf16(scores[part * kTiles + n], a, b[0], b[1]);
          ptx::mma_bf16(scores[part * kTiles + n + 1], a, b[2], b[3]);
        }
      }
      reader_.release();
    }
  }

  __device__ void rescale(int h, float factor) {
    if (__all_sync(cuda::kAllLanes, factor == 1.f)) return;
#pragma unroll
    for (int i = 2 * h; i < 2 * h + 2; ++i) {
#pragma unroll
      for (int n = 0; n < S::kDim / 8; ++n) acc_[n][i] *= factor;
    }
  }

  __device__ void multiply_values(const uint32_t (&weights)[kKeyTile / 16][4]) {
    constexpr int kSteps = S::kPositions / 16;  // of a stage
    const int l = lane();
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) {
      const uint32_t values = reader_.wait();
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const uint32_t* a = weights[part * kSteps + k];
#pragma unroll
        for (int n = 0; n < S::kDim / 8; n += 2) {
          uint32_t b[4];
          ptx::load_matrix_x4_transposed(b, values + mma::chunk_offset(16 * k + l % 16, n + l / 16, S::kDim * 2));
          ptx::mma_bf16(acc_[n], a, b[0], b[1]);
          ptx::mma_bf16(acc_[n + 1], a, b[2], b[3]);
        }
      }
      reader_.release();
    }
  }

  // Merges the piece into those before it, which are in the slot, and after the last one leaves the result.
  __device__ void end_piece(const AttentionWork& unit, int tile, int h, float* slot) {
    const int n = query(h);
    if (n >= unit.count) return;
    float* values = slot + n * S::kDim;
    const bool first = unit.in_first_piece(tile);
    const mma::Merge merge = softmax_.end_piece(h, first);
    if (!first) {
#pragma unroll
      for (int v = 0; v < S::kDim / 8; ++v) {
        const float2 before = *reinterpret_cast<const float2*>(values + column(v));
        acc_[v][2 * h] = fmaf(before.x, merge.keep, acc_[v][2 * h] * merge.add);
        acc_[v][2 * h + 1] = fmaf(before.y, merge.keep, acc_[v][2 * h + 1] * merge.add);
        if (v % 4 == 3) ptx::pin<4>(acc_[v]);  // four loads at a time: there are no registers for more
      }
    }
    const mma::MaxSum& all = softmax_.merged[h];
    const bool last = unit.is_last(tile);
    if (last && lane() % 4 == 0) *reinterpret_cast<float2*>(slot + kQueries * S::kDim + n * 2) = {all.m, all.l};
    mma::ResultRow to(values);
    float scale = 1;
    int dims = S::kDim;
    if (last && unit.whole()) {
      to = mma::ResultRow(a_, unit, n);
      scale = mma::out_scale(all, a_.args.sinks, unit.first_head + n % unit.heads);
      dims = static_cast<int>(a_.args.value_dim);
    }
#pragma unroll
    for (int v = 0; v < S::kDim / 8; ++v) {
      to.store(column(v), acc_[v][2 * h] * scale, acc_[v][2 * h + 1] * scale, dims - column(v));
    }
  }

  __device__ static int column(int v) { return v * 8 + lane() % 4 * 2; }

  const MmaAttention& a_;
  Reader<S, Units>& reader_;
  std::byte* queries_;
  mma::Softmax softmax_;
  float acc_[S::kDim / 8][4];
};

template <class S, class Units>
__device__ __forceinline__ void attend(const MmaAttention& a, const StepView& step, const Units& all,
                                       std::byte* shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  std::byte* const own = shared + warp * S::kWarpBytes;
  WarpUnits& units = reinterpret_cast<WarpUnits*>(shared + S::kUnitsAt)[warp];
  Reader<S, Units> reader(a, step, all, own + S::kQueryBytes, units);
  reader.fill();
  reader.wait_for_previous();
  Attender<S, Units> attender(a, reader, own);
#pragma unroll 1
  for (int k = 0;; ++k) {
    const AttentionWork& unit = units.work[k % WarpUnits::kAhead];
    if (unit.none()) break;
    note_rows(a.merge_rows, a.geometry, unit, threadIdx.x % 32, 32);
    attender.run(unit, a.partials + static_cast<int64_t>(unit.slot) * a.slot.floats());
  }
  ptx::wait_copies<0>();
}

template <class S>
__global__ void __launch_bounds__(kThreads)
    attend_kernel(const StepView* step, const __grid_constant__ MmaAttention a) {
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  AttentionPlan& plan = *reinterpret_cast<AttentionPlan*>(shared + S::kPlanAt);
  ptx::let_next_start();
  if (a.selected.list != nullptr) ptx::wait_for_previous();  // which has made the lists
  make_plan(plan, *step, a.selected, a.geometry, a.slots, gridDim.x * kWarps);
  attend<S>(a, *step, PlannedUnits{plan, *step, a.selected, a.geometry}, shared);
}

template <class S>
__global__ void __launch_bounds__(kThreads)
    attend_single_kernel(const StepView* step, const __grid_constant__ MmaAttention a) {
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  ptx::let_next_start();
  attend<S>(a, *step, SingleUnits(*step, a.geometry, a.slots, gridDim.x * kWarps), shared);
}

template <int kDim>
MmaKernels kernels() {
  using S = Shape<kDim>;
  MmaKernels kernels{.attend = attend_kernel<S>,
                     .attend_single = attend_single_kernel<S>,
                     .merge = merge_ascending(),
                     .threads = kThreads,
                     .shared_bytes = S::kSharedBytes,
                     .workers = kWarps,
                     .slot = {kQueries, kDim}};
  cuda::allow_shared(kernels.attend, kernels.shared_bytes);
  cuda::allow_shared(kernels.attend_single, kernels.shared_bytes);
  return kernels;
}

}  // namespace weir::few
