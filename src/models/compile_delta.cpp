// What mixers on the delta rule share, and Kimi Delta Attention.
#include <cmath>

#include "models/compiler.h"
#include "ops/kda_layer/kda_layer.h"
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

void Compiler::kda_layer(const std::string& name, const KdaMixer& m, const KdaBuffers& b) {
  const auto rows = [](Buffer buffer) { return KdaRows{buffer.bf16(), buffer.cols}; };
  c_.add(bind_kda_layer(c_.device(), name + "core",
                        {.bounded = m.decay == DecayKind::kBounded,
                         .lower_bound = m.lower_bound,
                         .heads = m.heads,
                         .l2_eps = kL2Eps,
                         .norm_eps = spec_.eps,
                         .q_conv = m.q_conv.data(),
                         .k_conv = m.k_conv.data(),
                         .v_conv = m.v_conv.data(),
                         .a = m.a.data(),
                         .dt_bias = m.dt_bias.data(),
                         .norm_weight = m.o_norm.data(),
                         .journal = c_.layout().add_page(name + "journal", Retention::kJournal,
                                                         kda_layer_journal_row_bytes(m.heads)),
                         .state = c_.layout().add_anchor(name + "state", kda_layer_anchor_bytes(m.heads)),
                         .q = rows(b.q),
                         .k = rows(b.k),
                         .v = rows(b.v),
                         .f = rows(b.f),
                         .gate = rows(b.gate),
                         .beta_logit = b.beta.data,
                         .beta_logit_stride = b.beta.cols,
                         .out = b.o.bf16(),
                         .out_stride = b.o.cols}),
         b.o);
}

void Compiler::kda_ops(const std::string& name, const KdaMixer& m, const KdaBuffers& b) {
  const Buffer q = c_.buffer("kda.q_convolved", b.q.cols), k = c_.buffer("kda.k_convolved", b.k.cols),
               v = c_.buffer("kda.v_convolved", b.v.cols);
  convolution(name + "q_", m.q_conv, m.taps, b.q, q);
  convolution(name + "k_", m.k_conv, m.taps, b.k, k);
  convolution(name + "v_", m.v_conv, m.taps, b.v, v);
  l2(name + "q_norm", m.heads, m.head_dim, 1.f / std::sqrt(static_cast<float>(m.head_dim)), q);
  l2(name + "k_norm", m.heads, m.head_dim, 1, k);
  decay(name,
        {.bounded = m.decay == DecayKind::kBounded,
         .lower_bound = m.lower_bound,
         .heads = m.heads,
         .key_dim = m.head_dim,
         .a = m.a.data(),
         .dt_bias = m.dt_bias.data()},
        b.f, b.beta);
  delta_rule(name, {.decay = m.decay, .heads = m.heads, .key_dim = m.head_dim, .value_dim = m.head_dim},
             {q, k, v, b.f, b.beta}, b.o);
  gated_norm(name + "o_norm", NormKind::kRmsGated, m.heads, m.o_norm, b.gate, b.o);
}

void Compiler::mix(const std::string& layer, const KdaMixer& m, Buffer x, Buffer out) {
  const std::string name = layer + "kda.";
  const int64_t full = m.heads * m.head_dim;
  const bool one_op = c_.device().is_cuda() && c_.options().activations != Activations::kF32 &&
                      m.head_dim == kKdaHeadDim && m.taps == kKdaTaps;
  const auto buffer = [&](std::string_view key, int64_t cols) {
    return one_op ? c_.bf16_buffer(key, cols) : c_.buffer(key, cols);
  };
  const KdaBuffers b{.q = buffer("kda.q", full),
                     .k = buffer("kda.k", full),
                     .v = buffer("kda.v", full),
                     .f = buffer("kda.g", full),
                     .beta = c_.buffer("kda.beta", m.heads),
                     .gate = buffer("kda.gate", full),
                     .o = buffer("kda.o", full)};
  const Buffer low = buffer("kda.f_a", m.f_a.weight.out);
  const Buffer gate_low = m.gate_a ? buffer("kda.gate_a", m.gate_a->weight.out) : Buffer{};
  linears(name,
          {{"q_proj", &m.q, b.q},
           {"k_proj", &m.k, b.k},
           {"v_proj", &m.v, b.v},
           {"f_a", &m.f_a, low},
           {"beta", &m.beta, b.beta},
           {m.gate_a ? "gate_a" : "gate", m.gate_a ? &*m.gate_a : &m.gate, m.gate_a ? gate_low : b.gate}},
          x);
  std::vector<Product> second = {{"f_b", &m.f_b, b.f}};
  if (m.gate_a) second.push_back({"gate", &m.gate, b.gate, gate_low});
  linears(name, second, low);

  if (one_op) {
    kda_layer(name, m, b);
  } else {
    kda_ops(name, m, b);
  }
  linear(name + "o", m.o, b.o, out);
}

}  // namespace weir
