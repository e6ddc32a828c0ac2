// What mixers on the delta rule share, and Kimi Delta Attention.
#include <cmath>

#include "models/compiler.h"
#include "ops/short_conv/short_conv.h"

namespace weir {

void Compiler::convolution(const std::string& stem, const FloatVector& weight, int64_t taps, Buffer x, Buffer y) {
  const int64_t row = x.cols * 4;
  c_.add(bind_short_conv(c_.device(), stem + "conv",
                         {.channels = x.cols,
                          .taps = taps,
                          .weight = weight.data(),
                          .journal = c_.layout().add_page(stem + "conv", Retention::kJournal, row),
                          .window = c_.layout().add_anchor(stem + "window", (taps - 1) * row),
                          .x = x.data,
                          .x_stride = x.cols,
                          .y = y.data,
                          .y_stride = y.cols}),
         y);
}

void Compiler::decay(const std::string& name, KdaGateArgs args, Buffer g, Buffer beta) {
  args.f = args.g = g.data;
  args.f_stride = args.g_stride = g.cols;
  args.beta_logit = args.beta = beta.data;
  args.beta_logit_stride = args.beta_stride = beta.cols;
  c_.add(bind_kda_gate(c_.device(), name + "decay", args), g);
}

void Compiler::delta_rule(const std::string& name, DeltaRuleArgs args, const DeltaInputs& in, Buffer o) {
  args.journal = c_.layout().add_page(name + "journal", Retention::kJournal, delta_rule_journal_row_bytes(args));
  args.state = c_.layout().add_anchor(name + "state", delta_rule_anchor_bytes(args));
  args.q = in.q.data;
  args.q_stride = in.q.cols;
  args.k = in.k.data;
  args.k_stride = in.k.cols;
  args.v = in.v.data;
  args.v_stride = in.v.cols;
  args.g = in.g.data;
  args.g_stride = in.g.cols;
  args.beta = in.beta.data;
  args.beta_stride = in.beta.cols;
  args.out = o.data;
  args.out_stride = o.cols;
  c_.add(bind_delta_rule(c_.device(), name + "core", args), o);
}

void Compiler::gated_norm(const std::string& name, NormKind kind, int64_t heads, const FloatVector& weight, Buffer gate,
                          Buffer o) {
  c_.add(bind_norm(c_.device(), name,
                   {.kind = kind,
                    .groups = heads,
                    .size = static_cast<int64_t>(weight.size()),
                    .eps = spec_.eps,
                    .weight = weight.data(),
                    .x = o.data,
                    .x_stride = o.cols,
                    .gate = gate.data,
                    .gate_stride = gate.cols,
                    .y = o.data,
                    .y_stride = o.cols}),
         o);
}

Buffer Compiler::convolved(const std::string& name, std::string_view key, const Linear& projection,
                           const FloatVector& weight, int64_t taps, Buffer x) {
  const Buffer raw = c_.buffer("kda.projected", projection.weight.out);
  const Buffer y = c_.buffer(key, raw.cols);
  linear(name + "_proj", projection, x, raw);
  convolution(name + "_", weight, taps, raw, y);
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
  decay(name,
        {.bounded = m.decay == DecayKind::kBounded,
         .lower_bound = m.lower_bound,
         .heads = m.heads,
         .key_dim = m.head_dim,
         .a = m.a.data(),
         .dt_bias = m.dt_bias.data()},
        g, beta);
  const Buffer o = c_.buffer("kda.o", full);
  delta_rule(name, {.decay = m.decay, .heads = m.heads, .key_dim = m.head_dim, .value_dim = m.head_dim},
             {q, k, v, g, beta}, o);

  const Buffer gate = c_.buffer("kda.gate", full);
  Buffer gate_input = x;
  if (m.gate_a) {
    gate_input = c_.buffer("kda.gate_a", m.gate_a->weight.out);
    linear(name + "gate_a", *m.gate_a, x, gate_input);
  }
  linear(name + "gate", m.gate, gate_input, gate);
  gated_norm(name + "o_norm", NormKind::kRmsGated, m.heads, m.o_norm, gate, o);
  linear(name + "o", m.o, o, out);
}

}  // namespace weir
