// Lets lanes_test.cpp, which is compiled without vector instructions, call lanes.h in every instruction set.
#pragma once

#include <cstdint>

namespace weir {

enum class LaneFunction { kExp, kLog, kLog1pUnit, kSigmoid, kSoftplus, kSilu, kTanh };
enum class LaneBinary { kMin, kMax, kCopysign, kSelectLess, kSelectNan, kFma, kQuotient, kRoot };
enum class LaneFormat { kF32, kBf16, kF16 };

#define WEIR_LANE_PROBES                                                             \
  void probe_function(LaneFunction function, const float* x, float* y, int64_t n);   \
  void probe_binary(LaneBinary operation, const float* a, const float* b, float* y); \
  float probe_fold(const float* x);                                                  \
  void probe_load_first(LaneFormat format, const void* p, int64_t n, float* y);      \
  void probe_store_first(const float* x, int64_t n, float* y);                       \
  void probe_store_f16_first(const float* x, int64_t n, uint16_t* y);
namespace avx2 {
WEIR_LANE_PROBES
}
namespace avx512 {
WEIR_LANE_PROBES
}
#undef WEIR_LANE_PROBES

}  // namespace weir
