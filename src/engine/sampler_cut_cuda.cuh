// How the sampler's kernels find the cuts of top-k and top-p (and the likeliest ids): a histogram of the logits by
// their distance from the largest, the candidates of the buckets in which the cut lies as a list, the list sorted.
// Where too many candidates share those buckets, one block finds the cut digit by digit.
#pragma once

#include "engine/sampler_job_cuda.cuh"

namespace weir::sampling {

inline constexpr int kBucketsPerThread = kBuckets / kThreads;

// Memory of a block.
struct Scratch {
  Word words[kBuckets];
  Word sums[2 * kThreads];
  Word left;
  int32_t bucket;
};
static_assert(kMostListed <= kBuckets);

// Buckets by equal steps from the largest logit. The last has all below e^-28, where weights are 0; counted logits need
// steps of a size that doesn't vanish with the temperature.
struct Buckets {
  float largest, steps;

  __device__ __forceinline__ Buckets(const Job& job, float of_all) : largest(of_all) {
    const float range = math::max(-kWeightless * job.temperature, job.top_k > 0 ? 32.f : 1e-30f);
    steps = static_cast<float>(kBuckets - 1) / range;
  }
  // Does not ascend with the logit.
  __device__ __forceinline__ int32_t operator()(float logit) const {
    return static_cast<int32_t>(math::min((largest - logit) * steps, static_cast<float>(kBuckets - 1)));
  }
};

// The bucket in which `wanted` is reached, and what is left of it there. A thread gives the values of its buckets, the
// threads' one after the other; together they reach it.
__device__ __forceinline__ void find_bucket(const Word (&values)[kBucketsPerThread], Word wanted, Scratch& scratch) {
  Word sum = 0, total;
  for (int i = 0; i < kBucketsPerThread; ++i) sum += values[i];
  Word before = sum_before(sum, scratch.sums, &total);
  if (before < wanted && before + sum >= wanted) {
    int i = 0;
    for (; i < kBucketsPerThread - 1 && before + values[i] < wanted; ++i) before += values[i];
    scratch.bucket = static_cast<int32_t>(threadIdx.x) * kBucketsPerThread + i;
    scratch.left = wanted - before;
  }
  __syncthreads();
}

// Where the candidates are. By the last block that has filled the histogram.
__device__ __forceinline__ void plan(const Job& job, State& state, const Histogram& histogram, Scratch& scratch) {
  const int first_of_thread = static_cast<int>(threadIdx.x) * kBucketsPerThread;
  Word weights[kBucketsPerThread], counts[kBucketsPerThread];
  Word weight = 0, count = 0, total, logits;
  for (int i = 0; i < kBucketsPerThread; ++i) {
    weights[i] = __ldcg(&histogram.weight[first_of_thread + i]);
    counts[i] = __ldcg(&histogram.count[first_of_thread + i]);
    weight += weights[i];
    count += counts[i];
  }
  sum_before(weight, scratch.sums, &total);
  sum_before(count, scratch.sums, &logits);
  int32_t first = 0, last = -1, rank = 0;
  Word wanted = 0;
  const bool by_rank = job.top_k > 0 && logits >= static_cast<Word>(job.top_k);
  if (by_rank) {
    find_bucket(counts, static_cast<Word>(job.top_k), scratch);
    const bool alone = job.top_p == 1 && !job.logprobs;  // else all that it keeps are looked at
    first = alone ? scratch.bucket : 0;
    last = scratch.bucket;
    rank = alone ? static_cast<int32_t>(scratch.left) : job.top_k;
  } else if (job.top_p < 1) {
    find_bucket(weights, share_of(job.top_p, total), scratch);
    first = last = scratch.bucket;
    wanted = scratch.left;
  }
  Word candidates, mine = 0;
  for (int i = 0; i < kBucketsPerThread; ++i) {
    if (first_of_thread + i >= first && first_of_thread + i <= last) mine += counts[i];
  }
  sum_before(mine, scratch.sums, &candidates);
  if (threadIdx.x != 0) return;
  state.total = total;
  state.first_bucket = first;
  state.last_bucket = last;
  state.rank = rank;
  state.wanted = wanted;
  state.crowded = candidates > kMostListed;
  state.decided = last < 0;
  state.cut = cut_of_min_p(job, value_of_rank(state.largest));  // where nothing else cuts
}

// To a sum in shared memory, which has atomic additions of 32 bits: most weights have no more.
__device__ __forceinline__ void add(Word* sum, Word weight) {
  auto* halves = reinterpret_cast<uint32_t*>(sum);
  const auto low = static_cast<uint32_t>(weight);
  const uint32_t before = atomicAdd(halves, low);
  const uint32_t high = static_cast<uint32_t>(weight >> 32) + (before + low < low ? 1u : 0u);
  if (high != 0) atomicAdd(halves + 1, high);
}

__global__ void __launch_bounds__(kThreads) histogram_kernel(const Batch batch) {
  __shared__ Scratch scratch;
  __shared__ uint32_t counts[kBuckets];
  ptx::wait_for_previous();
  ptx::let_next_start();
  const Job job = batch.jobs[blockIdx.y];
  State& state = batch.states[blockIdx.y];
  if (!job.selects || !alive(state)) return;
  for (int b = static_cast<int>(threadIdx.x); b < kBuckets; b += kThreads) {
    scratch.words[b] = 0;
    counts[b] = 0;
  }
  __syncthreads();
  const float largest = value_of_rank(state.largest);
  const float least = value_of(cut_of_min_p(job, largest).key);
  const Buckets bucket_of(job, largest);
  const bool weighs = job.top_p < 1 || job.logprobs, counts_too = job.top_k > 0;
  each_logit(batch, job, first_quad(), quad_step(), [&](int32_t, float logit) {
    if (logit < least) return;
    const int32_t bucket = bucket_of(logit);
    if (weighs) add(&scratch.words[bucket], weight_of(logit, largest, job.temperature));
    if (counts_too) atomicAdd(&counts[bucket], 1u);
  });
  __syncthreads();
  Histogram& histogram = batch.histograms[blockIdx.y];
  for (int b = static_cast<int>(threadIdx.x); b < kBuckets; b += kThreads) {
    if (counts[b] != 0) atomicAdd(&histogram.count[b], counts[b]);
    if (scratch.words[b] != 0) atomicAdd(&histogram.weight[b], scratch.words[b]);
  }
  if (last_to_arrive(&state.arrived)) plan(job, state, histogram, scratch);
}

// --- the list -------------------------------------------------------------------------------------------------------

// Largest first; `size`, a power of two, is at least 2.
__device__ __forceinline__ void sort_ranks(Word* ranks, int size) {
  for (int run = 2; run <= size; run *= 2) {
    for (int distance = run / 2; distance > 0; distance /= 2) {
      for (int i = static_cast<int>(threadIdx.x); i < size / 2; i += kThreads) {
        const int low = 2 * i - (i & (distance - 1)), high = low + distance;
        const Word a = ranks[low], b = ranks[high];
        if ((a < b) == ((low & run) == 0)) {
          ranks[low] = b;
          ranks[high] = a;
        }
      }
      __syncthreads();
    }
  }
}

__device__ __forceinline__ Word weight_of_rank(const Job& job, const State& state, Word rank) {
  return weight_of(value_of_rank(rank), value_of_rank(state.largest), job.temperature);
}

// The rank at which the first `count` sorted ones have the weight that top_p wants.
__device__ __forceinline__ Word crossing(const Job& job, const State& state, int count, Scratch& scratch) {
  const int per_thread = (count + kThreads - 1) / kThreads;
  const int begin = static_cast<int>(threadIdx.x) * per_thread;
  const int end = begin + per_thread < count ? begin + per_thread : count;
  Word sum = 0, total;
  for (int i = begin; i < end; ++i) sum += weight_of_rank(job, state, scratch.words[i]);
  Word before = sum_before(sum, scratch.sums, &total);
  const Word wanted = state.rank > 0 ? share_of(job.top_p, total) : state.wanted;
  if (before < wanted && before + sum >= wanted) {
    int i = begin;
    for (; i < end - 1; ++i) {
      before += weight_of_rank(job, state, scratch.words[i]);
      if (before >= wanted) break;
    }
    scratch.left = scratch.words[i];
  }
  __syncthreads();
  return scratch.left;
}

__device__ __forceinline__ void list_logprobs(const State& state, int count, TopList& top, const Scratch& scratch) {
  const float largest = value_of_rank(state.largest);
  const float log_total = math::log(static_cast<float>(state.total) / kWeightUnit);
  const int i = static_cast<int>(threadIdx.x);
  const int listed = __syncthreads_count(i < count && scratch.words[i < count ? i : 0] >> 32 > kKeyOfMinusInfinity);
  if (i == 0) top.count = listed;
  if (i >= listed) return;
  top.id[i] = id_of_rank(scratch.words[i]);
  top.logprob[i] = (value_of_rank(scratch.words[i]) - largest) - log_total;
}

// The cut from the complete list of candidates.
__device__ __forceinline__ void decide(const Batch& batch, int job_number, int count, Scratch& scratch) {
  const Job& job = batch.jobs[job_number];
  State& state = batch.states[job_number];
  const Word* list = batch.lists + static_cast<int64_t>(job_number) * kMostListed;
  int size = 2;
  while (size < count) size *= 2;
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) {
    scratch.words[i] = i < count ? __ldcg(&list[i]) : 0;
  }
  __syncthreads();
  sort_ranks(scratch.words, size);
  if (state.rank > 0 && state.rank < count) count = state.rank;
  if (job.logprobs) return list_logprobs(state, count, batch.tops[job_number], scratch);
  const Word last = job.top_p < 1 ? crossing(job, state, count, scratch) : scratch.words[count - 1];
  if (threadIdx.x == 0) state.cut = cut_of_rank(last);
}

