// Gated DeltaNet (Qwen3-Next, Qwen3.5).
#include <cmath>

#include "models/compiler.h"

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
  convolution(name, m.conv, m.taps, raw, qkv);
  const Buffer q = qkv, k = part(qkv, keys), v = part(qkv, 2 * keys);
  l2(name + "q_norm", m.key_heads, m.key_dim, 1.f / std::sqrt(static_cast<float>(m.key_dim)), q);
  l2(name + "k_norm", m.key_heads, m.key_dim, 1, k);
  decay(name, {.bounded = false, .heads = m.heads, .key_dim = 1, .a = m.decay.data(), .dt_bias = m.dt_bias.data()}, g,
        beta);
  const Buffer o = c_.buffer("gdn.o", m.values());
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
