#include <cstring>

#include "base/number.h"
#include "ops/attention/attention.h"

namespace weir::reference {

void kv_write_row(StateDtype dtype, const float* x, int64_t size, std::byte* to) {
  if (dtype == StateDtype::kF32) {
    std::memcpy(to, x, static_cast<size_t>(size) * 4);
    return;
  }
  for (int64_t i = 0; i < size; ++i) reinterpret_cast<uint16_t*>(to)[i] = f32_to_f16(x[i]);
}

}  // namespace weir::reference
