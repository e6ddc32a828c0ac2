#include "ops/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/number.h"
#include "ops/attention/attention_testing.h"
#include "ops/simd/kernel_sets.h"

namespace weir {
namespace {

using Part = PagedSequences::Part;
using Steps = std::vector<std::vector<Part>>;

struct Shape {
  int64_t heads, kv_heads, key_dim, value_dim;
  StateDtype dtype = StateDtype::kF32;
  bool shared = false;  // MLA: the value is the beginning of the key
  int64_t window = 0;
  bool sinks = false;
};

enum class Values { kPlain, kExtreme, kInfinite };

// K, V and Q of every position of some sequences, and attention over them in any order of steps.
class Problem {
 public:
  Problem(const Shape& shape, int sequences, int64_t positions, Values values = Values::kPlain, uint32_t seed = 1)
      : shape_(shape), sequences_(sequences), positions_(positions), random_(seed) {
    const auto rows = static_cast<size_t>(sequences * positions);
    k_.resize(rows * static_cast<size_t>(key_size()));
    v_.resize(rows * static_cast<size_t>(value_size()));
    q_.resize(rows * static_cast<size_t>(shape.heads * shape.key_dim));
    for (std::vector<float>* x : {&k_, &v_, &q_}) {
      for (float& f : *x) f = element(values);
    }
    if (!shape.sinks) return;
    for (int64_t h = 0; h < shape.heads; ++h) sinks_.push_back(2 * std::normal_distribution<float>()(random_));
  }

  // Writes K and V of each step's rows, then attends; returns [sequences, positions, heads, value_dim], zero for rows
  // that no step computed. Rows before the first step are written at once.
  std::vector<float> run(KernelSet set, int threads, const Steps& steps) {
    CpuDevice device(threads, set);
    PagedSequences pages(random_, sequences_, positions_, page_bytes());
    std::vector<int64_t> written(static_cast<size_t>(sequences_), 0);
    std::vector<float> all(static_cast<size_t>(sequences_ * positions_ * out_size()));
    for (const std::vector<Part>& parts : steps) {
      std::vector<Part> missing;
      for (const Part& part : parts) {
        int64_t& done = written[static_cast<size_t>(part.sequence)];
        const int64_t end = part.first + part.rows;
        if (end > done) missing.push_back({part.sequence, done, static_cast<int32_t>(end - done)});
        done = std::max(done, end);
      }
      write(device, pages, missing);
      attend(device, pages, parts, all);
    }
    counters_ = device.counters();
    return all;
  }

  // Plain softmax attention in double over the stored (rounded) values.
  double expected(int sequence, int64_t position, int64_t head, int64_t d) const {
    const int64_t kv_head = head / (shape_.heads / shape_.kv_heads);
    const auto row = [&](int64_t p) { return sequence * positions_ + p; };
    std::vector<double> s;
    const int64_t first = first_visible(position, shape_.window);
    for (int64_t j = first; j <= position; ++j) {
      double dot = 0;
      for (int64_t i = 0; i < shape_.key_dim; ++i) {
        dot +=
            static_cast<double>(q_[static_cast<size_t>((row(position) * shape_.heads + head) * shape_.key_dim + i)]) *
            stored(k_[static_cast<size_t>(row(j) * key_size() + kv_head * shape_.key_dim + i)]);
      }
      s.push_back(dot * scale());
    }
    const double top = *std::max_element(s.begin(), s.end());
    double sum = 0, weighted = 0;
    if (shape_.sinks) sum = std::exp(static_cast<double>(sinks_[static_cast<size_t>(head)]) - top);
    for (int64_t j = first; j <= position; ++j) {
      const double p = std::exp(s[static_cast<size_t>(j - first)] - top);
      const float v = shape_.shared ? k_[static_cast<size_t>(row(j) * key_size() + d)]
                                    : v_[static_cast<size_t>(row(j) * value_size() + kv_head * shape_.value_dim + d)];
      sum += p;
      weighted += p * stored(v);
    }
    return weighted / sum;
  }

  int64_t out_size() const { return shape_.heads * shape_.value_dim; }
  int64_t positions() const { return positions_; }
  const Shape& shape() const { return shape_; }
  const StepCounters& counters() const { return counters_; }

 private:
  int64_t key_size() const { return shape_.kv_heads * shape_.key_dim; }
  int64_t value_size() const { return shape_.shared ? 0 : shape_.kv_heads * shape_.value_dim; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(shape_.key_dim)); }
  double stored(float x) const { return shape_.dtype == StateDtype::kF32 ? x : f16_to_f32(f32_to_f16(x)); }

