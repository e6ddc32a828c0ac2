// KDA layers on the GPU: the same bits however rows are grouped, and the error against FP64.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <ostream>
#include <random>

#include "base/error.h"
#include "ops/kda_layer/kda_layer_testing.h"

namespace weir::testing {
namespace {

constexpr int64_t kHeads = 2, kSequences = 2, kTokens = 70;
using Anchors = KdaWorld::Anchors;

struct Case {
  bool bounded;
  Gates gates;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  const char* gates[] = {"realistic", "hard", "slow"};
  return out << (c.bounded ? "bounded_" : "unbounded_") << gates[static_cast<int>(c.gates)];
}

class KdaLayerCuda : public CudaCaseWith<Case> {
 protected:
  std::unique_ptr<KdaWorld> world(int64_t rows_a_step, int64_t tokens = kTokens, int64_t workspace = int64_t{1} << 24) {
    auto world =
        std::make_unique<KdaWorld>(device(), GetParam().bounded, kHeads, kSequences, kTokens, rows_a_step, workspace);
    for (int64_t s = 0; s < kSequences; ++s) {
      world->sequence(s).rows =
          KdaSequenceRows(kHeads, tokens, GetParam().bounded, GetParam().gates, static_cast<uint64_t>(11 + s));
    }
    return world;
  }
};

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i]))
        << what << ": row " << i / (kHeads * kKdaHeadDim) << ", column " << i % (kHeads * kKdaHeadDim) << ": " << a[i]
        << " and " << b[i];
  }
}
void expect_same_state(KdaWorld& a, KdaWorld& b) {
  EXPECT_TRUE(a.pages().values() == b.pages().values()) << "journal pages differ";
  EXPECT_TRUE(a.anchors().values() == b.anchors().values()) << "anchors differ";
  for (int64_t s = 0; s < kSequences; ++s) expect_same_bits(a.sequence(s).out, b.sequence(s).out, "out");
}

