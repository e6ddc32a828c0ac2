// Heads [begin, end) of one row, in every kernel set: the work item of the op. Internal to the folder.
#pragma once

#include <cstdint>

#include "ops/gate/gate.h"

namespace weir {

using KdaGateHeads = void (*)(const KdaGateArgs& args, int64_t row, int64_t begin, int64_t end);

namespace reference {
void kda_gate_heads(const KdaGateArgs& args, int64_t row, int64_t begin, int64_t end);
}
namespace avx2 {
void kda_gate_heads(const KdaGateArgs& args, int64_t row, int64_t begin, int64_t end);
}
namespace avx512 {
void kda_gate_heads(const KdaGateArgs& args, int64_t row, int64_t begin, int64_t end);
}

}  // namespace weir
