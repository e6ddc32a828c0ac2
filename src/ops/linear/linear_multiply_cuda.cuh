// What the kernels of linear_multiply.h share.
#pragma once

#include "device/cuda/kernel.h"
#include "ops/linear/linear_multiply.h"

namespace weir {

__device__ inline int part_index(const MultiplyArgs& args, int place) {
  int p = 0;
  while (p + 1 < args.part_count && args.parts[p + 1].first_place <= place) ++p;
  return p;
}
__device__ inline const LinearPart& part_of(const MultiplyArgs& args, int place) {
  return args.parts[part_index(args, place)];
}
// Where the strips of the same x end that begin at `place`, up to `most` of them.
__device__ inline int end_of_strips(const MultiplyArgs& args, int place, int most) {
  const LinearPart& last = part_of(args, place + most - 1);
  const int end = last.first_place + last.strips();
  return end < place + most ? end : place + most;
}

__device__ inline int step_rows(const MultiplyArgs& args) {
  return args.rows == RowSet::kAll ? args.step->rows : static_cast<int>(args.step->logit_rows.size());
}

__device__ inline void store_output(const LinearPart& part, int row, int o, float value) {
  const int64_t at = row * part.y_stride + o;
  if (part.y_type == RowType::kBf16) {
    static_cast<uint16_t*>(part.y)[at] = static_cast<uint16_t>(cuda::pack_bf16(value, 0));
  } else {
    static_cast<float*>(part.y)[at] = value;
  }
}

// Whether a warp is the last to be done with an item of `count` shares, of which it has done `own`; it then sees what
// the others have written. Leaves the counter zero.
__device__ inline bool last_to_arrive(uint32_t* counter, int count, int own = 1) {
  const bool leader = threadIdx.x % 32 == 0;
  __threadfence();
  __syncwarp();
  int before = 0;
  if (leader) before = static_cast<int>(atomicAdd(counter, static_cast<uint32_t>(own)));
  if (__shfl_sync(cuda::kAllLanes, before, 0) != count - own) return false;
  __threadfence();
  if (leader) *counter = 0;
  return true;
}

}  // namespace weir
