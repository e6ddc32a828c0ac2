// What the kernels of linear_multiply.h share.
#pragma once

#include "device/cuda/kernel.h"
#include "device/cuda/ptx.h"
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

// A warp says that it has done `own` of an item's shares; the first lane hears how many were done before.
__device__ inline uint32_t arrive_at(uint32_t* counter, int own = 1) {
  __syncwarp();
  return threadIdx.x % 32 == 0 ? cuda::ptx::add_ordered(counter, static_cast<uint32_t>(own)) : 0;
}
// Whether that were all others of `count`: then it sees what they have written. Leaves the counter zero.
__device__ inline bool is_last(uint32_t* counter, uint32_t before, int count, int own = 1) {
  if (__shfl_sync(cuda::kAllLanes, before, 0) != static_cast<uint32_t>(count - own)) return false;
  __syncwarp();
  if (threadIdx.x % 32 == 0) *counter = 0;
  return true;
}
__device__ inline bool last_to_arrive(uint32_t* counter, int count, int own = 1) {
  const uint32_t before = arrive_at(counter, own);
  return is_last(counter, before, count, own);
}

}  // namespace weir
