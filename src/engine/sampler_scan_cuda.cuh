// The passes of the sampler that need no cut: lists of changes, the largest logit, the draw, the outcome.
#pragma once

#include "engine/philox.h"
#include "engine/sampler_histories_cuda.h"
#include "engine/sampler_job_cuda.cuh"

namespace weir::sampling {

// Changes of single logits: biases, penalties, tokens that may not stop yet. In each list an id is there once.
struct Bias {
  int32_t id;
  float value;
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

inline constexpr int kChangeThreads = 1024;
inline constexpr int kChangesAtOnce = 4;  // of a thread: reads are far

// body(i, id, logit) for i in [0, count) where id(i) is an id.
template <class Id, class Body>
__device__ __forceinline__ void each_changed(const Changes& c, int count, Id id, Body body) {
  for (int first = static_cast<int>(threadIdx.x); first < count; first += kChangeThreads * kChangesAtOnce) {
    int32_t ids[kChangesAtOnce];
    float logits[kChangesAtOnce];
#pragma unroll
    for (int i = 0; i < kChangesAtOnce; ++i) {
      const int at = first + i * kChangeThreads;
      ids[i] = at < count ? id(at) : -1;
    }
#pragma unroll
    for (int i = 0; i < kChangesAtOnce; ++i) logits[i] = ids[i] < 0 ? 0.f : c.logits[ids[i]];
#pragma unroll
    for (int i = 0; i < kChangesAtOnce; ++i) {
      if (ids[i] >= 0) body(first + i * kChangeThreads, ids[i], logits[i]);
    }
  }
  __syncthreads();
}

__global__ void update_kernel(const DeviceHistories::Update* updates, int count) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) *updates[i].to = updates[i].value;
}

// A block for each row that has changes.
__global__ void __launch_bounds__(kChangeThreads) change_kernel(const Changes* all) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const Changes c = all[blockIdx.x];
  const float most = 0x1.fffffep127f;
  float* saved = c.saved;
  const auto change = [&](int i, int32_t id, float before, float after) {
    if (!(before < __uint_as_float(0x7f800000u))) atomicOr(&c.state->bad, 1u);
    saved[i] = before;
    c.logits[id] = after;
  };
  each_changed(
      c, c.bias_count, [&](int i) { return c.biases[i].id; },
      [&](int i, int32_t id, float l) { change(i, id, l, math::min(l + c.biases[i].value, most)); });
  saved += c.bias_count;
  each_changed(
      c, c.penalised_count, [&](int i) { return c.penalised[i].id; },
      [&](int i, int32_t id, float l) {
        float x = l;
        if (c.repetition != 1) x = x > 0 ? x / c.repetition : x * c.repetition;
        const int32_t in_output = c.penalised[i].in_output;
        if (in_output > 0) {
          x = x - c.frequency * static_cast<float>(in_output);
          x = x - c.presence;
        }
        change(i, id, l, math::min(x, most));
      });
  saved += c.penalised_count;
  each_changed(
      c, c.stop_count, [&](int i) { return c.stops[i]; },
      [&](int i, int32_t id, float l) { change(i, id, l, -__uint_as_float(0x7f800000u)); });
}

// The other way round.
__global__ void __launch_bounds__(kChangeThreads) restore_kernel(const Changes* all) {
  ptx::wait_for_previous();
  ptx::let_next_start();
  const Changes c = all[blockIdx.x];
  const auto restore = [&](int count, const float* saved, auto id) {
    each_changed(c, count, id, [&](int i, int32_t at, float) { c.logits[at] = saved[i]; });
  };
  restore(c.stop_count, c.saved + c.bias_count + c.penalised_count, [&](int i) { return c.stops[i]; });
  restore(c.penalised_count, c.saved + c.bias_count, [&](int i) { return c.penalised[i].id; });
  restore(c.bias_count, c.saved, [&](int i) { return c.biases[i].id; });
}

// -infinity in place of those that are not allowed.
__device__ __forceinline__ float4 only(float4 v, uint32_t bits) {
  if (bits == 0xf) return v;
  const float none = -__uint_as_float(0x7f800000u);
  return {bits & 1 ? v.x : none, bits & 2 ? v.y : none, bits & 4 ? v.z : none, bits & 8 ? v.w : none};
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
  const float infinity = __uint_as_float(0x7f800000u);
  float most = -infinity;
  int quad = -1;  // the first with the largest: quads ascend
  bool bad = false;
  each_quad(batch, job, first_quad(), quad_step(), [&](int32_t id, float4 v, uint32_t bits) {
    bad = bad || !(v.x < infinity && v.y < infinity && v.z < infinity && v.w < infinity);
    const float top = largest_of(only(v, bits));
    quad = top > most ? id : quad;
    most = fmaxf(most, top);
  });
  if (bad) atomicOr(&state.bad, 1u);
  Word mine = 0;
  if (quad >= 0) {
    each_quad(batch, job, quad / 4, batch.vocab, [&](int32_t id, float4 v, uint32_t bits) {
      const float4 w = only(v, bits);
      mine = rank_of(most, w.x == most ? id : w.y == most ? id + 1 : w.z == most ? id + 2 : id + 3);
    });
  }
  reach(mine, &state.largest, &largest);
}

// Above what roundings could add to a score that noise may lift: those below -1000 it cannot.
inline constexpr float kNearScore = 0.01f;

// Above the noise of a word, which is at most -log(1 - u), by the number of ones that the word begins with.
__device__ __forceinline__ float gumbel_below(uint32_t word) {
  return static_cast<float>(__clz(static_cast<int>(~word | 0x1ffu)) + 1) * 0.6931473f;
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
  // Nearly the score, or above it.
  const float inverse = 1.f / job.temperature, near = inverse < __uint_as_float(0x7f800000u) ? inverse : 0.f;
  const float least = value_of(cut.key);
  each_quad(batch, job, first_quad(), quad_step(), [&](int32_t id, float4 v, uint32_t bits) {
    if (largest_of(v) < least) return;
    const float logit[4] = {v.x, v.y, v.z, v.w};
    float most[4];
    uint32_t hopeful = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      most[i] = (logit[i] - largest) * near + kNearScore;
      const bool hopeless = most[i] + kMaxGumbel < bound;  // no noise could lift it so far
      if (!hopeless && kept(cut, logit[i], id + i)) hopeful |= 1u << i;
    }
    hopeful &= bits;
    if (hopeful == 0) return;
    const PhiloxWords noise = words(id);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((hopeful >> i & 1) == 0 || most[i] + gumbel_below(noise.word[i]) < bound) continue;
      const float noisy = (logit[i] - largest) / job.temperature + gumbel_of_word(noise.word[i]);
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
