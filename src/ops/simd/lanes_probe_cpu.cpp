// What lanes_test.cpp calls: the operations of lanes.h and the functions of base/math.h on sixteen lanes.
#include "ops/simd/lanes_probe.h"

#include "base/lanes.h"

namespace weir::WEIR_ISA {
namespace {

template <class Body>
inline void each(const float* x, float* y, int64_t n, Body body) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store16(y + i, body(load16(x + i)));
  if (i < n) store16_first(y + i, body(load16_first(x + i, n - i)), n - i);
}

}  // namespace

void probe_function(LaneFunction function, const float* x, float* y, int64_t n) {
  switch (function) {
    case LaneFunction::kExp:
      return each(x, y, n, [](V16 a) { return math::exp(a); });
    case LaneFunction::kLog:
      return each(x, y, n, [](V16 a) { return math::log(a); });
    case LaneFunction::kLog1pUnit:
      return each(x, y, n, [](V16 a) { return math::log1p_unit(a); });
    case LaneFunction::kSigmoid:
      return each(x, y, n, [](V16 a) { return math::sigmoid(a); });
    case LaneFunction::kSoftplus:
      return each(x, y, n, [](V16 a) { return math::softplus(a); });
    case LaneFunction::kSilu:
      return each(x, y, n, [](V16 a) { return math::silu(a); });
    case LaneFunction::kTanh:
      return each(x, y, n, [](V16 a) { return math::tanh(a); });
  }
}

void probe_binary(LaneBinary operation, const float* a, const float* b, float* y) {
  const V16 u = load16(a);
  const V16 v = load16(b);
  V16 r = u;
  switch (operation) {
    case LaneBinary::kMin:
      r = min(u, v);
      break;
    case LaneBinary::kMax:
      r = max(u, v);
      break;
    case LaneBinary::kCopysign:
      r = copysign(u, v);
      break;
    case LaneBinary::kSelectLess:
      r = select_less(u, v, u, -v);
      break;
    case LaneBinary::kSelectNan:
      r = select_nan(u, v, abs(u));
      break;
    case LaneBinary::kFma:
      r = fma(u, v, u);
      break;
    case LaneBinary::kQuotient:
      r = u / v;
      break;
    case LaneBinary::kRoot:
      r = sqrt(u) - v;
      break;
  }
  store16(y, r);
}

float probe_fold(const float* x) { return fold16(load16(x)); }

void probe_load_first(LaneFormat format, const void* p, int64_t n, float* y) {
  const uint16_t* half = static_cast<const uint16_t*>(p);
  switch (format) {
    case LaneFormat::kF32:
      return store16(y, load16_first(static_cast<const float*>(p), n));
    case LaneFormat::kBf16:
      return store16(y, n == 16 ? load16_bf16(half) : load16_bf16_first(half, n));
    case LaneFormat::kF16:
      return store16(y, n == 16 ? load16_f16(half) : load16_f16_first(half, n));
  }
}

void probe_store_first(const float* x, int64_t n, float* y) { store16_first(y, load16(x), n); }

void probe_store_f16_first(const float* x, int64_t n, uint16_t* y) { store16_f16_first(y, load16(x), n); }

}  // namespace weir::WEIR_ISA
