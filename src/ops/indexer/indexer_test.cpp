#include "ops/indexer/indexer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>

#include "base/error.h"
#include "base/number.h"
#include "ops/attention/attention_testing.h"
#include "ops/simd/kernel_sets.h"
#include "ops/simd/lanes_ref.h"

namespace weir {
namespace {

using Lists = std::vector<std::vector<int32_t>>;  // by row

// Sequences whose index keys are written; then any spans of them choose.
class Problem {
 public:
  Problem(int64_t heads, int64_t dim, int64_t top_k, StateDtype dtype, int sequences, int64_t positions, bool ties)
      : heads_(heads),
        dim_(dim),
        top_k_(top_k),
        dtype_(dtype),
        positions_(positions),
        random_(7),
        field_{.offset = 32, .row_bytes = dim * state_dtype_bytes(dtype)},
        pages_(random_, sequences, positions, kPagePositions * field_.row_bytes + 64) {
    std::normal_distribution<float> normal;
    // Whole numbers from a small set make many equal scores.
    const auto element = [&] { return ties ? static_cast<float>(random_() % 3) - 1.f : normal(random_); };
    for (auto* part : {&q_, &weights_, &keys_}) {
      const int64_t width = part == &q_ ? heads * dim : part == &weights_ ? heads : dim;
      part->resize(static_cast<size_t>(sequences * positions * width));
      for (float& f : *part) f = element();
    }
    CpuDevice device(1, KernelSet::kReference);
    for (int s = 0; s < sequences; ++s) {
      bind_kv_write(
          device, "keys",
          {.dtype = dtype, .field = field_, .size = dim, .x = keys_.data() + s * positions * dim, .x_stride = dim})
          ->run(pages_.step({{s, 0, static_cast<int32_t>(positions)}}));
    }
  }

  Lists run(KernelSet set, int threads, const std::vector<PagedSequences::Part>& parts) {
    const StepView step = pages_.step(parts);
    std::vector<float> q, weights;
    for (const auto& part : parts) {
      const int64_t first = part.sequence * positions_ + part.first;
      q.insert(q.end(), q_.begin() + first * heads_ * dim_, q_.begin() + (first + part.rows) * heads_ * dim_);
      weights.insert(weights.end(), weights_.begin() + first * heads_, weights_.begin() + (first + part.rows) * heads_);
    }
    CpuDevice device(threads, set);
    std::vector<int32_t> selected(static_cast<size_t>(step.rows * top_k_), -1), count(static_cast<size_t>(step.rows));
    bind_indexer(device, "indexer",
                 {.heads = heads_,
                  .dim = dim_,
                  .top_k = top_k_,
                  .scale = scale(),
                  .weight_scale = weight_scale(),
                  .dtype = dtype_,
                  .key = field_,
                  .q = q.data(),
                  .q_stride = heads_ * dim_,
                  .weights = weights.data(),
                  .weights_stride = heads_,
                  .selected = selected.data(),
                  .count = count.data()})
        ->run(step);
    state_bytes_ = device.counters().state_bytes_read;
    Lists lists;
    for (int64_t r = 0; r < step.rows; ++r) {
      lists.emplace_back(selected.begin() + r * top_k_, selected.begin() + r * top_k_ + count[static_cast<size_t>(r)]);
    }
    return lists;
  }

  // The contract in plain loops.
  std::vector<int32_t> expected(int sequence, int64_t p) const {
    std::vector<std::pair<float, int32_t>> scored;  // negated score, position: ascending order is the order of choice
    for (int64_t j = 0; j <= p; ++j) {
      float score = 0;
      for (int64_t h = 0; h < heads_; ++h) {
        const float s =
            scale() * dot_lanes(
                          dim_,
                          [&](int64_t k) { return q_[static_cast<size_t>((at(sequence, p) * heads_ + h) * dim_ + k)]; },
                          [&](int64_t k) { return key(sequence, j, k); });
        const float w = weights_[static_cast<size_t>(at(sequence, p) * heads_ + h)] * weight_scale();
        score = std::fma(w, std::max(s, 0.f), score);
      }
      scored.emplace_back(-score, static_cast<int32_t>(j));
    }
    std::sort(scored.begin(), scored.end());
    std::vector<int32_t> best;
    for (int64_t i = 0; i < std::min<int64_t>(top_k_, p + 1); ++i)
      best.push_back(scored[static_cast<size_t>(i)].second);
    std::sort(best.begin(), best.end());
    ties_ += p >= top_k_ && scored[static_cast<size_t>(top_k_ - 1)].first == scored[static_cast<size_t>(top_k_)].first;
    return best;
  }

