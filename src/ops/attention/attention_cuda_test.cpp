#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "base/number.h"
#include "ops/attention/attention.h"
#include "ops/attention/attention_testing.h"
#include "ops/cuda_op.h"
#include "tests/support/cuda_case.h"

namespace weir {
namespace {

using testing::DeviceBuffer;
using Part = PagedSequences::Part;
using Steps = std::vector<std::vector<Part>>;

struct Shape {
  int64_t heads, kv_heads, key_dim, value_dim;
  StateDtype dtype = StateDtype::kF32;
  bool shared = false;  // MLA: the value is the beginning of the key
  int64_t window = 0;
  bool sinks = false;
};

double stored(StateDtype dtype, float x) {
  if (dtype == StateDtype::kF32) return x;
  return dtype == StateDtype::kF16 ? f16_to_f32(f32_to_f16(x)) : bf16_to_f32(f32_to_bf16(x));
}
double rounded(double x) { return bf16_to_f32(f32_to_bf16(static_cast<float>(x))); }

// K, V and Q of every position of some sequences, and attention over them on the GPU or the CPU.
class Problem {
 public:
  Problem(const Shape& shape, int sequences, int64_t positions, uint32_t seed = 1)
      : shape_(shape), sequences_(sequences), positions_(positions), random_(seed) {
    const auto rows = static_cast<size_t>(sequences * positions);
    k_.resize(rows * static_cast<size_t>(key_size()));
    v_.resize(rows * static_cast<size_t>(value_size()));
    q_.resize(rows * static_cast<size_t>(shape.heads * shape.key_dim));
    for (std::vector<float>* x : {&k_, &v_, &q_}) {
      for (float& f : *x) f = std::normal_distribution<float>()(random_);
    }
    if (!shape.sinks) return;
    // A device knows vectors by their addresses: none is used twice.
    static std::deque<std::vector<float>> all;
    sinks_ = &all.emplace_back();
    for (int64_t h = 0; h < shape.heads; ++h) sinks_->push_back(2 * std::normal_distribution<float>()(random_));
  }

  // Writes the K and V of all positions, then attends step by step: [sequences, positions, heads, value_dim], zero
  // for rows that no step computes.
  std::vector<float> run(Device& device, Activations activations, const Steps& steps, bool loose = false) {
    PagedSequences pages(random_, sequences_, positions_, page_bytes());
    std::byte* pool = nullptr;
    if (device.is_cuda()) {
      pool = device.cuda().allocate(static_cast<int64_t>(pages.bytes().size()));
      device.cuda().to_device(pool, pages.bytes().data(), static_cast<int64_t>(pages.bytes().size()));
      pages.set_pool(pool);
    }
    std::vector<Part> everything;
    for (int s = 0; s < sequences_; ++s) everything.push_back({s, 0, static_cast<int32_t>(positions_)});
    write(device, pages, everything);
    std::vector<float> all(static_cast<size_t>(sequences_ * positions_ * out_size()));
    for (const std::vector<Part>& parts : steps) attend(device, activations, pages, parts, loose, all);
    if (pool != nullptr) device.cuda().release(pool);
    return all;
  }

