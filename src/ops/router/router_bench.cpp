// The router against the machine's roofs: Kimi K3 (896 experts, top 16), Kimi Linear (256, top 8), DeepSeek-V3's
// groups, Qwen3-Next's softmax (512, top 10).
#include "ops/router/router.h"

#include "base/error.h"
#include "ops/simd/op_bench.h"

int main() {
  using namespace weir;
  struct Case {
    int64_t experts, top_k, groups, topk_group;
    RouterScore score = RouterScore::kSigmoid;
  };
  const Case cases[] = {{896, 16, 1, 1}, {256, 8, 1, 1}, {256, 8, 8, 4}, {512, 10, 1, 1, RouterScore::kSoftmax}};
  each_device([&](OpBench& bench) {
    for (const Case& c : cases) {
      for (const int32_t rows : {1, 16, 512}) {
        const Mapping logits(rows * c.experts * 4), bias(c.experts * 4), ids(rows * c.top_k * 4),
            weights(rows * c.top_k * 4);
        fill(logits);
        const auto op = bind_router(bench.device(), "router",
                                    {.score = c.score,
                                     .experts = c.experts,
                                     .top_k = c.top_k,
                                     .groups = c.groups,
                                     .topk_group = c.topk_group,
                                     .bias = c.score == RouterScore::kSigmoid ? bias.as<float>().data() : nullptr,
                                     .logits = logits.as<float>().data(),
                                     .logits_stride = c.experts,
                                     .ids = ids.as<int32_t>().data(),
                                     .weights = weights.as<float>().data()});
        bench.repeat(concat(rows, " rows x ", c.experts, " experts, top ", c.top_k, ", ", c.groups, " groups"), *op,
                     rows, static_cast<double>(rows * c.experts * 4));
      }
    }
  });
}
