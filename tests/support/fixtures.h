// Golden models and small helpers for tests that cross folders.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "formats/safetensors.h"
#include "ops/simd/kernel_sets.h"
#include "tests/support/delta.h"

// The device that engines of this program compute on: programs for GPUs define it before they include this.
#ifndef WEIR_TEST_GPU
#define WEIR_TEST_GPU -1
#endif

namespace weir::test {

inline constexpr int kTestGpu = WEIR_TEST_GPU;

// Skips a whole program for GPUs where there is none.
class NeedsGpu : public ::testing::Environment {
 public:
  void SetUp() override {
    if (const std::string why = why_no_cuda(); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
  }
};

// A file or folder of tests/fixtures; where it is kept as a delta, put together in the build folder.
inline std::string fixture(const std::string& name) {
  return with_deltas(std::string(WEIR_FIXTURES "/") + name, WEIR_FIXTURE_CACHE);
}

// Values of a golden file.
class Golden {
 public:
  explicit Golden(const std::string& path) : file_(SafetensorsFile::open(path)) {}

  const Tensor& tensor(const std::string& name) const {
    for (const Tensor& t : file_.tensors()) {
      if (t.name == name) return t;
    }
    throw Error("golden file without " + name);
  }
  bool has(const std::string& name) const {
    for (const Tensor& t : file_.tensors()) {
      if (t.name == name) return true;
    }
    return false;
  }
  std::vector<float> floats(const std::string& name) const {
    const Tensor& t = tensor(name);
    std::vector<float> out(static_cast<size_t>(t.elements()));
    std::memcpy(out.data(), t.data, static_cast<size_t>(t.bytes));
    return out;
  }
  std::vector<int32_t> ids(const std::string& name) const {
    const Tensor& t = tensor(name);
    std::vector<int32_t> out;
    for (int64_t i = 0; i < t.elements(); ++i) {
      if (t.dtype == Dtype::kI64) {
        int64_t v;
        std::memcpy(&v, t.data + 8 * i, 8);
        out.push_back(static_cast<int32_t>(v));
      } else {
        int32_t v;
        std::memcpy(&v, t.data + 4 * i, 4);
        out.push_back(v);
      }
    }
    return out;
  }

 private:
  SafetensorsFile file_;
};

// Options of tests: exact mode, state in FP32, released blocks poisoned.
inline EngineOptions exact_options(int32_t rows, int64_t tokens, int threads = 1) {
  EngineOptions options;
  options.gpu = kTestGpu;
  options.threads = threads;
  options.kernels = best_kernel_set();
  options.max_batch_rows = rows;
  options.max_logit_rows = rows;
  options.kv_dtype = StateDtype::kF32;
  options.max_tokens = tokens;
  options.poison_released = true;
  return options;
}

// Logits of all positions, [n, vocab], computed in chunks of the engine's max_batch_rows.
inline std::vector<float> all_logits(Engine& engine, std::span<const int32_t> tokens) {
  const std::unique_ptr<Sequence> sequence = engine.new_sequence();
  std::vector<float> out;
  for (size_t done = 0; done < tokens.size();) {
    const size_t rows = std::min<size_t>(static_cast<size_t>(engine.options().max_batch_rows), tokens.size() - done);
    const SpanRequest request{sequence.get(), tokens.subspan(done, rows), LogitsWanted::kAll};
    EXPECT_EQ(engine.step({&request, 1}), StepStatus::kDone);
    sequence->accept(sequence->length());
    for (size_t r = 0; r < rows; ++r) {
      const std::span<const float> row = engine.logits(static_cast<int64_t>(r));
      out.insert(out.end(), row.begin(), row.end());
    }
    done += rows;
  }
  return out;
}

inline float max_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  float worst = 0;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const float d = std::abs(a[i] - b[i]);
    if (!(d <= worst)) worst = d;  // NaN sticks
  }
  return worst;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace weir::test