  // Softmax attention of a query in double over the stored values, with q and those rounded to BF16; and for each
  // element sum p |v| / l.
  struct Expected {
    std::vector<double> value, magnitude;
  };
  Expected expected(int sequence, int64_t position, int64_t head) const {
    const int64_t kv_head = head / (shape_.heads / shape_.kv_heads);
    const auto row = [&](int64_t p) { return sequence * positions_ + p; };
    const auto bf16 = [&](float x) { return rounded(stored(shape_.dtype, x)); };
    const float* q = q_.data() + (row(position) * shape_.heads + head) * shape_.key_dim;
    std::vector<double> s;
    const int64_t first = first_visible(position, shape_.window);
    for (int64_t j = first; j <= position; ++j) {
      const float* k = k_.data() + row(j) * key_size() + kv_head * shape_.key_dim;
      double dot = 0;
      for (int64_t i = 0; i < shape_.key_dim; ++i) dot += rounded(q[i]) * bf16(k[i]);
      s.push_back(dot * scale());
    }
    const double top = *std::max_element(s.begin(), s.end());
    const auto dims = static_cast<size_t>(shape_.value_dim);
    Expected out{std::vector<double>(dims), std::vector<double>(dims)};
    double sum = 0;
    if (shape_.sinks) sum = std::exp(static_cast<double>((*sinks_)[static_cast<size_t>(head)]) - top);
    for (int64_t j = first; j <= position; ++j) {
      const double p = std::exp(s[static_cast<size_t>(j - first)] - top);
      const float* v = shape_.shared ? k_.data() + row(j) * key_size()
                                     : v_.data() + row(j) * value_size() + kv_head * shape_.value_dim;
      sum += p;
      for (size_t d = 0; d < dims; ++d) {
        out.value[d] += p * bf16(v[d]);
        out.magnitude[d] += p * std::abs(bf16(v[d]));
      }
    }
    for (size_t d = 0; d < dims; ++d) out.value[d] /= sum, out.magnitude[d] /= sum;
    return out;
  }

  int64_t out_size() const { return shape_.heads * shape_.value_dim; }
  // Rows of q and out on the GPU, and how many elements lie between them.
  void set_rows(RowType type, int64_t beyond) { rows_ = type, beyond_ = beyond; }

 private:
  static std::vector<uint16_t> bf16(const std::vector<float>& x) {
    std::vector<uint16_t> bits;
    for (float f : x) bits.push_back(f32_to_bf16(f));
    return bits;
  }
  static std::vector<float> widened(const std::vector<uint16_t>& bits) {
    std::vector<float> x;
    for (uint16_t u : bits) x.push_back(bf16_to_f32(u));
    return x;
  }

  int64_t key_size() const { return shape_.kv_heads * shape_.key_dim; }
  int64_t value_size() const { return shape_.shared ? 0 : shape_.kv_heads * shape_.value_dim; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(shape_.key_dim)); }

  // Rows of whole heads of 16 bytes are aligned as models have them; others are as crooked as can be.
  bool crooked() const { return shape_.key_dim % 8 != 0; }
  int64_t key_row_bytes() const { return key_size() * state_dtype_bytes(shape_.dtype) + (crooked() ? 8 : 16); }
  int64_t value_row_bytes() const { return value_size() * state_dtype_bytes(shape_.dtype) + (crooked() ? 4 : 0); }
  int64_t page_bytes() const { return 64 + kPagePositions * (key_row_bytes() + value_row_bytes()); }
  PageField key_field() const { return {.group = 1, .offset = 64, .row_bytes = key_row_bytes()}; }
  PageField value_field() const {
    if (shape_.shared) return key_field();
    return {.group = 2, .offset = 64 + kPagePositions * key_row_bytes(), .row_bytes = value_row_bytes()};
  }

  std::vector<float> gather(const std::vector<float>& from, int64_t size, const std::vector<Part>& parts) const {
    std::vector<float> rows;
    for (const Part& part : parts) {
      for (int64_t p = part.first; p < part.first + part.rows; ++p) {
        const auto at = from.begin() + (part.sequence * positions_ + p) * size;
        rows.insert(rows.end(), at, at + size);
        rows.insert(rows.end(), static_cast<size_t>(beyond_), NAN);
      }
    }
    return rows;
  }

  void write(Device& device, PagedSequences& pages, const std::vector<Part>& parts) {
    const StepView step = pages.step(parts);
    const auto write_rows = [&](PageField field, const std::vector<float>& x, int64_t size, int64_t to, int64_t count) {
      const std::vector<float> rows = gather(x, size, parts);
      KvWriteArgs args{.dtype = shape_.dtype,
                       .field = field,
                       .to = to,
                       .size = count,
                       .x = rows.data() + to,
                       .x_stride = size + beyond_};
      if (!device.is_cuda()) return bind_kv_write(device, "write", args)->run(step);
      const DeviceBuffer<float> on_device(device.cuda(), rows);
      args.x = on_device.data() + to;
      bind_kv_write(device, "write", args)->run(step);
      EXPECT_TRUE(device.cuda().synchronize());
    };
    const int64_t cut = key_size() / 3;  // MLA writes the latent and the shared part separately
    if (cut > 0) write_rows(key_field(), k_, key_size(), 0, cut);
    write_rows(key_field(), k_, key_size(), cut, key_size() - cut);
    if (!shape_.shared) write_rows(value_field(), v_, value_size(), 0, value_size());
  }

