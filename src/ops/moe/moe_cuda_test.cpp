#include <cmath>
#include <deque>
#include <random>

#include "base/error.h"
#include "ops/cuda_op.h"

#include "ops/moe/moe_testing.h"
#include "tests/support/cuda_case.h"

namespace weir {
namespace {

using namespace moe_testing;
using testing::DeviceBuffer;

// Uploads are known by their host address: a test's problems live as long as its device is used.
class MoeCuda : public testing::CudaCase {
 protected:
  Problem& problem(const Shape& shape, const std::vector<WeightFormat>& formats, GluFunction act, uint64_t seed) {
    problems_.push_back(std::make_unique<Problem>(shape, formats, act, seed));
    return *problems_.back();
  }

  std::deque<std::vector<float>> weights_;  // of norms, likewise

 private:
  std::vector<std::unique_ptr<Problem>> problems_;
};

// The op with the problem's rows and routing on the device. y has a row more than the step.
class OnDevice {
 public:
  // bf16: x as such rows, one after the other.
  OnDevice(CudaDevice& device, const Problem& p, const uint16_t* bf16 = nullptr)
      : x_(device, p.x),
        weights_(device, p.weights),
        ids_(device, p.ids),
        y_(device, (p.shape.rows + 1) * p.args.y_stride),
        addend_(device, p.addend),
        args_(p.args) {
    args_.x = x_.data();
    if (bf16 != nullptr) {
      args_.x = bf16;
      args_.x_stride = args_.in;
      args_.x_type = RowType::kBf16;
    }
    args_.weights = weights_.data();
    args_.ids = ids_.data();
    args_.y = y_.data();
    if (!p.addend.empty()) args_.addend = addend_.data();
    op_ = bind_moe(device, "moe", args_);
  }

  // `rows` rows, y of all rows that there are; what the op doesn't write is NaN.
  std::vector<float> run(int64_t rows) {
    y_.poison();
    StepView step;
    step.rows = static_cast<int32_t>(rows);
    op_->run(step);
    return y_.values();
  }
  void set_row(const Problem& p, int64_t row) {
    const auto part = [row](const auto& values, int64_t stride) {
      return std::vector(values.begin() + row * stride, values.begin() + (row + 1) * stride);
    };
    const auto replace = [](auto& buffer, auto values) {
      values.resize(static_cast<size_t>(buffer.size()));
      buffer.set(values);
    };
    replace(x_, part(p.x, p.args.x_stride));
    replace(weights_, part(p.weights, p.args.top_k));
    replace(ids_, part(p.ids, p.args.top_k));
  }
  BoundOp& op() { return *op_; }

