#include "ops/indexer/indexer.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <functional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ops/indexer/indexer_kernel.h"

namespace weir {

namespace reference {
void indexer_scores(const IndexerTask& task, int64_t first, int64_t count);
}
namespace avx2 {
void indexer_scores(const IndexerTask& task, int64_t first, int64_t count);
}
namespace avx512 {
void indexer_scores(const IndexerTask& task, int64_t first, int64_t count);
}

namespace {

IndexerKernel kernel_of(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
      return reference::indexer_scores;
    case KernelSet::kAvx2:
      return avx2::indexer_scores;
    case KernelSet::kAvx512:
      return avx512::indexer_scores;
  }
  return reference::indexer_scores;
}

// A score and its position as one number: the better candidate is the larger one, and no two are equal.
using Candidate = uint64_t;

Candidate candidate(float score, int64_t position) {
  uint32_t rank = 0;  // NaN
  if (score == score) {
    const uint32_t bits = std::bit_cast<uint32_t>(score + 0.f);  // -0 becomes +0
    rank = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  }
  return static_cast<uint64_t>(rank) << 32 | (0xffffffffu - static_cast<uint32_t>(position));
}
int32_t position_of(Candidate c) { return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(c)); }

// The best of a stream of candidates, in bounded memory: room for `keep` and kSpare more.
class Best {
 public:
  static constexpr int64_t kSpare = 4096;

  Best(Candidate* room, int64_t keep) : room_(room), keep_(keep) {}

  void offer(Candidate c) {
    if (c <= worst_) return;
    room_[size_++] = c;
    if (size_ == keep_ + kSpare) trim();
  }
  // Leaves the best at the front of the room, in any order; returns how many there are.
  int64_t finish() {
    if (size_ > keep_) trim();
    return size_;
  }

 private:
  void trim() {
    std::nth_element(room_, room_ + keep_ - 1, room_ + size_, std::greater<>());
    worst_ = room_[keep_ - 1];
    size_ = keep_;
  }

  Candidate* room_;
  int64_t keep_;
  int64_t size_ = 0;
  Candidate worst_ = 0;  // below every candidate: positions stay under 2^32 - 1
};

// A row's positions are scored in pieces side by side, each piece keeping its best; then each row's best of all pieces
// are found and sorted. Which pieces there are changes nothing: candidates are totally ordered. Rows go in waves, which
// bounds what is kept in between.
class Indexer final : public BoundOp {
 public:
  Indexer(CpuDevice& device, std::string name, const IndexerArgs& args)
      : BoundOp(std::move(name)),
        device_(device),
        args_(args),
        kernel_(kernel_of(device.kernels())),
        room_(args.top_k + Best::kSpare),
        dots_floats_((args.heads + 3) / 4 * 4 * kIndexerTile),
        weights_floats_((args.heads + 15) / 16 * 16) {
    device.reserve_scratch(room_ * 8 + (dots_floats_ + weights_floats_ + kIndexerTile) * 4);
    device.reserve_shared(kWaveRows * kMostPieces * (args.top_k + 1) * 8);
  }

  void run(const StepView& step) override {
    for (const int64_t position : step.positions) {
      if (position >= args_.top_k) device_.counters().state_bytes_read += (position + 1) * key_bytes();
    }
    for (int64_t first = 0; first < step.rows; first += kWaveRows) {
      const int64_t rows = std::min<int64_t>(kWaveRows, step.rows - first);
      device_.pool().parallel_for(rows * kMostPieces, [&](int64_t i, int thread) {
        score(step, first + i / kMostPieces, i / kMostPieces, i % kMostPieces, thread);
      });
      device_.pool().parallel_for(rows, [&](int64_t i, int thread) {
        choose(first + i, step.positions[static_cast<size_t>(first + i)], i, thread);
      });
    }
  }

  Cost cost(int32_t rows, int64_t position) const override {
    if (position < args_.top_k) return {};
    return {.state_bytes = (position + 1) * key_bytes(),
            .flops = 2. * rows * static_cast<double>(args_.heads * args_.dim) * static_cast<double>(position + 1)};
  }

 private:
  static constexpr int64_t kWaveRows = 32;
  static constexpr int64_t kMostPieces = 16;
  static constexpr int64_t kLeastPiece = 2048;  // positions: enough work for a task

