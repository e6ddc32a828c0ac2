// Sequences with pages and anchors around a bound KDA layer, for its test and bench: what state/ and engine/ do in the
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
#include "ops/kda_layer/kda_layer.h"
#include "tests/support/cuda_case.h"

namespace weir::testing {

enum class Gates { kRealistic, kHard, kSlow };

struct KdaWeights {
  std::vector<float> conv[3], a, dt_bias, norm;

  KdaWeights(int64_t heads, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    const int64_t channels = heads * kKdaHeadDim;
    for (std::vector<float>& w : conv) {
      for (int64_t i = 0; i < channels * kKdaTaps; ++i) w.push_back(0.5f * normal(random) + (i % 4 == 3 ? 1.f : 0.f));
    }
    for (int64_t h = 0; h < heads; ++h) a.push_back(std::exp(0.5f * normal(random)));
    for (int64_t i = 0; i < channels; ++i) dt_bias.push_back(0.3f * normal(random));
    for (int64_t i = 0; i < kKdaHeadDim; ++i) norm.push_back(1.f + 0.2f * normal(random));
  }
};

// The rows of one sequence, [row][head][128] (beta [row][head]): BF16 numbers but for beta.
struct KdaSequenceRows {
  std::vector<float> q, k, v, f, gate, beta;

  KdaSequenceRows() = default;
  KdaSequenceRows(int64_t heads, int64_t count, bool bounded, Gates gates, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < count * heads * kKdaHeadDim; ++i) {
      q.push_back(bf16_to_f32(f32_to_bf16(normal(random))));
      k.push_back(bf16_to_f32(f32_to_bf16(normal(random))));
      v.push_back(bf16_to_f32(f32_to_bf16(normal(random) * (gates == Gates::kHard ? 50.f : 1.f))));
      gate.push_back(bf16_to_f32(f32_to_bf16(normal(random))));
      float z = normal(random) - (bounded ? 0.f : 2.f);
      if (gates == Gates::kHard) z = (i % 2 == 0 ? 1.f : -1.f) * (bounded ? 9.f : 60.f) + 4 * z;
      if (gates == Gates::kSlow) z -= 7.f;
      f.push_back(bf16_to_f32(f32_to_bf16(z)));
    }
    for (int64_t i = 0; i < count * heads; ++i) beta.push_back(normal(random));
  }
};

class KdaWorld {
 public:
  struct Sequence {
    KdaSequenceRows rows;
    int64_t position = 0;
    SlotId anchor = kZeroAnchor;
    int64_t anchor_position = 0;
    std::vector<float> out;  // [position][head][128] so far
  };
  enum class Anchors { kLast, kAll };

  KdaWorld(CudaDevice& device, bool bounded, int64_t heads, int64_t sequences, int64_t rows_each, int64_t rows_a_step,
           int64_t workspace_bytes = int64_t{256} << 20)
      : device_(device),
        heads_(heads),
        width_(heads * kKdaHeadDim),
        chunks_(rows_each / kPagePositions + 1),
        weights_(heads, 7),
        sequences_(static_cast<size_t>(sequences)),
        page_bytes_(kOffset + kPagePositions * kda_layer_journal_row_bytes(heads)),
        slot_bytes_(kOffset + kda_layer_anchor_bytes(heads)),
        pages_(device, sequences * chunks_ * page_bytes_),
        anchors_(device, sequences * chunks_ * slot_bytes_) {
    for (auto& buffer : inputs_) buffer = make<uint16_t>(rows_a_step, width_ + 8);
    beta_ = make<float>(rows_a_step, heads + 1);
    out_ = make<uint16_t>(rows_a_step, out_stride());
    for (int64_t i = 0; i < sequences * chunks_; ++i) tables_.push_back(PageId(static_cast<uint32_t>(i)));
    const auto rows = [&](const DeviceBuffer<uint16_t>& buffer) { return KdaRows{buffer.data(), width_ + 8}; };
    op_ = bind_kda_layer(device, "test.kda_layer",
                         {.bounded = bounded,
                          .heads = heads,
                          .l2_eps = 1e-6f,
                          .norm_eps = 1e-5f,
                          .q_conv = weights_.conv[0].data(),
                          .k_conv = weights_.conv[1].data(),
                          .v_conv = weights_.conv[2].data(),
                          .a = weights_.a.data(),
                          .dt_bias = weights_.dt_bias.data(),
                          .norm_weight = weights_.norm.data(),
                          .journal = {.group = 1, .offset = kOffset, .row_bytes = kda_layer_journal_row_bytes(heads)},
                          .state = {.offset = kOffset, .bytes = kda_layer_anchor_bytes(heads)},
                          .q = rows(*inputs_[0]),
                          .k = rows(*inputs_[1]),
                          .v = rows(*inputs_[2]),
                          .f = rows(*inputs_[3]),
                          .gate = rows(*inputs_[4]),
                          .beta_logit = beta_->data(),
                          .beta_logit_stride = heads + 1,
                          .out = out_->data(),
                          .out_stride = out_stride(),
                          .workspace_bytes = workspace_bytes});
  }