 private:
  DeviceBuffer<float> x_, weights_;
  DeviceBuffer<int32_t> ids_;
  DeviceBuffer<float> y_, addend_;
  MoeArgs args_;
  std::unique_ptr<BoundOp> op_;
};

std::span<const float> row_of(const std::vector<float>& y, const Problem& p, int64_t row) {
  return std::span(y).subspan(static_cast<size_t>(row * p.args.y_stride), static_cast<size_t>(p.shape.out));
}

// What the numeric specification gives in double: x and h rounded to BF16, exact weights.
struct Model {
  std::vector<double> y, tolerance;  // [rows, out]
};

float rounded(float v) { return bf16_to_f32(f32_to_bf16(v)); }

// Products of BF16 weights with x; F32 matrices are rounded, as their tiles are.
double weight_of(const Matrix& m, int64_t o, int64_t k) {
  const float w = m.values[static_cast<size_t>(o * m.view.in + k)];
  return m.view.format == WeightFormat::kF32 ? rounded(w) : w;
}

Model model_of(const Problem& p) {
  const Shape& s = p.shape;
  Model model{std::vector<double>(static_cast<size_t>(s.rows * s.out)), {}};
  model.tolerance = model.y;
  for (int64_t r = 0; r < s.rows; ++r) {
    for (int64_t slot = 0; slot < s.top_k; ++slot) {
      const auto e = static_cast<size_t>(p.ids[static_cast<size_t>(r * s.top_k + slot)]);
      const Matrix &gate = p.matrices[e * 3], &up = p.matrices[e * 3 + 1], &down = p.matrices[e * 3 + 2];
      std::vector<float> h(static_cast<size_t>(s.inter));
      for (int64_t o = 0; o < s.inter; ++o) {
        double g = 0, u = 0;
        for (int64_t k = 0; k < s.in; ++k) {
          const double x = rounded(p.x[static_cast<size_t>(r * p.args.x_stride + k)]);
          g += weight_of(gate, o, k) * x;
          u += weight_of(up, o, k) * x;
        }
        const size_t bias = e * static_cast<size_t>(s.inter) + static_cast<size_t>(o);
        if (!p.gate_bias.empty()) g += p.gate_bias[bias], u += p.up_bias[bias];
        h[static_cast<size_t>(o)] = rounded(p.glu(static_cast<float>(g), static_cast<float>(u)));
      }
      const double weight = p.weights[static_cast<size_t>(r * s.top_k + slot)];
      for (int64_t o = 0; o < s.out; ++o) {
        double z = 0, size = 0, most = 0;
        for (int64_t k = 0; k < s.inter; ++k) {
          const double term = weight_of(down, o, k) * static_cast<double>(h[static_cast<size_t>(k)]);
          z += term;
          size += std::fabs(term);
          most = std::max(most, std::fabs(term));
        }
        if (!p.down_bias.empty()) z += p.down_bias[e * static_cast<size_t>(s.out) + static_cast<size_t>(o)];
        const auto at = static_cast<size_t>(r * s.out + o);
        model.y[at] += weight * z;
        // A gate or up value that lies between two roundings of h may take the other: one unit of BF16 in a few terms.
        model.tolerance[at] += std::fabs(weight) * (2e-5 * size + 0x1p-7 * most) + 1e-6;
      }
    }
  }
  return model;
}

void expect_model(const Problem& p, const std::vector<float>& y, const std::string& what) {
  const Model model = model_of(p);
  int64_t wrong = 0;
  for (int64_t r = 0; r < p.shape.rows; ++r) {
    const std::span<const float> row = row_of(y, p, r);
    for (int64_t o = 0; o < p.shape.out; ++o) {
      const auto at = static_cast<size_t>(r * p.shape.out + o);
      const double error = std::fabs(row[static_cast<size_t>(o)] - model.y[at]);
      if (!(error <= model.tolerance[at]) && ++wrong < 4) {
        ADD_FAILURE() << what << ": row " << r << " output " << o << ": expected " << model.y[at] << ", found "
                      << row[static_cast<size_t>(o)] << ", tolerance " << model.tolerance[at];
      }
    }
  }
  EXPECT_EQ(wrong, 0) << what;
}

// Rows of y hold `out` numbers; the rest, and the row after the step's, stay as they were.
void expect_untouched(const Problem& p, const std::vector<float>& y) {
  for (int64_t r = 0; r <= p.shape.rows; ++r) {
    for (int64_t o = r < p.shape.rows ? p.shape.out : 0; o < p.args.y_stride; ++o) {
      ASSERT_TRUE(std::isnan(y[static_cast<size_t>(r * p.args.y_stride + o)])) << "row " << r << ", element " << o;
    }
  }
}

constexpr GluFunction kActs[] = {kSwiGlu, kSitu, kGeGlu, kClamped};

TEST_F(MoeCuda, GivesTheBitsOfTheCpuWithFp32Products) {
  const std::vector<std::vector<WeightFormat>> mixes = {
      {WeightFormat::kF32},
      {WeightFormat::kBf16},
      {WeightFormat::kMxfp4},
      {WeightFormat::kE4m3, WeightFormat::kF16, WeightFormat::kMxfp4},
      {WeightFormat::kQ4_0, WeightFormat::kQ8_0, WeightFormat::kIq4Nl}};
  uint64_t seed = 1;
  for (const auto& formats : mixes) {
    for (const Shape& shape : {Shape{4, 64, 96, 64, 2, 3}, Shape{3, 160, 32, 96, 3, 5}}) {
      Problem& p = problem(shape, formats, kActs[seed % 4], seed);
      if (seed % 2 == 0) p.add_biases();
      if (seed % 3 == 0) p.add_addend();
      ++seed;
      const std::vector<float> expected = p.naive();
      const std::vector<float> found = OnDevice(device(), p).run(shape.rows);
      for (int64_t r = 0; r < shape.rows; ++r) EXPECT_TRUE(same_floats(row_of(expected, p, r), row_of(found, p, r)));
      expect_untouched(p, found);
    }
  }
}

TEST_F(MoeCuda, AcceptsOddSizesWithFp32Products) {
  Problem& p = problem({5, 37, 51, 29, 2, 4}, {WeightFormat::kBf16}, kSwiGlu, 3);
  const std::vector<float> expected = p.naive(), found = OnDevice(device(), p).run(4);
  for (int64_t r = 0; r < 4; ++r) EXPECT_TRUE(same_floats(row_of(expected, p, r), row_of(found, p, r)));
}

TEST_F(MoeCuda, FollowsTheSpecificationWithEveryFormat) {
  uint64_t seed = 11;
  for (int i = 0; i <= static_cast<int>(WeightFormat::kE4m3); ++i) {
    const auto format = static_cast<WeightFormat>(i);
    if (format == WeightFormat::kNvfp4) continue;
    Problem& p = problem({4, 256, 256, 256, 2, 3}, {format}, kActs[seed % 4], seed);
    if (seed % 2 == 0) p.add_biases();
    ++seed;
    p.args.activations = Activations::kAuto;
    const std::vector<float> found = OnDevice(device(), p).run(p.shape.rows);
    expect_model(p, found, std::string(weight_format_name(format)));
    expect_untouched(p, found);
  }
}

// Rows to fill one column of eight, two, four, several tiles of an expert, and what is for many rows.
TEST_F(MoeCuda, FollowsTheSpecificationWithAnyNumberOfRows) {
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kBf16}) {
    for (const int64_t rows : {1, 8, 12, 30, 90}) {
      Problem& p = problem({3, 128, 64, 96, 2, rows}, {format}, kSitu, static_cast<uint64_t>(rows));
      p.args.activations = Activations::kAuto;
      const std::vector<float> found = OnDevice(device(), p).run(rows);
      expect_model(p, found, concat(weight_format_name(format), ", ", rows, " rows"));
      expect_untouched(p, found);
    }
  }
}

