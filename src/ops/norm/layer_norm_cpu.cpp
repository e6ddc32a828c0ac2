#include "base/lanes.h"
#include "ops/norm/layer_norm.h"

namespace weir::WEIR_ISA {

void layer_norm_row(const LayerNormArgs& args, int64_t row) {
  const float* x = args.x + row * args.x_stride;
  float* y = args.y + row * args.y_stride;
  const auto lanes = [&](int64_t k) { return args.size - k < 16 ? args.size - k : 16; };
  const V16 size = set16(static_cast<float>(args.size));
  V16 sum = zero16();
  for (int64_t k = 0; k < args.size; k += 16) sum = sum + load16_first(x + k, lanes(k));
  const V16 mean = set16(fold16(sum)) / size;
  for (int64_t k = 0; k < args.size; k += 16) store16_first(y + k, load16_first(x + k, lanes(k)) - mean, lanes(k));
  V16 ss = zero16();
  for (int64_t k = 0; k < args.size; k += 16) {
    const V16 d = load16_first(y + k, lanes(k));
    ss = fma(d, d, ss);
  }
  const V16 r = set16(1.f) / sqrt(set16(fold16(ss)) / size + set16(args.eps));
  for (int64_t k = 0; k < args.size; k += 16) {
    const int64_t n = lanes(k);
    const V16 scaled = (load16_first(y + k, n) * r) * load16_first(args.weight + k, n);
    store16_first(y + k, scaled + load16_first(args.bias + k, n), n);
  }
}

}  // namespace weir::WEIR_ISA
