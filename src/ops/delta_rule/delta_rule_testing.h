// Sequences with pages and anchors around a bound delta rule, for its tests and bench: what state/ and engine/ do in
// the engine, with every block filled with NaN until an op writes it. With a GPU, the op works on copies in its memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "base/error.h"
#include "ops/cuda_op.h"
#include "ops/delta_rule/delta_rule.h"
#include "tests/support/device_copies.h"

namespace weir::test {

struct Shape {
  DecayKind decay = DecayKind::kBounded;
  int64_t heads = 1;
  int64_t key_dim = 8;
  int64_t value_dim = 8;
  int64_t key_heads = 0;  // kScalar
  KeyHeadOrder order = KeyHeadOrder::kGrouped;

  bool scalar() const { return decay == DecayKind::kScalar; }
  int64_t keys() const { return (scalar() ? key_heads : heads) * key_dim; }  // q and k of a row
  int64_t values() const { return heads * value_dim; }                       // v and out of a row
  int64_t decays() const { return heads * (scalar() ? 1 : key_dim); }        // g of a row
  // Of an op's arguments: what says how large its state is.
  DeltaRuleArgs args() const {
    return {.decay = decay,
            .heads = heads,
            .key_heads = key_heads,
            .order = order,
            .key_dim = key_dim,
            .value_dim = value_dim};
  }
};

// The rows of one sequence, [row][head][dim].
struct Rows {
  std::vector<float> q, k, v, g, beta;
  int64_t count = 0;
};

enum class Gates { kMild, kHard, kZero, kMixed };

// q and k of unit length per head (q scaled by key_dim^-0.5), as the layers deliver them.
inline Rows random_rows(const Shape& shape, int64_t count, Gates gates, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(0.f, 1.f);
  Rows rows;
  rows.count = count;
  const float hardest = shape.decay == DecayKind::kBounded ? -5.f : -100.f;
  for (int64_t r = 0; r < count * shape.heads; ++r) {
    const bool has_key = !shape.scalar() || r % shape.heads < shape.key_heads;
    for (std::vector<float>* out : {&rows.q, &rows.k}) {
      if (!has_key) continue;
      std::vector<float> x(static_cast<size_t>(shape.key_dim));
      double sum = 1e-6;
      for (float& value : x) {
        value = normal(random);
        sum += double{value} * value;
      }
      const double scale = 1 / std::sqrt(sum) / (out == &rows.q ? std::sqrt(double(shape.key_dim)) : 1.);
      for (float value : x) out->push_back(static_cast<float>(value * scale));
    }
    for (int64_t v = 0; v < shape.value_dim; ++v) rows.v.push_back(normal(random));
    for (int64_t d = 0; d < shape.decays() / shape.heads; ++d) {
      float g = 0.f;
      if (gates == Gates::kMild) g = -0.3f * uniform(random);
      if (gates == Gates::kHard) g = hardest * (d % 3 == 0 ? 1.f : 0.98f + 0.02f * uniform(random));
      if (gates == Gates::kMixed && shape.scalar()) {
        g = r % 5 == 0 ? hardest : (r % 3 == 0 ? 0.f : -uniform(random));
      } else if (gates == Gates::kMixed) {
        g = d % 3 == 0 ? 0.f : (d % 3 == 1 ? hardest : -uniform(random));
      }
      rows.g.push_back(g);
    }
    rows.beta.push_back(0.02f + 0.97f * uniform(random));
  }
  return rows;
}

// Which anchors a step writes.
enum class Anchors { kLast, kAll };

class World {
 public:
  World(Device& device, const Shape& shape, int64_t sequences, int64_t rows_each, int64_t rows_a_step,
        bool poison = true)
      : copies_(device),
        shape_(shape),
        chunks_((rows_each + 15) / 16 + 1),
        sequences_(static_cast<size_t>(sequences)),
        key_stride_(shape.keys() + 3),
        value_stride_(shape.values() + 5),
        decay_stride_(shape.decays() + 2),
        q_(stride_rows(rows_a_step, key_stride_)),
        k_(q_.size()),
        g_(stride_rows(rows_a_step, decay_stride_)),
        v_(stride_rows(rows_a_step, value_stride_)),
        out_(v_.size()),
        beta_(stride_rows(rows_a_step, shape.heads + 1)) {
    std::fill(out_.begin(), out_.end(), std::nanf(""));
    DeltaRuleArgs args = shape.args();
    const int64_t row_bytes = delta_rule_journal_row_bytes(args);
    const int64_t anchor_bytes = delta_rule_anchor_bytes(args);
    page_bytes_ = 16 * row_bytes + 64;
    block_bytes_ = 64 + (anchor_bytes + 63) / 64 * 64;
    pages_ = Mapping(sequences * chunks_ * page_bytes_);
    anchors_ = Mapping(sequences * chunks_ * block_bytes_);
    if (poison) {
      std::memset(pages_.data(), 0xff, static_cast<size_t>(pages_.bytes()));
      std::memset(anchors_.data(), 0xff, static_cast<size_t>(anchors_.bytes()));
    }
    for (int64_t s = 0; s < sequences; ++s) {
      Sequence& sequence = sequences_[static_cast<size_t>(s)];
      for (int64_t c = 0; c < chunks_; ++c) sequence.pages.push_back(PageId(static_cast<uint32_t>(s * chunks_ + c)));
    }
    args.journal = {.group = 1, .offset = 64, .row_bytes = row_bytes};
    args.state = {.offset = 64, .bytes = anchor_bytes};
    args.q = copies_.where(q_);
    args.k = copies_.where(k_);
    args.q_stride = args.k_stride = key_stride_;
    args.v = copies_.where(v_);
    args.out = copies_.where(out_);
    args.v_stride = args.out_stride = value_stride_;
    args.g = copies_.where(g_);
    args.g_stride = decay_stride_;
    args.beta = copies_.where(beta_);
    args.beta_stride = shape.heads + 1;
    op_ = bind_delta_rule(device, "test.delta_rule", args);
  }

