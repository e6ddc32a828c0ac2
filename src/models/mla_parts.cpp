#include "models/mla_parts.h"
#include "models/limits.h"

#include <cmath>

namespace weir {
MlaMixer load_mla(TensorBinder& tensors, const MlaDims& d, const std::string& p) {
  MlaMixer m;
  m.heads = d.heads;
  m.nope = d.nope;
  m.extra = d.extra;
  m.value = d.value;
  m.latent = d.latent;
  m.scale = 1.f / std::sqrt(static_cast<float>(d.nope + d.extra));
  const int64_t q_out = d.heads * (d.nope + d.extra);
  if (d.q_lora > 0) {
    m.q_a = tensors.linear(p + "q_a_proj", d.q_lora, d.hidden, d.bias);
    m.q_a_norm = tensors.floats(p + "q_a_layernorm.weight", {d.q_lora});
    m.q = tensors.linear(p + "q_b_proj", q_out, d.q_lora);
  } else {
    m.q = tensors.linear(p + "q_proj", q_out, d.hidden);
  }
  m.kv_a = tensors.linear(p + "kv_a_proj_with_mqa", d.latent + d.extra, d.hidden, d.bias);
  m.kv_a_norm = tensors.floats(p + "kv_a_layernorm.weight", {d.latent});
  if (tensors.has(p + "k_b_proj.weight")) {
    m.k_b = tensors.stack(p + "k_b_proj.weight", d.heads, d.latent, d.nope);
    m.v_b = tensors.stack(p + "v_b_proj.weight", d.heads, d.value, d.latent);
  } else {
    m.kv_b = tensors.matrix(p + "kv_b_proj.weight", d.heads * (d.nope + d.value), d.latent);
  }
  if (d.gate) m.gate = tensors.linear(p + "g_proj", d.heads * d.value, d.hidden);
  m.o = tensors.linear(p + "o_proj", d.hidden, d.heads * d.value, d.bias);
  return m;
}

MlaDims gguf_mla_dims(const GgufConfig& c) {
  MlaDims d;
  d.hidden = c.integer("embedding_length", 1, kMaxWidth);
  d.heads = c.integer("attention.head_count", 1, kMaxHeads);
  d.latent = c.integer("attention.kv_lora_rank", 1, kMaxWidth);
  d.extra = c.integer("rope.dimension_count", 0, kMaxWidth);
  const std::string_view key_name =
      c.has("attention.key_length_mla") ? "attention.key_length_mla" : "attention.key_length";
  const std::string_view value_name =
      c.has("attention.key_length_mla") ? "attention.value_length_mla" : "attention.value_length";
  const int64_t key = c.integer(key_name, 1, kMaxWidth);
  if (key <= d.extra) c.fail_key(key_name, concat("more than rope.dimension_count = ", d.extra));
  d.nope = key - d.extra;
  d.value = c.integer(value_name, 1, kMaxWidth);
  d.q_lora = c.integer_or("attention.q_lora_rank", 0, 0, kMaxWidth);
  return d;
}

}  // namespace weir
