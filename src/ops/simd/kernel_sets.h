// The kernel sets that tests of this processor can run; what it lacks is named, loudly.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "device/cpu.h"

namespace weir {

inline std::vector<KernelSet> vector_sets() {
  std::vector<KernelSet> sets;
  for (KernelSet set : {KernelSet::kAvx2, KernelSet::kAvx512}) {
    if (kernel_set_supported(set)) {
      sets.push_back(set);
    } else {
      std::printf("SKIPPED: this processor has no %s\n", std::string(kernel_set_name(set)).c_str());
    }
  }
  return sets;
}

// The reference first.
inline std::vector<KernelSet> kernel_sets() {
  std::vector<KernelSet> sets = vector_sets();
  sets.insert(sets.begin(), KernelSet::kReference);
  return sets;
}

}  // namespace weir
