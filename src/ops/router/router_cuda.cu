#include "base/math.h"
#include "device/cuda/kernel.h"
#include "device/cuda/ptx.h"
#include "ops/cuda_op.h"
#include "ops/router/router.h"

namespace weir {
namespace {

constexpr int kThreads = 128;                 // a row's; thread t scores the experts t, t + 128, ...
constexpr int kBestsPerLane = kThreads / 32;  // of the first warp, which chooses

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

struct Row {
  float* scores;    // [experts]
  int32_t* keys;    // [experts]
  int32_t* groups;  // [groups]
  int32_t* ids;     // [top_k], as they are chosen
  float* lanes;     // [16]
};

__device__ int32_t largest_key(const Row& row, int experts, int32_t* warp_keys) {
  int32_t key = kGone;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) {
    key = row.keys[e] > key ? row.keys[e] : key;
  }
  key = __reduce_max_sync(cuda::kAllLanes, key);
  if (threadIdx.x % 32 == 0) warp_keys[threadIdx.x / 32] = key;
  __syncthreads();
  for (int w = 0; w < kThreads / 32; ++w) key = warp_keys[w] > key ? warp_keys[w] : key;
  return key;
}

// e^(logit - m) of all experts, divided by their sum in sixteen lanes.
__device__ void softmax(const RouterArgs& args, const float* logits, const Row& row) {
  __shared__ int32_t warp_keys[kThreads / 32];
  const int experts = static_cast<int>(args.experts);
  const int thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < experts; e += kThreads) {
    const float logit = logits[e];
    row.scores[e] = logit;
    row.keys[e] = key_of(logit);
  }
  const float most = value_of(largest_key(row, experts, warp_keys));
  for (int e = thread; e < experts; e += kThreads) row.scores[e] = math::exp(row.scores[e] - most);
  __syncthreads();
  if (thread < 16) {
    float sum = 0;
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
  for (int e = thread; e < experts; e += kThreads) row.scores[e] = row.scores[e] / s[0];
}

// Scores, and the keys of the choice values. A thread sees only its own experts.
__device__ void score(const RouterArgs& args, const float* logits, const Row& row) {
  if (args.score == RouterScore::kSoftmax) softmax(args, logits, row);
  for (int e = static_cast<int>(threadIdx.x); e < args.experts; e += kThreads) {
    float s = args.score == RouterScore::kSoftmax ? row.scores[e] : logits[e];
    if (args.score == RouterScore::kSigmoid) s = math::sigmoid(s);
    row.scores[e] = s;
    row.keys[e] = key_of(args.bias == nullptr ? s : s + args.bias[e]);
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
__device__ void drop_groups(const RouterArgs& args, const Row& row) {
  const int thread = static_cast<int>(threadIdx.x);
  const int groups = static_cast<int>(args.groups);
  const int members = static_cast<int>(args.experts) / groups;
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
  for (int e = thread; e < args.experts; e += kThreads) {
    if (row.groups[e / members] != kGone) row.keys[e] = kGone;
  }
}

// The top_k largest keys, ties to the lowest id; by the first warp. Lane l keeps the best of the experts of the threads
// l, l + 32, ..., and looks again at one thread's when that one's best is chosen.
__device__ void choose(const RouterArgs& args, const Row& row) {
  const int experts = static_cast<int>(args.experts);
  const int lane = static_cast<int>(threadIdx.x);
  Best mine[kBestsPerLane];
#pragma unroll
  for (int i = 0; i < kBestsPerLane; ++i) mine[i] = best_of(row.keys, lane + 32 * i, kThreads, experts);
  for (int64_t k = 0; k < args.top_k; ++k) {
    Best best = mine[0];
#pragma unroll
    for (int i = 1; i < kBestsPerLane; ++i) best = better(best, mine[i]);
    best = warp_best(best);
    if (lane == 0) row.ids[k] = best.index;
    if (best.index % 32 != lane) continue;
    row.keys[best.index] = kGone;
    const int owner = best.index % kThreads;
    const Best next = best_of(row.keys, owner, kThreads, experts);
#pragma unroll
    for (int i = 0; i < kBestsPerLane; ++i) mine[i] = owner == lane + 32 * i ? next : mine[i];
  }
  __syncwarp();
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
  // The keys are not needed any more: their place takes the scores in order.
  float* chosen = reinterpret_cast<float*>(row.keys);
  for (int k = lane; k < top_k; k += 32) chosen[k] = chosen_score(args, row.scores[sorted[k]], most);
  __syncwarp();
  float sum = 0;
  for (int k = 0; k < top_k; ++k) sum = sum + chosen[k];
  if (!of_chosen) sum = sum + 1e-20f;
  for (int k = lane; k < top_k; k += 32) {
    float w = (args.renormalize ? chosen[k] / sum : chosen[k]) * args.scaling_factor;
    if (args.expert_scale != nullptr) w = w * args.expert_scale[sorted[k]];
    weights[k] = w;
  }
}

__global__ void __launch_bounds__(kThreads) route(const __grid_constant__ RouterArgs args, const StepView* step) {
  cuda::ptx::wait_for_previous();
  cuda::ptx::let_next_start();
  const int64_t index = blockIdx.x;
  if (index >= step->rows) return;
  WEIR_DYNAMIC_SHARED(int32_t, shared);
  __shared__ float lanes[16];
  const int lane = static_cast<int>(threadIdx.x);
  const int top_k = static_cast<int>(args.top_k);
  const Row row{reinterpret_cast<float*>(shared), shared + args.experts, shared + 2 * args.experts,
                shared + 2 * args.experts + args.groups, lanes};
  score(args, args.logits + index * args.logits_stride, row);
  __syncthreads();
  if (args.topk_group < args.groups) {
    drop_groups(args, row);
    __syncthreads();
  }
  if (lane >= 32) return;
  choose(args, row);
  int32_t* sorted = row.ids + top_k;
  for (int k = lane; k < top_k; k += 32) {
    const int32_t id = row.ids[k];
    int place = 0;
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
    args_.bias = device.upload(args.bias, args.experts);
    args_.expert_scale = device.upload(args.expert_scale, args.experts);
  }

  void enqueue(const StepBounds& bounds) override {
    if (bounds.rows == 0) return;
    const int64_t shared = (2 * args_.experts + args_.groups + 2 * args_.top_k) * int64_t{sizeof(int32_t)};
    cuda::launch(device(), {.grid = bounds.rows, .block = kThreads, .shared_bytes = shared, .overlap = true}, route,
                 args_, device().step());
  }

  Cost cost(int32_t rows, int64_t) const override {
    return {.weight_bytes = biases_ ? args_.experts * 4 : 0, .flops = 28.0 * rows * static_cast<double>(args_.experts)};
  }

 private:
  RouterArgs args_;
  bool biases_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_router_cuda(CudaDevice& device, std::string name, const RouterArgs& args) {
  return std::make_unique<RouterCuda>(device, std::move(name), args);
}

}  // namespace weir
