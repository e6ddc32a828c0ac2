// GDN layers on the GPU: the same bits however rows are grouped, and the error against FP64.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <ostream>
#include <random>

#include "ops/gdn_layer/gdn_layer_testing.h"

namespace weir::testing {
namespace {

constexpr int64_t kSequences = 2, kTokens = 70;
using Anchors = GdnWorld::Anchors;

struct Case {
  GdnShape shape;
  Gates gates;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  const char* gates[] = {"realistic", "hard", "slow"};
  return out << c.shape.heads << "x" << c.shape.key_heads << (c.shape.order == KeyHeadOrder::kTiled ? "_tiled_" : "_")
             << gates[static_cast<int>(c.gates)];
}

class GdnLayerCuda : public CudaCaseWith<Case> {
 protected:
  std::unique_ptr<GdnWorld> world(int64_t rows_a_step, int64_t tokens = kTokens, int64_t workspace = int64_t{1} << 24) {
    auto world = std::make_unique<GdnWorld>(device(), GetParam().shape, kSequences, kTokens, rows_a_step, workspace);
    for (int64_t s = 0; s < kSequences; ++s) {
      world->sequence(s).rows =
          GdnSequenceRows(GetParam().shape, tokens, GetParam().gates, static_cast<uint64_t>(11 + s));
    }
    return world;
  }
};

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i]))
        << what << " at " << i << ": " << a[i] << " and " << b[i];
  }
}
void expect_same_state(GdnWorld& a, GdnWorld& b) {
  EXPECT_TRUE(a.pages().values() == b.pages().values()) << "journal pages differ";
  EXPECT_TRUE(a.anchors().values() == b.anchors().values()) << "anchors differ";
  for (int64_t s = 0; s < kSequences; ++s) expect_same_bits(a.sequence(s).out, b.sequence(s).out, "out");
}

// The rule in double precision, without chunks or rounding.
struct Exact {
  std::vector<double> out, state;  // [row][head][128]; [head][128][128] after the last row
};
Exact exact(const GdnSequenceRows& rows, const GdnWeights& w, const GdnShape& shape, int64_t count) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  constexpr int64_t n = kGdnHeadDim;
  Exact exact;
  exact.out.resize(static_cast<size_t>(count * shape.heads * n));
  exact.state.resize(static_cast<size_t>(shape.heads * n * n));
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      double* s = &exact.state[static_cast<size_t>(h * n * n)];
      double x[3][n], norm[2] = {1e-6, 1e-6};
      const int64_t key = shape.key_head(h) * n;
      const int64_t channels[] = {key, shape.keys() + key, 2 * shape.keys() + h * n};
      for (int which = 0; which < 3; ++which) {
        for (int64_t d = 0; d < n; ++d) {
          double sum = 0;
          const int64_t channel = channels[which] + d;
          for (int64_t tap = 0; tap < 4; ++tap) {
            const int64_t from = t - 3 + tap;
            if (from < 0) continue;
            sum += double{w.conv[static_cast<size_t>(channel * 4 + tap)]} *
                   rows.qkv[static_cast<size_t>(from * shape.channels() + channel)];
          }
          x[which][d] = sum * sigmoid(sum);
          if (which < 2) norm[which] += x[which][d] * x[which][d];
        }
      }
      const size_t number = static_cast<size_t>(t * shape.heads + h);
      const double z = double{rows.a[number]} + w.dt_bias[static_cast<size_t>(h)], beta = sigmoid(rows.beta[number]);
      const double decay = std::exp(-double{w.a[static_cast<size_t>(h)]} * (z > 30 ? z : std::log1p(std::exp(z))));
      double update[n], o[n] = {}, squares = 0;
      for (int64_t v = 0; v < n; ++v) update[v] = x[2][v];
      for (int64_t d = 0; d < n; ++d) {
        x[0][d] /= std::sqrt(norm[0] * n);
        x[1][d] /= std::sqrt(norm[1]);
        for (int64_t v = 0; v < n; ++v) update[v] -= x[1][d] * (s[d * n + v] *= decay);
      }
      for (int64_t d = 0; d < n; ++d) {
        for (int64_t v = 0; v < n; ++v) o[v] += x[0][d] * (s[d * n + v] += beta * x[1][d] * update[v]);
      }
      for (double y : o) squares += y * y;
      const double factor = 1 / std::sqrt(squares / n + 1e-5);
      for (int64_t v = 0; v < n; ++v) {
        const size_t i = number * n + static_cast<size_t>(v);
        exact.out[i] = o[v] * factor * w.norm[static_cast<size_t>(v)] * (rows.gate[i] * sigmoid(double{rows.gate[i]}));
      }
    }
  }
  return exact;
}

double relative_error(const std::vector<float>& found, const std::vector<double>& expected) {
  double error = 0, size = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double difference = found[i] - expected[i];
    error += difference * difference;
    size += expected[i] * expected[i];
  }
  return std::sqrt(error / size);
}