  int ties() const { return ties_; }  // rows with equal scores at the boundary
  int64_t state_bytes() const { return state_bytes_; }

 private:
  float scale() const { return 1.f / std::sqrt(static_cast<float>(dim_)); }
  float weight_scale() const { return 1.f / std::sqrt(static_cast<float>(heads_)); }
  int64_t at(int sequence, int64_t p) const { return sequence * positions_ + p; }
  float key(int sequence, int64_t j, int64_t k) const {
    const float f = keys_[static_cast<size_t>(at(sequence, j) * dim_ + k)];
    return dtype_ == StateDtype::kF32 ? f : f16_to_f32(f32_to_f16(f));
  }

  int64_t heads_, dim_, top_k_;
  StateDtype dtype_;
  int64_t positions_;
  std::mt19937 random_;
  PageField field_;
  PagedSequences pages_;
  std::vector<float> q_, weights_, keys_;
  int64_t state_bytes_ = 0;
  mutable int ties_ = 0;
};

struct Shape {
  int64_t heads, dim, top_k;
};
constexpr Shape kShapes[] = {{1, 16, 1}, {3, 20, 7}, {8, 32, 32}, {4, 128, 64}, {6, 33, 100}};

TEST(Indexer, ChoosesTheBestPositionsInEveryKernelSet) {
  for (const Shape& shape : kShapes) {
    for (StateDtype dtype : {StateDtype::kF32, StateDtype::kF16}) {
      Problem problem(shape.heads, shape.dim, shape.top_k, dtype, 2, 150, false);
      Lists expected;
      for (int64_t p = 0; p < 150; ++p) expected.push_back(problem.expected(1, p));
      for (KernelSet set : kernel_sets()) {
        EXPECT_EQ(problem.run(set, 2, {{1, 0, 150}}), expected) << kernel_set_name(set) << " heads " << shape.heads;
      }
    }
  }
}

TEST(Indexer, OfEqualScoresTheLowestPositionsAreChosen) {
  for (const Shape& shape : kShapes) {
    Problem problem(shape.heads, shape.dim, shape.top_k, StateDtype::kF32, 1, 150, true);
    Lists expected;
    for (int64_t p = 0; p < 150; ++p) expected.push_back(problem.expected(0, p));
    EXPECT_GT(problem.ties(), 10) << "the case must occur";
    for (KernelSet set : kernel_sets()) {
      EXPECT_EQ(problem.run(set, 2, {{0, 0, 150}}), expected) << kernel_set_name(set) << " heads " << shape.heads;
    }
  }
}

// Enough positions for several pieces and full rooms of candidates.
TEST(Indexer, ChoosesTheBestOfManyPositions) {
  Problem problem(2, 16, 50, StateDtype::kF16, 1, 21000, true);
  for (const int64_t p : {4095, 4096, 12000, 20999}) {
    const Lists expected{problem.expected(0, p)};
    for (KernelSet set : kernel_sets()) {
      EXPECT_EQ(problem.run(set, 3, {{0, p, 1}}), expected) << kernel_set_name(set) << " position " << p;
      EXPECT_EQ(problem.state_bytes(), (p + 1) * 16 * 2);
    }
  }
}

// Pieces so long that candidates outgrow their room and are thinned out on the way.
TEST(Indexer, ChoosesTheBestOfMorePositionsThanAPieceKeeps) {
  Problem problem(1, 16, 20, StateDtype::kF32, 1, 90000, false);
  const Lists expected{problem.expected(0, 89999)};
  for (KernelSet set : kernel_sets()) EXPECT_EQ(problem.run(set, 2, {{0, 89999, 1}}), expected) << kernel_set_name(set);
}

TEST(Indexer, AnyBatchChoosesLikeItsRowsAlone) {
  Problem problem(5, 24, 20, StateDtype::kF32, 3, 120, true);
  const std::vector<PagedSequences::Part> parts = {{2, 0, 40}, {0, 119, 1}, {1, 17, 60}, {2, 40, 5}};
  for (KernelSet set : kernel_sets()) {
    const Lists batch = problem.run(set, 2, parts);
    Lists alone;
    for (const auto& part : parts) {
      for (int32_t r = 0; r < part.rows; ++r) {
        alone.push_back(problem.run(set, 1, {{part.sequence, part.first + r, 1}}).front());
      }
    }
    EXPECT_EQ(batch, alone) << kernel_set_name(set);
  }
}

TEST(Indexer, ScoresNothingWhileAllPositionsFit) {
  Problem problem(2, 16, 64, StateDtype::kF32, 1, 64, false);
  const Lists lists = problem.run(best_kernel_set(), 2, {{0, 60, 4}});
  ASSERT_EQ(lists.size(), 4u);
  for (size_t r = 0; r < 4; ++r) {
    ASSERT_EQ(lists[r].size(), 61 + r);
    for (size_t j = 0; j < lists[r].size(); ++j) EXPECT_EQ(lists[r][j], static_cast<int32_t>(j));
  }
  EXPECT_EQ(problem.state_bytes(), 0);
}

TEST(Indexer, RanksNanBelowEveryNumberAndZerosOfEitherSignAlike) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (KernelSet set : kernel_sets()) {
    CpuDevice device(1, set);
    std::mt19937 random(1);
    const PageField field{.row_bytes = 4};
    PagedSequences pages(random, 1, 6, kPagePositions * field.row_bytes);
    // One head of one element: scores are w relu(k), so NaN keys count as 0; an infinite key under weight 0 is NaN.
    const float keys[] = {nan, -1.f, std::numeric_limits<float>::infinity(), 0.f, 2.f, 1.f};
    bind_kv_write(device, "keys", {.field = field, .size = 1, .x = keys, .x_stride = 1})->run(pages.step({{0, 0, 6}}));
    const auto chosen = [&](float weight, int64_t top_k) {
      const float q = 1;
      std::vector<int32_t> selected(static_cast<size_t>(top_k)), count(1);
      bind_indexer(device, "indexer",
                   {.heads = 1,
                    .dim = 1,
                    .top_k = top_k,
                    .key = field,
                    .q = &q,
                    .q_stride = 1,
                    .weights = &weight,
                    .weights_stride = 1,
                    .selected = selected.data(),
                    .count = count.data()})
          ->run(pages.step({{0, 5, 1}}));
      return selected;
    };
    EXPECT_EQ(chosen(1, 2), (std::vector<int32_t>{2, 4}));
    EXPECT_EQ(chosen(-1, 3), (std::vector<int32_t>{0, 1, 3})) << kernel_set_name(set);
    EXPECT_EQ(chosen(0, 5), (std::vector<int32_t>{0, 1, 3, 4, 5})) << kernel_set_name(set);
  }
}

TEST(Indexer, RefusesImpossibleShapes) {
  CpuDevice device(1, KernelSet::kReference);
  float f = 0;
  int32_t i = 0;
  const IndexerArgs good{.heads = 1,
                         .dim = 2,
                         .top_k = 1,
                         .key = {.row_bytes = 8},
                         .q = &f,
                         .q_stride = 2,
                         .weights = &f,
                         .weights_stride = 1,
                         .selected = &i,
                         .count = &i};
  EXPECT_NO_THROW(bind_indexer(device, "indexer", good));
  const auto refused = [&](auto change) {
    IndexerArgs args = good;
    change(args);
    EXPECT_THROW(bind_indexer(device, "indexer", args), Error);
  };
  refused([](IndexerArgs& a) { a.heads = 0; });
  refused([](IndexerArgs& a) { a.top_k = 0; });
  refused([](IndexerArgs& a) { a.dim = 3; });
  refused([](IndexerArgs& a) { a.key.group = kMaxPageGroups; });
}

}  // namespace
}  // namespace weir
