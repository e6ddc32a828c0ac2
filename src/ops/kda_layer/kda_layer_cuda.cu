#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "ops/cuda_op.h"
#include "ops/kda_layer/kda_decode_cuda.cuh"
#include "ops/kda_layer/kda_layer.h"
#include "ops/kda_layer/kda_prep_cuda.cuh"
#include "ops/kda_layer/kda_span_cuda.cuh"

namespace weir {
namespace {

using cuda::allow_shared;
using cuda::launch;

constexpr int64_t kStateBytes = int64_t{kda::kDim} * kda::kDim * 4;

template <bool kBounded>
class KdaLayer final : public CudaOp {
 public:
  KdaLayer(CudaDevice& device, std::string name, const KdaLayerArgs& args)
      : CudaOp(device, std::move(name)), layer_(layer(device, args)) {
    capacity_ = std::max<int64_t>(args.heads, args.workspace_bytes / kda::kBlockBytes);
    device.reserve_workspace(capacity_ * kda::kBlockBytes + 2 * args.heads * kStateBytes);
    flags_ = device.allocate_array<uint32_t>(capacity_);
    device.launched(allow_shared(&kda::decode<kBounded>, sizeof(kda::DecodeShared<kBounded>)));
    device.launched(allow_shared(&kda::prep<kBounded>, device.shared_limit()));
    device.launched(allow_shared(&kda::span, device.shared_limit()));
  }

  void enqueue(const StepBounds& bounds) override {
    if (bounds.rows < 1 || bounds.spans < 1) return;
    launch(device(),
           {.grid = {layer_.heads, bounds.spans},
            .block = kda::kDecodeThreads,
            .shared_bytes = sizeof(kda::DecodeShared<kBounded>),
            .overlap = true},
           &kda::decode<kBounded>, device().step(), layer_);
    if (bounds.longest_span > 1) enqueue_long(bounds);
  }

  Cost cost(int32_t rows, int64_t position) const override {
    const int64_t first = position - rows + 1, start = first == 0 ? 0 : (first - 1) / kPagePositions * kPagePositions;
    const int64_t commits = position / kPagePositions - start / kPagePositions;
    const int64_t earlier = first - start, plane = kda::kPlaneBytes, row = kda::kRowBytes;
    int64_t bytes = rows * (kda::kPageHeadBytes / kda::kChunk);
    if (start > 0) bytes += plane * (rows > 1 || commits > 0 ? 2 : 1);
    if (commits > 0) bytes += 2 * plane;
    if (first > 0) bytes += 3 * kda::kHistory * row;
    if (earlier > 0) {  // G: the newest, or all
      bytes += earlier * (2 * row + kda::kChunk * 4) + 2 * row * (kBounded ? 1 : earlier);
    }
    Cost cost;
    cost.state_bytes = layer_.heads * bytes;
    const double square = static_cast<double>(layer_.heads) * kda::kDim * kda::kDim;
    cost.flops = 4 * square * rows + 33 * square * static_cast<double>(commits);
    return cost;
  }

 private:
  static kda::Rows rows(const KdaRows& rows) { return {rows.data, rows.stride}; }

  static kda::Layer layer(CudaDevice& device, const KdaLayerArgs& args) {
    const int64_t channels = args.heads * kKdaHeadDim;
    return {.heads = static_cast<int>(args.heads),
            .lower_bound = args.lower_bound,
            .l2_eps = args.l2_eps,
            .norm_eps = args.norm_eps,
            .conv = {device.upload(args.q_conv, channels * kKdaTaps), device.upload(args.k_conv, channels * kKdaTaps),
                     device.upload(args.v_conv, channels * kKdaTaps)},
            .a = device.upload(args.a, args.heads),
            .dt_bias = device.upload(args.dt_bias, channels),
            .norm_weight = device.upload(args.norm_weight, kKdaHeadDim),
            .journal = args.journal,
            .state = args.state,
            .inputs = {rows(args.q), rows(args.k), rows(args.v)},
            .f = rows(args.f),
            .gate = rows(args.gate),
            .beta_logit = {args.beta_logit, args.beta_logit_stride},
            .out = args.out,
            .out_stride = args.out_stride};
  }