  float element(Values values) {
    const float x = std::normal_distribution<float>()(random_);
    if (values == Values::kPlain) return x;
    const float extreme[] = {0.f, -0.f, 1e-40f, -1e-44f, 3e4f, -6e4f, 1e-7f, 2e-38f};
    if (values == Values::kInfinite && random_() % 3000 == 0) return x < 0 ? -INFINITY : INFINITY;
    return random_() % 4 == 0 ? extreme[random_() % 8] : x;
  }

  // Page: some bytes of another layer, 16 key rows, 16 value rows; rows end with bytes that nobody writes.
  int64_t key_row_bytes() const { return key_size() * state_dtype_bytes(shape_.dtype) + 8; }
  int64_t value_row_bytes() const { return value_size() * state_dtype_bytes(shape_.dtype) + 4; }
  int64_t page_bytes() const { return 64 + kPagePositions * (key_row_bytes() + value_row_bytes()); }
  PageField key_field() const { return {.group = 1, .offset = 64, .row_bytes = key_row_bytes()}; }
  PageField value_field() const {
    if (shape_.shared) return key_field();
    return {.group = 2, .offset = 64 + kPagePositions * key_row_bytes(), .row_bytes = value_row_bytes()};
  }

  // Rows of the parts, gathered from [sequences, positions, size] with a stride that leaves a gap.
  std::vector<float> gather(const std::vector<float>& from, int64_t size, const std::vector<Part>& parts) const {
    std::vector<float> rows;
    rows.reserve(1);  // a pointer even for no rows
    for (const Part& part : parts) {
      for (int64_t p = part.first; p < part.first + part.rows; ++p) {
        const auto at = from.begin() + (part.sequence * positions_ + p) * size;
        rows.insert(rows.end(), at, at + size);
        rows.push_back(NAN);
      }
    }
    return rows;
  }

  void write(CpuDevice& device, PagedSequences& pages, const std::vector<Part>& parts) {
    const StepView step = pages.step(parts);
    if (step.rows == 0) return;
    const auto write_rows = [&](PageField field, const std::vector<float>& x, int64_t size, int64_t to, int64_t count) {
      const std::vector<float> rows = gather(x, size, parts);
      bind_kv_write(
          device, "write",
          {.dtype = shape_.dtype, .field = field, .to = to, .size = count, .x = rows.data() + to, .x_stride = size + 1})
          ->run(step);
    };
    const int64_t cut = key_size() / 3;  // MLA writes the latent and the shared part separately
    if (cut > 0) write_rows(key_field(), k_, key_size(), 0, cut);
    write_rows(key_field(), k_, key_size(), cut, key_size() - cut);
    if (!shape_.shared) write_rows(value_field(), v_, value_size(), 0, value_size());
  }

  void attend(CpuDevice& device, PagedSequences& pages, const std::vector<Part>& parts, std::vector<float>& all) {
    const StepView step = pages.step(parts, shape_.window);
    const std::vector<float> q = gather(q_, shape_.heads * shape_.key_dim, parts);
    std::vector<float> out(static_cast<size_t>(step.rows * (out_size() + 1)) + 1, 77.f);
    bind_attention(device, "attention",
                   {.heads = shape_.heads,
                    .kv_heads = shape_.kv_heads,
                    .key_dim = shape_.key_dim,
                    .value_dim = shape_.value_dim,
                    .scale = scale(),
                    .dtype = shape_.dtype,
                    .key = key_field(),
                    .value = value_field(),
                    .value_head_stride = shape_.value_dim,
                    .q = q.data(),
                    .q_stride = shape_.heads * shape_.key_dim + 1,
                    .out = out.data(),
                    .out_stride = out_size() + 1,
                    .max_rows = std::max(step.rows, 1),
                    .window = shape_.window,
                    .sinks = sinks_.empty() ? nullptr : sinks_.data()})
        ->run(step);
    int64_t row = 0;
    for (const Part& part : parts) {
      for (int64_t p = part.first; p < part.first + part.rows; ++p, ++row) {
        const auto from = out.begin() + row * (out_size() + 1);
        std::copy(from, from + out_size(), all.begin() + (part.sequence * positions_ + p) * out_size());
        EXPECT_EQ(from[out_size()], 77.f) << "wrote beyond a row";
      }
    }
  }

