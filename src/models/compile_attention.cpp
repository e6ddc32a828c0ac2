// Grouped-query attention.
#include "models/compiler.h"
#include "ops/attention/attention.h"

namespace weir {

void Compiler::store_kv(const std::string& name, const AttentionMixer& m, Buffer k, Buffer v) {
  if (m.v_norm) plain_rms(name + "v_norm", m.kv_heads, m.head_dim, m.v.weight.empty() ? k : v, v);
  if (!m.k_norm.empty()) rms(name + "k_norm", m.k_norm, m.head_dim, spec_.eps, k, k, RowSet::kAll, m.kv_heads);
  if (m.rope >= 0) rotate(name + "k_rope", m.rope, m.kv_heads, m.head_dim, k);
  const int64_t row = k.cols * state_dtype_bytes(kv());
  const Retention kept = m.window > 0 ? Retention::kWindow : Retention::kForever;
  const KvFields fields{.key = c_.layout().add_page(name + "k", kept, row, m.window),
                        .value = c_.layout().add_page(name + "v", kept, row, m.window)};
  kv_write(name + "k_write", fields.key, 0, k);
  kv_write(name + "v_write", fields.value, 0, v);
  kv_fields_[layer_] = fields;
}

void Compiler::mix(const std::string& layer, const AttentionMixer& m, Buffer x, Buffer out) {
  const std::string name = layer + "attention.";
  const Buffer q = c_.buffer("attention.q", m.heads * m.head_dim);
  const Buffer o = c_.buffer("attention.o", m.heads * m.head_dim);
  const Buffer gate = m.q_gate ? c_.buffer("attention.gate", o.cols) : Buffer{};
  const Buffer both = m.q_gate ? c_.buffer("attention.q_and_gate", 2 * q.cols) : q;
  const Buffer k = c_.buffer("attention.k", m.kv_heads * m.head_dim);
  const Buffer v = c_.buffer("attention.v", m.kv_heads * m.head_dim);
  const bool own = m.share < 0;
  linears(name, {{"q", &m.q, both}, {"k", own ? &m.k : nullptr, k}, {"v", own ? &m.v : nullptr, v}}, x);
  if (m.q_gate) split(name + "q.split", m.heads, {{m.head_dim, q}, {m.head_dim, gate}}, both);
  if (!m.q_norm.empty()) rms(name + "q_norm", m.q_norm, m.head_dim, spec_.eps, q, q, RowSet::kAll, m.heads);
  if (m.rope >= 0) rotate(name + "q_rope", m.rope, m.heads, m.head_dim, q);
  if (own) store_kv(name, m, k, v);
  const KvFields& fields = kv_fields_.at(own ? layer_ : m.share);
  c_.add(bind_attention(c_.device(), name + "core",
                        {.heads = m.heads,
                         .kv_heads = m.kv_heads,
                         .key_dim = m.head_dim,
                         .value_dim = m.head_dim,
                         .scale = m.scale,
                         .dtype = kv(),
                         .key = fields.key,
                         .value = fields.value,
                         .value_head_stride = m.head_dim,
                         .q = q.data,
                         .q_stride = q.cols,
                         .out = o.data,
                         .out_stride = o.cols,
                         .max_rows = c_.options().max_rows,
                         .window = m.window,
                         .sinks = m.sinks.empty() ? nullptr : m.sinks.data(),
                         .activations = c_.options().activations}),
         o);
  const Buffer gated = m.q_gate ? product_buffer("attention.gated", o) : o;
  if (m.q_gate) elementwise(name + "gate.apply", ElementwiseKind::kGate, o, gate, gated);
  linear(name + "o", m.o, gated, out);
}

}  // namespace weir
