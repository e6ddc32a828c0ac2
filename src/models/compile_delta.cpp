// Mixers on the delta rule.
#include <cmath>

#include "models/compiler.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/gate/gate.h"
#include "ops/norm/norm.h"
#include "ops/short_conv/short_conv.h"

namespace weir {

Buffer Compiler::convolved(const std::string& name, std::string_view key, const Linear& projection,
                           const FloatVector& taps, int64_t count, Buffer x) {
  const Buffer raw = c_.buffer("kda.projected", projection.weight.out);
  const Buffer y = c_.buffer(key, raw.cols);
  linear(name + "_proj", projection, x, raw);
  const int64_t row = raw.cols * 4;
  c_.add(bind_short_conv(c_.device(), name + "_conv",
                         {.channels = raw.cols,
                          .taps = count,
                          .weight = taps.data(),
                          .journal = c_.layout().add_page(name + "_conv", Retention::kJournal, row),
                          .window = c_.layout().add_anchor(name + "_window", (count - 1) * row),
                          .x = raw.data,
                          .x_stride = raw.cols,
                          .y = y.data,
                          .y_stride = y.cols}),
         y);
  return y;
}

void Compiler::mix(const std::string& layer, const KdaMixer& m, Buffer x, Buffer out) {
  const std::string name = layer + "kda.";
  const int64_t full = m.heads * m.head_dim;
  const Buffer q = convolved(name + "q", "kda.q", m.q, m.q_conv, m.taps, x);
  const Buffer k = convolved(name + "k", "kda.k", m.k, m.k_conv, m.taps, x);
  const Buffer v = convolved(name + "v", "kda.v", m.v, m.v_conv, m.taps, x);
  l2(name + "q_norm", m.heads, m.head_dim, 1.f / std::sqrt(static_cast<float>(m.head_dim)), q);
  l2(name + "k_norm", m.heads, m.head_dim, 1, k);

  const Buffer low = c_.buffer("kda.f_a", m.f_a.weight.out);
  const Buffer g = c_.buffer("kda.g", full);
  const Buffer beta = c_.buffer("kda.beta", m.heads);
  linear(name + "f_a", m.f_a, x, low);
  linear(name + "f_b", m.f_b, low, g);
  linear(name + "beta", m.beta, x, beta);
  c_.add(bind_kda_gate(c_.device(), name + "decay",
                       {.bounded = m.decay == DecayKind::kBounded,
                        .lower_bound = m.lower_bound,
                        .heads = m.heads,
                        .key_dim = m.head_dim,
                        .a = m.a.data(),
                        .dt_bias = m.dt_bias.data(),
                        .f = g.data,
                        .f_stride = g.cols,
                        .beta_logit = beta.data,
                        .beta_logit_stride = beta.cols,
                        .g = g.data,
                        .g_stride = g.cols,
                        .beta = beta.data,
                        .beta_stride = beta.cols}),
         g);

  const Buffer o = c_.buffer("kda.o", full);
  const int64_t journal = delta_rule_journal_row_bytes(m.heads, m.head_dim, m.head_dim);
  const int64_t state = delta_rule_anchor_bytes(m.heads, m.head_dim, m.head_dim);
  c_.add(bind_delta_rule(c_.device(), name + "core",
                         {.decay = m.decay,
                          .heads = m.heads,
                          .key_dim = m.head_dim,
                          .value_dim = m.head_dim,
                          .journal = c_.layout().add_page(name + "journal", Retention::kJournal, journal),
                          .state = c_.layout().add_anchor(name + "state", state),
                          .q = q.data,
                          .q_stride = q.cols,
                          .k = k.data,
                          .k_stride = k.cols,
                          .v = v.data,
                          .v_stride = v.cols,
                          .g = g.data,
                          .g_stride = g.cols,
                          .beta = beta.data,
                          .beta_stride = beta.cols,
                          .out = o.data,
                          .out_stride = o.cols}),
         o);

  const Buffer gate = c_.buffer("kda.gate", full);
  Buffer gate_input = x;
  if (m.gate_a) {
    gate_input = c_.buffer("kda.gate_a", m.gate_a->weight.out);
    linear(name + "gate_a", *m.gate_a, x, gate_input);
  }
  linear(name + "gate", m.gate, gate_input, gate);
  c_.add(bind_norm(c_.device(), name + "o_norm",
                   {.kind = NormKind::kRmsGated,
                    .groups = m.heads,
                    .size = m.head_dim,
                    .eps = spec_.eps,
                    .weight = m.o_norm.data(),
                    .x = o.data,
                    .x_stride = o.cols,
                    .gate = gate.data,
                    .gate_stride = gate.cols,
                    .y = o.data,
                    .y_stride = o.cols}),
         o);
  linear(name + "o", m.o, o, out);
}

}  // namespace weir