TEST_F(MoeCuda, SumsLongRowsInSegments) {
  Problem& p = problem({2, 4160, 2112, 32, 1, 2}, {WeightFormat::kBf16}, kSwiGlu, 5);
  for (float& x : p.x) x *= 0.03f;
  p.args.activations = Activations::kAuto;
  expect_model(p, OnDevice(device(), p).run(2), "few rows");

  for (const auto& [format, rows] :
       {std::pair{WeightFormat::kBf16, int64_t{20}}, std::pair{WeightFormat::kMxfp4, int64_t{70}}}) {
    Problem& many = problem({1, 2112, 64, 32, 1, rows}, {format}, kSwiGlu, 6);
    for (float& x : many.x) x *= 0.03f;
    many.args.activations = Activations::kAuto;
    OnDevice batched(device(), many), single(device(), many);
    const std::vector<float> batch = batched.run(rows);
    expect_model(many, batch, "many rows");
    for (const int64_t r : {0, 7, 19}) {
      single.set_row(many, r);
      EXPECT_TRUE(same_floats(row_of(batch, many, r), row_of(single.run(1), many, 0))) << "row " << r << " of " << rows;
    }
  }
}

TEST_F(MoeCuda, TakesOddSizesOfMatricesWithoutBlocks) {
  for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kF16, WeightFormat::kE4m3}) {
    Problem& p = problem({3, 69, 43, 37, 2, 3}, {format}, kSwiGlu, 6);
    p.args.activations = Activations::kAuto;
    const std::vector<float> found = OnDevice(device(), p).run(3);
    expect_model(p, found, std::string(weight_format_name(format)));
    expect_untouched(p, found);
  }
}

