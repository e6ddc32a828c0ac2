#include "device/cpu.h"

#include "base/error.h"

namespace weir {

std::string_view kernel_set_name(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
      return "reference";
    case KernelSet::kAvx2:
      return "avx2";
    case KernelSet::kAvx512:
      return "avx512";
  }
  return "?";
}

bool kernel_set_supported(KernelSet set) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  switch (set) {
    case KernelSet::kReference:
      return true;
    case KernelSet::kAvx2:
      return avx2;  // F16C comes with every processor that has AVX2 and FMA
    case KernelSet::kAvx512:
      return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
  return false;
}

KernelSet best_kernel_set() {
  if (kernel_set_supported(KernelSet::kAvx512)) return KernelSet::kAvx512;
  if (kernel_set_supported(KernelSet::kAvx2)) return KernelSet::kAvx2;
  return KernelSet::kReference;
}

KernelSet parse_kernel_set(std::string_view name) {
  if (name == "auto") return best_kernel_set();
  for (KernelSet set : {KernelSet::kReference, KernelSet::kAvx2, KernelSet::kAvx512}) {
    if (name != kernel_set_name(set)) continue;
    if (!kernel_set_supported(set)) fail("--kernels: this processor does not have ", name);
    return set;
  }
  fail("--kernels: expected auto, reference, avx2 or avx512, found ", printable(name));
}

}  // namespace weir
