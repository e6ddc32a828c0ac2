#include <algorithm>
#include <utility>

#include "ops/cuda_op.h"
#include "ops/gdn_layer/gdn_decode_cuda.cuh"
#include "ops/gdn_layer/gdn_layer.h"
#include "ops/gdn_layer/gdn_prep_cuda.cuh"
#include "ops/gdn_layer/gdn_span_cuda.cuh"

namespace weir {
namespace {

using cuda::allow_shared;
using cuda::launch;

constexpr int64_t kStateBytes = int64_t{gdn::kDim} * gdn::kDim * 4;

class GdnLayer final : public CudaOp {
 public:
  GdnLayer(CudaDevice& device, std::string name, const GdnLayerArgs& args)
      : CudaOp(device, std::move(name)), layer_(layer(device, args)) {
    chunks_ = static_cast<int>(std::max<int64_t>(1, args.workspace_bytes / (key_bytes() + value_bytes())));
    device.reserve_workspace(blocks_bytes() + 2 * args.heads * kStateBytes + chunks_ * int64_t{sizeof(uint32_t)});
    device.launched(allow_shared(&gdn::decode, sizeof(gdn::DecodeShared)));
    device.launched(allow_shared(&gdn::prep, device.shared_limit()));
    device.launched(allow_shared(&gdn::span, device.shared_limit()));
  }

  void enqueue(const StepBounds& bounds) override {
    if (bounds.rows < 1 || bounds.spans < 1) return;
    launch(device(),
           {.grid = {layer_.heads, bounds.spans},
            .block = gdn::kDecodeThreads,
            .shared_bytes = static_cast<int64_t>(sizeof(gdn::DecodeShared)),
            .overlap = true},
           &gdn::decode, device().step(), layer_);
    if (bounds.longest_span > 1) enqueue_long(bounds);
  }

  Cost cost(int32_t rows, int64_t position) const override {
    const int64_t first = position - rows + 1, start = first == 0 ? 0 : (first - 1) / kPagePositions * kPagePositions;
    const int64_t commits = position / kPagePositions - start / kPagePositions;
    const int64_t plane = gdn::kPlaneBytes, heads = layer_.heads;
    Cost cost;
    if (start > 0) cost.state_bytes += heads * plane * (rows > 1 || commits > 0 ? 2 : 1);
    if (commits > 0) cost.state_bytes += heads * 2 * plane;
    cost.state_bytes += (first - start + rows) * gdn_layer_journal_row_bytes(heads, layer_.key_heads);
    const double square = static_cast<double>(heads) * gdn::kDim * gdn::kDim;
    cost.flops = 4 * square * rows + 33 * square * static_cast<double>(commits);
    return cost;
  }

 private:
  static gdn::Layer layer(CudaDevice& device, const GdnLayerArgs& args) {
    const int64_t channels = (2 * args.key_heads + args.heads) * kGdnHeadDim;
    return {.heads = static_cast<int>(args.heads),
            .key_heads = static_cast<int>(args.key_heads),
            .tiled = args.order == KeyHeadOrder::kTiled,
            .l2_eps = args.l2_eps,
            .norm_eps = args.norm_eps,
            .conv = device.upload(args.conv, channels * kGdnTaps),
            .a = device.upload(args.a, args.heads),
            .dt_bias = device.upload(args.dt_bias, args.heads),
            .norm_weight = device.upload(args.norm_weight, kGdnHeadDim),
            .journal = args.journal,
            .state = args.state,
            .qkv = {args.qkv, args.qkv_stride},
            .gate = {args.gate, args.gate_stride},
            .a_logit = {args.a_logit, args.a_logit_stride},
            .beta_logit = {args.beta_logit, args.beta_logit_stride},
            .out = args.out,
            .out_stride = args.out_stride};
  }

  // Of a chunk.
  int64_t key_bytes() const { return int64_t{layer_.key_heads} * gdn::kKeyBlockBytes; }
  int64_t value_bytes() const { return int64_t{layer_.heads} * gdn::kValueBlockBytes; }

  int64_t blocks_bytes() const { return chunks_ * (key_bytes() + value_bytes()); }

  // The chunks of spans of two rows and more: at most as many as rows, and two beyond each span's sixteenths. The
  // second launch overlaps the first: few heads leave multiprocessors idle, which the first can have to itself.
  void enqueue_long(const StepBounds& bounds) {
    const int chunks =
        static_cast<int>(std::min<int64_t>(bounds.rows, bounds.rows / kPagePositions + 2 * int64_t{bounds.spans}));
    const int64_t table = kda::LongSpans::shared_bytes(bounds.spans);
    const int64_t serial =
        std::min<int64_t>(bounds.rows / 2 * int64_t{layer_.heads},
                          std::min<int64_t>(bounds.spans * int64_t{layer_.heads}, device().sm_count()));
    const int64_t free = device().sm_count() - serial;
    std::byte* const workspace = device().workspace();
    float4* const carry = reinterpret_cast<float4*>(workspace + blocks_bytes());
    const int64_t carry_size = layer_.heads * kStateBytes / static_cast<int64_t>(sizeof(float4));
    uint32_t* const counts = reinterpret_cast<uint32_t*>(carry + 2 * carry_size);
    device().fill(counts, 0, std::min(chunks, chunks_) * static_cast<int64_t>(sizeof(uint32_t)));
    for (int first = 0, turn = 0; first < chunks; first += chunks_, ++turn) {
      const kda::ChunkRange range{first, std::min(first + chunks_, chunks)};
      const gdn::Blocks blocks{workspace, workspace + chunks_ * key_bytes(), counts,
                               static_cast<uint32_t>(layer_.key_heads * (turn + 1))};
      const int64_t parts = int64_t{range.end - range.first} * layer_.key_heads;
      launch(device(),
             {.grid = std::min<int64_t>((parts + gdn::kPrepWarps - 1) / gdn::kPrepWarps,
                                        free >= serial ? free : device().sm_count()),
              .block = gdn::kPrepWarps * 32,
              .shared_bytes = static_cast<int64_t>(sizeof(gdn::PrepShared)) * gdn::kPrepWarps + table},
             &gdn::prep, device().step(), layer_, range, blocks);
      launch(device(),
             {.grid = serial,
              .block = gdn::kAllThreads,
              .shared_bytes = static_cast<int64_t>(sizeof(gdn::SpanShared)) + table,
              .overlap = true},
             &gdn::span, device().step(), layer_, range, blocks, carry + turn % 2 * carry_size,
             carry + (turn + 1) % 2 * carry_size);
    }
  }

  gdn::Layer layer_;
  int chunks_ = 0;  // whose blocks are in the workspace at once: longer steps take several launches
};

}  // namespace

std::unique_ptr<BoundOp> bind_gdn_layer_cuda(CudaDevice& device, std::string name, const GdnLayerArgs& args) {
  return std::make_unique<GdnLayer>(device, std::move(name), args);
}

}  // namespace weir
