#include "base/error.h"
#include "base/math.h"
#include "device/cuda/kernel.h"
#include "device/cuda/ptx.h"
#include "ops/cuda_op.h"
#include "ops/router/router.h"

namespace weir {
namespace {

// Choice values as integers in the same order. NaN is below -inf; what cannot be chosen (any more) is below NaN.
constexpr int32_t kGone = INT32_MIN;
constexpr int32_t kNan = INT32_MIN + 1;

__device__ int32_t key_of(float value) {
  if (value != value) return kNan;
  const int32_t bits = __float_as_int(value + 0.f);  // no -0, which would be below +0
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

__device__ float value_of(int32_t key) {
  return key == kNan ? __int_as_float(0x7fffffff) : __int_as_float(key ^ ((key >> 31) & 0x7fffffff));
}

struct Best {
  int32_t key;
  int32_t index;
};

// The larger key, on a tie the lower index.
__device__ Best better(Best a, Best b) { return b.key > a.key || (b.key == a.key && b.index < a.index) ? b : a; }

// The best of a warp, in all of its lanes.
__device__ Best warp_best(Best mine) {
  const int32_t key = __reduce_max_sync(cuda::kAllLanes, mine.key);
  return {key, __reduce_min_sync(cuda::kAllLanes, mine.key == key ? mine.index : INT32_MAX)};
}

// The best of keys[first], keys[first + step], ... below `count`.
__device__ Best best_of(const int32_t* keys, int first, int step, int count) {
  Best best{kGone, INT32_MAX};
  for (int i = first; i < count; i += step) best = better(best, {keys[i], i});
  return best;
}

// A key and its index as a number that is the larger, the better: the larger key, on a tie the lower index.
__device__ uint64_t candidate_of(Best best) {
  return static_cast<uint64_t>(static_cast<uint32_t>(best.key) ^ 0x80000000u) << 32 |
         ~static_cast<uint32_t>(best.index);
}
__device__ int32_t index_of(uint64_t candidate) { return static_cast<int32_t>(~static_cast<uint32_t>(candidate)); }

// A row in shared memory.
struct Row {
  uint64_t* candidates;  // [warps, top_k]: each warp's best, the best first
  float* scores;         // [experts]
  int32_t* keys;         // [experts]; only where there are groups
  int32_t* groups;       // [groups]
  int32_t* ids;          // [top_k] chosen, then [top_k] ascending
  float* lanes;          // [16]
  float* weights;        // [top_k]

  __device__ Row(std::byte* shared, const RouterArgs& args, int warps)
      : candidates(reinterpret_cast<uint64_t*>(shared)),
        scores(reinterpret_cast<float*>(candidates + warps * args.top_k)),
        keys(reinterpret_cast<int32_t*>(scores + args.experts)),
        groups(keys + args.experts),
        ids(groups + args.groups),
        lanes(reinterpret_cast<float*>(ids + 2 * args.top_k)),
        weights(lanes + 16) {}
  static int64_t bytes(const RouterArgs& args, int warps) {
    return 8 * warps * args.top_k + 4 * (2 * args.experts + args.groups + 3 * args.top_k + 16);
  }
};

// A thread's experts, one block's size apart.
template <int kEach>
struct Mine {
  float score[kEach];
  int32_t key[kEach];
};

template <int kThreads, int kEach>
__device__ int32_t largest_key(const Mine<kEach>& mine) {
  __shared__ int32_t warp_keys[kThreads / 32];
  int32_t key = mine.key[0];
#pragma unroll
  for (int i = 1; i < kEach; ++i) key = mine.key[i] > key ? mine.key[i] : key;
  key = __reduce_max_sync(cuda::kAllLanes, key);
  if (threadIdx.x % 32 == 0) warp_keys[threadIdx.x / 32] = key;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) key = warp_keys[w] > key ? warp_keys[w] : key;
  return key;
}

// e^(logit - m) of all experts, divided by their sum in sixteen lanes.
template <int kThreads, int kEach>
__device__ void softmax(const RouterArgs& args, const Row& row, Mine<kEach>& mine) {
  const int experts = static_cast<int>(args.experts), thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < kEach; ++i) mine.key[i] = thread + i * kThreads < experts ? key_of(mine.score[i]) : kGone;
  const float most = value_of(largest_key<kThreads, kEach>(mine));
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (thread + i * kThreads >= experts) break;
    mine.score[i] = math::exp(mine.score[i] - most);
    row.scores[thread + i * kThreads] = mine.score[i];
  }
  __syncthreads();
  if (thread < 16) {
    float sum = 0;
#pragma unroll 8
    for (int e = thread; e < experts; e += 16) sum = sum + row.scores[e];
    row.lanes[thread] = sum;
  }
  __syncthreads();
  float s[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) s[i] = row.lanes[i];
#pragma unroll
  for (int half = 8; half >= 1; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; ++i) s[i] = s[i] + s[i + half];
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) mine.score[i] = mine.score[i] / s[0];
}

