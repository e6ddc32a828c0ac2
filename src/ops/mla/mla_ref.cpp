#include "base/math.h"
#include "formats/quant.h"
#include "ops/mla/mla_kernel.h"
#include "ops/simd/lanes_ref.h"

namespace weir::reference {
namespace {

float weight_at(const WeightView& w, int64_t row, int64_t i) {
  float block[256];
  const int64_t size = weight_block(w.format).elements;
  dequantize(w, row, i / size * size, size, block);
  return block[i % size];
}

}  // namespace

void mla_absorb(const MlaTask& task) {
  const MlaProjectArgs& a = *task.args;
  const int64_t first_row = task.head * (a.nope + a.value);
  for (int64_t r = 0; r < task.rows; ++r) {
    const float* q = a.x + r * a.x_stride + task.head * (a.nope + a.extra);
    float* y = a.y + r * a.y_stride + task.head * (a.latent + a.extra);
    for (int64_t l = task.first; l < task.end; ++l) {
      float sum = 0;
      for (int64_t d = 0; d < a.nope; ++d) sum = math::fma(q[d], weight_at(a.kv_b, first_row + d, l), sum);
      y[l] = sum;
    }
    if (task.first != 0) continue;
    for (int64_t e = 0; e < a.extra; ++e) y[a.latent + e] = q[a.nope + e];
  }
}

void mla_expand(const MlaTask& task) {
  const MlaProjectArgs& a = *task.args;
  const int64_t first_row = task.head * (a.nope + a.value) + a.nope;
  for (int64_t r = 0; r < task.rows; ++r) {
    const float* x = a.x + r * a.x_stride + task.head * a.latent;
    float* y = a.y + r * a.y_stride + task.head * a.value;
    for (int64_t v = task.first; v < task.end; ++v) {
      y[v] = dot_lanes(
          a.latent, [&](int64_t l) { return x[l]; }, [&](int64_t l) { return weight_at(a.kv_b, first_row + v, l); });
    }
  }
}

}  // namespace weir::reference