TEST_P(GdnLayerCuda, IsTheRecurrenceUpToBf16Rounding) {
  const auto found = world(kSequences * kTokens);
  found->step({kTokens, kTokens});
  for (int64_t s = 0; s < kSequences; ++s) {
    const GdnSequenceRows& rows = found->sequence(s).rows;
    const Exact expected = exact(rows, found->weights(), GetParam().shape, kTokens);
    const double error = relative_error(found->sequence(s).out, expected.out);
    // Most of it: v, u and A in BF16, 2^-9 each at most.
    EXPECT_LT(error, 8e-3);
    EXPECT_GT(error, 0);
    const Exact at64 = exact(rows, found->weights(), GetParam().shape, 64);
    std::vector<float> state;
    for (int64_t h = 0; h < GetParam().shape.heads; ++h) {
      const std::vector<float> head = found->state(s, 64, h);
      state.insert(state.end(), head.begin(), head.end());
    }
    const double state_error = relative_error(state, at64.state);
    EXPECT_LT(state_error, 6e-3);
    std::printf("relative error: out %.2e, state %.2e\n", error, state_error);
  }
}

TEST_P(GdnLayerCuda, RowsOneByOneEqualTheWholeSpan) {
  const auto whole = world(kSequences * kTokens), single = world(kSequences);
  whole->step({kTokens, kTokens});
  for (int64_t t = 0; t < kTokens; ++t) single->step({1, 1});
  expect_same_state(*whole, *single);
}

TEST_P(GdnLayerCuda, SpansThatBeginAndEndAnywhereEqualTheWholeSpan) {
  const auto whole = world(kSequences * kTokens), pieces = world(kSequences * kTokens);
  whole->step({kTokens, kTokens});
  std::mt19937 random(5);
  for (bool any = true; any;) {
    any = false;
    std::vector<int64_t> counts;
    for (int64_t s = 0; s < kSequences; ++s) {
      const int64_t left = kTokens - pieces->sequence(s).position;
      const int64_t wanted = random() % 3 == 0 ? 1 : static_cast<int64_t>(random() % 24);
      counts.push_back(std::min(left, wanted));
      any = any || left > 0;
    }
    if (counts[0] + counts[1] > 0) pieces->step(counts);
  }
  expect_same_state(*whole, *pieces);
}

TEST_P(GdnLayerCuda, SeveralLaunchesForALongStepEqualOne) {
  const auto whole = world(kSequences * kTokens), pieces = world(kSequences * kTokens, kTokens, 100'000);  // 2 chunks
  for (GdnWorld* w : {whole.get(), pieces.get()}) {
    w->step({3, 1});
    w->step({kTokens - 3, kTokens - 1});
  }
  expect_same_state(*whole, *pieces);
}

// Pages that nobody reads again and anchors that nobody wants are left out.
TEST_P(GdnLayerCuda, WithoutInnerPagesAndAnchorsItGoesOnTheSame) {
  const auto all = world(kSequences * kTokens), least = world(kSequences * kTokens);
  for (const int64_t count : {5, 43, 1, 9, 12}) {
    all->step({count, count});
    least->step({count, count}, Anchors::kLast, true);
  }
  for (int64_t s = 0; s < kSequences; ++s) {
    expect_same_bits(all->sequence(s).out, least->sequence(s).out, "out");
    EXPECT_TRUE(all->anchor(s, 64) == least->anchor(s, 64));
    EXPECT_TRUE(all->page(s, kTokens / 16) == least->page(s, kTokens / 16));
    EXPECT_TRUE(least->page(s, 1) == std::vector<std::byte>(least->page(s, 1).size(), std::byte{0xff}));
    EXPECT_TRUE(least->anchor(s, 16) == std::vector<std::byte>(least->anchor(s, 16).size(), std::byte{0xff}));
  }
}

// A graph recorded for more rows and spans serves a smaller step, and writes nothing beyond it.
TEST_P(GdnLayerCuda, BoundsBeyondTheStepChangeNothing) {
  const auto exact = world(40), loose = world(40);
  for (const std::vector<int64_t>& counts : {std::vector<int64_t>{18, 0}, {1, 1}, {0, 7}, {2, 1}}) {
    exact->step(counts);
    const StepView& view = loose->stage(counts, Anchors::kAll, false);
    device().stage(view);
    StepBounds bounds = CudaDevice::bounds_of(view);
    bounds.rows += 20;
    bounds.spans += 5;
    loose->op().enqueue(bounds);
    const std::vector<uint16_t> out = loose->out();
    for (size_t i = static_cast<size_t>(view.rows * loose->out_stride()); i < out.size(); ++i) {
      ASSERT_EQ(out[i], 0xffffu);
    }
    loose->advance(counts);
  }
  expect_same_state(*exact, *loose);
}

INSTANTIATE_TEST_SUITE_P(Shapes, GdnLayerCuda,
                         ::testing::Values(Case{{2, 1}, Gates::kRealistic}, Case{{2, 1}, Gates::kHard},
                                           Case{{2, 1}, Gates::kSlow}, Case{{2, 2}, Gates::kRealistic},
                                           Case{{4, 2}, Gates::kRealistic},
                                           Case{{4, 2, KeyHeadOrder::kTiled}, Gates::kRealistic}),
                         [](const auto& param) { return ::testing::PrintToString(param.param); });

}  // namespace
}  // namespace weir::testing
