#include "base/lanes.h"
#include "ops/embedding/embedding.h"

namespace weir::WEIR_ISA {
namespace {

template <WeightFormat kFormat>
inline V16 load(const std::byte* data, int64_t i, int64_t n) {
  if constexpr (kFormat == WeightFormat::kF32) {
    return load16_first(reinterpret_cast<const float*>(data) + i, n);
  } else {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(data) + i;
    if constexpr (kFormat == WeightFormat::kBf16) return n == 16 ? load16_bf16(p) : load16_bf16_first(p, n);
    return n == 16 ? load16_f16(p) : load16_f16_first(p, n);
  }
}

template <WeightFormat kFormat>
void widen_as(const std::byte* data, float scale, float* y, int64_t n) {
  const V16 factor = set16(scale);
  const bool scaled = scale != 1;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const V16 v = load<kFormat>(data, i, 16);
    store16(y + i, scaled ? v * factor : v);
  }
  if (i < n) {
    const V16 v = load<kFormat>(data, i, n - i);
    store16_first(y + i, scaled ? v * factor : v, n - i);
  }
}

}  // namespace

void widen(WeightFormat format, const std::byte* data, float scale, float* y, int64_t n) {
  switch (format) {
    case WeightFormat::kF32:
      return widen_as<WeightFormat::kF32>(data, scale, y, n);
    case WeightFormat::kBf16:
      return widen_as<WeightFormat::kBf16>(data, scale, y, n);
    case WeightFormat::kF16:
      return widen_as<WeightFormat::kF16>(data, scale, y, n);
    default:
      return;  // formats in blocks do not come here
  }
}

}  // namespace weir::WEIR_ISA
