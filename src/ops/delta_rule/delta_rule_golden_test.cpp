// The reference against the recurrence in double and against published numbers.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <sstream>

#include "ops/delta_rule/delta_rule_testing.h"

namespace weir::test {
namespace {

// S <- Diag(e^g) S;  u = beta (v - S^T k);  S <- S + k u^T;  out = S^T q, in double. One head.
struct Recurrence {
  int64_t keys, values;
  std::vector<double> state;
  std::vector<double> u;
  std::vector<double> out;

  Recurrence(const Shape& shape, std::vector<double> initial)
      : keys(shape.key_dim),
        values(shape.value_dim),
        state(std::move(initial)),
        u(static_cast<size_t>(values)),
        out(u) {
    state.resize(static_cast<size_t>(keys * values));
  }
  double& at(int64_t c, int64_t v) { return state[static_cast<size_t>(c * values + v)]; }
  void step(const float* q, const float* k, const float* v, const float* g, double beta) {
    for (int64_t n = 0; n < values; ++n) {
      double predicted = 0;
      for (int64_t c = 0; c < keys; ++c) predicted += (at(c, n) *= std::exp(double{g[c]})) * k[c];
      const double corrected = beta * (v[n] - predicted);
      double o = 0;
      for (int64_t c = 0; c < keys; ++c) o += (at(c, n) += k[c] * corrected) * q[c];
      u[static_cast<size_t>(n)] = corrected;
      out[static_cast<size_t>(n)] = o;
    }
  }
};

TEST(DeltaRuleReference, FollowsTheRecurrenceInDouble) {
  CpuDevice device(1, KernelSet::kReference);
  for (DecayKind decay : {DecayKind::kBounded, DecayKind::kUnbounded}) {
    for (Gates gates : {Gates::kMild, Gates::kHard, Gates::kZero, Gates::kMixed}) {
      const Shape shape{decay, 1, 40, 24};
      const Rows rows = random_rows(shape, 200, gates, 7);
      World world(device, shape, 1, 200, 200);
      world.sequence(0).rows = rows;
      world.step({200}, Anchors::kAll);
      Recurrence recurrence(shape, {});
      double largest = 0;
      for (int64_t r = 0; r < 200; ++r) {
        if (r == 192) {
          for (int64_t i = 0; i < world.anchor_floats(); ++i) {
            largest = std::max(largest, std::abs(world.anchor(0, 192)[i] - recurrence.state[static_cast<size_t>(i)]));
          }
        }
        recurrence.step(&rows.q[r * 40], &rows.k[r * 40], &rows.v[r * 24], &rows.g[r * 40], rows.beta[r]);
        for (int64_t v = 0; v < 24; ++v) {
          largest = std::max(largest, std::abs(world.sequence(0).out[r * 24 + v] - recurrence.out[v]));
        }
      }
      // Values and states are of order 1. e^(G_i) e^(-G_j) has a relative error of about |G| epsilon, 80 x 6e-8 at the
      // bound; a state that never decays keeps the rounding of 200 updates.
      EXPECT_LT(largest, 1e-5) << static_cast<int>(decay) << static_cast<int>(gates);
    }
  }
}

TEST(DeltaRuleReference, GivesThePublishedThreeTokenExample) {
  const float h = 0.70710678f;
  Rows rows;
  rows.count = 3;
  rows.q = {h, 0, .6f * h, .8f * h, 0, h};
  rows.k = {1, 0, .8f, .6f, 0, -1};
  rows.v = {1, 2, 3, -1, .5f, .5f};
  rows.g = {-.1f, -1, -2, -.05f, -.5f, -.5f};
  rows.beta = {.5f, .9f, .25f};
  const float u[] = {0.5f, 1.0f, 2.6512793f, -0.9974414f, 0.3662123f, 0.0342532f};
  const float o[] = {0.3535534f, 0.7071068f, 1.8284570f, -0.6196678f, 0.4233003f, -0.2808914f};
  for (DecayKind decay : {DecayKind::kBounded, DecayKind::kUnbounded}) {
    CpuDevice device(1, KernelSet::kReference);
    World world(device, {decay, 1, 2, 2}, 1, 3, 3);
    world.sequence(0).rows = rows;
    world.step({3}, Anchors::kLast);
    const float* journal = reinterpret_cast<const float*>(world.page(0, 0) + 64);  // rows of [k' 2 | G 2 | u 2]
    for (int i = 0; i < 6; ++i) {
      EXPECT_NEAR(world.sequence(0).out[static_cast<size_t>(i)], o[i], 2e-7) << i;
      EXPECT_NEAR(journal[i / 2 * 6 + 4 + i % 2], u[i], 4e-7) << i;
    }
  }
}

std::vector<float> numbers(const boost::json::value& value) {
  std::vector<float> out;
  if (value.is_array()) {
    for (const boost::json::value& item : value.as_array()) {
      const std::vector<float> inner = numbers(item);
      out.insert(out.end(), inner.begin(), inner.end());
    }
  } else {
    out.push_back(value.to_number<float>());
  }
  return out;
}

TEST(DeltaRuleReference, GivesTheUnitVectorsOfKimiK3) {
  std::ifstream file(WEIR_FIXTURES "/kimi_k3/unit/kda.json");
  std::stringstream text;
  text << file.rdbuf();
  const boost::json::value golden = boost::json::parse(text.str());
  int cases = 0;
  for (const boost::json::value& entry : golden.at("cases").as_array()) {
    const auto& array = [&](const char* key) -> const boost::json::array& { return entry.at(key).as_array(); };
    for (DecayKind decay : {DecayKind::kBounded, DecayKind::kUnbounded}) {
      const Shape shape{decay, 1, static_cast<int64_t>(array("S0").size()),
                        static_cast<int64_t>(array("S0")[0].as_array().size())};
      const int64_t count = static_cast<int64_t>(array("q").size());
      const int64_t padded = (count + 15) / 16 * 16;
      // The entry state is an anchor at 16. Rows that leave the state alone (g = 0, k = 0, beta = 0) fill the last
      // chunk, so that the final state becomes an anchor too.
      Rows rows{numbers(entry.at("q")), numbers(entry.at("k")),    numbers(entry.at("v")),
                numbers(entry.at("g")), numbers(entry.at("beta")), 16 + padded + 1};
      for (auto [values, width] :
           {std::pair{&rows.q, shape.key_dim}, std::pair{&rows.k, shape.key_dim}, std::pair{&rows.v, shape.value_dim},
            std::pair{&rows.g, shape.key_dim}, std::pair{&rows.beta, int64_t{1}}}) {
        values->insert(values->begin(), static_cast<size_t>(16 * width), 0.f);
        values->resize(static_cast<size_t>(rows.count * width));
      }
      CpuDevice device(1, KernelSet::kReference);
      World world(device, shape, 1, rows.count, rows.count);
      World::Sequence& sequence = world.sequence(0);
      sequence.rows = rows;
      sequence.position = sequence.anchor_position = 16;
      sequence.anchor = world.slot(0, 16);
      const std::vector<float> initial = numbers(entry.at("S0")), final_state = numbers(entry.at("S")),
                               o = numbers(entry.at("o"));
      std::copy(initial.begin(), initial.end(), world.anchor(0, 16));
      world.step({padded + 1}, Anchors::kAll);
      // Numbers of order 1 in double, rounded to FP32; inputs rounded to FP32; at most 70 rows.
      for (size_t i = 0; i < o.size(); ++i) EXPECT_NEAR(sequence.out[i], o[i], 4e-6) << entry.at("name") << i;
      for (size_t i = 0; i < final_state.size(); ++i) {
        EXPECT_NEAR(world.anchor(0, 16 + padded)[i], final_state[i], 4e-6) << entry.at("name") << i;
      }
      ++cases;
    }
  }
  EXPECT_EQ(cases, 10);
}

}  // namespace
}  // namespace weir::test
