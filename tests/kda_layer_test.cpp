// The references of short_conv, gate and delta_rule together, against single KDA layers computed by the official
// classes (tests/fixtures/layers; projections and norms are plain loops here).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "ops/delta_rule/delta_rule.h"
#include "ops/gate/gate.h"
#include "ops/short_conv/short_conv.h"
#include "support/tiny_safetensors.h"

namespace weir::test {
namespace {

using Values = std::vector<float>;

constexpr int64_t kHidden = 64, kHeads = 2, kDim = 32, kTaps = 4, kTokens = 200;
constexpr int64_t kWidth = kHeads * kDim;

// [rows, in] x [out, in]^T
Values project(const Values& x, const Values& weight, int64_t in) {
  const int64_t rows = static_cast<int64_t>(x.size()) / in, out = static_cast<int64_t>(weight.size()) / in;
  Values y(static_cast<size_t>(rows * out));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < in; ++i) sum += double{x[r * in + i]} * weight[o * in + i];
      y[r * out + o] = static_cast<float>(sum);
    }
  }
  return y;
}

// Rows of [q | k | v] to q and k of unit length and v.
void split_and_normalize(const Values& qkv, Values& q, Values& k, Values& v) {
  for (int64_t r = 0; r < kTokens; ++r) {
    const float* row = qkv.data() + r * 3 * kWidth;
    for (int64_t h = 0; h < 2 * kHeads; ++h) {
      double sum = 1e-6;
      for (int64_t d = 0; d < kDim; ++d) sum += double{row[h * kDim + d]} * row[h * kDim + d];
      const double scale = 1 / std::sqrt(sum) * (h < kHeads ? 1 / std::sqrt(double(kDim)) : 1);
      for (int64_t d = 0; d < kDim; ++d) (h < kHeads ? q : k).push_back(static_cast<float>(row[h * kDim + d] * scale));
    }
    v.insert(v.end(), row + 2 * kWidth, row + 3 * kWidth);
  }
}

double largest_difference(const float* a, const Values& b) {
  double largest = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double difference = std::abs(double{a[i]} - b[i]);
    if (!(difference <= largest)) largest = difference;  // a NaN stays
  }
  return largest;
}

