// GDN layers of Qwen3-Next (16 key heads, 32 value heads) on the GPU, in decode steps with sequences of all phases of a
// chunk, in steps in which every sequence crosses into one, and in prompts. Beside them what peers need on an H200 for
// the delta rule alone, with inputs in BF16 and without convolution and gated norm.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <random>
#include <vector>

#include "base/number.h"
#include "bench/cuda_timing.h"
#include "ops/cuda_op.h"
#include "ops/gdn_layer/gdn_layer.h"

namespace weir {
namespace {

constexpr int64_t kHeads = 32, kKeyHeads = 16;
constexpr int64_t kValues = kHeads * kGdnHeadDim, kChannels = 2 * kKeyHeads * kGdnHeadDim + kValues;

// Layers of one model over the same row buffers, each with its part of pages and anchors: calls take turns over them.
class Model {
 public:
  Model(CudaDevice& device, int layers, int64_t batch, int64_t rows) : device_(device) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < kChannels * kGdnTaps; ++i) weights_.push_back(0.3f * normal(random));
    const int64_t row_bytes = gdn_layer_journal_row_bytes(kHeads, kKeyHeads),
                  state_bytes = (gdn_layer_anchor_bytes(kHeads, kKeyHeads) + 127) / 128 * 128;
    page_bytes_ = layers * kPagePositions * row_bytes;
    slot_bytes_ = layers * state_bytes;
    pages_ = allocate(2 * batch * page_bytes_);
    slots_ = allocate(2 * batch * slot_bytes_);
    const auto whole = [](float x) { return x; };
    const uint16_t *qkv = fill<uint16_t>(rows * kChannels, random, f32_to_bf16),
                   *gate = fill<uint16_t>(rows * kValues, random, f32_to_bf16);
    const float *a = fill<float>(rows * kHeads, random, whole), *beta = fill<float>(rows * kHeads, random, whole);
    uint16_t* const out = fill<uint16_t>(rows * kValues, random, f32_to_bf16);
    for (int i = 0; i < layers; ++i) {
      ops_.push_back(bind_gdn_layer(device, "bench",
                                    {.heads = kHeads,
                                     .key_heads = kKeyHeads,
                                     .l2_eps = 1e-6f,
                                     .norm_eps = 1e-6f,
                                     .conv = weights_.data(),
                                     .a = weights_.data(),
                                     .dt_bias = weights_.data(),
                                     .norm_weight = weights_.data(),
                                     .journal = {.offset = i * kPagePositions * row_bytes, .row_bytes = row_bytes},
                                     .state = {.offset = i * state_bytes, .bytes = state_bytes},
                                     .qkv = qkv,
                                     .qkv_stride = kChannels,
                                     .a_logit = a,
                                     .a_logit_stride = kHeads,
                                     .beta_logit = beta,
                                     .beta_logit_stride = kHeads,
                                     .gate = gate,
                                     .gate_stride = kValues,
                                     .out = out,
                                     .out_stride = kValues}));
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
               span.rows * ((kChannels + 2 * kValues) * 2 + 2 * kHeads * 4);
    }
    return bytes;
  }

 private:
  std::byte* allocate(int64_t bytes) {
    memory_.push_back(device_.allocate(bytes));
    return memory_.back();
  }
  template <class T, class Of>
  T* fill(int64_t count, std::mt19937& random, const Of& of) {
    std::vector<T> part(static_cast<size_t>(std::min<int64_t>(count, 1 << 20)));
    std::normal_distribution<float> normal;
    for (T& x : part) x = of(normal(random));
    T* to = reinterpret_cast<T*>(allocate(count * static_cast<int64_t>(sizeof(T))));
    const int64_t size = static_cast<int64_t>(part.size());
    for (int64_t at = 0; at < count; at += size) {
      device_.to_device(to + at, part.data(), std::min(count - at, size) * static_cast<int64_t>(sizeof(T)));
    }
    return to;
  }

  CudaDevice& device_;
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

void decode(CudaDevice& device, const bench::CudaReport& report, int64_t batch, double flash_infer) {
  Model model(device, bench::rotation(device, batch * kHeads * kGdnHeadDim * kGdnHeadDim * 2, 512), batch, batch);
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
  const std::string shape = concat("32/16 heads, ", batch, " sequences");
  report.add({.what = "gdn decode", .shape = shape, .us = us, .bytes = bytes, .bar_us = flash_infer / 1.8});
  report.add({.what = "gdn decode", .shape = shape, .us = flash_infer, .by = "FlashInfer, rule alone (table)"});
  model.stage(std::vector<int64_t>(static_cast<size_t>(batch), 4 * kPagePositions), 1);
  report.add({.what = "gdn decode, all cross",
              .shape = shape,
              .us = model.microseconds(),
              .bytes = model.bytes(),
              .bar_us = flash_infer * 1.25});
}

void prompt(CudaDevice& device, const bench::CudaReport& report, int64_t batch, int64_t rows, double fla,
            double flash_infer) {
  Model model(device, batch * rows < 4096 ? 4 : 1, batch, batch * rows);
  model.stage(std::vector<int64_t>(static_cast<size_t>(batch), 0), static_cast<int32_t>(rows));
  const std::string shape = concat("32/16 heads, ", batch, " x ", rows);
  report.add({.what = "gdn prompt", .shape = shape, .us = model.microseconds(), .bytes = model.bytes(), .bar_us = fla});
  report.add({.what = "gdn prompt", .shape = shape, .us = fla, .by = "FLA, rule alone (table)"});
  report.add({.what = "gdn prompt", .shape = shape, .us = flash_infer, .by = "FlashInfer, rule alone (table)"});
}

void run() {
  const std::unique_ptr<CudaDevice> device = open_cuda();
  const bench::CudaReport report(*device);
  const struct {
    int64_t batch;
    double flash_infer;
  } steps[] = {{1, 3.75}, {8, 11.05}, {32, 35.46}, {64, 67.57}, {128, 131.84}, {256, 260.24}};
  for (const auto& s : steps) decode(*device, report, s.batch, s.flash_infer);
  const struct {
    int64_t batch, rows;
    double fla, flash_infer;
  } prompts[] = {{1, 512, 66, 66}, {1, 2048, 146, 112}, {1, 8192, 518, 263}, {8, 1024, 488, 145}};
  for (const auto& p : prompts) prompt(*device, report, p.batch, p.rows, p.fla, p.flash_infer);
  if (!device->error().empty()) fail(device->error());
}

}  // namespace
}  // namespace weir

int main() {
  try {
    weir::run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gdn_layer_cuda_bench: %s\n", e.what());
    return 1;
  }
}