TEST_F(MoeCuda, GivesABatchTheBitsOfItsRows) {
  for (const WeightFormat format :
       {WeightFormat::kMxfp4, WeightFormat::kBf16, WeightFormat::kF16, WeightFormat::kE4m3, WeightFormat::kQ4_0,
        WeightFormat::kQ8_0, WeightFormat::kIq4Nl, WeightFormat::kQ4_1}) {
    for (const int64_t rows : {5, 30, 150}) {
      Problem& p = problem({4, 128, 64, 80, 2, rows}, {format}, kSwiGlu, 7);
      p.args.activations = Activations::kAuto;
      OnDevice batched(device(), p), single(device(), p);
      const std::vector<float> batch = batched.run(rows);
      for (int64_t r = 0; r<rows; r += rows> 30 ? 7 : 1) {
        single.set_row(p, r);
        EXPECT_TRUE(same_floats(row_of(batch, p, r), row_of(single.run(1), p, 0)))
            << weight_format_name(format) << ", row " << r << " of " << rows;
      }
    }
  }
}

// So many experts that all have few rows though the step has a plan of its own: tiles of eight rows, and of more.
TEST_F(MoeCuda, GivesRowsTheirBitsWithAPlanOfTheStep) {
  for (const int64_t experts : {48, 24}) {
    Problem& p = problem({experts, 64, 32, 64, 2, 70}, {WeightFormat::kMxfp4}, kSwiGlu, 18);
    p.args.activations = Activations::kAuto;
    OnDevice batched(device(), p), single(device(), p);
    const std::vector<float> batch = batched.run(70);
    expect_model(p, batch, concat(experts, " experts"));
    for (int64_t r = 0; r < 70; r += 9) {
      single.set_row(p, r);
      EXPECT_TRUE(same_floats(row_of(batch, p, r), row_of(single.run(1), p, 0))) << experts << " experts, row " << r;
    }
  }
}

TEST_F(MoeCuda, AddsWhatIsToBeAdded) {
  for (const int64_t padding : {0, 1}) {  // rows of whole vectors, and others
    Problem& p = problem({4, 64, 64, 96, 2, 5}, {WeightFormat::kBf16}, kSwiGlu, 14);
    p.args.activations = Activations::kAuto;
    p.args.y_stride = p.shape.out + padding;
    std::vector<float> expected = OnDevice(device(), p).run(5);
    expect_model(p, expected, "before");
    p.add_addend();
    for (int64_t r = 0; r < 5; ++r) {
      for (int64_t o = 0; o < p.shape.out; ++o) {
        expected[static_cast<size_t>(r * p.args.y_stride + o)] += p.addend[static_cast<size_t>(r * p.shape.out + o)];
      }
    }
    const std::vector<float> found = OnDevice(device(), p).run(5);
    for (int64_t r = 0; r < 5; ++r) EXPECT_TRUE(same_floats(row_of(expected, p, r), row_of(found, p, r)));
  }
}

TEST_F(MoeCuda, GivesTheSameBitsWhateverTheRouting) {
  // Row 0 alone with its experts, and with an expert that all rows want.
  Problem& p = problem({6, 64, 96, 64, 2, 33}, {WeightFormat::kMxfp4}, kSwiGlu, 8);
  p.args.activations = Activations::kAuto;
  for (size_t i = 0; i < p.ids.size(); ++i) p.ids[i] = i % 2 == 0 ? 1 : 4;
  OnDevice all(device(), p);
  const std::vector<float> batch = all.run(33);
  expect_model(p, batch, "all rows want the same experts");
  for (size_t i = 2; i < p.ids.size(); ++i) p.ids[i] = i % 2 == 0 ? 0 : 5;
  OnDevice others(device(), p);
  EXPECT_TRUE(same_floats(row_of(batch, p, 0), row_of(others.run(33), p, 0)));
}

TEST_F(MoeCuda, MultipliesScalesOfAnyPowerOfTwo) {
  Problem& p = problem({2, 64, 64, 64, 1, 2}, {WeightFormat::kMxfp4}, kSwiGlu, 9);
  Matrix& down = p.matrices[5];
  // 2^3 is beyond what tiles of MXFP4 hold.
  down.scales[3] = std::byte{130};
  dequantize(down.view, 1, 0, 64, down.values.data() + 64);
  p.args.activations = Activations::kAuto;
  for (int32_t& id : p.ids) id = 1;
  expect_model(p, OnDevice(device(), p).run(2), "large scale");
}

