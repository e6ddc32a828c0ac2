// What tests of the sampler share: its specification in plain loops with a full sort, and random requests.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/math.h"
#include "engine/sampler.h"
#include "ops/simd/kernel_test.h"

namespace weir {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

struct Request {
  SamplingOptions options;
  std::vector<int32_t> prompt, output;
  std::vector<uint32_t> allowed;
  int64_t position = 0;

  TokenHistory history() const {
    TokenHistory out;
    out.add_prompt(prompt);
    for (const int32_t token : output) out.add(token);
    return out;
  }
  int64_t generated() const { return static_cast<int64_t>(output.size()); }
};

inline std::vector<float> plain_adjusted(std::vector<float> l, const Request& request) {
  const SamplingOptions& o = request.options;
  for (const auto& [id, bias] : o.logit_bias) l[static_cast<size_t>(id)] += bias;
  for (size_t i = 0; i < l.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const auto in_output = std::ranges::count(request.output, id);
    if (in_output > 0 || std::ranges::count(request.prompt, id) > 0) {
      l[i] = l[i] > 0 ? l[i] / o.repetition_penalty : l[i] * o.repetition_penalty;
    }
    l[i] -= o.frequency_penalty * static_cast<float>(in_output);
    l[i] -= in_output > 0 ? o.presence_penalty : 0.f;
    l[i] = std::min(l[i], std::numeric_limits<float>::max());
    if (!request.allowed.empty() && (request.allowed[i / 32] >> (i % 32) & 1) == 0) l[i] = -kInf;
  }
  if (request.generated() < o.min_tokens) {
    for (const int32_t id : o.stop_tokens) l[static_cast<size_t>(id)] = -kInf;
  }
  return l;
}

// The ids that the filters keep, likeliest first.
inline std::vector<int32_t> plain_kept(const std::vector<float>& l, const SamplingOptions& o) {
  std::vector<int32_t> ids(l.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto at = [&](int32_t id) { return l[static_cast<size_t>(id)]; };
  std::ranges::stable_sort(ids, [&](int32_t a, int32_t b) { return at(a) > at(b); });
  const float largest = at(ids[0]);
  const float least = largest + o.temperature * math::log(o.min_p);
  std::erase_if(ids, [&](int32_t id) { return !(at(id) >= least) || at(id) == -kInf; });
  if (o.top_k > 0) ids.resize(std::min(ids.size(), static_cast<size_t>(o.top_k)));
  if (o.top_p < 1) {
    const auto weight = [&](int32_t id) {
      return std::floor(std::ldexp(static_cast<double>(math::exp((at(id) - largest) / o.temperature)), 40));
    };
    double total = 0, sum = 0;  // exact below 2^53: at most 8192 logits
    for (const int32_t id : ids) total += weight(id);
    size_t n = 0;
    while (sum < static_cast<double>(o.top_p) * total) sum += weight(ids[n++]);
    ids.resize(n);
  }
  return ids;
}

inline int32_t plain_choice(const std::vector<float>& logits, const Request& request) {
  const std::vector<float> l = plain_adjusted(logits, request);
  const float largest = *std::ranges::max_element(l);
  if (request.options.temperature == 0) return static_cast<int32_t>(std::ranges::find(l, largest) - l.begin());
  std::vector<int32_t> ids = plain_kept(l, request.options);
  std::ranges::sort(ids);
  float best = -kInf;
  int32_t chosen = -1;
  for (const int32_t id : ids) {
    const float score = (l[static_cast<size_t>(id)] - largest) / request.options.temperature +
                        gumbel_noise(request.options.seed, request.position, id);
    if (score > best) {
      best = score;
      chosen = id;
    }
  }
  return chosen;
}

// Logits of several kinds: smooth, with many ties, with masked ids, nearly flat, one far above.
inline std::vector<float> some_logits(RandomFloats& random, int64_t n) {
  std::vector<float> l(static_cast<size_t>(n));
  const int64_t kind = random.below(5);
  for (float& x : l) {
    x = (random.next() + random.next() + random.next()) * 2;
    if (kind == 1) x = std::round(x);
    if (kind == 2 && random.below(3) == 0) x = -kInf;
    if (kind == 3) x *= 0.01f;
    if (kind == 4 && random.below(20) == 0) x += 12;
    if (random.below(50) == 0) x = random.below(2) == 0 ? 0.f : -0.f;
  }
  l[static_cast<size_t>(random.below(n))] = 1;
  return l;
}

inline Request some_request(RandomFloats& random, int64_t n) {
  Request r;
  SamplingOptions& o = r.options;
  const auto maybe = [&] { return random.below(2) == 0; };
  const auto id = [&] { return static_cast<int32_t>(random.below(n)); };
  const float temperatures[] = {0, 0.3f, 0.7f, 1, 1, 1.7f, 20, 1e-30f};
  o.temperature = temperatures[random.below(8)];
  o.seed = random.bits();
  r.position = random.below(int64_t{1} << 40);
  if (maybe()) o.top_k = static_cast<int32_t>(1 + random.below(maybe() ? 8 : n + 3));
  const float top_ps[] = {1e-6f, 0.1f, 0.5f, 0.9f, 0.95f, 0.999f, 0.99999994f};
  if (maybe()) o.top_p = top_ps[random.below(7)];
  const float min_ps[] = {1e-30f, 0.001f, 0.05f, 0.5f, 1};
  if (maybe()) o.min_p = min_ps[random.below(5)];
  if (maybe()) {
    for (int64_t i = random.below(40); i > 0; --i) r.prompt.push_back(id());
    for (int64_t i = random.below(40); i > 0; --i) r.output.push_back(id());
    if (maybe()) o.presence_penalty = random.next();
    if (maybe()) o.frequency_penalty = random.next();
    if (maybe()) o.repetition_penalty = random.next() + 2.5f;
  }
  if (maybe()) o.logit_bias = {{id(), random.next() * 3}};
  if (maybe() && n > 3) {
    o.min_tokens = random.below(40);
    o.stop_tokens = {id(), id()};
  }
  if (random.below(4) == 0) {
    for (int64_t w = 0; w < (n + 31) / 32; ++w) r.allowed.push_back(static_cast<uint32_t>(random.bits()));
  }
  return r;
}

}  // namespace weir
