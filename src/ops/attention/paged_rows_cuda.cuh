// Rows of a field in the pages of one sequence, for kernels.
#pragma once

#include "device/cuda/kernel.h"
#include "ops/attention/attention.h"

namespace weir {

struct PagedRows {
  const std::byte* base;  // the field in block 0
  int64_t block_bytes;
  int64_t row_bytes;
  const PageId* pages;
  const int32_t* selected;  // row j is that of position selected[j]; null: of position j

  // The row of the first position of the page that holds position p.
  __device__ const std::byte* page(int64_t p) const {
    return base + static_cast<int64_t>(pages[p / kPagePositions]) * block_bytes;
  }
  __device__ const std::byte* row(int64_t j) const {
    const int64_t p = selected != nullptr ? selected[j] : j;
    return page(p) + p % kPagePositions * row_bytes;
  }
};

__device__ inline PagedRows paged_rows(const StepView& step, const SpanView& span, const PageField& field,
                                       const int32_t* selected = nullptr) {
  const PoolView& pool = step.page_pools[static_cast<size_t>(field.group)];
  return {pool.base + field.offset, pool.block_bytes, field.row_bytes, span.pages[field.group].data(), selected};
}

__device__ inline float stored_element(StateDtype dtype, const std::byte* row, int64_t i) {
  if (dtype == StateDtype::kF32) return reinterpret_cast<const float*>(row)[i];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(row)[i];
  return dtype == StateDtype::kF16 ? cuda::widen_f16(bits) : bf16_to_f32(bits);
}

// Dot product in sixteen lanes (docs/numerics.md, rule 1) by sixteen threads of a warp; each gets it.
template <class GetA, class GetB>
__device__ inline float dot_sixteen(int64_t n, GetA a, GetB b) {
  float sum = 0;
  for (int64_t k = threadIdx.x % 16; k < (n + 15) / 16 * 16; k += 16) {
    sum = fmaf(k < n ? a(k) : 0.f, k < n ? b(k) : 0.f, sum);
  }
  return cuda::warp_sum<16>(sum);
}

}  // namespace weir