TEST_F(MoeCuda, ReadsGateAndUpWhoseRowsLieInTurn) {
  Problem& p = problem({3, 64, 40, 64, 2, 4}, {WeightFormat::kBf16}, kClamped, 10);
  p.args.activations = Activations::kAuto;
  const std::vector<float> expected = OnDevice(device(), p).run(4);
  std::vector<std::vector<std::byte>> memory;
  for (ExpertWeights& w : p.args.experts) {
    std::vector<std::byte>& both = memory.emplace_back();
    for (int64_t r = 0; r < w.gate.out; ++r) {
      both.insert(both.end(), w.gate.data + r * w.gate.row_bytes, w.gate.data + (r + 1) * w.gate.row_bytes);
      both.insert(both.end(), w.up.data + r * w.up.row_bytes, w.up.data + (r + 1) * w.up.row_bytes);
    }
    w.gate.data = both.data();
    w.up.data = both.data() + w.up.row_bytes;
    w.gate.row_bytes = w.up.row_bytes *= 2;
  }
  EXPECT_TRUE(same_floats(expected, OnDevice(device(), p).run(4)));
}

TEST_F(MoeCuda, MixesOfFormatsGiveTheBitsOfFp32Products) {
  Problem& p =
      problem({4, 64, 32, 64, 2, 3}, {WeightFormat::kBf16, WeightFormat::kMxfp4, WeightFormat::kF32}, kSwiGlu, 12);
  const std::vector<float> expected = OnDevice(device(), p).run(3);
  p.args.activations = Activations::kAuto;
  EXPECT_TRUE(same_floats(expected, OnDevice(device(), p).run(3)));
}

// In one launch, and with many rows or other sizes in two.
TEST_F(MoeCuda, WhatFollowsHasTheBitsOfOneAfterTheOther) {
  struct Case {
    int64_t rows, out;
    float beta;
    bool addend;
    Activations activations;
  };
  for (const Case& c : {Case{1, 516, 1, false, Activations::kAuto}, Case{5, 2304, 0.7f, true, Activations::kAuto},
                        Case{3, 1024, 1, true, Activations::kF32}, Case{100, 516, 1, true, Activations::kAuto},
                        Case{2, 96, 1, true, Activations::kAuto}}) {
    Problem& p = problem({4, 64, 64, c.out, 3, c.rows}, {WeightFormat::kBf16}, kSwiGlu, 17);
    p.args.activations = c.activations;
    std::mt19937 random(3);
    std::normal_distribution<float> value;
    const auto some = [&](int64_t n) {
      std::vector<float> values(static_cast<size_t>(n));
      for (float& v : values) v = value(random);
      return values;
    };
    const std::vector<float> stream_values = some(c.rows * c.out);
    const std::vector<float>& weight = weights_.emplace_back(some(c.out));
    DeviceBuffer<float> x(device(), p.x), weights(device(), p.weights), addend(device(), some(c.rows * c.out));
    DeviceBuffer<float> y(device(), c.rows * c.out), stream(device(), stream_values);
    DeviceBuffer<int32_t> ids(device(), p.ids);
    DeviceBuffer<uint16_t> normed(device(), (c.rows + 1) * c.out);
    MoeArgs args = p.args;
    args.x = x.data();
    args.weights = weights.data();
    args.ids = ids.data();
    args.addend = c.addend ? addend.data() : nullptr;
    args.addend_stride = c.out;
    args.y = y.data();
    args.y_stride = c.out;
    const SumNorm follows{.add = {.kind = c.beta == 1 ? ElementwiseKind::kAdd : ElementwiseKind::kAddScaled,
                                  .beta = c.beta,
                                  .size = c.out,
                                  .g = stream.data(),
                                  .g_stride = c.out,
                                  .u = y.data(),
                                  .u_stride = c.out,
                                  .y = stream.data(),
                                  .y_stride = c.out},
                          .norm = {.size = c.out,
                                   .eps = 1e-5f,
                                   .weight = weight.data(),
                                   .x = stream.data(),
                                   .x_stride = c.out,
                                   .y = normed.data(),
                                   .y_stride = c.out,
                                   .y_type = RowType::kBf16}};
    StepView step;
    step.rows = static_cast<int32_t>(c.rows);
    bind_moe(device(), "moe", args)->run(step);
    bind_add_norm(device(), "both", follows.add, follows.norm)->run(step);
    const std::vector<float> sum = stream.values();
    const std::vector<uint16_t> expected = normed.values();
    stream.set(stream_values);
    normed.poison();
    args.follows = follows;
    bind_moe(device(), "moe", args)->run(step);
    EXPECT_TRUE(same_floats(sum, stream.values())) << c.rows << " rows of " << c.out;
    EXPECT_EQ(expected, normed.values()) << c.rows << " rows of " << c.out;
  }
}

