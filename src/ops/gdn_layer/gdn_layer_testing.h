// Sequences with pages and anchors around a bound GDN layer, for its test and bench: what state/ and engine/ do in the
// engine, with every block filled with 0xff (NaN) until the op writes it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <random>
#include <vector>

#include "base/number.h"
#include "ops/cuda_op.h"
#include "ops/gdn_layer/gdn_layer.h"
#include "ops/gdn_layer/gdn_layout.h"
#include "tests/support/cuda_case.h"

namespace weir::testing {

enum class Gates { kRealistic, kHard, kSlow };

struct GdnShape {
  int64_t heads, key_heads;
  KeyHeadOrder order = KeyHeadOrder::kGrouped;

  int64_t values() const { return heads * kGdnHeadDim; }
  int64_t keys() const { return key_heads * kGdnHeadDim; }
  int64_t channels() const { return 2 * keys() + values(); }
  int64_t key_head(int64_t head) const {
    return order == KeyHeadOrder::kTiled ? head % key_heads : head / (heads / key_heads);
  }
};

struct GdnWeights {
  std::vector<float> conv, a, dt_bias, norm;

  GdnWeights(const GdnShape& shape, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < shape.channels() * kGdnTaps; ++i) {
      conv.push_back(0.5f * normal(random) + (i % 4 == 3 ? 1.f : 0.f));
    }
    for (int64_t h = 0; h < shape.heads; ++h) a.push_back(std::exp(0.5f * normal(random)));
    for (int64_t h = 0; h < shape.heads; ++h) dt_bias.push_back(0.3f * normal(random));
    for (int64_t i = 0; i < kGdnHeadDim; ++i) norm.push_back(1.f + 0.2f * normal(random));
  }
};

// The rows of one sequence: qkv and gate as BF16 numbers.
struct GdnSequenceRows {
  std::vector<float> qkv, gate, a, beta;

  GdnSequenceRows() = default;
  GdnSequenceRows(const GdnShape& shape, int64_t count, Gates gates, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < count * shape.channels(); ++i) {
      const float scale = gates == Gates::kHard && i % shape.channels() >= 2 * shape.keys() ? 50.f : 1.f;
      qkv.push_back(bf16_to_f32(f32_to_bf16(scale * normal(random))));
    }
    for (int64_t i = 0; i < count * shape.values(); ++i) gate.push_back(bf16_to_f32(f32_to_bf16(normal(random))));
    for (int64_t i = 0; i < count * shape.heads; ++i) {
      float z = normal(random) - 2.f;
      if (gates == Gates::kHard) z = (i % 3 == 0 ? 60.f : -60.f) + 4 * z;
      if (gates == Gates::kSlow) z -= 7.f;
      a.push_back(z);
      beta.push_back(normal(random));
    }
  }
};

class GdnWorld {
 public:
  struct Sequence {
    GdnSequenceRows rows;
    int64_t position = 0;
    SlotId anchor = kZeroAnchor;
    int64_t anchor_position = 0;
    std::vector<float> out;  // [position][head][128] so far
  };
  enum class Anchors { kLast, kAll };

  GdnWorld(CudaDevice& device, const GdnShape& shape, int64_t sequences, int64_t rows_each, int64_t rows_a_step,
           int64_t workspace_bytes = int64_t{256} << 20)
      : device_(device),
        shape_(shape),
        chunks_(rows_each / kPagePositions + 1),
        weights_(shape, 7),
        sequences_(static_cast<size_t>(sequences)),
        page_bytes_(kOffset + kPagePositions * gdn_layer_journal_row_bytes(shape.heads, shape.key_heads)),
        slot_bytes_(kOffset + gdn_layer_anchor_bytes(shape.heads, shape.key_heads)),
        pages_(device, sequences * chunks_ * page_bytes_),
        anchors_(device, sequences * chunks_ * slot_bytes_) {
    qkv_ = make<uint16_t>(rows_a_step, qkv_stride());
    gate_ = make<uint16_t>(rows_a_step, gate_stride());
    a_ = make<float>(rows_a_step, shape.heads + 1);
    beta_ = make<float>(rows_a_step, shape.heads + 1);
    out_ = make<uint16_t>(rows_a_step, out_stride());
    for (int64_t i = 0; i < sequences * chunks_; ++i) tables_.push_back(PageId(static_cast<uint32_t>(i)));
    const int64_t row_bytes = gdn_layer_journal_row_bytes(shape.heads, shape.key_heads);
    op_ = bind_gdn_layer(device, "test.gdn_layer",
                         {.heads = shape.heads,
                          .key_heads = shape.key_heads,
                          .order = shape.order,
                          .l2_eps = 1e-6f,
                          .norm_eps = 1e-5f,
                          .conv = weights_.conv.data(),
                          .a = weights_.a.data(),
                          .dt_bias = weights_.dt_bias.data(),
                          .norm_weight = weights_.norm.data(),
                          .journal = {.group = 1, .offset = kOffset, .row_bytes = row_bytes},
                          .state = {.offset = kOffset, .bytes = slot_bytes_ - kOffset},
                          .qkv = qkv_->data(),
                          .qkv_stride = qkv_stride(),
                          .a_logit = a_->data(),
                          .a_logit_stride = shape.heads + 1,
                          .beta_logit = beta_->data(),
                          .beta_logit_stride = shape.heads + 1,
                          .gate = gate_->data(),
                          .gate_stride = gate_stride(),
                          .out = out_->data(),
                          .out_stride = out_stride(),
                          .workspace_bytes = workspace_bytes});
  }

