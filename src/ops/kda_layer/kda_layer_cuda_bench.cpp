// KDA layers of Kimi K3 (bounded gate, 96 heads) and of Kimi Linear (softplus gate, 32 heads) on the GPU: decode steps
// with sequences of all phases of a chunk, steps in which every sequence crosses into one, and prompts. Beside them
// what peers need on an H200: FlashInfer with convolution and gated norm; FlashKDA and flash-linear-attention for the
// delta rule alone, with inputs in BF16.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <random>
#include <vector>

#include "base/number.h"
#include "bench/cuda_timing.h"
#include "ops/cuda_op.h"
#include "ops/kda_layer/kda_layer.h"

namespace weir {
namespace {

struct Kind {
  bool bounded;
  int64_t heads;

  std::string name(const char* what) const { return concat("kda ", what, bounded ? ", bounded" : ", softplus"); }
};

// Layers of one model over the same row buffers, each with its part of pages and anchors: calls take turns over them.
class Model {
 public:
  Model(CudaDevice& device, const Kind& kind, int layers, int64_t batch, int64_t rows) : device_(device), kind_(kind) {
    const int64_t width = kind.heads * kKdaHeadDim, row_bytes = kda_layer_journal_row_bytes(kind.heads),
                  state_bytes = (kda_layer_anchor_bytes(kind.heads) + 127) / 128 * 128;
    for (int64_t i = 0; i < width * kKdaTaps; ++i) weights_.push_back(0.3f * normal_(random_));
    std::vector<float> positive;
    for (int64_t h = 0; h < kind.heads; ++h) positive.push_back(0.5f + 0.01f * static_cast<float>(h));
    page_bytes_ = layers * kPagePositions * row_bytes;
    slot_bytes_ = layers * state_bytes;
    pages_ = allocate(2 * batch * page_bytes_);
    slots_ = allocate(2 * batch * slot_bytes_);
    uint16_t* buffers[6];  // q, k, v, f, gate, out
    for (uint16_t*& buffer : buffers) buffer = fill<uint16_t>(rows * width, f32_to_bf16);
    const float* beta = fill<float>(rows * kind.heads, [](float x) { return x; });
    for (int i = 0; i < layers; ++i) {
      ops_.push_back(bind_kda_layer(device, "bench",
                                    {.bounded = kind.bounded,
                                     .heads = kind.heads,
                                     .l2_eps = 1e-6f,
                                     .norm_eps = 1e-5f,
                                     .q_conv = weights_.data(),
                                     .k_conv = weights_.data(),
                                     .v_conv = weights_.data(),
                                     .a = positive.data(),
                                     .dt_bias = weights_.data(),
                                     .norm_weight = weights_.data(),
                                     .journal = {.offset = i * kPagePositions * row_bytes, .row_bytes = row_bytes},
                                     .state = {.offset = i * state_bytes, .bytes = state_bytes},
                                     .q = {buffers[0], width},
                                     .k = {buffers[1], width},
                                     .v = {buffers[2], width},
                                     .f = {buffers[3], width},
                                     .gate = {buffers[4], width},
                                     .beta_logit = beta,
                                     .beta_logit_stride = kind.heads,
                                     .out = buffers[5],
                                     .out_stride = width}));
    }
  }
  ~Model() {
    ops_.clear();
    device_.synchronize();
    for (std::byte* memory : memory_) device_.release(memory);
  }

  // Spans of `rows` rows from each of these positions on; a sequence has two pages and two slots, which take turns.
  void stage(const std::vector<int64_t>& positions, int32_t rows) {
    spans_.clear();
    tables_.assign(positions.size(), {});
    writes_.assign(positions.size(), {});
    for (size_t s = 0; s < positions.size(); ++s) {
      const uint32_t first = static_cast<uint32_t>(2 * s);
      const int64_t position = positions[s], chunks = (position + rows - 1) / kPagePositions + 1;
      SpanView span{.first_row = static_cast<int32_t>(s) * rows, .rows = rows, .first_position = position};
      span.anchor_position = position == 0 ? 0 : (position - 1) / kPagePositions * kPagePositions;
      for (int64_t c = 0; c < chunks; ++c) {
        const bool kept = c == chunks - 1 || c == span.anchor_position / kPagePositions;
        tables_[s].push_back(kept ? PageId(first + static_cast<uint32_t>(c % 2)) : kNoPage);
      }
      span.pages[0] = tables_[s];
      if (span.anchor_position > 0) span.anchor = SlotId(first);
      const int64_t last = span.last_position() / kPagePositions * kPagePositions;
      if (last > span.anchor_position) writes_[s].push_back({last, SlotId(first + 1)});
      span.anchor_writes = writes_[s];
      spans_.push_back(span);
    }
    pool_ = {pages_, page_bytes_};
    view_.rows = static_cast<int32_t>(positions.size()) * rows;
    view_.spans = spans_;
    view_.page_pools = {&pool_, 1};
    view_.anchor_pool = {slots_, slot_bytes_};
    device_.stage(view_);
  }

