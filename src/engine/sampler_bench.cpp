// Sampling from 160,000 logits, on one thread as the engine calls it: logits like a language model's (a bell of width 3
// below some peaks, likely or not so), and a flat row, the worst case. Bytes: the logits, once.
#include "engine/sampler.h"

#include <cmath>
#include <string>
#include <vector>

#include "ops/simd/op_bench.h"

namespace {

constexpr int64_t kVocab = 160000;

std::vector<float> bell(float width, float peak) {
  std::vector<float> logits(kVocab);
  for (int32_t id = 0; id < kVocab; ++id) {
    float x = 0;
    for (int64_t i = 0; i < 8; ++i) {
      x += static_cast<float>(weir::philox4x32(1, static_cast<uint64_t>(i), static_cast<uint64_t>(id)).word[0]) *
           0x1p-32f;
    }
    logits[static_cast<size_t>(id)] = (x - 4) * 1.22f * width;  // eight uniform numbers: standard deviation 0.82
  }
  for (size_t i = 0; i < 40; ++i) logits[i * 3989 + 17] += peak / static_cast<float>(i + 1);
  return logits;
}

}  // namespace

int main() {
  using namespace weir;
  const std::vector<float> peaked = bell(2, 18), broad = bell(3, 18), flat = bell(0.5f, 0);
  TokenHistory history;
  for (int32_t i = 0; i < 8000; ++i) history.add(i * i % 20011);
  struct Case {
    std::string label;
    const std::vector<float>& logits;
    SamplingOptions options;
  };
  const Case cases[] = {
      {"greedy", peaked, {}},
      {"T 1", peaked, {.temperature = 1}},
      {"T 1, top-k 50", peaked, {.temperature = 1, .top_k = 50}},
      {"T 1, top-p 0.95", peaked, {.temperature = 1, .top_p = 0.95f}},
      {"T 0.7, top-k 20, top-p 0.95", peaked, {.temperature = 0.7f, .top_k = 20, .top_p = 0.95f}},
      {"T 1, min-p 0.05", peaked, {.temperature = 1, .min_p = 0.05f}},
      {"T 0.7, top-p 0.9, penalties of 8000 tokens",
       peaked,
       {.temperature = 0.7f, .top_p = 0.9f, .presence_penalty = 0.5f, .repetition_penalty = 1.1f}},
      {"greedy, 20 logprobs", peaked, {.top_logprobs = 20}},
      {"broad: T 1", broad, {.temperature = 1}},
      {"broad: T 1, top-p 0.95", broad, {.temperature = 1, .top_p = 0.95f}},
      {"flat: T 1", flat, {.temperature = 1}},
      {"flat: T 1, top-k 20000", flat, {.temperature = 1, .top_k = 20000}},
      {"flat: T 1, top-p 0.95", flat, {.temperature = 1, .top_p = 0.95f}},
  };
  for (const KernelSet set : {KernelSet::kAvx512, KernelSet::kAvx2}) {
    if (!kernel_set_supported(set)) {
      std::printf("%s: skipped, not on this processor\n", kernel_set_name(set).data());
      continue;
    }
    OpBench bench(1, set);
    Sampler sampler(kVocab, set);
    int64_t position = 0;
    for (const Case& c : cases) {
      bench.line(c.label, 10, kVocab * 4.0, 0, [&] {
        for (int i = 0; i < 10; ++i) (void)sampler.sample(c.logits, c.options, history, position++, 0);
      });
    }
  }
}
