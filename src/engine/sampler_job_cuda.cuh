// What the kernels of the sampler share. A job is one row to choose from; a row that wants logprobs is another job on
// the logits as they came. Blocks share a row; what they find is combined by maxima and integer sums, in any order.
#pragma once

#include "device/cuda/kernel.h"
#include "device/cuda/ptx.h"
#include "engine/sampler_kernels.h"
#include "engine/sampler_options.h"

namespace weir::sampling {

namespace ptx = cuda::ptx;

using Word = unsigned long long;  // what 64-bit atomics take

inline constexpr int kThreads = 512;
inline constexpr int kBuckets = 2048;
inline constexpr int kMostListed = 2048;  // candidates that one block sorts
inline constexpr int32_t kAnyId = 0x7fffffff;

// Kept are larger keys, and this key with ids up to `id`.
struct Cut {
  uint32_t key;
  int32_t id;
};

// Set by the host.
struct Job {
  const float* logits;
  const uint32_t* allowed;  // null: all ids
  uint64_t seed;
  int64_t position;
  float temperature;  // 0: the largest logit
  float top_p;
  float min_p;
  int32_t top_k;  // 0: all; of a job for logprobs how many are listed
  bool logprobs;  // the job is for these
  bool selects;   // top_k, top_p or logprobs
};

// Zeros at first.
struct State {
  Word largest;      // key and id (rank_of) of the largest logit
  Word best;         // of the largest noisy score
  Word total;        // weight of what min_p has left
  Word wanted;       // weight of the candidates that top_p keeps
  uint32_t bad;      // a logit is NaN or +infinity
  uint32_t arrived;  // blocks that have filled the histogram
  uint32_t collected;
  uint32_t listed;
  int32_t first_bucket, last_bucket;  // whose logits are the candidates
  int32_t rank;                       // of the last candidate that top_k keeps, from 1; 0: top_k does not cut
  uint32_t decided;                   // the cut needs no candidates
  uint32_t crowded;                   // the candidates, where they are counted, are too many for a list
  Cut cut;
};

struct Histogram {
  Word weight[kBuckets];
  uint32_t count[kBuckets];
};

struct TopList {
  int32_t count;
  int32_t id[kMaxTopLogprobs];
  float logprob[kMaxTopLogprobs];
};

// One per row, what comes back.
struct Outcome {
  int32_t id;  // -1: nothing
  float logprob;
  TopList top;
};

struct Batch {
  const Job* jobs;
  State* states;
  Histogram* histograms;
  Word* lists;  // [jobs, kMostListed]
  TopList* tops;
  int32_t vocab;
  bool whole_quads;  // rows are 16-byte aligned
};

// Unsigned numbers in the order of the floats; -0 is +0.
__device__ __forceinline__ uint32_t key_of(float a) {
  const uint32_t bits = __float_as_uint(a + 0.f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}
inline constexpr uint32_t kKeyOfMinusInfinity = 0x007fffffu;

// Larger values first, then lower ids.
__device__ __forceinline__ Word rank_of(float value, int32_t id) {
  return static_cast<Word>(key_of(value)) << 32 | ~static_cast<uint32_t>(id);
}
__device__ __forceinline__ float value_of_rank(Word rank) { return value_of(static_cast<uint32_t>(rank >> 32)); }
__device__ __forceinline__ int32_t id_of_rank(Word rank) { return static_cast<int32_t>(~static_cast<uint32_t>(rank)); }

__device__ __forceinline__ bool alive(const State& state) {
  return state.bad == 0 && static_cast<uint32_t>(state.largest >> 32) > kKeyOfMinusInfinity;
}

__device__ __forceinline__ bool kept(const Cut& cut, float logit, int32_t id) {
  const float value = value_of(cut.key);  // logits are no NaN here
  return logit > value || (logit == value && id <= cut.id);
}

__device__ __forceinline__ Cut cut_of_rank(Word rank) { return {static_cast<uint32_t>(rank >> 32), id_of_rank(rank)}; }

// What min_p leaves.
__device__ __forceinline__ Cut cut_of_min_p(const Job& job, float largest) {
  return {key_of(largest + job.temperature * math::log(job.min_p)), kAnyId};
}

// floor(2^40 e^s), s = (logit - largest) / temperature, with the e^s of math::exp. In the range of weights all that
// scales by powers of two is exact: they go into the exponent at once.
__device__ __forceinline__ Word weight_of(float logit, float largest, float temperature) {
  const float d = logit - largest;
  const float s = temperature == 1 ? d : d / temperature;
  constexpr float kMagic = 12582912.f;  // 1.5 * 2^23: adding it rounds to an integer, which the lowest bits are
  const float t = s * 1.44269504088896341f + kMagic;
  const float n = t - kMagic;
  float r = fmaf(n, -0.693145751953125f, s);
  r = fmaf(n, -1.42860682030941723e-6f, r);
  float p = 1.392625039e-3f;
  p = fmaf(p, r, 8.363232948e-3f);
  p = fmaf(p, r, 4.166655242e-2f);
  p = fmaf(p, r, 1.666657627e-1f);
  p = fmaf(p, r, 0.5f);
  p = fmaf(p, r, 1.f);
  p = fmaf(p, r, 1.f);
  const uint32_t exponent = __float_as_uint(t) - __float_as_uint(kMagic) + 40;
  const float weight = s < kWeightless ? 0.f : __uint_as_float(__float_as_uint(p) + (exponent << 23));
  const auto high = static_cast<uint32_t>(weight * 0x1p-32f);
  const auto low = static_cast<uint32_t>(fmaf(static_cast<float>(high), -0x1p32f, weight));
  return static_cast<Word>(high) << 32 | low;
}

__device__ __forceinline__ Word share_of(float p, Word total) {
  return static_cast<Word>(ceil(static_cast<double>(p) * static_cast<double>(total)));
}

// Of quads at the end of a row, or not aligned; what does not exist is -infinity.
[[gnu::noinline]] __device__ inline float4 load_some(const float* logits, int live) {
  const float none = -__uint_as_float(0x7f800000u);
  return {live > 0 ? logits[0] : none, live > 1 ? logits[1] : none, live > 2 ? logits[2] : none,
          live > 3 ? logits[3] : none};
}

// body(first id, four logits, bits of those that exist and are allowed) for the quads first, first + step, ..., some of
// which are read before it is their turn.
template <class Body>
__device__ __forceinline__ void each_quad(const Batch& batch, const Job& job, int first, int step, Body body) {
  constexpr int kAhead = 3;
  const int quads = (batch.vocab + 3) / 4, whole = batch.whole_quads ? batch.vocab / 4 : 0;
  const auto load = [&](int q) {
    if (q < whole) return reinterpret_cast<const float4*>(job.logits)[q];
    return load_some(job.logits + 4 * q, batch.vocab - 4 * q);
  };
  float4 next[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) next[i] = load(first + i * step);
#pragma unroll 1
  for (int q = first; q < quads; q += step) {
    const float4 v = next[0];
#pragma unroll
    for (int i = 0; i + 1 < kAhead; ++i) next[i] = next[i + 1];
    next[kAhead - 1] = load(q + kAhead * step);
    uint32_t bits = 0xf;
    if (q >= batch.vocab / 4) bits = (1u << batch.vocab % 4) - 1;
    if (job.allowed != nullptr) bits &= job.allowed[q / 8] >> (q % 8 * 4);
    body(4 * q, v, bits);
  }
}

__device__ __forceinline__ float largest_of(float4 v) { return fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)); }

