// One measurement of `weir bench`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace weir::cli {

struct BenchTest {
  enum class Kind { kPrompt, kGenerate };
  Kind kind = Kind::kPrompt;
  int64_t n = 0;      // tokens of the prompt, or generated per sequence
  int64_t depth = 0;  // tokens that each sequence has before
  int64_t batch = 1;  // sequences; 1 for prompts

  int64_t tokens() const { return n * batch; }
  std::string name() const;  // "pp512", "tg128@d2048", "tg128@b16"
};

struct BenchResult {
  std::vector<double> seconds;  // of each repeat
  int64_t bytes = 0;            // of weights and state that one repeat moves
  double flops = 0;             // that one repeat computes
};

// Makes room for the largest of the tests. Error when one exceeds the model's context.
void size_bench_engine(const std::vector<BenchTest>& tests, const ModelSpec& spec, EngineOptions& options);

// What a sequence is given: pseudo-random tokens, the same in every run. No two sequences have the same, so that
// rows of a step choose experts of their own.
std::vector<int32_t> bench_tokens(int64_t sequence, int64_t count, int64_t vocab);

BenchResult run_bench(Engine& engine, const BenchTest& test, int repeats);

}  // namespace weir::cli