  Shape shape_;
  int sequences_;
  int64_t positions_;
  std::mt19937 random_;
  std::vector<float> k_, v_, q_, sinks_;
  StepCounters counters_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::memcmp(&a[i], &b[i], 4) != 0) return false;
  }
  return a.size() == b.size();
}

TEST(AttentionPiece, IsAFunctionOfThePositionWithAtMost64Pieces) {
  EXPECT_EQ(attention_piece(0), 256);
  EXPECT_EQ(attention_piece(16383), 256);
  EXPECT_EQ(attention_piece(16384), 512);
  EXPECT_EQ(attention_piece(32768), 1024);
  for (int64_t p : {255, 256, 16383, 16384, 100000, 1048575, 1048576}) EXPECT_LE(p / attention_piece(p) + 1, 64);
}

TEST(AttentionPiece, OfAWindowIsOneOfItsLength) {
  EXPECT_EQ(attention_piece(1 << 20, 128), 256);
  EXPECT_EQ(attention_piece(16000, 32768), 256);
  EXPECT_EQ(attention_piece(1 << 20, 32768), 512);
  for (int64_t window : {1, 128, 16384, 16385, 100000}) {
    for (int64_t p : {0, 255, 16384, 99999, 1000000, 1000001, 1000255}) {
      const int64_t piece = attention_piece(p, window);
      EXPECT_LE(p / piece - first_visible(p, window) / piece + 1, 65);
      if (p < window) {
        EXPECT_EQ(piece, attention_piece(p));
      }
    }
  }
}

// FP32 sums of up to 700 products of order one: a few hundred roundings of 2^-24, so 2e-5 of the largest value.
TEST(Attention, ReferenceAgreesWithSoftmaxAttentionInDouble) {
  for (const Shape& shape :
       {Shape{4, 2, 24, 16}, Shape{4, 2, 24, 16, StateDtype::kF16}, Shape{3, 1, 20, 12, StateDtype::kF32, true},
        Shape{4, 2, 24, 16, StateDtype::kF32, false, 17}, Shape{4, 2, 24, 16, StateDtype::kF32, false, 300, true},
        Shape{6, 2, 24, 16, StateDtype::kF32, false, 1, true}, Shape{6, 2, 24, 16, StateDtype::kF16, false, 0, true}}) {
    Problem problem(shape, 2, 700);
    const std::vector<Part> parts{{0, 0, 3}, {1, 60, 8}, {0, 254, 4}, {1, 699, 1}};
    const std::vector<float> out = problem.run(KernelSet::kReference, 2, {parts});
    for (const Part& part : parts) {
      for (int64_t p = part.first; p < part.first + part.rows; ++p) {
        for (int64_t i = 0; i < problem.out_size(); ++i) {
          const double expected = problem.expected(part.sequence, p, i / shape.value_dim, i % shape.value_dim);
          EXPECT_NEAR(out[static_cast<size_t>((part.sequence * 700 + p) * problem.out_size() + i)], expected, 2e-5);
        }
      }
    }
  }
}

const Shape kShapes[] = {
    {4, 4, 24, 16},                           // one query a KV head
    {4, 2, 48, 32, StateDtype::kF16},         // two
    {12, 4, 17, 5},                           // three, odd dimensions
    {8, 2, 64, 80, StateDtype::kF16},         // four
    {5, 1, 40, 33},                           // five
    {14, 2, 128, 128, StateDtype::kF16},      // seven
    {33, 1, 20, 12, StateDtype::kF32, true},  // MLA with more heads than a unit has
    {6, 1, 576, 512, StateDtype::kF16, true},
    {2, 1, 30, 18, StateDtype::kF16, true},
    // Windows of a row, a page, nearly and just over a page; of some tiles; more than a piece; more than there are.
    {4, 4, 24, 16, StateDtype::kF32, false, 1},
    {8, 4, 24, 16, StateDtype::kF16, false, 16, true},
    {12, 4, 17, 5, StateDtype::kF32, false, 15},
    {8, 2, 64, 80, StateDtype::kF16, false, 17, true},
    {5, 1, 40, 33, StateDtype::kF32, false, 100, true},
    {14, 2, 128, 128, StateDtype::kF16, false, 128},
    {8, 8, 16, 16, StateDtype::kF32, false, 290, true},
    {16, 1, 20, 12, StateDtype::kF16, true, 33},
    {4, 2, 18, 7, StateDtype::kF32, false, 1000, true},
    {6, 1, 32, 32, StateDtype::kF32, false, 0, true},
};