// Scores of logits, and the keys of the choice values.
template <int kThreads, int kEach>
__device__ void score(const RouterArgs& args, const Row& row, const float (&bias)[kEach], Mine<kEach>& mine) {
  if (args.score == RouterScore::kSoftmax) softmax<kThreads, kEach>(args, row, mine);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = static_cast<int>(threadIdx.x) + i * kThreads;
    mine.key[i] = kGone;
    if (e >= args.experts) continue;
    if (args.score == RouterScore::kSigmoid) mine.score[i] = math::sigmoid(mine.score[i]);
    mine.key[i] = key_of(args.bias == nullptr ? mine.score[i] : mine.score[i] + bias[i]);
    row.scores[e] = mine.score[i];
  }
}

// The sum of the two largest choice values of a group, or of its one.
__device__ int32_t group_key(const int32_t* keys, int members) {
  int32_t first = keys[0], second = kGone;
  for (int i = 1; i < members; ++i) {
    const int32_t lower = keys[i] < first ? keys[i] : first;
    first = keys[i] > first ? keys[i] : first;
    second = lower > second ? lower : second;
  }
  return members == 1 ? first : key_of(value_of(first) + value_of(second));
}

// Leaves the keys of the topk_group best groups.
template <int kThreads, int kEach>
__device__ void drop_groups(const RouterArgs& args, const Row& row, Mine<kEach>& mine) {
  const int thread = static_cast<int>(threadIdx.x), experts = static_cast<int>(args.experts);
  const int groups = static_cast<int>(args.groups), members = experts / groups;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (thread + i * kThreads < experts) row.keys[thread + i * kThreads] = mine.key[i];
  }
  __syncthreads();
  for (int g = thread; g < groups; g += kThreads) row.groups[g] = group_key(row.keys + g * members, members);
  __syncthreads();
  if (thread < 32) {
    for (int64_t n = 0; n < args.topk_group; ++n) {
      const Best best = warp_best(best_of(row.groups, thread, 32, groups));
      if (best.index % 32 == thread) row.groups[best.index] = kGone;
      __syncwarp();
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = thread + i * kThreads;
    if (e < experts && row.groups[e / members] != kGone) mine.key[i] = kGone;
  }
}

// The top_k best of all to row.ids, in any order. Each warp finds as many of its own, one after the other; of those
// that are chosen which fewer than top_k of all warps' precede.
template <int kThreads, int kEach>
__device__ void choose(const RouterArgs& args, const Row& row, Mine<kEach>& mine) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, top_k = static_cast<int>(args.top_k);
  for (int k = 0; k < top_k; ++k) {
    Best best{mine.key[0], thread};
#pragma unroll
    for (int i = 1; i < kEach; ++i) {
      if (mine.key[i] > best.key) best = {mine.key[i], thread + i * kThreads};
    }
    best = warp_best(best);
    if (lane == 0) row.candidates[thread / 32 * top_k + k] = candidate_of(best);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (best.index == thread + i * kThreads) mine.key[i] = kGone;
    }
  }
  __syncthreads();
  const int count = kThreads / 32 * top_k;
  for (int c = thread; c < count; c += kThreads) {
    const uint64_t candidate = row.candidates[c];
    int better = 0;
#pragma unroll 8
    for (int other = 0; other < count; ++other) better += row.candidates[other] > candidate;
    if (better < top_k) row.ids[better] = index_of(candidate);
  }
  __syncthreads();
}

// The score of a chosen expert before it is divided and scaled. most: the largest of the chosen.
__device__ float chosen_score(const RouterArgs& args, float s, float most) {
  return args.score == RouterScore::kSoftmaxOfChosen ? math::exp(s - most) : s;
}

