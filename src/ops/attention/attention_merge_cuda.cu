#include "ops/attention/attention_mma.h"
#include "ops/attention/attention_softmax_cuda.cuh"

namespace weir {
namespace {

constexpr int kBatch = 8;  // pieces whose loads are under way together

// A block for a query; a thread for four dimensions. The next kernel starts when they have ended: it would have no
// blocks where these are, and two on other multiprocessors (measured).
__global__ void __launch_bounds__(128)
    merge_attention_kernel(const StepView* step, const __grid_constant__ MmaAttention a) {
  const int64_t row = blockIdx.x;
  const int head = blockIdx.y, d = threadIdx.x * 4;
  if (row >= step->rows) return;
  const AttentionGeometry& g = a.geometry;
  const int kv_head = head / g.q_per_kv, of_kv = head % g.q_per_kv, group = of_kv / g.tile_heads;
  const int heads = min(g.tile_heads, g.q_per_kv - group * g.tile_heads);
  cuda::ptx::wait_for_previous();
  const MergeRow of = a.merge_rows[row];
  if (of.slots == 0 || d >= a.slot.dims) return;
  const int query = (static_cast<int>(row) - of.first_row) * heads + of_kv % g.tile_heads;
  const float* slot =
      a.partials + static_cast<int64_t>(of.unit + (kv_head * g.head_groups + group) * of.slots) * a.slot.floats();
  const float* values = slot + query * a.slot.dims + d;
  const float* max_sums = slot + a.slot.queries * a.slot.dims + query * 2;
  mma::MaxSum all;
  float4 acc{};
  for (int first = 0; first < of.units; first += kBatch) {
    float4 next[kBatch];
    float2 max_sum[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int64_t at = (first + i < of.units ? first + i : first) * a.slot.floats();
      next[i] = *reinterpret_cast<const float4*>(values + at);
      max_sum[i] = *reinterpret_cast<const float2*>(max_sums + at);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= of.units) break;
      const mma::MaxSum piece{max_sum[i].x, max_sum[i].y};
      if (first + i == 0) {
        all = piece, acc = next[i];
        continue;
      }
      const mma::Merge merge = mma::merge(all, piece);
      acc.x = fmaf(acc.x, merge.keep, next[i].x * merge.add);
      acc.y = fmaf(acc.y, merge.keep, next[i].y * merge.add);
      acc.z = fmaf(acc.z, merge.keep, next[i].z * merge.add);
      acc.w = fmaf(acc.w, merge.keep, next[i].w * merge.add);
    }
  }
  const float scale = mma::out_scale(all, a.args.sinks, head);
  const mma::ResultRow out(a, row, head);
  const int dims = static_cast<int>(a.args.value_dim) - d;
  out.store(d, acc.x * scale, acc.y * scale, dims);
  out.store(d + 2, acc.z * scale, acc.w * scale, dims - 2);
}

}  // namespace

AttentionKernel merge_ascending() { return merge_attention_kernel; }

}  // namespace weir