// Few pairs, a plan of its own, and many rows an expert.
TEST_F(MoeCuda, TakesRowsOfBf16AsTheyAre) {
  for (const int64_t rows : {3, 70, 140}) {
    Problem& p = problem({4, 128, 64, 64, 2, rows}, {WeightFormat::kBf16}, kSwiGlu, 14);
    p.args.activations = Activations::kAuto;
    const std::vector<float> expected = OnDevice(device(), p).run(rows);
    std::vector<uint16_t> x;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t k = 0; k < p.args.in; ++k) {
        x.push_back(f32_to_bf16(p.x[static_cast<size_t>(r * p.args.x_stride + k)]));
      }
    }
    const DeviceBuffer<uint16_t> bf16(device(), x);
    EXPECT_TRUE(same_floats(expected, OnDevice(device(), p, bf16.data()).run(rows))) << rows << " rows";
  }
}

TEST_F(MoeCuda, RefusesRowsOfBf16ThatItCannotRead) {
  const DeviceBuffer<uint16_t> bf16(device(), 4096);
  Problem& padded = problem({4, 96, 64, 64, 2, 3}, {WeightFormat::kBf16}, kSwiGlu, 15);
  padded.args.activations = Activations::kAuto;
  EXPECT_THROW(OnDevice(device(), padded, bf16.data()), Error);
  Problem& exact = problem({4, 128, 64, 64, 2, 3}, {WeightFormat::kBf16}, kSwiGlu, 16);
  exact.args.activations = Activations::kF32;
  EXPECT_THROW(OnDevice(device(), exact, bf16.data()), Error);
}

TEST_F(MoeCuda, BoundsBeyondTheStepWriteNothing) {
  for (const Activations activations : {Activations::kF32, Activations::kAuto}) {
    Problem& p = problem({4, 64, 64, 64, 2, 9}, {WeightFormat::kBf16}, kSwiGlu, 13);
    p.args.activations = activations;
    p.args.max_rows = 40;
    DeviceBuffer<float> x(device(), p.x), weights(device(), p.weights), y(device(), 40 * p.args.y_stride);
    DeviceBuffer<int32_t> ids(device(), p.ids);
    p.args.x = x.data();
    p.args.weights = weights.data();
    p.args.ids = ids.data();
    p.args.y = y.data();
    const auto op = bind_moe(device(), "moe", p.args);
    StepView step;
    step.rows = 9;
    op->run(step);
    const std::vector<float> expected = y.values();
    y.poison();
    device().stage(step);
    static_cast<CudaOp&>(*op).enqueue({.rows = 40});
    EXPECT_TRUE(same_floats(expected, y.values()));
  }
}

TEST_F(MoeCuda, ExpectsMoreExpertsOfMoreRows) {
  Problem& p = problem({32, 32, 32, 32, 2, 1}, {WeightFormat::kBf16}, kSwiGlu, 7);
  OnDevice moe(device(), p);
  const int64_t expert = 3 * 32 * 32 * 2;
  EXPECT_EQ(moe.op().cost(1, 0).weight_bytes, 2 * expert);
  EXPECT_EQ(moe.op().cost(10, 0).flops, 10 * 2 * 2.0 * 3 * 32 * 32);
}

}  // namespace
}  // namespace weir
