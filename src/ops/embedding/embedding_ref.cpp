#include <cstring>

#include "base/number.h"
#include "ops/embedding/embedding.h"

namespace weir::reference {

void widen(WeightFormat format, const std::byte* data, float scale, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (format == WeightFormat::kF32) {
      std::memcpy(y + i, data + i * 4, 4);
    } else {
      uint16_t bits;
      std::memcpy(&bits, data + i * 2, 2);
      y[i] = format == WeightFormat::kBf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
    }
    if (scale != 1) y[i] = y[i] * scale;
  }
}

}  // namespace weir::reference
