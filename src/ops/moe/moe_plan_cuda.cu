// The first launch of a step of experts, and the last: the plan with the rounding of x, and the sum.
#include <type_traits>

#include "base/error.h"
#include "device/cuda/ptx.h"
#include "ops/linear/linear_tile_cuda.cuh"
#include "ops/moe/moe_cuda.cuh"

namespace weir {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kRowsAhead = 8;  // of ids on their way while a warp counts

__device__ void wait() {
  cuda::ptx::wait_for_previous();
  cuda::ptx::let_next_start();
}

// Each warp has a run of rows and a count for every expert. As the experts of a row differ, the lanes of a warp can
// count and place a row's pairs at once; runs ascend with the warps, so pairs of an expert come out with rows
// ascending.
struct Planner {
  const PlanArgs& args;
  const PairPlan& plan;
  int32_t rows;
  int32_t* counts;     // [kWarps, experts]
  int32_t* warp_sums;  // [2, kWarps]

  // body(count, row, slot) for each pair of the warp's rows that is this lane's.
  template <class Body>
  __device__ void each_pair(Body body) const {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = lane_index();
    const int per_warp = (rows + kWarps - 1) / kWarps;
    const int begin = warp * per_warp, end = begin + per_warp < rows ? begin + per_warp : rows;
    int32_t* count = counts + warp * args.experts;
    for (int first = 0; first < args.top_k; first += 32) {
      const int slot = first + lane;
      for (int row = begin; row < end; row += kRowsAhead) {
        int32_t id[kRowsAhead];
#pragma unroll
        for (int i = 0; i < kRowsAhead; ++i) {
          const bool there = row + i < end && slot < args.top_k;
          // Past L1, which may be older than ids when the launch before is not waited for.
          id[i] = there ? __ldcg(args.ids + int64_t{row + i} * args.top_k + slot) : -1;
        }
#pragma unroll
        for (int i = 0; i < kRowsAhead; ++i) {
          if (id[i] >= 0) body(count[id[i]], row + i, slot);
          __syncwarp();
        }
      }
    }
  }

  // Where v begins in the sums over all threads, ascending.
  __device__ int32_t exclusive_sum(int32_t v, int32_t* sums) const {
    const int lane = lane_index(), warp = static_cast<int>(threadIdx.x) / 32;
    int32_t inclusive = v;
    for (int step = 1; step < 32; step *= 2) {
      const int32_t before = __shfl_up_sync(cuda::kAllLanes, inclusive, step);
      if (lane >= step) inclusive += before;
    }
    if (lane == 31) sums[warp] = inclusive;
    __syncthreads();
    int32_t begin = inclusive - v;
    for (int w = 0; w < warp; ++w) begin += sums[w];
    return begin;
  }

  // From counts to the first pair of every warp and expert; writes the tiles.
  __device__ void lay_out() const {
    const int thread = static_cast<int>(threadIdx.x);
    const int per_thread = (args.experts + kThreads - 1) / kThreads;
    const int begin = thread * per_thread;
    const int end = begin + per_thread < args.experts ? begin + per_thread : args.experts;
    int32_t pairs = 0, tiles = 0;
    for (int e = begin; e < end; ++e) {
      int32_t of_expert = 0;
      for (int w = 0; w < kWarps; ++w) of_expert += counts[w * args.experts + e];
      pairs += of_expert;
      tiles += (of_expert + args.tile_rows - 1) / args.tile_rows;
    }
    int32_t pair = exclusive_sum(pairs, warp_sums);
    int32_t tile = exclusive_sum(tiles, warp_sums + kWarps);
    if (thread == kThreads - 1) *plan.tile_count = tile + tiles;
    for (int e = begin; e < end; ++e) {
      const int32_t first = pair;
      for (int w = 0; w < kWarps; ++w) {
        const int32_t count = counts[w * args.experts + e];
        counts[w * args.experts + e] = pair;
        pair += count;
      }
      for (int32_t at = first; at < pair; at += args.tile_rows) {
        plan.tiles[tile++] = {e, at, pair - at < args.tile_rows ? pair - at : args.tile_rows};
      }
    }
  }

