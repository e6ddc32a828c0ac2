// Norms against the machine's roofs: rows of a hidden state, heads of a row, one row and many.
#include "ops/norm/norm.h"

#include "base/error.h"
#include "ops/simd/op_bench.h"

int main() {
  using namespace weir;
  struct Case {
    const char* name;
    NormKind kind;
    int64_t groups, size;
  };
  const Case cases[] = {
      {"RMS", NormKind::kRms, 1, 7168}, {"L2", NormKind::kL2, 96, 128}, {"gated RMS", NormKind::kRmsGated, 96, 128}};
  each_device([&](OpBench& bench) {
    for (const Case& c : cases) {
      for (const int32_t rows : {1, 16, 512}) {
        const int64_t row = c.groups * c.size;
        const Mapping x(rows * row * 4), gate(rows * row * 4), y(rows * row * 4), weight(c.size * 4);
        for (const Mapping* m : {&x, &gate, &weight}) fill(*m);
        const auto op = bind_norm(bench.device(), "norm",
                                  {.kind = c.kind,
                                   .groups = c.groups,
                                   .size = c.size,
                                   .eps = 1e-5f,
                                   .weight = weight.as<float>().data(),
                                   .x = x.as<float>().data(),
                                   .x_stride = row,
                                   .gate = gate.as<float>().data(),
                                   .gate_stride = row,
                                   .y = y.as<float>().data(),
                                   .y_stride = row});
        const double arrays = c.kind == NormKind::kRmsGated ? 3 : 2;
        bench.repeat(concat(c.name, ", ", rows, " rows x ", c.groups, " x ", c.size), *op, rows,
                     arrays * static_cast<double>(rows * row * 4));
      }
    }
  });
}