  void attend(Device& device, Activations activations, PagedSequences& pages, const std::vector<Part>& parts,
              bool loose, std::vector<float>& all) {
    const StepView step = pages.step(parts, shape_.window);
    const std::vector<float> q = gather(q_, shape_.heads * shape_.key_dim, parts);
    const int32_t spare = loose ? 5 : 0;  // rows that the bounds allow for and the step doesn't have
    std::vector<float> out(static_cast<size_t>((step.rows + spare) * (out_size() + beyond_)), 77.f);
    AttentionArgs args{.heads = shape_.heads,
                       .kv_heads = shape_.kv_heads,
                       .key_dim = shape_.key_dim,
                       .value_dim = shape_.value_dim,
                       .scale = scale(),
                       .dtype = shape_.dtype,
                       .key = key_field(),
                       .value = value_field(),
                       .value_head_stride = shape_.value_dim,
                       .q = q.data(),
                       .q_stride = shape_.heads * shape_.key_dim + beyond_,
                       .out = out.data(),
                       .out_stride = out_size() + beyond_,
                       .max_rows = step.rows + spare,
                       .window = shape_.window,
                       .sinks = sinks_ == nullptr ? nullptr : sinks_->data(),
                       .activations = activations};
    if (device.is_cuda()) {
      const DeviceBuffer<float> q_there(device.cuda(), q), out_there(device.cuda(), out);
      const DeviceBuffer<uint16_t> bf16_q_there(device.cuda(), bf16(q)), bf16_out_there(device.cuda(), bf16(out));
      args.q = q_there.data();
      args.out = out_there.data();
      if (rows_ == RowType::kBf16) {
        args.q = reinterpret_cast<float*>(bf16_q_there.data());
        args.out = reinterpret_cast<float*>(bf16_out_there.data());
        args.q_type = args.out_type = rows_;
      }
      const std::unique_ptr<BoundOp> op = bind_attention(device, "attention", args);
      StepBounds bounds = CudaDevice::bounds_of(step);
      if (loose) bounds.rows += spare, bounds.spans += spare, bounds.longest_context += 5000;
      device.cuda().stage(step);
      static_cast<CudaOp&>(*op).enqueue(bounds);
      out = rows_ == RowType::kBf16 ? widened(bf16_out_there.values()) : out_there.values();
    } else {
      bind_attention(device, "attention", args)->run(step);
    }
    int64_t row = 0;
    for (const Part& part : parts) {
      for (int64_t p = part.first; p < part.first + part.rows; ++p, ++row) {
        const auto from = out.begin() + row * (out_size() + beyond_);
        std::copy(from, from + out_size(), all.begin() + (part.sequence * positions_ + p) * out_size());
        EXPECT_EQ(from[out_size()], 77.f) << "wrote beyond a row";
      }
    }
    EXPECT_TRUE(std::all_of(out.begin() + row * (out_size() + beyond_), out.end(), [](float x) { return x == 77.f; }))
        << "wrote beyond the rows";
  }

  Shape shape_;
  int sequences_;
  int64_t positions_;
  std::mt19937 random_;
  std::vector<float> k_, v_, q_;
  std::vector<float>* sinks_ = nullptr;
  RowType rows_ = RowType::kF32;
  int64_t beyond_ = 1;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 4) == 0);
}

std::ostream& operator<<(std::ostream& to, const Shape& s) {
  return to << s.heads << "/" << s.kv_heads << " heads of " << s.key_dim << " and " << s.value_dim << ", dtype "
            << static_cast<int>(s.dtype) << ", window " << s.window;
}