// One row, few rows and many, over boundaries of pages, tiles and pieces; two spans of one step may be of one sequence.
const std::vector<Part> kParts{{0, 0, 1},   {1, 0, 21},   {0, 15, 2},  {1, 63, 1},
                               {0, 60, 37}, {1, 250, 13}, {0, 511, 1}, {1, 599, 1}};

TEST(Attention, EveryKernelSetGivesTheBitsOfTheReference) {
  for (const Shape& shape : kShapes) {
    for (Values values : {Values::kPlain, Values::kExtreme, Values::kInfinite}) {
      if (values != Values::kPlain && shape.heads * shape.key_dim > 1000) continue;  // plain values do for large shapes
      Problem problem(shape, 2, 600, values);
      const std::vector<float> expected = problem.run(KernelSet::kReference, 2, {kParts});
      for (KernelSet set : vector_sets()) {
        EXPECT_TRUE(same_bits(problem.run(set, 2, {kParts}), expected))
            << kernel_set_name(set) << ", " << shape.heads << " heads, key " << shape.key_dim << ", window "
            << shape.window << ", values " << static_cast<int>(values);
      }
    }
  }
}

TEST(Attention, GivesTheBitsOfTheReferenceWherePiecesGrow) {
  for (const Shape& shape : {Shape{2, 2, 8, 4}, Shape{6, 1, 18, 16, StateDtype::kF16, true},
                             Shape{6, 2, 8, 4, StateDtype::kF32, false, 16390, true},
                             Shape{4, 2, 8, 4, StateDtype::kF32, false, 5100, true}}) {
    Problem problem(shape, 1, 16400);
    const Steps steps{{{0, 16380, 9}}, {{0, 16399, 1}}, {{0, 5000, 2}, {0, 16383, 1}}};
    const std::vector<float> expected = problem.run(KernelSet::kReference, 2, steps);
    for (KernelSet set : vector_sets()) {
      // More threads split more; eight take two waves.
      for (int threads : {1, 2, 8}) {
        EXPECT_TRUE(same_bits(problem.run(set, threads, steps), expected))
            << kernel_set_name(set) << ", " << threads << " threads";
      }
    }
  }
}

TEST(Attention, AnySplitOfASpanGivesTheBitsOfTheWhole) {
  for (const Shape& shape : kShapes) {
    Problem problem(shape, 1, 300);
    const std::vector<float> whole = problem.run(best_kernel_set(), 2, {{{0, 0, 300}}});
    const Steps cuts[] = {{{{0, 0, 1}}, {{0, 1, 16}}, {{0, 17, 200}}, {{0, 217, 83}}},
                          {{{0, 0, 255}}, {{0, 255, 2}}, {{0, 257, 43}}}};
    for (const Steps& steps : cuts) EXPECT_TRUE(same_bits(problem.run(best_kernel_set(), 1, steps), whole));
    Steps each;
    for (int64_t p = 0; p < 300; ++p) each.push_back({{0, p, 1}});
    EXPECT_TRUE(same_bits(problem.run(best_kernel_set(), 2, each), whole)) << shape.heads << " heads";
  }
}

TEST(Attention, ABatchOfSequencesGivesTheBitsOfEachAlone) {
  for (const Shape& shape : kShapes) {
    Problem problem(shape, 5, 400);
    const std::vector<Part> batch{{0, 399, 1}, {1, 0, 1}, {2, 100, 37}, {3, 255, 3}, {4, 300, 1}};
    Steps alone;
    for (const Part& part : batch) alone.push_back({part});
    EXPECT_TRUE(same_bits(problem.run(best_kernel_set(), 2, {batch}), problem.run(best_kernel_set(), 2, alone)));
  }
}

TEST(Attention, AWindowThatThePrefixDoesNotFillChangesNoBit) {
  const Shape shape{8, 2, 24, 16};
  Shape windowed = shape;
  windowed.window = 300;
  const Steps steps{{{0, 0, 300}}};
  const std::vector<float> expected = Problem(shape, 1, 301).run(best_kernel_set(), 2, steps);
  EXPECT_TRUE(same_bits(Problem(windowed, 1, 301).run(best_kernel_set(), 2, steps), expected));
  const Steps beyond{{{0, 0, 301}}};
  EXPECT_FALSE(same_bits(Problem(windowed, 1, 301).run(best_kernel_set(), 2, beyond),
                         Problem(shape, 1, 301).run(best_kernel_set(), 2, beyond)));
}

