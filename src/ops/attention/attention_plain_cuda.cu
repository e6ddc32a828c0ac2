#include "ops/attention/attention_plain_cuda.cuh"

#include "ops/attention/attention_cuda.h"

namespace weir {
namespace {

__global__ void __launch_bounds__(kPlainThreads)
    plain_kernel(const StepView* step, AttentionArgs args, SelectedRows selected) {
  WEIR_DYNAMIC_SHARED(float, shared);
  const int64_t row = blockIdx.x, head = blockIdx.y;
  if (row >= step->rows) return;
  const auto r = static_cast<size_t>(row);
  const SpanView& span = step->spans[static_cast<size_t>(step->row_spans[r])];
  const int32_t* list = selected.of(row);
  const int64_t position = list != nullptr ? selected.count[row] - 1 : step->positions[r];
  PagedRows keys = paged_rows(*step, span, args.key, list), values = paged_rows(*step, span, args.value, list);
  const int64_t kv_head = head / (args.heads / args.kv_heads);
  keys.base += kv_head * args.key_dim * state_bytes(args.dtype);
  values.base += kv_head * args.value_head_stride * state_bytes(args.dtype);
  attend_plain(args,
               {.q = args.q + row * args.q_stride + head * args.key_dim,
                .keys = keys,
                .values = values,
                .position = position,
                .first = first_visible(position, args.window),
                .piece = attention_piece(position, args.window),
                .sink = args.sinks != nullptr ? args.sinks + head : nullptr,
                .out = args.out + row * args.out_stride + head * args.value_dim},
               shared);
}

}  // namespace

void prepare_plain_attention(const AttentionArgs& args) { cuda::allow_shared(plain_kernel, plain_shared_bytes(args)); }

void launch_plain_attention(CudaDevice& device, const StepBounds& bounds, const AttentionArgs& args,
                            const SelectedRows& selected) {
  if (bounds.rows == 0) return;
  cuda::launch(device,
               {.grid = {bounds.rows, args.heads}, .block = kPlainThreads, .shared_bytes = plain_shared_bytes(args)},
               plain_kernel, device.step(), args, selected);
}

}  // namespace weir
