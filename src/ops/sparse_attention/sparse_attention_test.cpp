#include "ops/sparse_attention/sparse_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "base/error.h"
#include "ops/attention/attention_testing.h"
#include "ops/simd/kernel_sets.h"

namespace weir {
namespace {

// Rows of a paged sequence with random queries; each row's selection is a random subset of what it sees.
class Problem {
 public:
  Problem(int64_t heads, int64_t key, int64_t value, StateDtype dtype, int64_t positions, int64_t top_k)
      : top_k_(top_k),
        positions_(positions),
        random_(3),
        field_{.offset = 64, .row_bytes = key * state_dtype_bytes(dtype)},
        pages_(random_, 1, positions, kPagePositions * field_.row_bytes + 128),
        keys_(random_floats(positions * key)),
        q_(random_floats(positions * heads * key)) {
    args_ = {.heads = heads,
             .kv_heads = 1,
             .key_dim = key,
             .value_dim = value,
             .scale = 0.3f,
             .dtype = dtype,
             .key = field_,
             .value = field_,
             .q_stride = heads * key,
             .out_stride = heads * value,
             .max_rows = static_cast<int32_t>(positions)};
    write(pages_, keys_);
    for (int64_t p = 0; p < positions; ++p) {
      std::vector<int32_t> all(static_cast<size_t>(p + 1));
      for (size_t j = 0; j < all.size(); ++j) all[j] = static_cast<int32_t>(j);
      std::shuffle(all.begin(), all.end(), random_);
      all.resize(std::min(all.size(), static_cast<size_t>(top_k)));
      std::sort(all.begin(), all.end());
      lists_.push_back(std::move(all));
    }
  }

  std::vector<float> run(KernelSet set, int threads, int64_t first, int32_t rows) {
    CpuDevice device(threads, set);
    std::vector<float> out(static_cast<size_t>(rows * args_.out_stride + 1), 77.f);
    std::vector<int32_t> selected(static_cast<size_t>(rows * top_k_), -1), count;
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<int32_t>& list = lists_[static_cast<size_t>(first + r)];
      std::copy(list.begin(), list.end(), selected.begin() + r * top_k_);
      count.push_back(static_cast<int32_t>(list.size()));
    }
    AttentionArgs args = args_;
    args.q = q_.data() + first * args_.q_stride;
    args.out = out.data();
    bind_sparse_attention(device, "sparse",
                          {.attention = args,
                           .selected = selected.data(),
                           .count = count.data(),
                           .top_k = top_k_,
                           .workspace = make_sparse_attention_workspace()})
        ->run(pages_.step({{0, first, rows}}));
    EXPECT_EQ(out.back(), 77.f);
    out.pop_back();
    state_bytes_ = device.counters().state_bytes_read;
    return out;
  }

  // The row at `p` by attention over a sequence that has only its selected positions.
  std::vector<float> dense(KernelSet set, int64_t p) {
    const std::vector<int32_t>& list = lists_[static_cast<size_t>(p)];
    const auto n = static_cast<int64_t>(list.size());
    std::vector<float> keys;
    for (const int32_t j : list) {
      keys.insert(keys.end(), keys_.begin() + j * args_.key_dim, keys_.begin() + (j + 1) * args_.key_dim);
    }
    PagedSequences pages(random_, 1, n, kPagePositions * field_.row_bytes + 128);
    write(pages, keys);
    CpuDevice device(1, set);
    std::vector<float> out(static_cast<size_t>(args_.out_stride));
    AttentionArgs args = args_;
    args.q = q_.data() + p * args_.q_stride;
    args.out = out.data();
    bind_attention(device, "dense", args)->run(pages.step({{0, n - 1, 1}}));
    return out;
  }

  int64_t state_bytes() const { return state_bytes_; }

 private:
  std::vector<float> random_floats(int64_t n) {
    std::normal_distribution<float> normal;
    std::vector<float> out(static_cast<size_t>(n));
    for (float& f : out) f = normal(random_);
    return out;
  }
  void write(PagedSequences& pages, const std::vector<float>& keys) {
    CpuDevice device(1, KernelSet::kReference);
    const auto rows = static_cast<int32_t>(static_cast<int64_t>(keys.size()) / args_.key_dim);
    bind_kv_write(
        device, "keys",
        {.dtype = args_.dtype, .field = field_, .size = args_.key_dim, .x = keys.data(), .x_stride = args_.key_dim})
        ->run(pages.step({{0, 0, rows}}));
  }