// --- without a list -------------------------------------------------------------------------------------------------

// The cut of what `cut` keeps at which `wanted` is reached: weights, or numbers of logits.
__device__ __forceinline__ Cut digit_by_digit(const Batch& batch, const Job& job, float largest, Cut cut, bool weights,
                                              Word wanted, Scratch& scratch) {
  constexpr int kDigits = 5;
  constexpr int kShifts[kDigits] = {53, 42, 32, 11, 0};  // of ids below 2^22 the inverted bits from 22 on are ones
  Word prefix = 0;
  int known = 64;  // bits from here on
  for (int d = 0; d < kDigits; ++d) {
    const int shift = kShifts[d];
    if (d == 3) {
      prefix |= Word{0x3ff} << 22;
      known = 22;
    }
    const Word mask = (Word{1} << (known - shift)) - 1;
    for (int b = static_cast<int>(threadIdx.x); b < kBuckets; b += kThreads) scratch.words[b] = 0;
    __syncthreads();
    each_logit(batch, job, static_cast<int>(threadIdx.x), kThreads, [&](int32_t id, float logit) {
      const Word rank = rank_of(logit, id);
      if (!kept(cut, logit, id) || (known < 64 && rank >> known != prefix >> known)) return;
      const Word value = weights ? weight_of(logit, largest, job.temperature) : 1;
      if (value != 0) atomicAdd(&scratch.words[mask - (rank >> shift & mask)], value);
    });
    __syncthreads();
    Word values[kBucketsPerThread];
    for (int i = 0; i < kBucketsPerThread; ++i) values[i] = scratch.words[threadIdx.x * kBucketsPerThread + i];
    find_bucket(values, wanted, scratch);
    prefix |= (mask - static_cast<Word>(scratch.bucket)) << shift;
    wanted = scratch.left;
    known = shift;
    __syncthreads();
  }
  return cut_of_rank(prefix);
}

