// The choice of experts on the GPU: Kimi K3, Kimi Linear, DeepSeek-V3's groups, Qwen3-Next's softmax, gpt-oss.
#include <random>

#include "base/error.h"
#include "bench/cuda_timing.h"
#include "ops/cuda_op.h"
#include "ops/router/router.h"

namespace weir {
namespace {

struct Case {
  const char* model;
  int64_t experts, top_k, groups, topk_group;
  RouterScore score = RouterScore::kSigmoid;
};
constexpr Case kCases[] = {{"kimi-k3", 896, 16, 1, 1},
                           {"kimi-linear", 256, 8, 1, 1},
                           {"deepseek-v3", 256, 8, 8, 4},
                           {"qwen3-next", 512, 10, 1, 1, RouterScore::kSoftmax},
                           {"gpt-oss", 128, 4, 1, 1, RouterScore::kSoftmaxOfChosen}};
constexpr int32_t kRows[] = {1, 64, 2048};
constexpr double kMostUs = 3;  // of a row

void run() {
  const std::unique_ptr<CudaDevice> device = open_cuda();
  const bench::CudaReport report(*device);
  std::mt19937 random(1);
  for (const Case& c : kCases) {
    constexpr int32_t kMost = 2048;
    std::vector<float> numbers(static_cast<size_t>(kMost * c.experts));
    for (float& f : numbers) f = std::normal_distribution<float>()(random);
    auto* logits = device->allocate_array<float>(kMost * c.experts);
    device->to_device(logits, numbers.data(), kMost * c.experts * 4);
    const auto op = bind_router(*device, "router",
                                {.score = c.score,
                                 .experts = c.experts,
                                 .top_k = c.top_k,
                                 .groups = c.groups,
                                 .topk_group = c.topk_group,
                                 .bias = c.score == RouterScore::kSigmoid ? numbers.data() : nullptr,
                                 .logits = logits,
                                 .logits_stride = c.experts,
                                 .ids = device->allocate_array<int32_t>(kMost * c.top_k),
                                 .weights = device->allocate_array<float>(kMost * c.top_k)});
    for (const int32_t rows : kRows) {
      const StepView step{.rows = rows};
      device->stage(step);
      const StepBounds bounds{.rows = rows, .longest_span = 1, .longest_context = 1};
      const bench::CudaTiming timing =
          bench::time_calls(*device, {}, [&](int) { static_cast<CudaOp&>(*op).enqueue(bounds); });
      report.add({.what = concat("router ", c.model),
                  .shape = concat(c.experts, " experts, top ", c.top_k, ", rows ", rows),
                  .us = timing.us,
                  .bar_us = rows == 1 ? kMostUs : 0});
    }
  }
}

}  // namespace
}  // namespace weir

int main() {
  if (const std::string why = weir::why_no_cuda(); !why.empty()) {
    std::printf("no GPU: %s\n", why.c_str());
    return 77;
  }
  weir::run();
}
