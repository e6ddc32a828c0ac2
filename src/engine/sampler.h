// Sampling as keyed noise: the next token is a pure function of the logits, the options, the sequence's own tokens and
// the position. In order, as vLLM does it (vllm/v1/sample/sampler.py), all in FP32:
//   1. logit bias           l += bias
//   2. repetition penalty   of ids in the prompt or the output: l > 0 ? l / r : l * r            (r = 1: not at all)
//   3. frequency penalty    l -= penalty * (times generated)       OpenAI's: the prompt does not count
//   4. presence penalty     l -= penalty, of ids generated
//   5. not allowed          l = -inf: stop tokens while generated < min_tokens, ids outside `allowed`
//   6. temperature          s = (l - max l) / T.   T = 0 ends here: next = argmax l
//   7. min-p                keeps l >= max l + T log(min_p), so ids min_p times as likely as the likeliest
//   8. top-k                keeps the k largest l
//   9. top-p                keeps the smallest set of the largest l whose weight is at least top_p of the weight of
//   what 7
//                           and 8 kept; the id that crosses the line is in
//  10. noise                next = argmax s + Gumbel(Philox(seed, position, id))
// Ties go to the lowest id everywhere. An l beyond the range of FP32 is held at its largest finite number.
//
// Weights are floor(2^40 e^s) and sums of them exact integers, so no order is prescribed. What is kept has weight >=
// ceil(double(top_p) * double(sum)).
//
// Logprobs are those of the model: log-softmax of the logits as they came, before step 1 (vLLM's default):
// (l - max l) - log(sum 2^-40), with the weights of T = 1.
//
// No full sort and no division by the sum is needed: blocks of logits with a small maximum are skipped, and the cuts of
// 8 and 9 are found by selection with buckets.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "device/cpu.h"
#include "engine/sampler_history.h"
#include "engine/sampler_kernels.h"
#include "engine/sampler_noise.h"
#include "engine/sampler_options.h"

namespace weir {

// The model's likeliest ids, likeliest first, with their logprobs; ids with a logit of -inf are left out.
class TopLogprobs {
 public:
  std::span<const std::pair<int32_t, float>> entries() const { return {entries_.data(), size_}; }
  void add(int32_t id, float logprob) { entries_[size_++] = {id, logprob}; }

 private:
  std::array<std::pair<int32_t, float>, kMaxTopLogprobs> entries_;
  size_t size_ = 0;
};

struct SampledToken {
  int32_t id = 0;
  float logprob = 0;  // both only with options.top_logprobs >= 0
  TopLogprobs top;
};

class Sampler {
 public:
  // 1 to 2^22 logits. All scratch is taken here, about 16 bytes a logit.
  explicit Sampler(int64_t vocab, KernelSet kernels = best_kernel_set());

  // `options` have passed validate(); `history` (of ids below vocab) is read for penalties only; `position` is that of
  // the token to be sampled; `generated`: tokens of the answer so far. `allowed`: bit id % 32 of word id / 32; empty:
  // all ids. Nothing when a logit is NaN or +inf (-inf is a masked id), or when no id is allowed.
  // A state of its own the sampler does not have: calls may come in any order.
  std::optional<SampledToken> sample(std::span<const float> logits, const SamplingOptions& options,
                                     const TokenHistory& history, int64_t position, int64_t generated,
                                     std::span<const uint32_t> allowed = {});

 private:
  bool scan(std::span<const float> logits);  // sets row_, maxima_, largest_; false: not finite
  bool adjust(std::span<const float> logits, const SamplingOptions& options, const TokenHistory& history,
              int64_t generated, std::span<const uint32_t> allowed);  // l in adjusted_, unless it is `logits`
  void logprobs(int32_t count, SampledToken& token);
  int64_t block_of_largest() const;
  int32_t first_largest() const;

  float bound_of_largest(int64_t count);  // at least `count` logits are at least this
  int64_t collect(const LogitCut& cut);   // what is within the cut, ids ascending: the candidates; returns their number
  uint64_t weigh(int64_t count, float temperature);  // the candidates; returns the sum
  // The smallest cut of the candidates with that weight, if they have it. `least`: no candidate is below.
  LogitCut select(int64_t count, uint64_t weight, float least);
  template <class Bucket>
  uint32_t narrow(Bucket bucket_of, int64_t& count, uint64_t& weight);

  LogitCut filter(const SamplingOptions& options);
  LogitCut keep_top_k(const LogitCut& cut, int64_t k);
  LogitCut keep_top_p(const LogitCut& cut, float temperature, float p);
  LogitCut keep_top_p_of_few(const LogitCut& cut, float temperature, float p);

  int64_t vocab_;
  SampleKernels kernels_;
  LogitRow row_;
  float largest_ = 0;
  std::vector<float> maxima_, bounds_;  // [blocks]
  std::vector<float> tail_;             // a block
  std::vector<float> adjusted_;         // [vocab]
  std::vector<float> candidates_;       // logits; [vocab], filled up to a multiple of 16
  std::vector<float> weights_;          // e^s
  std::vector<int32_t> ids_;
  std::vector<uint64_t> buckets_;
};

// The same for temperature and seed alone, in plain loops; Error when another option is set, since these need what this
// function is not given.
std::optional<int32_t> sample(std::span<const float> logits, const SamplingOptions& options, int64_t position);

}  // namespace weir