  struct Sequence {
    Rows rows;
    int64_t position = 0;
    std::vector<PageId> pages;
    SlotId anchor = kZeroAnchor;
    int64_t anchor_position = 0;
    std::vector<float> out;  // [position, heads, value_dim] so far
  };
  Sequence& sequence(int64_t s) { return sequences_[static_cast<size_t>(s)]; }
  BoundOp& op() { return *op_; }

  // Anchor of sequence s at a multiple of 16 above 0: one slot each.
  SlotId slot(int64_t s, int64_t position) const { return SlotId(static_cast<uint32_t>(s * chunks_ + position / 16)); }
  float* anchor(int64_t s, int64_t position) {
    return reinterpret_cast<float*>(anchors_.data() + static_cast<int64_t>(slot(s, position)) * block_bytes_ + 64);
  }
  const Mapping& pages() const { return pages_; }
  const Mapping& anchors() const { return anchors_; }
  std::byte* page(int64_t s, int64_t chunk) { return pages_.data() + (s * chunks_ + chunk) * page_bytes_; }
  int64_t page_bytes() const { return page_bytes_; }
  int64_t anchor_floats() const { return shape_.heads * shape_.key_dim * shape_.value_dim; }

  // Stages and runs the next counts[s] rows of each sequence. Chunks that are complete after the step and were not
  // begun before it get no page if `drop_pages`.
  void step(const std::vector<int64_t>& counts, Anchors which, bool drop_pages = false) {
    stage(counts, which, drop_pages);
    run();
    int64_t row = 0;
    for (size_t s = 0; s < sequences_.size(); ++s) {
      Sequence& sequence = sequences_[s];
      for (int64_t r = 0; r < counts[s]; ++r, ++row) {
        const float* out = out_.data() + row * value_stride_;
        sequence.out.insert(sequence.out.end(), out, out + shape_.heads * shape_.value_dim);
      }
      sequence.position += counts[s];
      if (!writes_[s].empty()) {
        sequence.anchor = writes_[s].back().slot;
        sequence.anchor_position = writes_[s].back().position;
      }
    }
  }

  // On a GPU: launches are for that many rows and spans more than a step has, as those of a graph may be.
  void loosen_bounds(int32_t by) { loose_ = by; }
  const std::vector<float>& out() const { return out_; }  // of the last step, with whatever stood there before
  int64_t out_stride() const { return value_stride_; }

  // Builds the step without running it (a bench runs the same step again and again).
  const StepView& stage(const std::vector<int64_t>& counts, Anchors which, bool drop_pages = false) {
    spans_.clear();
    row_spans_.clear();
    tables_.assign(sequences_.size(), {});
    writes_.assign(sequences_.size(), {});
    int32_t row = 0;
    for (size_t s = 0; s < sequences_.size(); ++s) {
      if (counts[s] == 0) continue;
      Sequence& sequence = sequences_[s];
      SpanView span{.first_row = row, .rows = static_cast<int32_t>(counts[s]), .first_position = sequence.position};
      tables_[s] = sequence.pages;
      for (int64_t c = sequence.position / 16 + 1; drop_pages && c < span.last_position() / 16; ++c) {
        tables_[s][static_cast<size_t>(c)] = kNoPage;
      }
      span.pages[1] = tables_[s];
      span.anchor = sequence.anchor;
      span.anchor_position = sequence.anchor_position;
      const int64_t last = span.last_position() / 16 * 16;
      for (int64_t p = which == Anchors::kAll ? sequence.anchor_position + 16 : last; p <= last; p += 16) {
        if (p > sequence.anchor_position) writes_[s].push_back({p, slot(static_cast<int64_t>(s), p)});
      }
      span.anchor_writes = writes_[s];
      for (int64_t r = 0; r < counts[s]; ++r, ++row) {
        copy_row(sequence.rows.q, sequence.position + r, shape_.keys(), &q_[index(row, key_stride_)]);
        copy_row(sequence.rows.k, sequence.position + r, shape_.keys(), &k_[index(row, key_stride_)]);
        copy_row(sequence.rows.g, sequence.position + r, shape_.decays(), &g_[index(row, decay_stride_)]);
        copy_row(sequence.rows.v, sequence.position + r, shape_.heads * shape_.value_dim,
                 &v_[index(row, value_stride_)]);
        copy_row(sequence.rows.beta, sequence.position + r, shape_.heads, &beta_[index(row, shape_.heads + 1)]);
        row_spans_.push_back(static_cast<int32_t>(spans_.size()));
      }
      spans_.push_back(span);
    }
    pools_[1] = {copies_.where(pages_), page_bytes_};
    view_ = StepView{.rows = row,
                     .spans = spans_,
                     .row_spans = row_spans_,
                     .page_pools = pools_,
                     .anchor_pool = {copies_.where(anchors_), block_bytes_}};
    return view_;
  }