  __device__ void run() const {
    for (int i = static_cast<int>(threadIdx.x); i < kWarps * args.experts; i += kThreads) counts[i] = 0;
    __syncthreads();
    if (!args.routed_before) wait();
    each_pair([](int32_t& count, int, int) { ++count; });
    __syncthreads();
    if (args.routed_before) wait();  // for what may still use the workspace
    lay_out();
    __syncthreads();
    each_pair([this](int32_t& next, int row, int slot) { plan.pairs[next++] = row * args.top_k + slot; });
  }
};

__global__ void __launch_bounds__(kThreads)
    plan_and_round(const __grid_constant__ PlanArgs args, const __grid_constant__ PairPlan plan, const StepView* step) {
  WEIR_DYNAMIC_SHARED(int32_t, shared);
  const int32_t rows = step->rows;
  if (blockIdx.x == 0) {
    __shared__ int32_t warp_sums[2 * kWarps];
    Planner{args, plan, rows, shared, warp_sums}.run();
    return;
  }
  wait();
  const int64_t units = args.width / 8;
  const int64_t stride = int64_t{gridDim.x - 1} * kThreads;
  for (int64_t i = int64_t{blockIdx.x - 1} * kThreads + threadIdx.x; i < rows * units; i += stride) {
    const int64_t row = i / units, unit = i % units;
    reinterpret_cast<uint4*>(args.rounded)[i] = round_eight(args.x + row * args.x_stride, unit * 8, args.in);
  }
}

constexpr int kSumThreads = 256;

struct SumArgs {
  const float* z;
  const float* weights;
  const float* addend;
  int64_t addend_stride;
  int32_t top_k;
  int64_t out;
  float* y;
  int64_t y_stride;
};

// A thread takes kOutputs neighbours of a row.
template <int kOutputs>
__global__ void __launch_bounds__(kSumThreads)
    weighted_sum(const __grid_constant__ SumArgs args, const StepView* step) {
  using Word = std::conditional_t<kOutputs == 4, float4, float>;
  cuda::ptx::wait_for_previous();
  cuda::ptx::let_next_start();
  const int64_t row = blockIdx.x;
  if (row >= step->rows) return;
  const int64_t d = (int64_t{blockIdx.y} * kSumThreads + threadIdx.x) * kOutputs;
  if (d >= args.out) return;
  const auto read = [](const float* from, float(&v)[kOutputs]) {
    const Word word = *reinterpret_cast<const Word*>(from);
    const auto* words = reinterpret_cast<const float*>(&word);
    for (int i = 0; i < kOutputs; ++i) v[i] = words[i];
  };
  float sum[kOutputs] = {}, v[kOutputs];
#pragma unroll 8
  for (int32_t k = 0; k < args.top_k; ++k) {
    const int64_t pair = row * args.top_k + k;
    read(args.z + pair * args.out + d, v);
    for (int i = 0; i < kOutputs; ++i) sum[i] = math::fma(args.weights[pair], v[i], sum[i]);
  }
  if (args.addend != nullptr) {
    read(args.addend + row * args.addend_stride + d, v);
    for (int i = 0; i < kOutputs; ++i) sum[i] = sum[i] + v[i];
  }
  Word word;
  for (int i = 0; i < kOutputs; ++i) reinterpret_cast<float*>(&word)[i] = sum[i];
  *reinterpret_cast<Word*>(args.y + row * args.y_stride + d) = word;
}

constexpr int64_t kReservedShared = 2048;  // of a block: static arrays and alignment

int64_t plan_bytes(int64_t experts) { return kWarps * experts * int64_t{sizeof(int32_t)}; }

}  // namespace

void allow_plan(const CudaDevice& device, const std::string& name, int64_t experts) {
  const int64_t most = (device.shared_limit() - kReservedShared) / plan_bytes(1);
  if (experts > most) fail(name, ": at most ", most, " experts on this GPU, found ", experts);
  cuda::allow_shared(plan_and_round, plan_bytes(experts));
}

void plan_pairs(CudaDevice& device, int32_t rows, const PlanArgs& args, const PairPlan& plan) {
  int64_t blocks = args.x == nullptr ? 0 : (rows * (args.width / 8) + kThreads - 1) / kThreads;
  const int64_t most = 2 * device.sm_count();
  blocks = blocks < most ? blocks : most;
  cuda::launch(device,
               {.grid = 1 + blocks, .block = kThreads, .shared_bytes = plan_bytes(args.experts), .overlap = true},
               plan_and_round, args, plan, device.step());
}

void sum_pairs(CudaDevice& device, int32_t rows, const MoeArgs& args, const float* z) {
  const auto fours = [](const float* at, int64_t stride) {
    return reinterpret_cast<uintptr_t>(at) % 16 == 0 && stride % 4 == 0;
  };
  constexpr int32_t kLeastWideRows = 64;  // fewer rows are sooner done by more threads
  const bool wide = rows >= kLeastWideRows && fours(z, args.out) && fours(args.y, args.y_stride) &&
                    fours(args.addend, args.addend_stride);
  const int64_t threads = wide ? args.out / 4 : args.out;
  const cuda::Extent grid(rows, (threads + kSumThreads - 1) / kSumThreads, 1);
  cuda::launch(device, {.grid = grid, .block = kSumThreads, .overlap = true}, wide ? weighted_sum<4> : weighted_sum<1>,
               SumArgs{z, args.weights, args.addend, args.addend_stride, static_cast<int32_t>(args.top_k), args.out,
                       args.y, args.y_stride},
               device.step());
}

}  // namespace weir