  int64_t key_bytes() const { return args_.dim * state_dtype_bytes(args_.dtype); }
  static int64_t piece_of(int64_t p) {
    const int64_t even = (p + kMostPieces) / kMostPieces;
    return std::max(kLeastPiece, (even + kIndexerTile - 1) / kIndexerTile * kIndexerTile);
  }
  // What a piece of a row of the wave left: how many, then the candidates.
  Candidate* kept(int64_t in_wave, int64_t piece) {
    return reinterpret_cast<Candidate*>(device_.shared()) + (in_wave * kMostPieces + piece) * (args_.top_k + 1);
  }

  void score(const StepView& step, int64_t row, int64_t in_wave, int64_t piece, int thread) {
    const int64_t p = step.positions[static_cast<size_t>(row)];
    const int64_t begin = piece * piece_of(p);
    if (p < args_.top_k || begin > p) return;
    const int64_t end = std::min(begin + piece_of(p), p + 1);
    Candidate* room = reinterpret_cast<Candidate*>(device_.scratch(thread));
    float* dots = reinterpret_cast<float*>(room + room_);
    float* weights = dots + dots_floats_;
    for (int64_t h = 0; h < args_.heads; ++h) {
      weights[h] = args_.weights[row * args_.weights_stride + h] * args_.weight_scale;
    }
    const SpanView& span = step.spans[static_cast<size_t>(step.row_spans[static_cast<size_t>(row)])];
    const auto group = static_cast<size_t>(args_.key.group);
    const IndexerTask task{.args = &args_,
                           .pool = step.page_pools[group],
                           .pages = span.pages[group].data(),
                           .q = args_.q + row * args_.q_stride,
                           .weights = weights,
                           .dots = dots,
                           .scores = weights + weights_floats_};
    Best best(room, args_.top_k);
    for (int64_t tile = begin; tile < end; tile += kIndexerTile) {
      const int64_t count = std::min(kIndexerTile, end - tile);
      kernel_(task, tile, count);
      for (int64_t j = 0; j < count; ++j) best.offer(candidate(task.scores[j], tile + j));
    }
    const int64_t count = best.finish();
    kept(in_wave, piece)[0] = static_cast<Candidate>(count);
    std::copy_n(room, count, kept(in_wave, piece) + 1);
  }

  void choose(int64_t row, int64_t p, int64_t in_wave, int thread) {
    int32_t* selected = args_.selected + row * args_.top_k;
    if (p < args_.top_k) {
      args_.count[row] = static_cast<int32_t>(p + 1);
      for (int64_t j = 0; j <= p; ++j) selected[j] = static_cast<int32_t>(j);
      return;
    }
    Best best(reinterpret_cast<Candidate*>(device_.scratch(thread)), args_.top_k);
    for (int64_t piece = 0; piece * piece_of(p) <= p; ++piece) {
      const Candidate* from = kept(in_wave, piece);
      for (uint64_t i = 1; i <= from[0]; ++i) best.offer(from[i]);
    }
    const int64_t count = best.finish();
    assert(count == args_.top_k);
    const Candidate* chosen = reinterpret_cast<const Candidate*>(device_.scratch(thread));
    for (int64_t i = 0; i < count; ++i) selected[i] = position_of(chosen[i]);
    std::sort(selected, selected + count);
    args_.count[row] = static_cast<int32_t>(count);
  }

  CpuDevice& device_;
  IndexerArgs args_;
  IndexerKernel kernel_;
  int64_t room_;  // candidates
  int64_t dots_floats_;
  int64_t weights_floats_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_indexer(Device& device, std::string name, const IndexerArgs& args) {
  if (args.heads < 1 || args.dim < 1 || args.top_k < 1) {
    fail(name, ": expected positive dimensions, found heads ", args.heads, ", dim ", args.dim, ", top_k ", args.top_k);
  }
  if (args.key.group < 0 || args.key.group >= kMaxPageGroups) fail(name, ": no page group ", args.key.group);
  if (args.dim * state_dtype_bytes(args.dtype) > args.key.row_bytes) {
    fail(name, ": a page row of ", args.key.row_bytes, " bytes is too short for ", args.dim, " elements");
  }
  assert(args.q && args.weights && args.selected && args.count);
  if (device.is_cuda()) return bind_indexer_cuda(device.cuda(), std::move(name), args);
  check_cpu_state(name, args.dtype);
  return std::make_unique<Indexer>(device.cpu(), std::move(name), args);
}

}  // namespace weir