 private:
  static size_t stride_rows(int64_t rows, int64_t stride) { return static_cast<size_t>(rows * stride); }
  static size_t index(int64_t row, int64_t stride) { return static_cast<size_t>(row * stride); }
  static void copy_row(const std::vector<float>& rows, int64_t row, int64_t width, float* out) {
    std::copy_n(rows.data() + row * width, width, out);
  }

  void run() {
    copies_.to_device();
    if (CudaDevice* cuda = copies_.cuda(); cuda != nullptr) {
      cuda->stage(view_);
      StepBounds bounds = CudaDevice::bounds_of(view_);
      bounds.rows += loose_;
      bounds.spans += loose_;
      static_cast<CudaOp&>(*op_).enqueue(bounds);
    } else {
      op_->run(view_);
    }
    copies_.to_host();
  }

  int32_t loose_ = 0;
  testing::DeviceCopies copies_;
  Shape shape_;
  int64_t chunks_;
  std::vector<Sequence> sequences_;
  int64_t key_stride_, value_stride_, decay_stride_;
  std::vector<float> q_, k_, g_, v_, out_, beta_;
  int64_t page_bytes_ = 0, block_bytes_ = 0;
  Mapping pages_, anchors_;
  std::vector<SpanView> spans_;
  std::vector<int32_t> row_spans_;
  std::vector<std::vector<PageId>> tables_;
  std::vector<std::vector<AnchorWrite>> writes_;
  PoolView pools_[2];
  StepView view_;
  std::unique_ptr<BoundOp> op_;
};

inline std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (DecayKind decay : {DecayKind::kBounded, DecayKind::kUnbounded}) {
    all.push_back({decay, 3, 8, 8});
    all.push_back({decay, 2, 32, 32});
    all.push_back({decay, 1, 128, 128});
    all.push_back({decay, 3, 20, 24});
    all.push_back({decay, 1, 33, 87});
    all.push_back({decay, 1, 1, 1});
  }
  // Gated DeltaNet: one to four heads a key head.
  for (KeyHeadOrder order : {KeyHeadOrder::kGrouped, KeyHeadOrder::kTiled}) {
    all.push_back({DecayKind::kScalar, 3, 8, 8, 3, order});
    all.push_back({DecayKind::kScalar, 4, 32, 32, 2, order});
    all.push_back({DecayKind::kScalar, 3, 20, 24, 1, order});
    all.push_back({DecayKind::kScalar, 8, 33, 87, 2, order});
  }
  all.push_back({DecayKind::kScalar, 2, 128, 128, 1});
  all.push_back({DecayKind::kScalar, 1, 1, 1, 1});
  return all;
}

inline std::string describe(const Shape& shape) {
  constexpr const char* kNames[] = {"bounded ", "unbounded ", "scalar "};
  return concat(kNames[static_cast<int>(shape.decay)], shape.heads, "x", shape.key_dim, "x", shape.value_dim, ", ",
                shape.key_heads, shape.order == KeyHeadOrder::kTiled ? " key heads tiled" : " key heads");
}

inline bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline bool same(const Mapping& a, const Mapping& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) == 0;
}

inline bool finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

// One sequence, computed in pieces of the given lengths.
inline World run_alone(Device& device, const Shape& shape, const Rows& rows, const std::vector<int64_t>& pieces,
                       Anchors which, bool drop_pages = false) {
  World world(device, shape, 1, rows.count, rows.count);
  world.sequence(0).rows = rows;
  for (int64_t piece : pieces) world.step({piece}, which, drop_pages);
  return world;
}

inline std::vector<int64_t> random_pieces(int64_t count, std::mt19937_64& random) {
  std::vector<int64_t> pieces;
  for (int64_t left = count; left > 0; left -= pieces.back()) {
    pieces.push_back(std::min<int64_t>(left, std::uniform_int_distribution<int64_t>(1, 40)(random)));
  }
  return pieces;
}

}  // namespace weir::test
