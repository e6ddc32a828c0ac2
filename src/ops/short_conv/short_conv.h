// Short causal depthwise convolution with SiLU, over rows that may start anywhere in a sequence.
//
//   x [rows, channels] FP32, the projected inputs;  w [channels, taps] FP32, last tap = current row
//   c_t = sum_{i < taps} w[ch, i] * x_{t - taps + 1 + i}[ch]   i ascending, one fused multiply-add each, from +0;
//   inputs before position 0 are +0 and take part
//   y_t = silu(c_t) = c_t * sigmoid(c_t)   [rows, channels]
//
// State (docs/architecture.md 1.3): the inputs of the current chunk of 16 rows lie in the journal page, those of the
// last taps - 1 rows before an anchor lie in the anchor ("window", [taps - 1, channels], oldest first).
//
// A row reads earlier inputs: from this span's x; before it, positions >= span.anchor_position from the journal page of
// their chunk, positions below from the window of span.anchor (zeros for kZeroAnchor).
//
// The op writes: every row's x into its journal page, where the page table has one (kNoPage: not stored); and the
// window of every anchor in span.anchor_writes. All state is FP32, so nothing is rounded. Blocks are never read in part
// or before they were written.
#pragma once

#include <memory>
#include <string>

#include "base/step_view.h"
#include "device/cpu.h"
#include "ops/bound_op.h"

namespace weir {

struct ShortConvArgs {
  int64_t channels = 0;
  int64_t taps = 0;               // 2..8
  const float* weight = nullptr;  // [channels, taps]
  PageField journal;              // row: channels floats
  AnchorField window;             // (taps - 1) x channels floats
  const float* x = nullptr;
  int64_t x_stride = 0;
  float* y = nullptr;  // not x
  int64_t y_stride = 0;
};

std::unique_ptr<BoundOp> bind_short_conv(Device& device, std::string name, const ShortConvArgs& args);
[[gnu::weak]] std::unique_ptr<BoundOp> bind_short_conv_cuda(CudaDevice& device, std::string name,
                                                            const ShortConvArgs& args);

Cost short_conv_cost(const ShortConvArgs& args, int32_t rows, int64_t position);

}  // namespace weir
