#include "ops/sparse_attention/sparse_attention.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "base/error.h"

namespace weir {

// Memory that ops bound one after the other use in turn. A part that an op was given stays where it is.
class SparseAttentionWorkspace {
 public:
  enum Part { kRows, kQueries, kResults };
  std::byte* reserve(Part part, int64_t bytes) {
    if (largest_[part] == nullptr || largest_[part]->bytes() < bytes) largest_[part] = &memory_.emplace_back(bytes);
    return largest_[part]->data();
  }

 private:
  std::deque<Mapping> memory_;
  Mapping* largest_[3] = {};
};

std::shared_ptr<SparseAttentionWorkspace> make_sparse_attention_workspace() {
  return std::make_shared<SparseAttentionWorkspace>();
}

namespace {

constexpr int64_t kWaveRows = 16;       // enough to keep threads busy, and their copies in cache
constexpr int64_t kCopiesPerItem = 64;  // page rows

class SparseAttention final : public BoundOp {
 public:
  SparseAttention(CpuDevice& device, std::string name, const SparseAttentionArgs& args)
      : BoundOp(std::move(name)),
        device_(device),
        args_(args),
        wave_(std::min<int64_t>(kWaveRows, args.attention.max_rows)),
        row_bytes_(args.attention.key_dim * state_dtype_bytes(args.attention.dtype)),
        pages_((args.top_k + kPagePositions - 1) / kPagePositions),
        q_size_(args.attention.heads * args.attention.key_dim),
        out_size_(args.attention.heads * args.attention.value_dim) {
    SparseAttentionWorkspace& workspace = *args_.workspace;
    copies_ = workspace.reserve(SparseAttentionWorkspace::kRows, wave_ * pages_ * kPagePositions * row_bytes_);
    q_ = reinterpret_cast<float*>(workspace.reserve(SparseAttentionWorkspace::kQueries, wave_ * q_size_ * 4));
    out_ = reinterpret_cast<float*>(workspace.reserve(SparseAttentionWorkspace::kResults, wave_ * out_size_ * 4));
    AttentionArgs inner = args.attention;
    inner.key = inner.value = {.row_bytes = row_bytes_};
    inner.q = q_;
    inner.q_stride = q_size_;
    inner.out = out_;
    inner.out_stride = out_size_;
    inner.max_rows = static_cast<int32_t>(wave_);
    inner_ = bind_attention(device, this->name(), inner);
    for (int64_t i = 0; i < wave_ * pages_; ++i) table_.push_back(PageId{static_cast<uint32_t>(i)});
    spans_.resize(static_cast<size_t>(wave_));
    positions_.resize(static_cast<size_t>(wave_));
    for (int64_t i = 0; i < wave_; ++i) row_spans_.push_back(static_cast<int32_t>(i));
  }

  void run(const StepView& step) override {
    for (int64_t first = 0; first < step.rows; first += wave_) {
      const int64_t rows = std::min(wave_, step.rows - first);
      gather(step, first, rows);
      attend(first, rows);
      copy_out(first, rows);
    }
  }

  Cost cost(int32_t rows, int64_t position) const override {
    const int64_t seen = std::min(position + 1, args_.top_k);
    const AttentionArgs& a = args_.attention;
    return {.state_bytes = rows * seen * row_bytes_,
            .flops = 2. * rows * static_cast<double>(a.heads * (a.key_dim + a.value_dim)) * static_cast<double>(seen)};
  }

 private:
  void gather(const StepView& step, int64_t first, int64_t rows) {
    const AttentionArgs& a = args_.attention;
    const auto group = static_cast<size_t>(a.key.group);
    const PoolView pool = step.page_pools[group];
    const int64_t items = (args_.top_k + kCopiesPerItem - 1) / kCopiesPerItem;
    device_.pool().parallel_for(rows * items, [&](int64_t i, int) {
      const int64_t in_wave = i / items;
      const int64_t row = first + in_wave;
      const int64_t begin = i % items * kCopiesPerItem;
      const int64_t end = std::min<int64_t>(begin + kCopiesPerItem, args_.count[row]);
      const SpanView& span = step.spans[static_cast<size_t>(step.row_spans[static_cast<size_t>(row)])];
      std::byte* to = copies_ + (in_wave * pages_ * kPagePositions + begin) * row_bytes_;
      for (int64_t n = begin; n < end; ++n, to += row_bytes_) {
        const int64_t position = args_.selected[row * args_.top_k + n];
        const PageId page = span.pages[group][static_cast<size_t>(position / kPagePositions)];
        std::memcpy(to, pool.block(page) + a.key.offset + position % kPagePositions * a.key.row_bytes,
                    static_cast<size_t>(row_bytes_));
      }
      if (begin != 0) return;
      std::copy_n(a.q + row * a.q_stride, q_size_, q_ + in_wave * q_size_);
    });
  }

  void attend(int64_t first, int64_t rows) {
    for (int64_t i = 0; i < rows; ++i) {
      const auto at = static_cast<size_t>(i);
      positions_[at] = args_.count[first + i] - 1;
      spans_[at] = {.first_row = static_cast<int32_t>(i), .rows = 1, .first_position = positions_[at]};
      spans_[at].pages[0] = std::span(table_).subspan(static_cast<size_t>(i * pages_), static_cast<size_t>(pages_));
    }
    const PoolView pool{copies_, kPagePositions * row_bytes_};
    const auto count = static_cast<size_t>(rows);
    inner_->run({.rows = static_cast<int32_t>(rows),
                 .spans = std::span(spans_).first(count),
                 .positions = std::span(positions_).first(count),
                 .row_spans = std::span(row_spans_).first(count),
                 .page_pools = std::span(&pool, 1)});
  }

  void copy_out(int64_t first, int64_t rows) {
    const AttentionArgs& a = args_.attention;
    for (int64_t i = 0; i < rows; ++i) std::copy_n(out_ + i * out_size_, out_size_, a.out + (first + i) * a.out_stride);
  }

  CpuDevice& device_;
  SparseAttentionArgs args_;
  int64_t wave_;       // rows
  int64_t row_bytes_;  // of a copied row
  int64_t pages_;      // of a row's selection
  int64_t q_size_, out_size_;
  std::byte* copies_ = nullptr;
  float* q_ = nullptr;  // of the wave
  float* out_ = nullptr;
  std::unique_ptr<BoundOp> inner_;
  std::vector<PageId> table_;
  std::vector<SpanView> spans_;
  std::vector<int64_t> positions_;
  std::vector<int32_t> row_spans_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_sparse_attention(Device& device, std::string name, const SparseAttentionArgs& args) {
  const AttentionArgs& a = args.attention;
  if (a.kv_heads != 1 || a.value_dim > a.key_dim || a.key.group != a.value.group || a.key.offset != a.value.offset) {
    fail(name, ": expected one KV head whose values are the beginnings of its keys");
  }
  if (a.key.group < 0 || a.key.group >= kMaxPageGroups) fail(name, ": no page group ", a.key.group);
  if (a.key_dim * state_dtype_bytes(a.dtype) > a.key.row_bytes) {
    fail(name, ": a page row of ", a.key.row_bytes, " bytes is too short for ", a.key_dim, " elements");
  }
  if (args.top_k < 1) fail(name, ": expected at least one position to select, found ", args.top_k);
  assert(a.q && a.out && args.selected && args.count && args.workspace);
  if (device.is_cuda()) return bind_sparse_attention_cuda(device.cuda(), std::move(name), args);
  return std::make_unique<SparseAttention>(device.cpu(), std::move(name), args);
}

}  // namespace weir
