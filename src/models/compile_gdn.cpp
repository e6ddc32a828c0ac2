// Gated DeltaNet (Qwen3-Next, Qwen3.5).
#include <cmath>

#include "models/compiler.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/gate/gate.h"
#include "ops/norm/norm.h"
#include "ops/short_conv/short_conv.h"

namespace weir {

void Compiler::mix(const std::string& layer, const GdnMixer& m, Buffer x, Buffer out) {
  const std::string name = layer + "gdn.";
  const int64_t r = m.heads / m.key_heads;
  const int64_t keys = m.keys();
  const auto part = [](Buffer all, int64_t at) { return Buffer{all.data + at, all.cols}; };  // of each row

  const Buffer raw = c_.buffer("gdn.projected", m.channels());
  const Buffer z = c_.buffer("gdn.z", m.values());
  if (m.qkvz.weight.empty()) {
    linear(name + "qkv", m.qkv, x, raw);
    linear(name + "z", m.z, x, z);
  } else {
    const Buffer fused = c_.buffer("gdn.qkvz", m.qkvz.weight.out);
    linear(name + "qkvz", m.qkvz, x, fused);
    split(
        name + "qkvz.split", m.key_heads,
        {{m.key_dim, raw}, {m.key_dim, part(raw, keys)}, {r * m.value_dim, part(raw, 2 * keys)}, {r * m.value_dim, z}},
        fused);
  }
  const Buffer beta = c_.buffer("gdn.beta", m.heads);
  const Buffer g = c_.buffer("gdn.g", m.heads);
  if (m.ba.weight.empty()) {
    linear(name + "b", m.b, x, beta);
    linear(name + "a", m.a, x, g);
  } else {
    const Buffer fused = c_.buffer("gdn.ba", 2 * m.heads);
    linear(name + "ba", m.ba, x, fused);
    split(name + "ba.split", m.key_heads, {{r, beta}, {r, g}}, fused);
  }

  const Buffer qkv = c_.buffer("gdn.convolved", m.channels());
  const int64_t row = m.channels() * 4;
  c_.add(bind_short_conv(c_.device(), name + "conv",
                         {.channels = m.channels(),
                          .taps = m.taps,
                          .weight = m.conv.data(),
                          .journal = c_.layout().add_page(name + "conv", Retention::kJournal, row),
                          .window = c_.layout().add_anchor(name + "window", (m.taps - 1) * row),
                          .x = raw.data,
                          .x_stride = raw.cols,
                          .y = qkv.data,
                          .y_stride = qkv.cols}),
         qkv);
  const Buffer q = qkv, k = part(qkv, keys), v = part(qkv, 2 * keys);
  l2(name + "q_norm", m.key_heads, m.key_dim, 1.f / std::sqrt(static_cast<float>(m.key_dim)), q);
  l2(name + "k_norm", m.key_heads, m.key_dim, 1, k);
  c_.add(bind_kda_gate(c_.device(), name + "decay",
                       {.bounded = false,
                        .heads = m.heads,
                        .key_dim = 1,
                        .a = m.decay.data(),
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

  const Buffer o = c_.buffer("gdn.o", m.values());
  const int64_t journal = scalar_delta_journal_row_bytes(m.heads, m.key_heads, m.key_dim, m.value_dim);
  const int64_t state = delta_rule_anchor_bytes(m.heads, m.key_dim, m.value_dim);
  c_.add(bind_delta_rule(c_.device(), name + "core",
                         {.decay = DecayKind::kScalar,
                          .heads = m.heads,
                          .key_heads = m.key_heads,
                          .order = m.order,
                          .key_dim = m.key_dim,
                          .value_dim = m.value_dim,
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
  c_.add(bind_norm(c_.device(), name + "o_norm",
                   {.kind = NormKind::kRmsSiluGated,
                    .groups = m.heads,
                    .size = m.value_dim,
                    .eps = spec_.eps,
                    .weight = m.o_norm.data(),
                    .x = o.data,
                    .x_stride = o.cols,
                    .gate = z.data,
                    .gate_stride = z.cols,
                    .y = o.data,
                    .y_stride = o.cols}),
         o);
  linear(name + "o", m.o, o, out);
}

}  // namespace weir
