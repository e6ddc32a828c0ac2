// What the kernels of attention residuals compute.
#pragma once

#include "ops/attn_residual/residual_norm.h"

namespace weir {

struct ResidualCall {
  const float* candidates[kMaxResidualCandidates];
  int count;
  int size;
  int64_t stride;
  float eps;
  const float* weight;
  float* y;
  int64_t y_stride;
  // The last candidate is formed, g + u, and stored, unless g is null.
  const float* g;
  int64_t g_stride;
  const float* u;
  int64_t u_stride;
  float* sum;
  // The norm of y, unless normed is null.
  NormKind norm_kind;
  float norm_eps;
  float norm_scale;
  const float* norm_weight;
  void* normed;
  int64_t normed_stride;
  RowType normed_type;
};

}  // namespace weir