TEST(Attention, AcceptsAStepWithoutRows) {
  Problem problem({4, 2, 16, 16}, 1, 16);
  for (KernelSet set : {KernelSet::kReference, best_kernel_set()}) {
    const std::vector<float> out = problem.run(set, 2, {{}});
    EXPECT_EQ(out, std::vector<float>(out.size()));
  }
}

TEST(Attention, CountsEachPageRowOncePerBlockOfRows) {
  Problem grouped({8, 2, 16, 32, StateDtype::kF16}, 2, 500);
  grouped.run(best_kernel_set(), 2, {{{0, 499, 1}, {1, 99, 1}}});
  EXPECT_EQ(grouped.counters().state_bytes_written, (500 + 100) * 2 * (16 + 32) * 2);
  EXPECT_EQ(grouped.counters().state_bytes_read, (500 + 100) * 2 * (16 + 32) * 2);
  Problem latent({8, 1, 32, 16, StateDtype::kF32, true}, 1, 500);
  latent.run(best_kernel_set(), 2, {{{0, 496, 4}}});
  EXPECT_EQ(latent.counters().state_bytes_read, 500 * 32 * 4);
  Problem windowed({8, 2, 16, 32, StateDtype::kF16, false, 100}, 1, 500);
  windowed.run(best_kernel_set(), 2, {{{0, 496, 4}}});
  EXPECT_EQ(windowed.counters().state_bytes_read, 103 * 2 * (16 + 32) * 2);
}

TEST(Attention, RefusesDimensionsThatDoNotFit) {
  CpuDevice device(1, best_kernel_set());
  const PageField field{.row_bytes = 256};
  const AttentionArgs good{.heads = 4,
                           .kv_heads = 2,
                           .key_dim = 32,
                           .value_dim = 32,
                           .key = field,
                           .value = field,
                           .value_head_stride = 32,
                           .max_rows = 1};
  const auto refused = [&](auto change) {
    AttentionArgs args = good;
    change(args);
    EXPECT_THROW(bind_attention(device, "attention", args), Error);
  };
  refused([](AttentionArgs& a) { a.kv_heads = 3; });
  refused([](AttentionArgs& a) { a.key_dim = 33; });
  refused([](AttentionArgs& a) { a.value_dim = 33; });
  refused([](AttentionArgs& a) { a.key.group = kMaxPageGroups; });
  refused([](AttentionArgs& a) { a.max_rows = 0; });
  refused([](AttentionArgs& a) { a.window = -1; });
  EXPECT_THROW(bind_kv_write(device, "write", {.field = field, .to = 60, .size = 5}), Error);
}

TEST(KvWrite, EveryKernelSetRoundsLikeTheReference) {
  std::mt19937 random(5);
  std::vector<float> x(3 * 70000);
  for (float& f : x) f = std::bit_cast<float>(static_cast<uint32_t>(random()));
  // Every exponent of binary16 densely, with ties.
  for (size_t i = 0; i < 65536; ++i) {
    x[i] = std::bit_cast<float>(0x32000000u + static_cast<uint32_t>(i) * 0x1800u);
    x[70000 + i] = f16_to_f32(static_cast<uint16_t>(i));
  }
  for (StateDtype dtype : {StateDtype::kF32, StateDtype::kF16}) {
    const int64_t bytes = state_dtype_bytes(dtype);
    const auto run = [&](KernelSet set) {
      std::mt19937 order(6);
      PagedSequences pages(order, 1, 3, kPagePositions * 70001 * bytes);
      CpuDevice device(1, set);
      const PageField field{.row_bytes = 70001 * bytes};
      bind_kv_write(device, "write",
                    {.dtype = dtype, .field = field, .to = 1, .size = 70000, .x = x.data(), .x_stride = 70000})
          ->run(pages.step({{0, 0, 3}}));
      std::vector<uint8_t> rows(static_cast<size_t>(3 * 70001 * bytes));
      std::memcpy(rows.data(), pages.row(0, 0, 0, 70001 * bytes), rows.size());
      return rows;
    };
    const std::vector<uint8_t> expected = run(KernelSet::kReference);
    for (KernelSet set : vector_sets()) EXPECT_EQ(run(set), expected) << kernel_set_name(set);
  }
}

}  // namespace
}  // namespace weir
