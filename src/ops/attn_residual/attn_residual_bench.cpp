// Attention residuals against the machine's roofs, with Kimi K3's hidden size.
#include "ops/attn_residual/attn_residual.h"

#include "base/error.h"
#include "ops/simd/op_bench.h"

int main() {
  using namespace weir;
  constexpr int64_t kSize = 7168;
  each_device([&](OpBench& bench) {
    for (const int64_t count : {2, 9}) {
      for (const int32_t rows : {1, 16, 512}) {
        const int64_t floats = rows * kSize;
        const Mapping candidates(count * floats * 4), weight(kSize * 4), y(floats * 4);
        fill(candidates);
        fill(weight);
        AttnResidualArgs args{.stride = kSize,
                              .size = kSize,
                              .weight = weight.as<float>().data(),
                              .y = y.as<float>().data(),
                              .y_stride = kSize};
        for (int64_t i = 0; i < count; ++i) args.candidates.push_back(candidates.as<float>().data() + i * floats);
        const auto op = bind_attn_residual(bench.device(), "res", args);
        bench.repeat(concat(rows, " rows x ", kSize, ", ", count, " candidates"), *op, rows,
                     static_cast<double>((count + 1) * floats * 4));
      }
    }
  });
}