  int64_t top_k_, positions_;
  std::mt19937 random_;
  PageField field_;
  PagedSequences pages_;
  std::vector<float> keys_, q_;
  AttentionArgs args_;
  std::vector<std::vector<int32_t>> lists_;
  int64_t state_bytes_ = 0;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 4) == 0);
}

struct Shape {
  int64_t heads, key, value, positions, top_k;
};
constexpr Shape kShapes[] = {
    {1, 17, 9, 90, 1}, {3, 20, 16, 140, 33}, {4, 48, 32, 200, 64}, {16, 40, 32, 700, 520}, {70, 24, 16, 100, 65}};

TEST(SparseAttention, GivesTheBitsOfAttentionOverASequenceOfTheSelectedRows) {
  for (const Shape& s : kShapes) {
    for (StateDtype dtype : {StateDtype::kF32, StateDtype::kF16}) {
      Problem problem(s.heads, s.key, s.value, dtype, s.positions, s.top_k);
      const int64_t first = s.positions > 200 ? s.positions - 30 : 0;
      std::vector<float> expected;
      for (int64_t p = first; p < s.positions; ++p) {
        const std::vector<float> row = problem.dense(KernelSet::kReference, p);
        expected.insert(expected.end(), row.begin(), row.end());
      }
      for (KernelSet set : kernel_sets()) {
        for (int threads : {1, 3}) {
          const auto rows = static_cast<int32_t>(s.positions - first);
          EXPECT_TRUE(same_bits(problem.run(set, threads, first, rows), expected))
              << kernel_set_name(set) << ", " << s.heads << " heads, top_k " << s.top_k << ", " << threads
              << " threads";
        }
      }
    }
  }
}

TEST(SparseAttention, ABatchOfRowsGivesTheBitsOfEachRowAlone) {
  Problem problem(4, 48, 32, StateDtype::kF32, 100, 40);
  for (KernelSet set : kernel_sets()) {
    const std::vector<float> batch = problem.run(set, 2, 3, 97);
    std::vector<float> alone;
    for (int64_t p = 3; p < 100; ++p) {
      const std::vector<float> row = problem.run(set, 1, p, 1);
      alone.insert(alone.end(), row.begin(), row.end());
    }
    EXPECT_TRUE(same_bits(batch, alone)) << kernel_set_name(set);
  }
}

TEST(SparseAttention, ReadsTheSelectedRowsOnly) {
  Problem problem(2, 16, 16, StateDtype::kF16, 100, 10);
  problem.run(best_kernel_set(), 1, 98, 2);
  EXPECT_EQ(problem.state_bytes(), 2 * 10 * 16 * 2);
}

TEST(SparseAttention, RefusesKeysWithValuesOfTheirOwn) {
  CpuDevice device(1, KernelSet::kReference);
  float f = 0;
  int32_t i = 0;
  const SparseAttentionArgs good{.attention = {.heads = 1,
                                               .kv_heads = 1,
                                               .key_dim = 4,
                                               .value_dim = 4,
                                               .key = {.row_bytes = 16},
                                               .value = {.row_bytes = 16},
                                               .q = &f,
                                               .q_stride = 4,
                                               .out = &f,
                                               .out_stride = 4,
                                               .max_rows = 1},
                                 .selected = &i,
                                 .count = &i,
                                 .top_k = 1,
                                 .workspace = make_sparse_attention_workspace()};
  EXPECT_NO_THROW(bind_sparse_attention(device, "sparse", good));
  const auto refused = [&](auto change) {
    SparseAttentionArgs args = good;
    change(args);
    EXPECT_THROW(bind_sparse_attention(device, "sparse", args), Error);
  };
  refused([](SparseAttentionArgs& a) { a.attention.value.offset = 16; });
  refused([](SparseAttentionArgs& a) { a.attention.value_dim = 5; });
  refused([](SparseAttentionArgs& a) { a.attention.key.row_bytes = 8; });
  refused([](SparseAttentionArgs& a) { a.top_k = 0; });
}

}  // namespace
}  // namespace weir
