#include "base/lanes.h"
#include "ops/attention/attention.h"

namespace weir::WEIR_ISA {

void kv_write_row(StateDtype dtype, const float* x, int64_t size, std::byte* to) {
  for (int64_t i = 0; i < size; i += 16) {
    const int64_t n = size - i < 16 ? size - i : 16;
    const V16 v = load16_first(x + i, n);
    if (dtype == StateDtype::kF32) {
      store16_first(reinterpret_cast<float*>(to) + i, v, n);
    } else {
      store16_f16_first(reinterpret_cast<uint16_t*>(to) + i, v, n);
    }
  }
}

}  // namespace weir::WEIR_ISA
