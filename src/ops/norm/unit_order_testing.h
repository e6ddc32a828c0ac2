// The order in which CUDA kernels sum over a unit (norm.h), in plain loops.
#pragma once

#include <cstdint>
#include <vector>

namespace weir::testing {

inline int64_t unit_threads(int64_t size) { return size <= 512 ? 32 : size <= 8192 ? 256 : 1024; }

inline float fold_by_halves(std::vector<float> sums) {
  while (sums.size() > 1) {
    const size_t half = sums.size() / 2;
    for (size_t i = 0; i < half; ++i) sums[i] = sums[i] + sums[i + half];
    sums.resize(half);
  }
  return sums[0];
}

// add(sum, k) is the sum with element k.
template <class Add>
float unit_sum(int64_t size, Add add) {
  const int64_t threads = unit_threads(size);
  std::vector<float> sums(static_cast<size_t>(4 * threads), 0.f);
  for (int64_t k = 0; k < size; ++k) {
    float& sum = sums[static_cast<size_t>(k % (4 * threads))];
    sum = add(sum, k);
  }
  std::vector<float> warps;
  for (size_t first = 0; first < static_cast<size_t>(threads); first += 32) {
    std::vector<float> lanes;
    for (size_t t = first; t < first + 32; ++t) {
      lanes.push_back((sums[4 * t] + sums[4 * t + 2]) + (sums[4 * t + 1] + sums[4 * t + 3]));
    }
    warps.push_back(fold_by_halves(lanes));
  }
  return fold_by_halves(warps);
}

}  // namespace weir::testing