// sorted: [top_k] ids. Every lane adds the scores up for itself.
__device__ void weigh(const RouterArgs& args, const Row& row, const int32_t* sorted, float* weights) {
  const bool of_chosen = args.score == RouterScore::kSoftmaxOfChosen;
  const int lane = static_cast<int>(threadIdx.x);
  const int top_k = static_cast<int>(args.top_k);
  int32_t top = kGone;
  if (of_chosen) {
    for (int k = 0; k < top_k; ++k) {
      const int32_t key = key_of(row.scores[sorted[k]]);
      top = key > top ? key : top;
    }
  }
  const float most = value_of(top);
  float* chosen = row.weights;
  for (int k = lane; k < top_k; k += 32) chosen[k] = chosen_score(args, row.scores[sorted[k]], most);
  __syncwarp();
  float sum = 0;
#pragma unroll 8
  for (int k = 0; k < top_k; ++k) sum = sum + chosen[k];
  if (!of_chosen) sum = sum + 1e-20f;
  for (int k = lane; k < top_k; k += 32) {
    float w = (args.renormalize ? chosen[k] / sum : chosen[k]) * args.scaling_factor;
    if (args.expert_scale != nullptr) w = w * args.expert_scale[sorted[k]];
    weights[k] = w;
  }
}

template <int kThreads, int kEach>
__global__ void __launch_bounds__(kThreads) route(const __grid_constant__ RouterArgs args, const StepView* step) {
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  const Row row(shared, args, kThreads / 32);
  const int64_t index = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), top_k = static_cast<int>(args.top_k);
  float bias[kEach] = {};
  if (args.bias != nullptr) {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      bias[i] = thread + i * kThreads < args.experts ? args.bias[thread + i * kThreads] : 0;
  }
  const bool live = index < step->rows;
  cuda::ptx::wait_for_previous();
  cuda::ptx::let_next_start();
  if (!live) return;
  const float* logits = args.logits + index * args.logits_stride;
  Mine<kEach> mine;
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    mine.score[i] = thread + i * kThreads < args.experts ? logits[thread + i * kThreads] : 0;
  score<kThreads, kEach>(args, row, bias, mine);
  if (args.topk_group < args.groups) drop_groups<kThreads, kEach>(args, row, mine);
  choose<kThreads, kEach>(args, row, mine);
  if (thread >= 32) return;
  int32_t* sorted = row.ids + top_k;
  for (int k = thread; k < top_k; k += 32) {
    const int32_t id = row.ids[k];
    int place = 0;
#pragma unroll 8
    for (int j = 0; j < top_k; ++j) place += row.ids[j] < id;
    sorted[place] = id;
    args.ids[index * top_k + place] = id;
  }
  __syncwarp();
  weigh(args, row, sorted, args.weights + index * top_k);
}

class RouterCuda final : public CudaOp {
 public:
  RouterCuda(CudaDevice& device, std::string name, const RouterArgs& args)
      : CudaOp(device, std::move(name)), args_(args), biases_(args.bias != nullptr) {
    if (args.experts > kMostExperts) {
      fail(this->name(), ": expected at most ", kMostExperts, " experts on a GPU, found ", args.experts);
    }
    args_.bias = device.upload(args.bias, args.experts);
    args_.expert_scale = device.upload(args.expert_scale, args.experts);
  }

  void enqueue(const StepBounds& bounds) override {
    if (bounds.rows == 0) return;
    // A few rows are done sooner by more threads, many by fewer.
    const bool few = bounds.rows <= 2 * device().sm_count();
    const int threads = args_.experts > 1024 ? 1024 : few ? 256 : 128;
    const auto kernel = threads == 1024 ? route<1024, 4> : threads == 256 ? route<256, 4> : route<128, 8>;
    cuda::launch(
        device(),
        {.grid = bounds.rows, .block = threads, .shared_bytes = Row::bytes(args_, threads / 32), .overlap = true},
        kernel, args_, device().step());
  }

  Cost cost(int32_t rows, int64_t) const override {
    return {.weight_bytes = biases_ ? args_.experts * 4 : 0, .flops = 28.0 * rows * static_cast<double>(args_.experts)};
  }

 private:
  static constexpr int kMostExperts = 4096;

  RouterArgs args_;
  bool biases_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_router_cuda(CudaDevice& device, std::string name, const RouterArgs& args) {
  return std::make_unique<RouterCuda>(device, std::move(name), args);
}

}  // namespace weir