  double microseconds() {
    const StepBounds bounds = CudaDevice::bounds_of(view_);
    const bench::TimingOptions options{.sets = static_cast<int>(ops_.size()), .budget_us = 20e3};
    return bench::time_calls(device_, options,
                             [&](int set) { static_cast<CudaOp&>(*ops_[static_cast<size_t>(set)]).enqueue(bounds); })
        .us;
  }
  int64_t bytes() const {  // of state and rows, of one layer
    int64_t bytes = 0;
    for (const SpanView& span : spans_) {
      bytes += ops_[0]->cost(span.rows, span.last_position()).state_bytes +
               span.rows * kind_.heads * (6 * kKdaHeadDim * 2 + 4);
    }
    return bytes;
  }

 private:
  std::byte* allocate(int64_t bytes) {
    memory_.push_back(device_.allocate(bytes));
    return memory_.back();
  }
  template <class T, class Of>
  T* fill(int64_t count, const Of& of) {
    std::vector<T> part(static_cast<size_t>(std::min<int64_t>(count, 1 << 20)));
    for (T& x : part) x = of(normal_(random_));
    T* to = reinterpret_cast<T*>(allocate(count * static_cast<int64_t>(sizeof(T))));
    const int64_t size = static_cast<int64_t>(part.size());
    for (int64_t at = 0; at < count; at += size) {
      device_.to_device(to + at, part.data(), std::min(count - at, size) * static_cast<int64_t>(sizeof(T)));
    }
    return to;
  }

  CudaDevice& device_;
  Kind kind_;
  std::mt19937 random_{1};
  std::normal_distribution<float> normal_;
  int64_t page_bytes_ = 0, slot_bytes_ = 0;
  std::byte *pages_ = nullptr, *slots_ = nullptr;
  std::vector<float> weights_;
  std::vector<std::byte*> memory_;
  std::vector<std::unique_ptr<BoundOp>> ops_;
  std::vector<std::vector<PageId>> tables_;
  std::vector<std::vector<AnchorWrite>> writes_;
  std::vector<SpanView> spans_;
  PoolView pool_;
  StepView view_;
};

void decode(CudaDevice& device, const bench::CudaReport& report, const Kind& kind, int64_t batch, double flash_infer) {
  Model model(device, kind, bench::rotation(device, batch * kind.heads * kKdaHeadDim * kKdaHeadDim * 2, 512), batch,
              batch);
  const int phases = batch < 16 ? 16 : 1;  // of a lone sequence; many have all of them at once
  double us = 0;
  int64_t bytes = 0;
  for (int phase = 0; phase < phases; ++phase) {
    std::vector<int64_t> positions;
    for (int64_t s = 0; s < batch; ++s) positions.push_back(4 * kPagePositions + (s + phase) % kPagePositions);
    model.stage(positions, 1);
    us += model.microseconds() / phases;
    bytes += model.bytes() / phases;
  }
  const std::string shape = concat(kind.heads, " heads, ", batch, " sequences");
  const double bar = batch == 1 ? 5. : flash_infer / 1.8;
  report.add({.what = kind.name("decode"), .shape = shape, .us = us, .bytes = bytes, .bar_us = bar});
  report.add({.what = kind.name("decode"), .shape = shape, .us = flash_infer, .by = "FlashInfer (table)"});
  model.stage(std::vector<int64_t>(static_cast<size_t>(batch), 4 * kPagePositions), 1);
  report.add({.what = kind.name("decode, all cross"),
              .shape = shape,
              .us = model.microseconds(),
              .bytes = model.bytes(),
              .bar_us = flash_infer * 1.25});
}

void prompt(CudaDevice& device, const bench::CudaReport& report, const Kind& kind, int64_t batch, int64_t rows,
            double peer) {
  Model model(device, kind, batch * rows < 2048 ? 4 : 1, batch, batch * rows);
  model.stage(std::vector<int64_t>(static_cast<size_t>(batch), 0), static_cast<int32_t>(rows));
  const std::string shape = concat(kind.heads, " heads, ", batch, " x ", rows);
  report.add({.what = kind.name("prompt"),
              .shape = shape,
              .us = model.microseconds(),
              .bytes = model.bytes(),
              .bar_us = peer});
  report.add({.what = kind.name("prompt"),
              .shape = shape,
              .us = peer,
              .by = kind.bounded ? "FlashKDA, rule alone (table)" : "FLA, rule alone (table)"});
}

void run() {
  const std::unique_ptr<CudaDevice> device = open_cuda();
  const bench::CudaReport report(*device);
  const Kind k3{true, 96}, kimi_linear{false, 32};
  const struct {
    int64_t batch;
    double k3, kimi_linear;
  } steps[] = {{1, 5.87, 4.29}, {8, 29.1, 10.6}, {64, 210, 72.4}, {256, 825, 278}};
  for (const auto& s : steps) decode(*device, report, k3, s.batch, s.k3);
  for (const auto& s : steps) decode(*device, report, kimi_linear, s.batch, s.kimi_linear);
  const struct {
    int64_t batch, rows;
    double flash_kda, fla;
  } prompts[] = {{1, 512, 114, 105}, {1, 2048, 371, 289}, {1, 8192, 1389, 1047}, {8, 1024, 1182, 990}};
  for (const auto& p : prompts) prompt(*device, report, k3, p.batch, p.rows, p.flash_kda);
  for (const auto& p : prompts) prompt(*device, report, kimi_linear, p.batch, p.rows, p.fla);
  if (!device->error().empty()) fail(device->error());
}

}  // namespace
}  // namespace weir

int main() {
  try {
    weir::run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "kda_layer_cuda_bench: %s\n", e.what());
    return 1;
  }
}
