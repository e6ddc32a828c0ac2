#include "ops/gate/gate.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <vector>

#include "base/error.h"

namespace weir {
namespace {

struct Buffers {
  KdaGateArgs args;
  std::vector<float> a, bias, f, logit, g, beta;

  Buffers(bool bounded, int64_t rows, int64_t heads, int64_t key_dim)
      : a(static_cast<size_t>(heads)),
        bias(static_cast<size_t>(heads * key_dim)),
        f(static_cast<size_t>((rows + 1) * (heads * key_dim + 2))),
        logit(static_cast<size_t>((rows + 1) * (heads + 1))),
        g(f.size(), std::numeric_limits<float>::quiet_NaN()),
        beta(logit.size(), std::numeric_limits<float>::quiet_NaN()) {
    args = {.bounded = bounded,
            .heads = heads,
            .key_dim = key_dim,
            .a = a.data(),
            .dt_bias = bias.data(),
            .f = f.data(),
            .f_stride = heads * key_dim + 2,
            .beta_logit = logit.data(),
            .beta_logit_stride = heads + 1,
            .g = g.data(),
            .g_stride = heads * key_dim + 2,
            .beta = beta.data(),
            .beta_stride = heads + 1};
  }
};

// Equal bits, except that any NaN equals any other.
bool same(const std::vector<float>& x, const std::vector<float>& y) {
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::memcmp(&x[i], &y[i], sizeof(float)) != 0 && !(std::isnan(x[i]) && std::isnan(y[i]))) return false;
  }
  return x.size() == y.size();
}

StepView step_of(int32_t rows) { return StepView{.rows = rows}; }

boost::json::value load_json(const char* path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return boost::json::parse(text.str());
}

float number(const boost::json::value& value) { return value.to_number<float>(); }

TEST(KdaGate, GivesThePublishedTable) {
  const boost::json::value golden = load_json(WEIR_FIXTURES "/kimi_k3/unit/ops.json");
  const boost::json::value& table = golden.at("kda_gate");
  const auto& z = table.at("z").as_array();
  for (bool bounded : {true, false}) {
    const auto& wanted = table.at(bounded ? "bounded_minus5" : "softplus_kimi_linear").as_array();
    for (size_t i = 0; i < z.size(); ++i) {
      Buffers b(bounded, 1, 1, 1);
      b.a[0] = std::exp(number(table.at("A_log").as_array()[i]));
      b.f[0] = number(z[i]);
      CpuDevice device(1, KernelSet::kReference);
      bind_kda_gate(device, "gate", b.args)->run(step_of(1));
      // a z is rounded before the sigmoid: |a z| epsilon, with |a z| up to 16 where the result is not saturated.
      // Results below the smallest normal number (sigmoid of -650, softplus of -88) have an absolute error only.
      EXPECT_NEAR(b.g[0], number(wanted[i]), 4e-6 * std::abs(number(wanted[i])) + 1e-37) << bounded << " " << i;
    }
  }
}

TEST(KdaGate, UsesEachHeadsDecayAndEachChannelsBias) {
  const boost::json::value golden = load_json(WEIR_FIXTURES "/kimi_k3/unit/ops.json");
  const boost::json::value& example = golden.at("kda_gate_heads");
  Buffers b(true, 1, 2, 3);
  for (size_t h = 0; h < 2; ++h) {
    b.a[h] = std::exp(number(example.at("A_log_padded").as_array()[h]));
    for (size_t d = 0; d < 3; ++d) {
      b.f[h * 3 + d] = number(example.at("f").as_array()[h].as_array()[d]);
      b.bias[h * 3 + d] = number(example.at("dt_bias_flat").as_array()[h * 3 + d]);
    }
  }
  b.logit[1] = 1.f;
  CpuDevice device(1, KernelSet::kReference);
  bind_kda_gate(device, "gate", b.args)->run(step_of(1));
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_NEAR(b.g[i], number(example.at("g").as_array()[i / 3].as_array()[i % 3]), 2e-6) << i;
  }
  EXPECT_FLOAT_EQ(b.beta[0], 0.5f);
  EXPECT_FLOAT_EQ(b.beta[1], 0.7310586f);
}

TEST(KdaGate, EveryKernelSetEqualsTheReferenceBitForBitAndWritesNothingElse) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float specials[] = {0.f,    -0.f,    kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(),
                            1e-40f, -1e-40f, 88.f,      -88.f,      1e30f,
                            -1e30f};
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.f, 4.f);
  for (KernelSet set : {KernelSet::kAvx2, KernelSet::kAvx512}) {
    if (!kernel_set_supported(set)) {
      std::printf("not tested: this processor lacks %s\n", std::string(kernel_set_name(set)).c_str());
      continue;
    }
    for (bool bounded : {true, false}) {
      for (auto [heads, key_dim] : {std::pair{1, 1}, {35, 1}, {3, 20}, {17, 32}, {33, 128}, {5, 15}}) {
        for (int32_t rows : {0, 1, 5}) {
          Buffers b(bounded, rows, heads, key_dim);
          for (std::vector<float>* values : {&b.a, &b.bias, &b.f, &b.logit}) {
            for (float& x : *values) x = random() % 8 == 0 ? specials[random() % 11] : normal(random);
          }
          CpuDevice plain(1, KernelSet::kReference);
          bind_kda_gate(plain, "gate", b.args)->run(step_of(rows));
          const std::vector<float> g = b.g, beta = b.beta;
          for (int threads : {1, 2}) {
            std::fill(b.g.begin(), b.g.end(), std::numeric_limits<float>::quiet_NaN());
            std::fill(b.beta.begin(), b.beta.end(), std::numeric_limits<float>::quiet_NaN());
            CpuDevice device(threads, set);
            bind_kda_gate(device, "gate", b.args)->run(step_of(rows));
            EXPECT_TRUE(same(b.g, g)) << kernel_set_name(set) << " " << heads << "x" << key_dim;
            EXPECT_TRUE(same(b.beta, beta)) << kernel_set_name(set) << " " << heads << "x" << key_dim;
          }
          // Rows one by one, in place.
          KdaGateArgs in_place = b.args;
          in_place.g = b.f.data();
          in_place.beta = b.logit.data();
          for (int64_t row = 0; row < rows; ++row) kda_gate_kernel(set)(in_place, row);
          for (int64_t row = 0; row < rows; ++row) {
            const auto at = row * b.args.f_stride;
            const auto row_of = [&](const std::vector<float>& x) {
              return std::vector<float>(x.begin() + at, x.begin() + at + heads * key_dim);
            };
            EXPECT_TRUE(same(row_of(b.f), row_of(g)));
          }
        }
      }
    }
  }
}

TEST(KdaGate, RefusesABoundThatOverflowsTheDeltaRule) {
  CpuDevice device(1, KernelSet::kReference);
  Buffers b(true, 1, 1, 1);
  EXPECT_NO_THROW(bind_kda_gate(device, "gate", b.args));
  b.args.lower_bound = -5.5f;
  EXPECT_THROW(bind_kda_gate(device, "gate", b.args), Error);
  b.args.lower_bound = 0.f;
  EXPECT_THROW(bind_kda_gate(device, "gate", b.args), Error);
  b.args.lower_bound = -1.f;
  b.args.f = nullptr;
  EXPECT_THROW(bind_kda_gate(device, "gate", b.args), Error);
}

}  // namespace
}  // namespace weir
