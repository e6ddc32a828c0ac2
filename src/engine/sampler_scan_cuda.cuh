// The passes of the sampler that need no cut: lists of changes, the largest logit, the draw, the outcome.
#pragma once

#include "engine/philox.h"
#include "engine/sampler_job_cuda.cuh"

namespace weir::sampling {

// Changes of single logits: biases, penalties, tokens that may not stop yet.
struct Bias {
  int32_t id;
  float value;
};
struct Penalised {
  int32_t id;
  int32_t in_output;
};
struct Changes {
  float* logits;
  State* state;
  const Bias* biases;
  const Penalised* penalised;
  const int32_t* stops;
  float* saved;  // what was there before each change
  int32_t bias_count, penalised_count, stop_count;
  float repetition, frequency, presence;
};

// change(i, logit) for i in [0, count), of the logit at id(i). Ids may be there twice only if the change does not
// depend on the logit.
template <class Id, class Change>
__device__ __forceinline__ void change_each(const Changes& c, int count, float* saved, Id id, Change change) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const float logit = c.logits[id(i)];
    if (!(logit < __uint_as_float(0x7f800000u))) atomicOr(&c.state->bad, 1u);
    saved[i] = logit;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) c.logits[id(i)] = change(i, saved[i]);
  __syncthreads();
}

// A block for each row that has changes.
__global__ void __launch_bounds__(kThreads) change_kernel(const Changes* all) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const Changes c = all[blockIdx.x];
  const float most = 0x1.fffffep127f;
  float* saved = c.saved;
  change_each(
      c, c.bias_count, saved, [&](int i) { return c.biases[i].id; },
      [&](int i, float l) { return math::min(l + c.biases[i].value, most); });
  saved += c.bias_count;
  change_each(
      c, c.penalised_count, saved, [&](int i) { return c.penalised[i].id; },
      [&](int i, float x) {
        if (c.repetition != 1) x = x > 0 ? x / c.repetition : x * c.repetition;
        if (c.penalised[i].in_output > 0) {
          x = x - c.frequency * static_cast<float>(c.penalised[i].in_output);
          x = x - c.presence;
        }
        return math::min(x, most);
      });
  saved += c.penalised_count;
  change_each(
      c, c.stop_count, saved, [&](int i) { return c.stops[i]; },
      [&](int, float) { return -__uint_as_float(0x7f800000u); });
}

// The other way round.
__global__ void __launch_bounds__(kThreads) restore_kernel(const Changes* all) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const Changes c = all[blockIdx.x];
  const auto restore = [&](int count, const float* saved, auto id) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) c.logits[id(i)] = saved[i];
    __syncthreads();
  };
  restore(c.stop_count, c.saved + c.bias_count + c.penalised_count, [&](int i) { return c.stops[i]; });
  restore(c.penalised_count, c.saved + c.bias_count, [&](int i) { return c.penalised[i].id; });
  restore(c.bias_count, c.saved, [&](int i) { return c.biases[i].id; });
}

// The largest logit and whether all are numbers; clears the histograms.
__global__ void __launch_bounds__(kThreads) scan_kernel(const Batch batch) {
  __shared__ Word largest;
  ptx::wait_for_previous();
  ptx::let_next_start();
  const Job job = batch.jobs[blockIdx.y];
  State& state = batch.states[blockIdx.y];
  if (job.selects) {
    Histogram& histogram = batch.histograms[blockIdx.y];
    for (int b = first_quad(); b < kBuckets; b += quad_step()) {
      histogram.weight[b] = 0;
      histogram.count[b] = 0;
    }
  }
  Word mine = 0;
  bool bad = false;
  each_quad(batch, job, first_quad(), quad_step(), [&](int32_t id, float4 v, uint32_t bits) {
    const float infinity = __uint_as_float(0x7f800000u);
    bad = bad || !(v.x < infinity && v.y < infinity && v.z < infinity && v.w < infinity);
    const auto take = [&](uint32_t bit, float logit, int32_t at) {
      const Word rank = rank_of(logit, at);
      if ((bits & bit) != 0 && rank > mine) mine = rank;
    };
    take(1, v.x, id);
    take(2, v.y, id + 1);
    take(4, v.z, id + 2);
    take(8, v.w, id + 3);
  });
  if (bad) atomicOr(&state.bad, 1u);
  reach(mine, &state.largest, &largest);
}

// The largest score with noise, within the cut.
__global__ void __launch_bounds__(kThreads) draw_kernel(const Batch batch) {
  __shared__ Word best;
  ptx::wait_for_previous();
  ptx::let_next_start();
  const Job job = batch.jobs[blockIdx.y];
  State& state = batch.states[blockIdx.y];
  if (job.logprobs || job.temperature == 0 || !alive(state)) return;
  const float largest = value_of_rank(state.largest);
  const Cut cut = job.selects ? state.cut : cut_of_min_p(job, largest);
  const auto words = [&](int32_t id) {
    return philox_words(job.seed, static_cast<uint64_t>(job.position), static_cast<uint64_t>(id) / 4);
  };
  // The largest logit is always within the cut. Its score is one to reach.
  const int32_t top = id_of_rank(state.largest);
  const PhiloxWords top_words = words(top);
  float bound = (largest - largest) / job.temperature;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (top % 4 == i) bound += gumbel_of_word(top_words.word[i]);
  }
  Word mine = rank_of(bound, top);
  each_quad(batch, job, first_quad(), quad_step(), [&](int32_t id, float4 v, uint32_t bits) {
    const float logit[4] = {v.x, v.y, v.z, v.w};
    float score[4];
    bool any = false;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      score[i] = (logit[i] - largest) / job.temperature;
      const bool hopeless = score[i] + kMaxGumbel < bound;  // no noise could lift it so far
      if ((bits >> i & 1) == 0 || hopeless || !kept(cut, logit[i], id + i)) score[i] = -__uint_as_float(0x7f800000u);
      any = any || !(score[i] == -__uint_as_float(0x7f800000u));
    }
    if (!any) return;
    const PhiloxWords noise = words(id);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (score[i] == -__uint_as_float(0x7f800000u)) continue;
      const float noisy = score[i] + gumbel_of_word(noise.word[i]);
      const Word rank = rank_of(noisy, id + i);
      if (rank > mine) mine = rank;
      bound = math::max(bound, noisy);
    }
  });
  reach(mine, &state.best, &best);
}

// Job `rows + i`, i counting the rows that want logprobs, is the one for these. logprob_jobs[row]: its number, or -1.
__global__ void finish_kernel(const Batch batch, const int32_t* logprob_jobs, int32_t rows, Outcome* outcomes,
                              int32_t* ids) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int32_t row = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= rows) return;
  const Job& job = batch.jobs[row];
  const State& state = batch.states[row];
  Outcome& outcome = outcomes[row];
  outcome.id = -1;
  outcome.top.count = 0;
  if (alive(state)) outcome.id = id_of_rank(job.temperature == 0 ? state.largest : state.best);
  ids[row] = outcome.id;
  const int32_t with = logprob_jobs[row];
  if (outcome.id < 0 || with < 0) return;
  const float largest = value_of_rank(batch.states[with].largest);
  const float log_total = math::log(static_cast<float>(batch.states[with].total) / kWeightUnit);
  outcome.logprob = (batch.jobs[with].logits[outcome.id] - largest) - log_total;
  if (batch.jobs[with].top_k > 0) outcome.top = batch.tops[with];
}

}  // namespace weir::sampling
