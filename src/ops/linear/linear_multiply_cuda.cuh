// What the kernels of linear_multiply.h share.
#pragma once

#include "device/cuda/kernel.h"
#include "ops/linear/linear_multiply.h"

namespace weir {

__device__ inline const LinearPart& part_of(const MultiplyArgs& args, int strip) {
  int p = 0;
  while (p + 1 < args.part_count && args.parts[p + 1].first_strip <= strip) ++p;
  return args.parts[p];
}

__device__ inline int step_rows(const MultiplyArgs& args) {
  return args.rows == RowSet::kAll ? args.step->rows : static_cast<int>(args.step->logit_rows.size());
}

}  // namespace weir