constexpr StateDtype kF16 = StateDtype::kF16, kBf16 = StateDtype::kBf16, kF32 = StateDtype::kF32;

// One row, few rows and many, over boundaries of pages, tiles and pieces; two spans of one step may be of one sequence.
const std::vector<Part> kParts{{0, 0, 1},   {1, 0, 21},   {0, 15, 2},  {1, 63, 1},
                               {0, 60, 37}, {1, 250, 13}, {0, 511, 1}, {1, 599, 1}};

using AttentionOnCuda = testing::CudaCase;

TEST_F(AttentionOnCuda, InFp32GivesTheBitsOfTheCpu) {
  for (const Shape& shape : {Shape{4, 4, 24, 16}, Shape{4, 2, 48, 32, kF16}, Shape{12, 4, 17, 5},
                             Shape{33, 1, 20, 12, kF32, true}, Shape{2, 1, 30, 18, kF16, true, 33},
                             Shape{8, 2, 64, 80, kF16, false, 17, true}, Shape{8, 8, 16, 16, kF32, false, 290, true}}) {
    Problem problem(shape, 2, 600);
    CpuDevice cpu(1, KernelSet::kReference);
    EXPECT_TRUE(same_bits(problem.run(device(), Activations::kF32, {kParts}, true),
                          problem.run(cpu, Activations::kF32, {kParts})))
        << shape;
  }
}

TEST_F(AttentionOnCuda, InFp32GivesTheBitsOfTheCpuWherePiecesGrow) {
  Problem problem({2, 2, 8, 4}, 1, 16400);
  const Steps steps{{{0, 16380, 9}}, {{0, 16399, 1}}};
  CpuDevice cpu(1, KernelSet::kReference);
  EXPECT_TRUE(same_bits(problem.run(device(), Activations::kF32, steps), problem.run(cpu, Activations::kF32, steps)));
}

const Shape kShapes[] = {
    {4, 4, 32, 32, kBf16},
    {6, 2, 64, 64, kBf16},
    {8, 2, 64, 64, kBf16, false, 128, true},
    {12, 4, 17, 5, kF16},
    {5, 1, 40, 33, kF32, false, 100, true},
    {16, 2, 128, 128, kBf16},
    {14, 2, 128, 96, kF16, false, 0, true},
    {3, 1, 20, 12, kBf16, true, 33},
    {2, 1, 256, 256, kBf16},
    {20, 1, 48, 32, kF32, true},
    {8, 8, 16, 16, kF32, false, 290, true},
};
const Shape kLatent[] = {{20, 1, 576, 512, kBf16, true}, {48, 1, 576, 512, kF16, true}, {70, 1, 576, 512, kBf16, true}};

// P and, in the denominator, P again are rounded to BF16: at most 2^-8 of sum p |v| / l each. The rest is FP32.
void expect_close(Problem& problem, const Shape& shape, int64_t positions, const std::vector<float>& out,
                  const std::vector<Part>& parts) {
  for (const Part& part : parts) {
    for (int64_t p = part.first; p < part.first + part.rows; ++p) {
      for (int64_t h = p % 3; h<shape.heads; h += shape.heads> 20 ? 11 : 3) {
        const Problem::Expected expected = problem.expected(part.sequence, p, h);
        const float* row = out.data() + (part.sequence * positions + p) * problem.out_size() + h * shape.value_dim;
        for (size_t d = 0; d < expected.value.size(); ++d) {
          ASSERT_NEAR(row[d], expected.value[d], 1.02 * expected.magnitude[d] / 128 + 1e-5)
              << shape << ", position " << p << ", head " << h << ", element " << d;
        }
      }
    }
  }
}

TEST_F(AttentionOnCuda, OnTensorCoresRoundsWhereTheContractSays) {
  for (const Shape& shape : kShapes) {
    Problem problem(shape, 2, 600);
    expect_close(problem, shape, 600, problem.run(device(), Activations::kAuto, {kParts}, true), kParts);
  }
  const std::vector<Part> parts{{0, 3, 2}, {1, 560, 1}, {0, 509, 6}};
  for (const Shape& shape : kLatent) {
    Problem problem(shape, 2, 600);
    expect_close(problem, shape, 600, problem.run(device(), Activations::kAuto, {parts}, true), parts);
  }
}

