// Elementwise ops against the machine's roofs, one row and many.
#include "ops/activation/activation.h"

#include "base/error.h"
#include "ops/simd/op_bench.h"

int main() {
  using namespace weir;
  struct Case {
    const char* name;
    ElementwiseKind kind;
    double arrays;
  };
  const Case cases[] = {{"SwiGLU", ElementwiseKind::kSwiGlu, 3}, {"SiTU-GLU", ElementwiseKind::kSitu, 3},
                        {"GeGLU", ElementwiseKind::kGeGlu, 3},   {"soft cap", ElementwiseKind::kSoftCap, 2},
                        {"add", ElementwiseKind::kAdd, 3},       {"gate", ElementwiseKind::kGate, 3},
                        {"copy", ElementwiseKind::kCopy, 2}};
  constexpr int64_t kSize = 6144;
  each_device([&](OpBench& bench) {
    for (const Case& c : cases) {
      for (const int32_t rows : {1, 16, 512}) {
        const Mapping g(rows * kSize * 4), u(rows * kSize * 4), y(rows * kSize * 4);
        fill(g);
        fill(u);
        const auto op = bind_elementwise(bench.device(), "op",
                                         {.kind = c.kind,
                                          .beta = 4,
                                          .linear_beta = 25,
                                          .size = kSize,
                                          .g = g.as<float>().data(),
                                          .g_stride = kSize,
                                          .u = u.as<float>().data(),
                                          .u_stride = kSize,
                                          .y = y.as<float>().data(),
                                          .y_stride = kSize});
        bench.repeat(concat(c.name, ", ", rows, " rows x ", kSize), *op, rows,
                     c.arrays * static_cast<double>(rows * kSize * 4));
      }
    }
  });
}