__device__ __forceinline__ Word weight_within(const Batch& batch, const Job& job, float largest, Cut cut,
                                              Scratch& scratch) {
  Word mine = 0, total;
  each_logit(batch, job, static_cast<int>(threadIdx.x), kThreads, [&](int32_t id, float logit) {
    if (kept(cut, logit, id)) mine += weight_of(logit, largest, job.temperature);
  });
  sum_before(mine, scratch.sums, &total);
  return total;
}

__device__ __forceinline__ void decide_without_list(const Batch& batch, int job_number, Scratch& scratch) {
  const Job& job = batch.jobs[job_number];
  State& state = batch.states[job_number];
  const float largest = value_of_rank(state.largest);
  Cut cut = cut_of_min_p(job, largest);
  if (state.rank > 0) {
    cut = digit_by_digit(batch, job, largest, cut, false, static_cast<Word>(job.top_k), scratch);
  }
  if (job.logprobs) {
    Word* list = batch.lists + static_cast<int64_t>(job_number) * kMostListed;
    each_logit(batch, job, static_cast<int>(threadIdx.x), kThreads, [&](int32_t id, float logit) {
      if (kept(cut, logit, id)) list[atomicAdd(&state.listed, 1u)] = rank_of(logit, id);
    });
    __threadfence();
    __syncthreads();
    return decide(batch, job_number, job.top_k, scratch);
  }
  if (job.top_p < 1) {
    const Word total = weight_within(batch, job, largest, cut, scratch);
    cut = digit_by_digit(batch, job, largest, cut, true, share_of(job.top_p, total), scratch);
  }
  if (threadIdx.x == 0) state.cut = cut;
}

__global__ void __launch_bounds__(kThreads) cut_kernel(const Batch batch) {
  __shared__ Scratch scratch;
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int job_number = static_cast<int>(blockIdx.y);
  const Job job = batch.jobs[job_number];
  State& state = batch.states[job_number];
  if (!job.selects || !alive(state) || state.decided != 0) return;
  if (state.crowded != 0) {
    if (blockIdx.x == 0) decide_without_list(batch, job_number, scratch);
    return;
  }
  const float largest = value_of_rank(state.largest);
  const float least = value_of(cut_of_min_p(job, largest).key);
  const Buckets bucket_of(job, largest);
  const int32_t first = state.first_bucket, last = state.last_bucket;
  Word* list = batch.lists + static_cast<int64_t>(job_number) * kMostListed;
  each_logit(
      batch, job, first_quad(), quad_step(), [&](float most) { return bucket_of(most) <= last; },
      [&](int32_t id, float logit) {
        const int32_t bucket = bucket_of(logit);
        if (bucket < first || bucket > last || logit < least) return;
        const uint32_t at = atomicAdd(&state.listed, 1u);
        if (at < kMostListed) list[at] = rank_of(logit, id);
      });
  if (!last_to_arrive(&state.collected)) return;
  const uint32_t listed = __ldcg(&state.listed);
  if (listed > kMostListed) return decide_without_list(batch, job_number, scratch);
  decide(batch, job_number, static_cast<int>(listed), scratch);
}

}  // namespace weir::sampling
