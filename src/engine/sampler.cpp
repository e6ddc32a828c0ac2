#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/math.h"

namespace weir {

namespace reference {
bool sample_block_maxima(const LogitRow& row, float* maxima);
uint64_t sample_total_weight(const LogitRow& row, const float* maxima, float largest, float temperature, float least);
void sample_weights(const float* logits, int64_t n, float largest, float temperature, float* weights);
int32_t sample_draw(const NoiseArgs& args);
}  // namespace reference
namespace avx2 {
bool sample_block_maxima(const LogitRow& row, float* maxima);
uint64_t sample_total_weight(const LogitRow& row, const float* maxima, float largest, float temperature, float least);
void sample_weights(const float* logits, int64_t n, float largest, float temperature, float* weights);
int32_t sample_draw(const NoiseArgs& args);
}  // namespace avx2
namespace avx512 {
bool sample_block_maxima(const LogitRow& row, float* maxima);
uint64_t sample_total_weight(const LogitRow& row, const float* maxima, float largest, float temperature, float least);
void sample_weights(const float* logits, int64_t n, float largest, float temperature, float* weights);
int32_t sample_draw(const NoiseArgs& args);
}  // namespace avx512

SampleKernels sample_kernels(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
      return {reference::sample_block_maxima, reference::sample_total_weight, reference::sample_weights,
              reference::sample_draw};
    case KernelSet::kAvx2:
      return {avx2::sample_block_maxima, avx2::sample_total_weight, avx2::sample_weights, avx2::sample_draw};
    case KernelSet::kAvx512:
      return {avx512::sample_block_maxima, avx512::sample_total_weight, avx512::sample_weights, avx512::sample_draw};
  }
  return {};
}

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargestFloat = std::numeric_limits<float>::max();
constexpr uint64_t kOne = uint64_t{1} << 40;  // the weight of e^0
constexpr uint32_t kBuckets = 2048;
constexpr int64_t kMaxVocab = int64_t{1} << 22;

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Unsigned numbers in the order of the floats; -0 is +0.
uint32_t order_key(float a) {
  const auto bits = std::bit_cast<uint32_t>(a + 0.f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
float key_value(uint32_t key) { return std::bit_cast<float>((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key); }

uint64_t fixed_point(float weight) { return static_cast<uint64_t>(static_cast<int64_t>(weight * kWeightUnit)); }

uint64_t share(float p, uint64_t total) {
  return static_cast<uint64_t>(std::ceil(static_cast<double>(p) * static_cast<double>(total)));
}

LogitCut everything_from(float value) { return {value, value, std::numeric_limits<int32_t>::max()}; }

bool penalised(const SamplingOptions& options) {
  return options.repetition_penalty != 1 || options.frequency_penalty != 0 || options.presence_penalty != 0;
}

}  // namespace

Sampler::Sampler(int64_t vocab, KernelSet kernels) : vocab_(vocab), kernels_(sample_kernels(kernels)) {
  if (vocab < 1 || vocab > kMaxVocab) fail("sampler: expected 1 to ", kMaxVocab, " logits, found ", vocab);
  row_.full_blocks = vocab / kSampleBlock;
  row_.blocks = round_up(vocab, kSampleBlock) / kSampleBlock;
  const auto padded = static_cast<size_t>(row_.blocks * kSampleBlock);
  maxima_.resize(static_cast<size_t>(row_.blocks));
  bounds_.resize(maxima_.size());
  tail_.assign(kSampleBlock, -kInfinity);
  adjusted_.resize(static_cast<size_t>(vocab));
  candidates_.resize(padded);
  weights_.resize(padded);
  ids_.resize(padded);
  buckets_.resize(kBuckets);
}

bool Sampler::scan(std::span<const float> logits) {
  row_.logits = logits.data();
  row_.tail = tail_.data();
  const auto rest = logits.subspan(static_cast<size_t>(row_.full_blocks * kSampleBlock));
  std::ranges::copy(rest, tail_.begin());
  if (!kernels_.block_maxima(row_, maxima_.data())) return false;
  largest_ = *std::ranges::max_element(maxima_);
  return true;
}

bool Sampler::adjust(std::span<const float> logits, const SamplingOptions& options, const TokenHistory& history,
                     int64_t generated, std::span<const uint32_t> allowed) {
  const bool penalties = penalised(options) && history.length() > 0;
  const bool stops = generated < options.min_tokens && !options.stop_tokens.empty();
  if (options.logit_bias.empty() && !penalties && !stops && allowed.empty()) return false;
  std::ranges::copy(logits, adjusted_.begin());
  float* l = adjusted_.data();
  for (const auto& [id, bias] : options.logit_bias) l[id] = std::min(l[id] + bias, kLargestFloat);
  if (penalties) {
    for (const TokenHistory::Entry& entry : history.table()) {
      if (entry.in_prompt + entry.in_output == 0) continue;
      assert(entry.id < vocab_);
      float x = l[entry.id];
      const float r = options.repetition_penalty;
      if (r != 1) x = x > 0 ? x / r : x * r;
      if (entry.in_output > 0) {
        x = x - options.frequency_penalty * static_cast<float>(entry.in_output);
        x = x - options.presence_penalty;
      }
      l[entry.id] = std::min(x, kLargestFloat);
    }
  }
  if (stops) {
    for (const int32_t id : options.stop_tokens) l[id] = -kInfinity;
  }
  if (!allowed.empty()) {
    assert(allowed.size() >= static_cast<size_t>(round_up(vocab_, 32) / 32));
    for (int64_t id = 0; id < vocab_; ++id) {
      if ((allowed[static_cast<size_t>(id / 32)] >> (id % 32) & 1) == 0) l[id] = -kInfinity;
    }
  }
  return true;
}

int64_t Sampler::block_of_largest() const { return std::ranges::find(maxima_, largest_) - maxima_.begin(); }

int32_t Sampler::first_largest() const {
  const int64_t b = block_of_largest();
  const float* logits = row_.block(b);
  return static_cast<int32_t>(b * kSampleBlock + (std::find(logits, logits + kSampleBlock, largest_) - logits));
}

float Sampler::bound_of_largest(int64_t count) {
  if (count > row_.blocks) return -kInfinity;
  // `count` blocks have a logit as large as the count-th largest maximum.
  std::ranges::copy(maxima_, bounds_.begin());
  const auto nth = bounds_.begin() + (count - 1);
  std::nth_element(bounds_.begin(), nth, bounds_.end(), std::greater<>());
  return *nth;
}

int64_t Sampler::collect(const LogitCut& cut) {
  int64_t count = 0;
  for (int64_t b = 0; b < row_.blocks; ++b) {
    if (maxima_[static_cast<size_t>(b)] < cut.value) continue;
    const float* logits = row_.block(b);
    for (int64_t i = 0; i < kSampleBlock; ++i) {
      const auto id = static_cast<int32_t>(b * kSampleBlock + i);
      candidates_[static_cast<size_t>(count)] = logits[i];
      ids_[static_cast<size_t>(count)] = id;
      count += logits[i] >= (id <= cut.id ? cut.value : cut.above) ? 1 : 0;
    }
  }
  return count;
}

uint64_t Sampler::weigh(int64_t count, float temperature) {
  for (int64_t i = count; i < round_up(count, 16); ++i) candidates_[static_cast<size_t>(i)] = -kInfinity;
  kernels_.weights(candidates_.data(), round_up(count, 16), largest_, temperature, weights_.data());
  uint64_t total = 0;
  for (int64_t i = 0; i < count; ++i) total += fixed_point(weights_[static_cast<size_t>(i)]);
  return total;
}

// Keeps the candidates of the bucket in which the wanted weight is reached, buckets descending, and takes what is above
// from the weight. Returns the bucket.
template <class Bucket>
uint32_t Sampler::narrow(Bucket bucket_of, int64_t& count, uint64_t& weight) {
  std::ranges::fill(buckets_, 0);
  for (int64_t i = 0; i < count; ++i) {
    buckets_[bucket_of(candidates_[static_cast<size_t>(i)])] += fixed_point(weights_[static_cast<size_t>(i)]);
  }
  uint32_t bucket = kBuckets - 1;
  for (; bucket > 0 && buckets_[bucket] < weight; --bucket) weight -= buckets_[bucket];
  size_t kept = 0;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    if (bucket_of(candidates_[i]) != bucket) continue;
    candidates_[kept] = candidates_[i];
    weights_[kept] = weights_[i];
    ids_[kept++] = ids_[i];
  }
  count = static_cast<int64_t>(kept);
  return bucket;
}

// First by equal steps from the largest logit to `least`, after which few are left unless many are equal; then by the
// 11, 11 and 10 bits of the key. In the end all are equal, and ids decide.
LogitCut Sampler::select(int64_t count, uint64_t weight, float least) {
  const float steps = static_cast<float>(kBuckets - 1) / (largest_ - least);
  if (count > 4 * int64_t{kBuckets} && steps > 0 && steps < kInfinity) {
    narrow([&](float l) { return std::min(static_cast<uint32_t>((l - least) * steps), kBuckets - 1); }, count, weight);
  }
  const uint32_t high = narrow([](float l) { return order_key(l) >> 21; }, count, weight);
  const uint32_t middle = narrow([](float l) { return order_key(l) >> 10 & 0x7ff; }, count, weight);
  const uint32_t low = narrow([](float l) { return order_key(l) & 0x3ff; }, count, weight);
  size_t last = 0;
  for (uint64_t sum = fixed_point(weights_[0]); sum < weight; sum += fixed_point(weights_[last])) ++last;
  const float value = key_value(high << 21 | middle << 10 | low);
  return {value, std::nextafter(value, kInfinity), ids_[last]};
}

LogitCut Sampler::keep_top_k(const LogitCut& cut, int64_t k) {
  const float least = std::max(cut.value, bound_of_largest(k));
  const int64_t count = collect(everything_from(least));
  if (count < k) return cut;  // min-p has left fewer
  std::fill_n(weights_.begin(), count, 1.f);
  return select(count, static_cast<uint64_t>(k) * kOne, least);
}

LogitCut Sampler::keep_top_p_of_few(const LogitCut& cut, float temperature, float p) {
  const int64_t count = collect(cut);
  return select(count, share(p, weigh(count, temperature)), cut.value);
}

LogitCut Sampler::keep_top_p(const LogitCut& cut, float temperature, float p) {
  const uint64_t total = kernels_.total_weight(row_, maxima_.data(), largest_, temperature, cut.value);
  // Logits whose weight is below (1 - p) total / vocab weigh less than (1 - p) total together: the set that is wanted
  // has none of them. Half of it leaves room for the roundings here. Often a few nats suffice, and few candidates.
  const float hopeless = 0.5f * (1 - p) * (static_cast<float>(total) / kWeightUnit) / static_cast<float>(vocab_);
  for (const float nats : {8.f, -math::log(hopeless), kInfinity}) {
    const float least = std::max(cut.value, largest_ - temperature * nats);
    const int64_t count = collect(everything_from(least));
    if (weigh(count, temperature) >= share(p, total)) return select(count, share(p, total), least);
  }
  return cut;
}

LogitCut Sampler::filter(const SamplingOptions& options) {
  LogitCut cut = everything_from(largest_ + options.temperature * math::log(options.min_p));
  const bool top_k = options.top_k > 0 && options.top_k < vocab_;
  if (top_k) cut = keep_top_k(cut, options.top_k);
  if (options.top_p == 1) return cut;
  return top_k ? keep_top_p_of_few(cut, options.temperature, options.top_p)
               : keep_top_p(cut, options.temperature, options.top_p);
}

void Sampler::logprobs(int32_t count, SampledToken& token) {
  const uint64_t total = kernels_.total_weight(row_, maxima_.data(), largest_, 1, -kInfinity);
  const float log_total = math::log(static_cast<float>(total) / kWeightUnit);
  const auto logprob = [&](float logit) { return (logit - largest_) - log_total; };
  token.logprob = logprob(row_.block(token.id / kSampleBlock)[token.id % kSampleBlock]);
  if (count == 0) return;
  const int64_t found = collect(everything_from(bound_of_largest(std::min<int64_t>(count, vocab_))));
  // The candidates are few, unless many are equal or the vocabulary is tiny.
  for (int32_t n = 0; n < count; ++n) {
    const auto begin = candidates_.begin(), largest = std::max_element(begin, begin + found);
    if (*largest == -kInfinity) break;
    token.top.add(ids_[static_cast<size_t>(largest - begin)], logprob(*largest));
    *largest = -kInfinity;
  }
}

std::optional<SampledToken> Sampler::sample(std::span<const float> logits, const SamplingOptions& options,
                                            const TokenHistory& history, int64_t position, int64_t generated,
                                            std::span<const uint32_t> allowed) {
  assert(static_cast<int64_t>(logits.size()) == vocab_);
  if (!scan(logits) || largest_ == -kInfinity) return std::nullopt;
  const bool adjusted = adjust(logits, options, history, generated, allowed);
  if (adjusted && (!scan(adjusted_) || largest_ == -kInfinity)) return std::nullopt;
  SampledToken token;
  if (options.temperature > 0) {
    token.id = kernels_.draw({.row = row_,
                              .maxima = maxima_.data(),
                              .largest = largest_,
                              .temperature = options.temperature,
                              .seed = options.seed,
                              .position = position,
                              .cut = filter(options),
                              .first_block = block_of_largest()});
  } else {
    token.id = first_largest();
  }
  if (options.top_logprobs >= 0) {
    if (adjusted) scan(logits);
    logprobs(options.top_logprobs, token);
  }
  return token;
}

std::optional<int32_t> sample(std::span<const float> logits, const SamplingOptions& options, int64_t position) {
  if (options.top_k != 0 || options.top_p != 1 || options.min_p != 0 || penalised(options) ||
      !options.logit_bias.empty() || options.min_tokens != 0 || options.top_logprobs != -1) {
    fail("sample: expected no options but temperature and seed; the class Sampler takes the others");
  }
  float largest = -kInfinity;
  for (const float logit : logits) {
    if (!(logit < kInfinity)) return std::nullopt;  // NaN or +inf
    largest = logit > largest ? logit : largest;
  }
  float best = -kInfinity;
  int32_t chosen = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float logit = logits[i];
    if (logit == -kInfinity) continue;
    const auto id = static_cast<int32_t>(i);
    float score = logit;
    if (options.temperature > 0) {
      score = (logit - largest) / options.temperature;  // at most 0: a tiny T gives -inf, never +inf
      if (score + kMaxGumbel <= best) continue;         // no noise could lift it above the best
      score += gumbel_noise(options.seed, position, id);
    }
    if (score > best || chosen < 0) {
      best = score;
      chosen = id;
    }
  }
  if (chosen < 0) return std::nullopt;
  return chosen;
}

}  // namespace weir