  // The chunks of spans of two rows and more: at most as many as rows, and two beyond each span's sixteenths. Blocks of
  // many spans that the workspace has no room for are made for some heads after the other, so that all multiprocessors
  // have whole spans to work on; those of few spans for some chunks after the other.
  void enqueue_long(const StepBounds& bounds) {
    const int chunks =
        static_cast<int>(std::min<int64_t>(bounds.rows, bounds.rows / kPagePositions + 2 * int64_t{bounds.spans}));
    const int fit = static_cast<int>(std::min<int64_t>(layer_.heads, capacity_ / chunks));
    if (fit >= 1 && int64_t{bounds.spans} * layer_.heads >= 2 * device().sm_count()) {
      const int groups = (layer_.heads + fit - 1) / fit, heads = (layer_.heads + groups - 1) / groups;
      for (int first = 0; first < layer_.heads; first += heads) {
        enqueue_range(bounds, {0, chunks}, first, std::min(heads, layer_.heads - first), 0);
      }
    } else {
      const int at_once = static_cast<int>(capacity_ / layer_.heads);
      for (int first = 0, turn = 0; first < chunks; first += at_once, turn ^= 1) {
        enqueue_range(bounds, {first, std::min(first + at_once, chunks)}, 0, layer_.heads, turn);
      }
    }
  }

  struct PrepShape {
    int blocks;
    kda::PrepDeal deal;
  };
  // For about so many chunks, of spans with `in_span` on the average. Where the `serial` blocks of the kernel that
  // follows leave multiprocessors free, these go on beside it. Long runs load less, but in short ones what the serial
  // kernel needs first comes first, and multiprocessors finish together. Times are in chunks of the serial kernel.
  PrepShape prep_shape(int chunks, int in_span, int heads, int serial) const {
    const int64_t all = device().sm_count(), free = all - serial;
    PrepShape best{};
    double least = 0;
    for (int run = 1; run <= 16; ++run) {
      const double turn = 17 * (run + 0.15);
      const int group_chunks = run * kda::kGroupWarps;
      const int64_t turns = int64_t{(chunks + group_chunks - 1) / group_chunks} * heads;
      const int64_t most = (turns + all * kda::kGroups - 1) / (all * kda::kGroups);
      for (int64_t rounds = free > 0 ? 0 : most; rounds <= most; ++rounds) {
        const int64_t together = rounds * all * kda::kGroups, rest = std::max<int64_t>(0, turns - together);
        const int64_t alone = free > 0 ? (rest + free * kda::kGroups - 1) / (free * kda::kGroups) : 0;
        const double time = static_cast<double>(std::max<int64_t>(rounds, 1)) * turn +
                            std::max<double>(in_span, static_cast<double>(alone - (rounds == 0)) * turn);
        if (best.blocks > 0 && time >= least) continue;
        least = time;
        const bool leave = rounds > 0 && free > 0;  // else all blocks go on to the end
        best = {static_cast<int>(rounds > 0 ? all : free),
                {run, leave ? static_cast<int>(together) : std::numeric_limits<int>::max(), leave ? serial : 0}};
      }
    }
    return best;
  }

  // The second launch overlaps the first.
  void enqueue_range(const StepBounds& bounds, const kda::ChunkRange& range, int first_head, int heads, int turn) {
    const int64_t table = kda::LongSpans::shared_bytes(bounds.spans);
    const int chunks = range.end - range.first;
    const int serial = static_cast<int>(std::min<int64_t>(int64_t{bounds.spans} * heads, device().sm_count()));
    const int expected =
        std::min(chunks, std::max(bounds.spans, bounds.rows / kda::kChunk));  // bounds.rows bounds more than it has
    const PrepShape prep = prep_shape(expected, expected / bounds.spans, heads, serial);
    std::byte* const workspace = device().workspace();
    float4* const carry = reinterpret_cast<float4*>(workspace + capacity_ * kda::kBlockBytes);
    const int64_t carry_size = layer_.heads * kStateBytes / static_cast<int64_t>(sizeof(float4));
    const kda::Blocks blocks{workspace, flags_, first_head, heads, chunks};
    launch(device(),
           {.grid = prep.blocks,
            .block = kda::kPrepThreads,
            .shared_bytes = static_cast<int64_t>(sizeof(kda::PrepGroup)) * kda::kGroups + table,
            .overlap = true},
           &kda::prep<kBounded>, device().step(), layer_, range, prep.deal, blocks);
    launch(device(),
           {.grid = serial,
            .block = kda::kAllThreads,
            .shared_bytes = static_cast<int64_t>(sizeof(kda::SpanShared)) + table,
            .overlap = true},
           &kda::span, device().step(), layer_, range, blocks, carry + turn * carry_size,
           carry + (turn ^ 1) * carry_size);
  }

  kda::Layer layer_;
  int64_t capacity_ = 0;  // blocks of chunks' heads that the workspace holds
  uint32_t* flags_ = nullptr;
};

}  // namespace

std::unique_ptr<BoundOp> bind_kda_layer_cuda(CudaDevice& device, std::string name, const KdaLayerArgs& args) {
  if (args.bounded) return std::make_unique<KdaLayer<true>>(device, std::move(name), args);
  return std::make_unique<KdaLayer<false>>(device, std::move(name), args);
}

}  // namespace weir