TEST_F(AttentionOnCuda, AnySplitOfASpanGivesTheBitsOfTheWhole) {
  for (const Shape& shape : kShapes) {
    Problem problem(shape, 1, 300);
    const std::vector<float> whole = problem.run(device(), Activations::kAuto, {{{0, 0, 300}}});
    const Steps cuts[] = {{{{0, 0, 1}}, {{0, 1, 16}}, {{0, 17, 200}}, {{0, 217, 83}}},
                          {{{0, 0, 255}}, {{0, 255, 2}}, {{0, 257, 43}}}};
    for (const Steps& steps : cuts)
      EXPECT_TRUE(same_bits(problem.run(device(), Activations::kAuto, steps), whole)) << shape;
    std::vector<float> some(whole.size());
    Steps each;
    for (int64_t p = 0; p < 300; p += 1 + p / 8) {
      each.push_back({{0, p, 1}});
      std::copy_n(whole.begin() + p * problem.out_size(), problem.out_size(), some.begin() + p * problem.out_size());
    }
    EXPECT_TRUE(same_bits(problem.run(device(), Activations::kAuto, each), some)) << shape;
  }
}

TEST_F(AttentionOnCuda, ABatchOfSequencesGivesTheBitsOfEachAlone) {
  const std::vector<Part> batch{{0, 399, 1}, {1, 0, 1}, {2, 100, 37}, {3, 255, 3}, {4, 300, 1}};
  const std::vector<Part> single{{0, 399, 1}, {1, 0, 1}, {2, 100, 1}, {3, 255, 1}, {4, 300, 1}};
  for (const std::vector<Part>& parts : {batch, single}) {
    Steps alone;
    for (const Part& part : parts) alone.push_back({part});
    for (const Shape& shape : kShapes) {
      Problem problem(shape, 5, 400);
      EXPECT_TRUE(same_bits(problem.run(device(), Activations::kAuto, {parts}, true),
                            problem.run(device(), Activations::kAuto, alone)))
          << shape;
    }
  }
}

TEST_F(AttentionOnCuda, LatentRowsAreAloneWhatTheyAreTogether) {
  for (const Shape& shape : kLatent) {
    Problem problem(shape, 2, 1100);
    const std::vector<Part> together{{0, 510, 5}, {1, 1099, 1}, {1, 40, 2}};
    const Steps alone{{{0, 510, 1}}, {{0, 511, 1}}, {{0, 512, 3}}, {{1, 1099, 1}}, {{1, 40, 1}, {1, 41, 1}}};
    EXPECT_TRUE(same_bits(problem.run(device(), Activations::kAuto, {together}, true),
                          problem.run(device(), Activations::kAuto, alone)))
        << shape;
  }
}

TEST_F(AttentionOnCuda, RowsOfBf16AreTheRoundedOnes) {
  // In whole, with several rows and one; pieces that are merged; dimensions that are no multiples of eight.
  for (const Shape& shape :
       {Shape{48, 1, 576, 512, kBf16, true}, Shape{8, 2, 64, 64, kF16}, Shape{12, 4, 17, 5, kF16}}) {
    const Steps steps{{{0, 511, 1}, {0, 100, 3}}, {{1, 1099, 1}}};
    Problem problem(shape, 2, 1100);
    std::vector<float> expected = problem.run(device(), Activations::kAuto, steps, true);
    for (float& f : expected) f = bf16_to_f32(f32_to_bf16(f));
    for (int64_t beyond : {8, 1}) {
      problem.set_rows(RowType::kBf16, beyond);
      EXPECT_TRUE(same_bits(problem.run(device(), Activations::kAuto, steps, true), expected)) << shape << beyond;
    }
  }
}