// The rule in double precision, without chunks or rounding.
struct Exact {
  std::vector<double> out, state;  // [row][head][128]; [head][128][128] after the last row
};
Exact exact(const KdaSequenceRows& rows, const KdaWeights& w, bool bounded, int64_t count) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  constexpr int64_t n = kKdaHeadDim;
  Exact exact;
  exact.out.resize(static_cast<size_t>(count * kHeads * n));
  exact.state.resize(static_cast<size_t>(kHeads * n * n));
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t h = 0; h < kHeads; ++h) {
      double* s = &exact.state[static_cast<size_t>(h * n * n)];
      double x[3][n], norm[2] = {1e-6, 1e-6};
      const std::vector<float>* inputs[] = {&rows.q, &rows.k, &rows.v};
      for (int which = 0; which < 3; ++which) {
        for (int64_t d = 0; d < n; ++d) {
          double sum = 0;
          for (int64_t tap = 0; tap < 4; ++tap) {
            const int64_t from = t - 3 + tap;
            if (from < 0) continue;
            sum += double{w.conv[which][static_cast<size_t>((h * n + d) * 4 + tap)]} *
                   (*inputs[which])[static_cast<size_t>((from * kHeads + h) * n + d)];
          }
          x[which][d] = sum * sigmoid(sum);
          if (which < 2) norm[which] += x[which][d] * x[which][d];
        }
      }
      const size_t at = static_cast<size_t>((t * kHeads + h) * n);
      const double a = w.a[static_cast<size_t>(h)], beta = sigmoid(rows.beta[static_cast<size_t>(t * kHeads + h)]);
      double update[n], o[n] = {}, squares = 0;
      for (int64_t v = 0; v < n; ++v) update[v] = x[2][v];
      for (int64_t d = 0; d < n; ++d) {
        const double z = double{rows.f[at + static_cast<size_t>(d)]} + w.dt_bias[static_cast<size_t>(h * n + d)];
        const double decay = std::exp(bounded ? -5 * sigmoid(a * z) : -a * (z > 30 ? z : std::log1p(std::exp(z))));
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
        const size_t i = at + static_cast<size_t>(v);
        exact.out[i] = o[v] * factor * w.norm[static_cast<size_t>(v)] * sigmoid(rows.gate[i]);
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

TEST_P(KdaLayerCuda, IsTheRecurrenceUpToBf16Rounding) {
  const auto found = world(kSequences * kTokens);
  found->step({kTokens, kTokens});
  for (int64_t s = 0; s < kSequences; ++s) {
    const KdaSequenceRows& rows = found->sequence(s).rows;
    const Exact expected = exact(rows, found->weights(), GetParam().bounded, kTokens);
    const double error = relative_error(found->sequence(s).out, expected.out);
    // Most of it: v, u, A and the result in BF16, 2^-9 each at most.
    EXPECT_LT(error, 8e-3);
    EXPECT_GT(error, 0);
    const Exact at64 = exact(rows, found->weights(), GetParam().bounded, 64);
    std::vector<float> state;
    for (int64_t h = 0; h < kHeads; ++h) {
      const std::vector<float> head = found->state(s, 64, h);
      state.insert(state.end(), head.begin(), head.end());
    }
    const double state_error = relative_error(state, at64.state);
    EXPECT_LT(state_error, 6e-3);
    std::printf("relative error: out %.2e, state %.2e\n", error, state_error);
  }
}

TEST_P(KdaLayerCuda, RowsOneByOneEqualTheWholeSpan) {
  const auto whole = world(kSequences * kTokens), single = world(kSequences);
  whole->step({kTokens, kTokens});
  for (int64_t t = 0; t < kTokens; ++t) single->step({1, 1});
  expect_same_state(*whole, *single);
}

TEST_P(KdaLayerCuda, SpansThatBeginAndEndAnywhereEqualTheWholeSpan) {
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

TEST_P(KdaLayerCuda, SeveralLaunchesForALongStepEqualOne) {
  const auto whole = world(kSequences * kTokens), pieces = world(kSequences * kTokens, kTokens, 100'000);  // 2 chunks
  for (KdaWorld* w : {whole.get(), pieces.get()}) {
    w->step({3, 1});
    w->step({kTokens - 3, kTokens - 1});
  }
  expect_same_state(*whole, *pieces);
}

// Pages that nobody reads again and anchors that nobody wants are left out.
TEST_P(KdaLayerCuda, WithoutInnerPagesAndAnchorsItGoesOnTheSame) {
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
TEST_P(KdaLayerCuda, BoundsBeyondTheStepChangeNothing) {
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

// More spans than a warp has lanes, of one row and of several.
TEST_P(KdaLayerCuda, ManySpansEqualEachAlone) {
  constexpr int64_t kMany = 37, kRows = 5;
  KdaWorld together(device(), GetParam().bounded, kHeads, kMany, kRows, kMany * kRows),
      alone(device(), GetParam().bounded, kHeads, kMany, kRows, kRows);
  std::vector<int64_t> counts;
  for (int64_t s = 0; s < kMany; ++s) {
    counts.push_back(s % 3 == 0 ? 1 : 1 + s % kRows);
    for (KdaWorld* w : {&together, &alone}) {
      w->sequence(s).rows =
          KdaSequenceRows(kHeads, kRows, GetParam().bounded, GetParam().gates, static_cast<uint64_t>(s));
    }
  }
  together.step(counts);
  for (int64_t s = 0; s < kMany; ++s) {
    std::vector<int64_t> one(static_cast<size_t>(kMany), 0);
    one[static_cast<size_t>(s)] = counts[static_cast<size_t>(s)];
    alone.step(one);
    expect_same_bits(together.sequence(s).out, alone.sequence(s).out, "out");
  }
  EXPECT_TRUE(together.pages().values() == alone.pages().values()) << "journal pages differ";
}

// So many spans that launches take turns over the heads.
TEST_P(KdaLayerCuda, ManySpansInSeveralLaunchesEqualOne) {
  constexpr int64_t kMany = 140, kRows = 3, kWorkspace = 320 * 14'000;  // as many chunks of a head as may be
  KdaWorld whole(device(), GetParam().bounded, kHeads, kMany, kRows, kMany * kRows),
      pieces(device(), GetParam().bounded, kHeads, kMany, kRows, kMany * kRows, kWorkspace);
  for (KdaWorld* w : {&whole, &pieces}) {
    for (int64_t s = 0; s < kMany; ++s) {
      w->sequence(s).rows =
          KdaSequenceRows(kHeads, kRows, GetParam().bounded, GetParam().gates, static_cast<uint64_t>(s));
    }
    w->step(std::vector<int64_t>(static_cast<size_t>(kMany), kRows));
  }
  for (int64_t s = 0; s < kMany; ++s) {
    expect_same_bits(whole.sequence(s).out, pieces.sequence(s).out, "out");
  }
  EXPECT_TRUE(whole.pages().values() == pieces.pages().values()) << "journal pages differ";
}

using KdaLayerCudaArguments = CudaCase;

TEST_F(KdaLayerCudaArguments, WhatDoesNotFitIsRefused) {
  const std::vector<float> host(2 * kKdaHeadDim * kKdaTaps, 1.f);
  DeviceBuffer<uint16_t> rows(device(), 2 * 2 * kKdaHeadDim);
  DeviceBuffer<float> beta(device(), 2 * 2);
  const KdaRows buffer{rows.data(), 2 * kKdaHeadDim};
  const KdaLayerArgs good{.heads = 2,
                          .q_conv = host.data(),
                          .k_conv = host.data(),
                          .v_conv = host.data(),
                          .a = host.data(),
                          .dt_bias = host.data(),
                          .norm_weight = host.data(),
                          .journal = {.row_bytes = kda_layer_journal_row_bytes(2)},
                          .state = {.bytes = kda_layer_anchor_bytes(2)},
                          .q = buffer,
                          .k = buffer,
                          .v = buffer,
                          .f = buffer,
                          .gate = buffer,
                          .beta_logit = beta.data(),
                          .beta_logit_stride = 2,
                          .out = rows.data(),
                          .out_stride = 2 * kKdaHeadDim};
  EXPECT_NO_THROW(bind_kda_layer(device(), "op", good));
  const auto refuses = [&](void (*change)(KdaLayerArgs&), const char* words) {
    KdaLayerArgs args = good;
    change(args);
    try {
      bind_kda_layer(device(), "op", args);
      ADD_FAILURE() << "accepted: " << words;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    }
  };
  refuses([](KdaLayerArgs& a) { a.heads = 0; }, "at least one head, found 0");
  refuses([](KdaLayerArgs& a) { a.lower_bound = -6; }, "in [-5, 0), found -6");
  refuses([](KdaLayerArgs& a) { a.journal.row_bytes += 4; }, "journal rows of");
  refuses([](KdaLayerArgs& a) { a.state.bytes -= 1; }, "bytes of state in an anchor");
  refuses([](KdaLayerArgs& a) { a.dt_bias = nullptr; }, "a weight is missing");
  refuses([](KdaLayerArgs& a) { a.gate.data = nullptr; }, "no buffer for gate");
  refuses([](KdaLayerArgs& a) { a.k.stride = 260; },
          "rows of k at least 256 numbers apart and a multiple of 8, found 260");
  refuses([](KdaLayerArgs& a) { a.out_stride = 128; }, "rows of out");
}

INSTANTIATE_TEST_SUITE_P(Gates, KdaLayerCuda,
                         ::testing::Values(Case{true, Gates::kRealistic}, Case{true, Gates::kHard},
                                           Case{true, Gates::kSlow}, Case{false, Gates::kRealistic},
                                           Case{false, Gates::kHard}, Case{false, Gates::kSlow}),
                         [](const auto& param) { return ::testing::PrintToString(param.param); });

}  // namespace
}  // namespace weir::testing