  Sequence& sequence(int64_t s) { return sequences_[static_cast<size_t>(s)]; }
  const KdaWeights& weights() const { return weights_; }
  CudaOp& op() { return static_cast<CudaOp&>(*op_); }
  DeviceBuffer<std::byte>& pages() { return pages_; }
  DeviceBuffer<std::byte>& anchors() { return anchors_; }
  std::vector<uint16_t> out() const { return out_->values(); }
  int64_t out_stride() const { return width_ + 16; }

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
  // S [128 key channels][128 value columns] of a head, by kda_layer.h.
  std::vector<float> state(int64_t s, int64_t position, int64_t head) const {
    const std::vector<std::byte> data = anchor(s, position);
    std::vector<float> out(kKdaHeadDim * kKdaHeadDim);
    const std::byte* planes = data.data() + kOffset + head * (kda_layer_anchor_bytes(heads_) / heads_);
    for (int64_t d = 0; d < kKdaHeadDim; ++d) {
      for (int64_t v = 0; v < kKdaHeadDim; ++v) {
        // Channel 4 c + 2 upper + e of a step is in word 2 upper + (column / 8 % 2), half e, of lane 4 (column % 8) +
        // c.
        const int64_t lane = v % 8 * 4 + d % 16 / 4, word = d % 4 / 2 * 2 + v / 8 % 2;
        const int64_t at = ((v / 16 * 8 + d / 16) * 32 + lane) * 16 + word * 4 + d % 2 * 2;
        uint16_t high;
        int16_t low;
        std::memcpy(&high, planes + at, 2);
        std::memcpy(&low, planes + kKdaHeadDim * kKdaHeadDim * 2 + at, 2);
        out[static_cast<size_t>(d * kKdaHeadDim + v)] =
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
    host_.assign(5, {});
    host_beta_.clear();
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
      take_rows(sequence, counts[s]);
      row_spans_.insert(row_spans_.end(), static_cast<size_t>(counts[s]), static_cast<int32_t>(spans_.size()));
      row += static_cast<int32_t>(counts[s]);
      spans_.push_back(span);
    }
    for (size_t i = 0; i < 5; ++i) inputs_[i]->set(host_[i]);
    beta_->set(host_beta_);
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
        std::transform(at, at + width_, std::back_inserter(sequence.out), bf16_to_f32);
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

  template <class T>
  std::unique_ptr<DeviceBuffer<T>> make(int64_t rows, int64_t stride) {
    return std::make_unique<DeviceBuffer<T>>(device_, rows * stride);
  }
  std::vector<std::byte> bytes(const DeviceBuffer<std::byte>& from, int64_t at, int64_t count) const {
    std::vector<std::byte> out(static_cast<size_t>(count));
    device_.to_host(out.data(), from.data() + at, count);
    return out;
  }
  void take_rows(const Sequence& sequence, int64_t count) {
    const KdaSequenceRows& r = sequence.rows;
    const std::vector<float>* from[] = {&r.q, &r.k, &r.v, &r.f, &r.gate};
    for (int64_t row = sequence.position; row < sequence.position + count; ++row) {
      for (size_t i = 0; i < 5; ++i) {
        const auto at = from[i]->begin() + row * width_;
        std::transform(at, at + width_, std::back_inserter(host_[i]), f32_to_bf16);
        host_[i].resize(host_[i].size() + 8, 0xffff);
      }
      const auto at = r.beta.begin() + row * heads_;
      host_beta_.insert(host_beta_.end(), at, at + heads_);
      host_beta_.push_back(std::nanf(""));
    }
  }

  CudaDevice& device_;
  int64_t heads_, width_, chunks_;
  KdaWeights weights_;
  std::vector<Sequence> sequences_;
  int64_t page_bytes_, slot_bytes_;
  DeviceBuffer<std::byte> pages_, anchors_;
  std::unique_ptr<DeviceBuffer<uint16_t>> inputs_[5], out_;  // q, k, v, f, gate
  std::unique_ptr<DeviceBuffer<float>> beta_;
  std::vector<PageId> tables_;
  std::vector<std::vector<PageId>> step_tables_;
  std::vector<std::vector<AnchorWrite>> writes_;
  std::vector<std::vector<uint16_t>> host_;
  std::vector<float> host_beta_;
  std::vector<SpanView> spans_;
  std::vector<int32_t> row_spans_;
  PoolView pools_[2];
  StepView view_;
  std::unique_ptr<BoundOp> op_;
};

}  // namespace weir::testing
