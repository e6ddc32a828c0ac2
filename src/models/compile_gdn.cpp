// Gated DeltaNet (Qwen3-Next, Qwen3.5).
#include <cmath>

#include "models/compiler.h"
#include "ops/gdn_layer/gdn_layer.h"

namespace weir {

// Between the projections; b and a are raw.
void Compiler::gdn_in_one_op(const std::string& name, const GdnMixer& m, Buffer qkv, Buffer z, Buffer b, Buffer a,
                             Buffer o) {
  c_.add(bind_gdn_layer(c_.device(), name + "core",
                        {.heads = m.heads,
                         .key_heads = m.key_heads,
                         .order = m.order,
                         .l2_eps = kL2Eps,
                         .norm_eps = spec_.eps,
                         .conv = m.conv.data(),
                         .a = m.decay.data(),
                         .dt_bias = m.dt_bias.data(),
                         .norm_weight = m.o_norm.data(),
                         .journal = c_.layout().add_page(name + "journal", Retention::kJournal,
                                                         gdn_layer_journal_row_bytes(m.heads, m.key_heads)),
                         .state = c_.layout().add_anchor(name + "state", gdn_layer_anchor_bytes(m.heads, m.key_heads)),
                         .qkv = qkv.bf16(),
                         .qkv_stride = qkv.cols,
                         .a_logit = a.data,
                         .a_logit_stride = a.cols,
                         .beta_logit = b.data,
                         .beta_logit_stride = b.cols,
                         .gate = z.bf16(),
                         .gate_stride = z.cols,
                         .out = o.bf16(),
                         .out_stride = o.cols}),
         o);
}

void Compiler::mix(const std::string& layer, const GdnMixer& m, Buffer x, Buffer out) {
  const std::string name = layer + "gdn.";
  const int64_t r = m.heads / m.key_heads;
  const int64_t keys = m.keys();
  const auto part = [](Buffer all, int64_t at) { return Buffer{all.data + at, all.cols}; };  // of each row
  const bool one_op = c_.device().is_cuda() && c_.options().activations != Activations::kF32 &&
                      m.key_dim == kGdnHeadDim && m.value_dim == kGdnHeadDim && m.taps == kGdnTaps;
  const auto buffer = [&](std::string_view key, int64_t cols) {
    return one_op ? c_.bf16_buffer(key, cols) : c_.buffer(key, cols);
  };

  const Buffer raw = buffer("gdn.projected", m.channels());
  const Buffer z = buffer("gdn.z", m.values());
  const Buffer beta = c_.buffer("gdn.beta", m.heads);
  const Buffer g = c_.buffer("gdn.g", m.heads);
  const bool whole = !m.qkvz.weight.empty(), both = !m.ba.weight.empty();
  const Buffer qkvz = whole ? buffer("gdn.qkvz", m.qkvz.weight.out) : raw;
  const Buffer ba = both ? c_.buffer("gdn.ba", 2 * m.heads) : beta;
  linears(name,
          {{whole ? "qkvz" : "qkv", whole ? &m.qkvz : &m.qkv, qkvz},
           {"z", whole ? nullptr : &m.z, z},
           {both ? "ba" : "b", both ? &m.ba : &m.b, ba},
           {"a", both ? nullptr : &m.a, g}},
          x);
  if (whole) {
    const int64_t unit = one_op ? 2 : 1;  // two BF16 numbers are moved as one
    const auto units = [&](Buffer all) { return Buffer{all.data, all.cols / unit}; };
    const int64_t key = m.key_dim / unit, value = r * m.value_dim / unit;
    split(name + "qkvz.split", m.key_heads,
          {{key, units(raw)},
           {key, part(units(raw), keys / unit)},
           {value, part(units(raw), 2 * keys / unit)},
           {value, units(z)}},
          units(qkvz));
  }
  if (both) split(name + "ba.split", m.key_heads, {{r, beta}, {r, g}}, ba);

  const Buffer o = buffer("gdn.o", m.values());
  if (one_op) {
    gdn_in_one_op(name, m, raw, z, beta, g, o);
    return linear(name + "o", m.o, o, out);
  }
  const Buffer qkv = c_.buffer("gdn.convolved", m.channels());
  convolution(name, m.conv, m.taps, raw, qkv);
  const Buffer q = qkv, k = part(qkv, keys), v = part(qkv, 2 * keys);
  l2(name + "q_norm", m.key_heads, m.key_dim, 1.f / std::sqrt(static_cast<float>(m.key_dim)), q);
  l2(name + "k_norm", m.key_heads, m.key_dim, 1, k);
  decay(name, {.bounded = false, .heads = m.heads, .key_dim = 1, .a = m.decay.data(), .dt_bias = m.dt_bias.data()}, g,
        beta);
  delta_rule(name,
             {.decay = DecayKind::kScalar,
              .heads = m.heads,
              .key_heads = m.key_heads,
              .order = m.order,
              .key_dim = m.key_dim,
              .value_dim = m.value_dim},
             {q, k, v, g, beta}, o);
  gated_norm(name + "o_norm", NormKind::kRmsSiluGated, m.heads, m.o_norm, z, o);
  linear(name + "o", m.o, o, out);
}

}  // namespace weir