void check_layer(const std::string& name, bool bounded) {
  auto tensors = load_tiny_safetensors(std::string(WEIR_FIXTURES "/layers/") + name + ".safetensors");
  const auto tensor = [&](const std::string& key) -> const Values& { return tensors.at(key).data; };
  const auto weight = [&](const std::string& key) -> const Values& { return tensor("self_attn." + key); };
  std::ifstream file(std::string(WEIR_FIXTURES "/layers/") + name + ".json");
  std::stringstream text;
  text << file.rdbuf();
  const boost::json::value info = boost::json::parse(text.str());
  ASSERT_EQ(tensors.at("x").shape, (std::vector<int64_t>{kTokens, kHidden}));

  // One page a chunk, journal row [delta rule | convolution]; one anchor slot a chunk, [state | window].
  CpuDevice device(1, KernelSet::kReference);
  const DeltaRuleArgs sizes{.heads = kHeads, .key_dim = kDim, .value_dim = kDim};
  const int64_t delta_row = delta_rule_journal_row_bytes(sizes), delta_state = delta_rule_anchor_bytes(sizes);
  const int64_t conv_row = 3 * kWidth * 4;
  const int64_t page_bytes = 16 * (delta_row + conv_row), slot_bytes = delta_state + (kTaps - 1) * conv_row;
  const int64_t chunks = kTokens / 16 + 1;
  Mapping page_memory(chunks * page_bytes), slot_memory(chunks * slot_bytes);
  const PageField conv_journal{.offset = 16 * delta_row, .row_bytes = conv_row};
  const AnchorField window{.offset = delta_state, .bytes = (kTaps - 1) * conv_row};
  std::vector<PageId> pages;
  std::vector<AnchorWrite> writes;
  for (int64_t c = 0; c < chunks; ++c) {
    pages.push_back(PageId(static_cast<uint32_t>(c)));
    if (c > 0) writes.push_back({16 * c, SlotId(static_cast<uint32_t>(c))});
  }
  SpanView span{.rows = kTokens, .anchor_writes = writes};
  span.pages[0] = pages;
  const std::vector<int32_t> row_spans(kTokens, 0);
  const PoolView pool{page_memory.data(), page_bytes};
  const StepView step{.rows = kTokens,
                      .spans = {&span, 1},
                      .row_spans = row_spans,
                      .page_pools = {&pool, 1},
                      .anchor_pool = {slot_memory.data(), slot_bytes}};

  const Values& x = tensor("x");
  Values projected(kTokens * 3 * kWidth), taps;
  const char* parts[] = {"q", "k", "v"};
  for (int64_t part = 0; part < 3; ++part) {
    const Values one = project(x, weight(std::string(parts[part]) + "_proj.weight"), kHidden);
    for (int64_t r = 0; r < kTokens; ++r) std::copy_n(&one[r * kWidth], kWidth, &projected[(r * 3 + part) * kWidth]);
    const Values& conv = weight(std::string(parts[part]) + "_conv1d.weight");
    taps.insert(taps.end(), conv.begin(), conv.end());
  }
  Values qkv(projected.size());
  bind_short_conv(device, "conv",
                  {.channels = 3 * kWidth,
                   .taps = kTaps,
                   .weight = taps.data(),
                   .journal = conv_journal,
                   .window = window,
                   .x = projected.data(),
                   .x_stride = 3 * kWidth,
                   .y = qkv.data(),
                   .y_stride = 3 * kWidth})
      ->run(step);
  Values q, k, v;
  split_and_normalize(qkv, q, k, v);

  Values a = weight("A_log");
  for (float& value : a) value = std::exp(value);
  const Values f = project(project(x, weight("f_a_proj.weight"), kHidden), weight("f_b_proj.weight"), kDim);
  const Values logits = project(x, weight("b_proj.weight"), kHidden);
  Values g(f.size()), beta(logits.size());
  bind_kda_gate(device, "gate",
                {.bounded = bounded,
                 .lower_bound = -5,
                 .heads = kHeads,
                 .key_dim = kDim,
                 .a = a.data(),
                 .dt_bias = weight("dt_bias").data(),
                 .f = f.data(),
                 .f_stride = kWidth,
                 .beta_logit = logits.data(),
                 .beta_logit_stride = kHeads,
                 .g = g.data(),
                 .g_stride = kWidth,
                 .beta = beta.data(),
                 .beta_stride = kHeads})
      ->run(step);

  Values out(kTokens * kWidth);
  bind_delta_rule(device, "delta",
                  {.decay = bounded ? DecayKind::kBounded : DecayKind::kUnbounded,
                   .heads = kHeads,
                   .key_dim = kDim,
                   .value_dim = kDim,
                   .journal = {.row_bytes = delta_row},
                   .state = {.bytes = delta_state},
                   .q = q.data(),
                   .q_stride = kWidth,
                   .k = k.data(),
                   .k_stride = kWidth,
                   .v = v.data(),
                   .v_stride = kWidth,
                   .g = g.data(),
                   .g_stride = kWidth,
                   .beta = beta.data(),
                   .beta_stride = kHeads,
                   .out = out.data(),
                   .out_stride = kWidth})
      ->run(step);

  const Values gate = project(project(x, weight("g_a_proj.weight"), kHidden), weight("g_b_proj.weight"), kDim);
  const double eps = info.at("eps").to_number<double>();
  for (int64_t r = 0; r < kTokens * kHeads; ++r) {
    double sum = 0;
    for (int64_t d = 0; d < kDim; ++d) sum += double{out[r * kDim + d]} * out[r * kDim + d];
    const double scale = 1 / std::sqrt(sum / kDim + eps);
    for (int64_t d = 0; d < kDim; ++d) {
      const double sigmoid = 1 / (1 + std::exp(-double{gate[r * kDim + d]}));
      out[r * kDim + d] = static_cast<float>(out[r * kDim + d] * scale * weight("o_norm.weight")[d] * sigmoid);
    }
  }
  const Values y = project(out, weight("o_proj.weight"), kWidth);

  // Ten times the differences that the official classes show among themselves (their chunked, recurrent and FP64
  // forms).
  const auto measured = [&](const char* key) { return info.at(key).to_number<double>(); };
  EXPECT_LT(largest_difference(y.data(), tensor("y")),
            10 * std::max(measured("chunked_vs_recurrent"), measured("f64_vs_f32")));
  EXPECT_LT(largest_difference(g.data(), tensor("log_decay")),
            5e-6);  // up to 5, and products of |a z| up to 10 roundings
  EXPECT_LT(largest_difference(beta.data(), tensor("beta")), 1e-6);

  // 200 tokens end in the middle of a chunk: the state after them follows from the anchor at 192 and its journal rows.
  const float* anchor = reinterpret_cast<const float*>(slot_memory.data() + (chunks - 1) * slot_bytes);
  const float* journal = reinterpret_cast<const float*>(page_memory.data() + (chunks - 1) * page_bytes);
  const int64_t last = kTokens % 16 - 1, row_floats = delta_row / 4;
  Values state(static_cast<size_t>(kHeads * kDim * kDim));
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t c = h * kDim; c < (h + 1) * kDim; ++c) {
      const double end = journal[last * row_floats + kWidth + c];
      for (int64_t n = 0; n < kDim; ++n) {
        double sum = std::exp(end) * anchor[c * kDim + n];
        for (int64_t j = 0; j <= last; ++j) {
          const float* row = journal + j * row_floats;
          const double decay = bounded ? end : end - row[kWidth + c];  // k' carries e^-G where the gate is bounded
          sum += row[c] * std::exp(decay) * row[2 * kWidth + h * kDim + n];
        }
        state[static_cast<size_t>(c * kDim + n)] = static_cast<float>(sum);
      }
    }
  }
  EXPECT_LT(largest_difference(state.data(), tensor("state")), 10 * measured("state_chunked_vs_recurrent"));

  // conv_state [channel, last 4 inputs], oldest first.
  const float* inputs = reinterpret_cast<const float*>(page_memory.data() + (chunks - 1) * page_bytes + 16 * delta_row);
  for (int64_t c = 0; c < 3 * kWidth; ++c) {
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(inputs[(last - 3 + i) * 3 * kWidth + c], tensor("conv_state")[static_cast<size_t>(c * 4 + i)], 1e-5);
    }
  }
}

TEST(KdaLayer, WithTheBoundedGateGivesTheOfficialLayersOutputsAndState) { check_layer("kda_bounded_open", true); }
TEST(KdaLayer, WithTheSoftplusGateGivesTheOfficialLayersOutputsAndState) { check_layer("kda_softplus_open", false); }

}  // namespace
}  // namespace weir::test