  Sequence& sequence(int64_t s) { return sequences_[static_cast<size_t>(s)]; }
  const GdnWeights& weights() const { return weights_; }
  CudaOp& op() { return static_cast<CudaOp&>(*op_); }
  DeviceBuffer<std::byte>& pages() { return pages_; }
  DeviceBuffer<std::byte>& anchors() { return anchors_; }
  std::vector<uint16_t> out() const { return out_->values(); }
  int64_t out_stride() const { return shape_.values() + 16; }
  const GdnShape& shape() const { return shape_; }

  SlotId slot(int64_t s, int64_t position) const {
    return SlotId(static_cast<uint32_t>(s * chunks_ + position / kPagePositions));
  }
  // An anchor of a sequence, a page of one: their bytes.
  std::vector<std::byte> anchor(int64_t s, int64_t position) const {
    return bytes(anchors_, static_cast<int64_t>(slot(s, position)) * slot_bytes_, slot_bytes_);
  }
  std::vector<std::byte> page(int64_t s, int64_t chunk) const {
    return bytes(pages_, (s * chunks_ + chunk) * page_bytes_, page_bytes_);
  }
  // S [128 key channels][128 value columns] of a head, by gdn_layer.h.
  std::vector<float> state(int64_t s, int64_t position, int64_t head) const {
    const std::vector<std::byte> data = anchor(s, position);
    std::vector<float> out(kGdnHeadDim * kGdnHeadDim);
    const std::byte* planes = data.data() + kOffset + head * gdn::kValueAnchorBytes;
    for (int64_t d = 0; d < kGdnHeadDim; ++d) {
      for (int64_t v = 0; v < kGdnHeadDim; ++v) {
        // Channel 8 upper + 2 c + e of a step is in word 2 upper + (column / 8 % 2), half e, of lane 4 (column % 8) +
        // c.
        const int64_t lane = v % 8 * 4 + d % 8 / 2, word = d % 16 / 8 * 2 + v / 8 % 2;
        const int64_t at = ((v / 16 * 8 + d / 16) * 32 + lane) * 16 + word * 4 + d % 2 * 2;
        uint16_t high;
        int16_t low;
        std::memcpy(&high, planes + at, 2);
        std::memcpy(&low, planes + kGdnHeadDim * kGdnHeadDim * 2 + at, 2);
        out[static_cast<size_t>(d * kGdnHeadDim + v)] =
            std::bit_cast<float>((uint32_t{high} << 16) + static_cast<uint32_t>(int32_t{low}));
      }
    }
    return out;
  }

  // Stages the next counts[s] rows of each sequence.
  const StepView& stage(const std::vector<int64_t>& counts, Anchors which, bool drop_pages) {
    spans_.clear();
    row_spans_.clear();
    writes_.assign(sequences_.size(), {});
    step_tables_.assign(sequences_.size(), {});
    Host host;
    int32_t row = 0;
    for (size_t s = 0; s < sequences_.size(); ++s) {
      if (counts[s] == 0) continue;
      const Sequence& sequence = sequences_[s];
      SpanView span{.first_row = row, .rows = static_cast<int32_t>(counts[s]), .first_position = sequence.position};
      const auto table = tables_.begin() + static_cast<int64_t>(s) * chunks_;
      step_tables_[s].assign(table, table + chunks_);
      for (int64_t c = sequence.position / 16 + 1; drop_pages && c < span.last_position() / 16; ++c) {
        step_tables_[s][static_cast<size_t>(c)] = kNoPage;
      }
      span.pages[1] = step_tables_[s];
      span.anchor = sequence.anchor;
      span.anchor_position = sequence.anchor_position;
      const int64_t last = span.last_position() / 16 * 16;
      for (int64_t p = which == Anchors::kAll ? sequence.anchor_position + 16 : last; p <= last; p += 16) {
        if (p > sequence.anchor_position) writes_[s].push_back({p, slot(static_cast<int64_t>(s), p)});
      }
      span.anchor_writes = writes_[s];
      take_rows(host, sequence, counts[s]);
      row_spans_.insert(row_spans_.end(), static_cast<size_t>(counts[s]), static_cast<int32_t>(spans_.size()));
      row += static_cast<int32_t>(counts[s]);
      spans_.push_back(span);
    }
    qkv_->set(host.qkv);
    gate_->set(host.gate);
    a_->set(host.a);
    beta_->set(host.beta);
    out_->poison();
    pools_[1] = {pages_.data(), page_bytes_};
    view_ = {.rows = row,
             .spans = spans_,
             .row_spans = row_spans_,
             .page_pools = pools_,
             .anchor_pool = {anchors_.data(), slot_bytes_}};
    return view_;
  }

