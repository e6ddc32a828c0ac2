// The sampler on a GPU: from options to chosen ids, for one row, a batch and a large one, on logits as a model gives
// them. The bar for 64 rows of 163,840 logits is 100 us.
#include "engine/sampler_cuda.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "bench/cuda_timing.h"

namespace weir {
namespace {

constexpr int64_t kVocab = 163840;

// A wide bell with a few far above.
std::vector<float> model_logits(int64_t rows) {
  uint64_t state = 1;
  const auto next = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(state >> 40) * 0x1p-24f;
  };
  std::vector<float> logits(static_cast<size_t>(rows * kVocab));
  for (float& x : logits) x = (next() + next() + next() + next() - 2) * 4 - 4;
  for (int64_t row = 0; row < rows; ++row) {
    for (int i = 0; i < 100; ++i) {
      const auto id = static_cast<int64_t>(next() * static_cast<float>(kVocab - 1));
      logits[static_cast<size_t>(row * kVocab + id)] = 4 + static_cast<float>(i) * 0.08f;
    }
  }
  return logits;
}

struct Case {
  const char* name;
  SamplingOptions options;
};

void measure(CudaDevice& device, const bench::CudaReport& report, int32_t rows) {
  const std::vector<float> host = model_logits(rows);
  float* logits = device.allocate_array<float>(rows * kVocab);
  device.to_device(logits, host.data(), rows * kVocab * 4);
  const auto sampler = make_cuda_sampler(device, kVocab, rows);
  std::vector<TokenHistory> histories(static_cast<size_t>(rows));
  for (TokenHistory& history : histories) {
    for (int32_t i = 0; i < 2000; ++i) history.add(i * 7);
  }
  const Case cases[] = {
      {"greedy", {}},
      {"temperature", {.temperature = 1, .seed = 1}},
      {"top-k 50", {.temperature = 0.8f, .seed = 1, .top_k = 50}},
      {"top-p 0.95", {.temperature = 1, .seed = 1, .top_p = 0.95f}},
      {"top-k 50, top-p 0.95", {.temperature = 0.8f, .seed = 1, .top_k = 50, .top_p = 0.95f}},
      {"top-p 0.95, penalties of 2000 ids",
       {.temperature = 1, .seed = 1, .top_p = 0.95f, .presence_penalty = 0.5f, .repetition_penalty = 1.1f}},
      {"greedy, 20 logprobs", {.top_logprobs = 20}},
  };
  for (const Case& c : cases) {
    std::vector<SampleRow> batch;
    for (const TokenHistory& history : histories) batch.push_back({&c.options, &history, 5000, 1000, {}});
    std::vector<double> times, waits;
    for (int i = 0; i < 60; ++i) {
      for (TokenHistory& history : histories) history.add(i);
      const auto start = std::chrono::steady_clock::now();
      times.push_back(cuda_time_us(device, [&] { sampler->enqueue(batch, logits, kVocab); }));
      sampler->wait();
      const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - start;
      waits.push_back(spent.count());
    }
    std::ranges::sort(times);
    std::ranges::sort(waits);
    const int64_t bytes = rows * kVocab * 4;
    report.add({.what = concat("sampler, ", c.name),
                .shape = concat(rows, " x ", kVocab),
                .us = times[times.size() / 2],
                .bytes = bytes,
                .bar_us = rows == 64 ? 100. : 0.});
    std::printf("  from options to ids on the host: %.1f us\n", waits[waits.size() / 2]);
  }
  device.release(reinterpret_cast<std::byte*>(logits));
}

}  // namespace
}  // namespace weir

int main() {
  using namespace weir;
  if (const std::string why = why_no_cuda(); !why.empty()) {
    std::printf("no GPU: %s\n", why.c_str());
    return 0;
  }
  const auto device = open_cuda();
  const bench::CudaReport report(*device);
  for (const int32_t rows : {1, 8, 64, 256}) measure(*device, report, rows);
}
