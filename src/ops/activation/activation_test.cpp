#include "ops/activation/activation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "ops/simd/kernel_test.h"
#include "ops/simd/published_vectors.h"

namespace weir {
namespace {

constexpr ElementwiseKind kKinds[] = {
    ElementwiseKind::kSwiGlu,  ElementwiseKind::kSitu,      ElementwiseKind::kGeGlu, ElementwiseKind::kClampedSwiGlu,
    ElementwiseKind::kAdd,     ElementwiseKind::kAddScaled, ElementwiseKind::kGate,  ElementwiseKind::kGateRow,
    ElementwiseKind::kSoftCap, ElementwiseKind::kCopy};

std::vector<float> apply(KernelSet set, ElementwiseKind kind, float beta, float linear_beta,
                         const std::vector<float>& g, const std::vector<float>& u) {
  std::vector<float> y(g.size() + 1, -7.f);
  elementwise_kernel(set)(kind, beta, linear_beta, g.data(), is_unary(kind) ? nullptr : u.data(), y.data(),
                          static_cast<int64_t>(g.size()));
  EXPECT_EQ(y.back(), -7.f) << "written beyond the end";
  y.pop_back();
  return y;
}

class ElementwiseKernels : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(, ElementwiseKernels, kVectorSets, kernel_set_test_name);

TEST_P(ElementwiseKernels, EqualTheReferenceBitForBit) {
  RandomFloats random(1);
  for (const ElementwiseKind kind : kKinds) {
    for (const int64_t n : {0, 1, 7, 16, 31, 33, 5000}) {
      for (const Values values : {Values::kPlain, Values::kWide, Values::kSpecial}) {
        for (const float linear_beta : {0.f, 25.f}) {
          const std::vector<float> g = random.take(n, values), u = random.take(n, values);
          EXPECT_TRUE(same_floats(apply(KernelSet::kReference, kind, 4.f, linear_beta, g, u),
                                  apply(GetParam(), kind, 4.f, linear_beta, g, u)))
              << "kind " << static_cast<int>(kind) << " n " << n;
        }
      }
    }
  }
}

TEST_P(ElementwiseKernels, MayWriteOverEitherInput) {
  RandomFloats random(2);
  const std::vector<float> g = random.take(45), u = random.take(45);
  for (const ElementwiseKind kind : kKinds) {
    const std::vector<float> apart = apply(GetParam(), kind, 4.f, 25.f, g, u);
    std::vector<float> over_g = g, over_u = u;
    elementwise_kernel(GetParam())(kind, 4.f, 25.f, over_g.data(), u.data(), over_g.data(), 45);
    elementwise_kernel(GetParam())(kind, 4.f, 25.f, g.data(), over_u.data(), over_u.data(), 45);
    EXPECT_TRUE(same_floats(apart, over_g));
    EXPECT_TRUE(same_floats(apart, over_u));
  }
}

TEST_P(ElementwiseKernels, GiveABatchTheBitsOfItsRowsWithAnyNumberOfThreads) {
  RandomFloats random(3);
  for (const ElementwiseKind kind : kKinds) {
    for (const int64_t rows : {0, 1, 3, 150}) {
      for (const int64_t size : {5, 70, 40000}) {
        if (rows * size > 200000) continue;
        const int64_t stride = size + 2;
        const std::vector<float> g = random.take((rows + 1) * stride), u = random.take((rows + 1) * stride);
        std::vector<float> alone(g.size(), -7.f);
        for (int64_t r = 0; r < rows; ++r) {
          elementwise_kernel(GetParam())(kind, 4.f, 25.f, g.data() + r * stride, u.data() + r * stride,
                                         alone.data() + r * stride, size);
        }
        for (const int threads : {1, 2}) {
          CpuDevice device(threads, GetParam());
          std::vector<float> y(g.size(), -7.f);
          StepView step;
          step.rows = static_cast<int32_t>(rows);
          bind_elementwise(device, "op",
                           {.kind = kind,
                            .beta = 4.f,
                            .linear_beta = 25.f,
                            .size = size,
                            .g = g.data(),
                            .g_stride = stride,
                            .u = u.data(),
                            .u_stride = stride,
                            .y = y.data(),
                            .y_stride = stride})
              ->run(step);
          EXPECT_TRUE(same_floats(alone, y)) << "rows " << rows << " size " << size << " threads " << threads;
        }
      }
    }
  }
}

TEST(ElementwiseReference, MatchesThePublishedSituVectors) {
  const boost::json::object situ = published_vectors("ops.json").at("situ").as_object();
  const std::vector<float> g = floats(situ.at("gate")), u = floats(situ.at("up"));
  const auto check = [&](const char* key, float beta, float linear_beta) {
    const std::vector<float> expected = floats(situ.at(key));
    const std::vector<float> found = apply(KernelSet::kReference, ElementwiseKind::kSitu, beta, linear_beta, g, u);
    ASSERT_EQ(expected.size(), found.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(expected[i], found[i], 1e-6 * std::fabs(expected[i]) + 2e-44) << key << " " << i;
    }
  };
  check("beta4_linear25", 4, 25);
  check("beta4_linear_null", 4, 0);
  check("beta_null_linear25", 1, 25);
}

TEST(ElementwiseReference, SwiGluAndGateMatchTheirFormulas) {
  RandomFloats random(5);
  const std::vector<float> g = random.take(200), u = random.take(200);
  const std::vector<float> swiglu = apply(KernelSet::kReference, ElementwiseKind::kSwiGlu, 1, 0, g, u);
  const std::vector<float> gate = apply(KernelSet::kReference, ElementwiseKind::kGate, 1, 0, g, u);
  const std::vector<float> gate_row = apply(KernelSet::kReference, ElementwiseKind::kGateRow, 1, 0, g, {u[7]});
  for (size_t i = 0; i < g.size(); ++i) {
    EXPECT_NEAR(gate_row[i], double{g[i]} / (1 + std::exp(-double{u[7]})), 1e-6);
    const double x = g[i], y = u[i];
    EXPECT_NEAR(swiglu[i], x / (1 + std::exp(-x)) * y, 1e-6);
    EXPECT_NEAR(gate[i], x / (1 + std::exp(-y)), 1e-6);
  }
}

TEST(ElementwiseReference, ClampedSwiGluMatchesItsFormulaOnBothSidesOfItsLimit) {
  RandomFloats random(7);
  std::vector<float> g = random.take(400), u = random.take(400);
  for (float& x : g) x *= 6;
  for (float& x : u) x *= 6;
  const std::vector<float> y = apply(KernelSet::kReference, ElementwiseKind::kClampedSwiGlu, 1.702f, 7, g, u);
  int clamped = 0;
  for (size_t i = 0; i < g.size(); ++i) {
    const double gate = std::min<double>(g[i], 7), up = std::clamp<double>(u[i], -7, 7);
    clamped += g[i] > 7 || std::fabs(u[i]) > 7;
    EXPECT_NEAR(y[i], (up + 1) * gate / (1 + std::exp(-1.702 * gate)), 1e-5) << g[i] << " " << u[i];
  }
  EXPECT_GT(clamped, 20);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(apply(KernelSet::kReference, ElementwiseKind::kClampedSwiGlu, 1.702f, 7, {nan}, {1})[0]));
  EXPECT_TRUE(std::isnan(apply(KernelSet::kReference, ElementwiseKind::kClampedSwiGlu, 1.702f, 7, {1}, {nan})[0]));
}

TEST(ElementwiseReference, GeGluSoftCapAndScaledSumsMatchTheirFormulas) {
  RandomFloats random(6);
  std::vector<float> g = random.take(200);
  const std::vector<float> u = random.take(200);
  for (float& x : g) x *= 4;
  const std::vector<float> geglu = apply(KernelSet::kReference, ElementwiseKind::kGeGlu, 1, 0, g, u);
  const std::vector<float> capped = apply(KernelSet::kReference, ElementwiseKind::kSoftCap, 3, 0, g, u);
  const std::vector<float> scaled = apply(KernelSet::kReference, ElementwiseKind::kAddScaled, 0.7f, 0, g, u);
  for (size_t i = 0; i < g.size(); ++i) {
    const double x = g[i], y = u[i];
    const double gelu = 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    EXPECT_NEAR(geglu[i], gelu * y, 2e-6) << x;
    EXPECT_NEAR(capped[i], 3 * std::tanh(x / 3), 1e-6) << x;
    EXPECT_EQ(scaled[i], (g[i] + u[i]) * 0.7f);
  }
}

TEST(ElementwiseReference, SituStaysWithinItsBounds) {
  const float huge = std::numeric_limits<float>::max();
  for (const float g : {huge, 1e10f, 100.f}) {
    const std::vector<float> y = apply(KernelSet::kReference, ElementwiseKind::kSitu, 4, 25, {g, g}, {huge, -huge});
    EXPECT_EQ(y[0], 100.f);
    EXPECT_EQ(y[1], -100.f);
  }
}

TEST(ElementwiseOp, RefusesMissingInputsAndShortStrides) {
  CpuDevice device(1, KernelSet::kReference);
  std::vector<float> v(8);
  const ElementwiseArgs good{.kind = ElementwiseKind::kSitu,
                             .beta = 4,
                             .linear_beta = 25,
                             .size = 8,
                             .g = v.data(),
                             .g_stride = 8,
                             .u = v.data(),
                             .u_stride = 8,
                             .y = v.data(),
                             .y_stride = 8};
  EXPECT_NO_THROW(bind_elementwise(device, "op", good));
  const auto refused = [&](auto change) {
    ElementwiseArgs args = good;
    change(args);
    EXPECT_THROW(bind_elementwise(device, "op", args), Error);
  };
  refused([](ElementwiseArgs& a) { a.u = nullptr; });
  refused([](ElementwiseArgs& a) { a.y_stride = 7; });
  refused([](ElementwiseArgs& a) { a.beta = 0; });
  refused([](ElementwiseArgs& a) { a.size = 0; });
  refused([](ElementwiseArgs& a) {
    a.kind = ElementwiseKind::kSoftCap;
    a.beta = 0;
  });
}

}  // namespace
}  // namespace weir