// The more rows, the more pieces a unit has.
TEST_F(AttentionOnCuda, LatentUnitsOfAnySizeGiveTheSameBits) {
  constexpr int64_t kPositions = 2600;
  const Shape shape{4, 1, 576, 512, kBf16, true};
  Problem problem(shape, 1, kPositions);
  const int64_t block = 64 / shape.heads, most = device().sm_count() * block;
  const auto last_rows = [&](int64_t rows) {
    const std::vector<float> out =
        problem.run(device(), Activations::kAuto, {{{0, kPositions - rows, static_cast<int32_t>(rows)}}});
    return std::vector<float>(out.end() - block * problem.out_size(), out.end());
  };
  const std::vector<float> alone = last_rows(block);
  for (int64_t rows : {most / 3, most / 2, most}) EXPECT_TRUE(same_bits(last_rows(rows), alone)) << rows;
}

// Few rows of many heads: the weights of all tiles are made first. Pieces are merged, or tiles of heads differ.
TEST_F(AttentionOnCuda, LatentRowsOfManyHeadsAreInABatchWhatTheyAreAlone) {
  const auto check = [&](const Shape& shape, const std::vector<int64_t>& positions) {
    Problem problem(shape, 1, positions[0] + 1);
    Steps alone;
    std::vector<Part> batch;
    for (const int64_t p : positions) alone.push_back({{0, p, 1}}), batch.push_back({0, p, 1});
    alone[1].push_back(alone[2][0]);
    for (int i = 0; i < 33; ++i) batch.push_back({0, 5, 1});
    std::vector<float> out = problem.run(device(), Activations::kAuto, {batch});
    std::fill_n(out.begin() + 5 * problem.out_size(), problem.out_size(), 0.f);
    EXPECT_TRUE(same_bits(out, problem.run(device(), Activations::kAuto, alone, true))) << shape;
  };
  check({65, 1, 576, 512, kBf16, true, 0, true}, {2150, 2048, 2047, 61});
  check({36, 1, 576, 512, kF16, true}, {300, 128, 63});
}

TEST_F(AttentionOnCuda, IsPureWherePiecesGrow) {
  for (const Shape& shape :
       {Shape{4, 2, 16, 8, kBf16}, Shape{6, 1, 24, 16, kF16, true}, Shape{6, 2, 16, 8, kF32, false, 16390, true}}) {
    Problem problem(shape, 1, 16400);
    const Steps together{{{0, 16380, 9}, {0, 5000, 2}, {0, 16399, 1}}};
    const Steps alone{{{0, 16380, 2}}, {{0, 16382, 1}}, {{0, 16383, 1}}, {{0, 16384, 1}},
                      {{0, 16385, 4}}, {{0, 5000, 1}},  {{0, 5001, 1}},  {{0, 16399, 1}}};
    const std::vector<float> out = problem.run(device(), Activations::kAuto, together);
    EXPECT_TRUE(same_bits(problem.run(device(), Activations::kAuto, alone), out)) << shape;
    expect_close(problem, shape, 16400, out, {{0, 16383, 2}});
  }
}

TEST_F(AttentionOnCuda, AWindowThatThePrefixDoesNotFillChangesNoBit) {
  const Shape shape{8, 2, 24, 16, kBf16};
  Shape windowed = shape;
  windowed.window = 300;
  const Steps steps{{{0, 0, 300}}};
  EXPECT_TRUE(same_bits(Problem(windowed, 1, 301).run(device(), Activations::kAuto, steps),
                        Problem(shape, 1, 301).run(device(), Activations::kAuto, steps)));
}

TEST_F(AttentionOnCuda, ReadsNoValueBeyondTheStep) {
  // What nobody has written is NaN: here from position 38 on, in the span's last page.
  const Shape shape{4, 2, 64, 64, kBf16};
  Problem problem(shape, 1, 38);
  const std::vector<float> out = problem.run(device(), Activations::kAuto, {{{0, 30, 8}}});
  EXPECT_TRUE(std::none_of(out.begin(), out.end(), [](float x) { return std::isnan(x); }));
}

}  // namespace
}  // namespace weir