  // After the staged step has run.
  void advance(const std::vector<int64_t>& counts) {
    const std::vector<uint16_t> out = out_->values();
    size_t row = 0;
    for (size_t s = 0; s < sequences_.size(); ++s) {
      Sequence& sequence = sequences_[s];
      for (int64_t r = 0; r < counts[s]; ++r, ++row) {
        const auto at = out.begin() + static_cast<int64_t>(row) * out_stride();
        std::transform(at, at + shape_.values(), std::back_inserter(sequence.out), bf16_to_f32);
      }
      sequence.position += counts[s];
      if (writes_[s].empty()) continue;
      sequence.anchor = writes_[s].back().slot;
      sequence.anchor_position = writes_[s].back().position;
    }
  }

  void step(const std::vector<int64_t>& counts, Anchors which = Anchors::kAll, bool drop_pages = false) {
    op().run(stage(counts, which, drop_pages));
    advance(counts);
  }

 private:
  static constexpr int64_t kOffset = 64;  // of other parts in pages and slots
  struct Host {                           // a step's rows, as they go to the device
    std::vector<uint16_t> qkv, gate;
    std::vector<float> a, beta;
  };

  template <class T>
  std::unique_ptr<DeviceBuffer<T>> make(int64_t rows, int64_t stride) {
    return std::make_unique<DeviceBuffer<T>>(device_, rows * stride);
  }
  std::vector<std::byte> bytes(const DeviceBuffer<std::byte>& from, int64_t at, int64_t count) const {
    std::vector<std::byte> out(static_cast<size_t>(count));
    device_.to_host(out.data(), from.data() + at, count);
    return out;
  }
  int64_t qkv_stride() const { return shape_.channels() + 8; }
  int64_t gate_stride() const { return shape_.values() + 8; }
  void take_rows(Host& host, const Sequence& sequence, int64_t count) const {
    const GdnSequenceRows& r = sequence.rows;
    for (int64_t row = sequence.position; row < sequence.position + count; ++row) {
      const auto rounded = [row](const std::vector<float>& from, int64_t width, std::vector<uint16_t>& to) {
        const auto at = from.begin() + row * width;
        std::transform(at, at + width, std::back_inserter(to), f32_to_bf16);
        to.resize(to.size() + 8, 0xffff);
      };
      const auto whole = [row](const std::vector<float>& from, int64_t width, std::vector<float>& to) {
        const auto at = from.begin() + row * width;
        to.insert(to.end(), at, at + width);
        to.push_back(std::nanf(""));
      };
      rounded(r.qkv, shape_.channels(), host.qkv);
      rounded(r.gate, shape_.values(), host.gate);
      whole(r.a, shape_.heads, host.a);
      whole(r.beta, shape_.heads, host.beta);
    }
  }

  CudaDevice& device_;
  GdnShape shape_;
  int64_t chunks_;
  GdnWeights weights_;
  std::vector<Sequence> sequences_;
  int64_t page_bytes_, slot_bytes_;
  DeviceBuffer<std::byte> pages_, anchors_;
  std::unique_ptr<DeviceBuffer<uint16_t>> qkv_, gate_, out_;
  std::unique_ptr<DeviceBuffer<float>> a_, beta_;
  std::vector<PageId> tables_;
  std::vector<std::vector<PageId>> step_tables_;
  std::vector<std::vector<AnchorWrite>> writes_;
  std::vector<SpanView> spans_;
  std::vector<int32_t> row_spans_;
  PoolView pools_[2];
  StepView view_;
  std::unique_ptr<BoundOp> op_;
};

}  // namespace weir::testing