// body(id, logit) for those allowed of the quads in which `wanted` holds for the largest logit.
template <class Wanted, class Body>
__device__ __forceinline__ void each_logit(const Batch& batch, const Job& job, int first, int step, Wanted wanted,
                                           Body body) {
  each_quad(batch, job, first, step, [&](int32_t id, float4 v, uint32_t bits) {
    if (!wanted(largest_of(v))) return;
    const float logit[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (bits >> i & 1u) body(id + i, logit[i]);
    }
  });
}

template <class Body>
__device__ __forceinline__ void each_logit(const Batch& batch, const Job& job, int first, int step, Body body) {
  each_logit(
      batch, job, first, step, [](float) { return true; }, body);
}

__device__ __forceinline__ int first_quad() { return static_cast<int>(blockIdx.x * kThreads + threadIdx.x); }
__device__ __forceinline__ int quad_step() { return static_cast<int>(gridDim.x) * kThreads; }

// The block's largest into *to. `shared`: of the block.
__device__ __forceinline__ void reach(Word mine, Word* to, Word* shared) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const Word other = __shfl_xor_sync(cuda::kAllLanes, mine, distance);
    mine = other > mine ? other : mine;
  }
  if (threadIdx.x == 0) *shared = 0;
  __syncthreads();
  if (threadIdx.x % 32 == 0) atomicMax(shared, mine);
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(to, *shared);
}

// Sum of the values of the threads before this one; *total: of all. Twice kThreads words of the block.
__device__ __forceinline__ Word sum_before(Word value, Word* shared, Word* total) {
  const int t = static_cast<int>(threadIdx.x);
  __syncthreads();
  shared[t] = value;
  __syncthreads();
  int from = 0;
  for (int distance = 1; distance < kThreads; distance *= 2, from ^= kThreads) {
    const Word sum = shared[from + t] + (t >= distance ? shared[from + t - distance] : 0);
    shared[(from ^ kThreads) + t] = sum;
    __syncthreads();
  }
  *total = shared[from + kThreads - 1];
  return shared[from + t] - value;
}

// True in the last block of a row to arrive: it sees what the others have written.
__device__ __forceinline__ bool last_to_arrive(uint32_t* counter) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(counter, 1u) + 1 == gridDim.x;
  __syncthreads();
  __threadfence();
  return last;
}

}  // namespace weir::sampling
