// Grouped-query attention.
#include "models/compiler.h"
#include "ops/attention/attention.h"
#include "ops/attention/attention_inputs.h"

namespace weir {

Compiler::KvFields Compiler::add_kv_fields(const std::string& name, const AttentionMixer& m) {
  const int64_t row = m.kv_heads * m.head_dim * state_dtype_bytes(kv());
  const Retention kept = m.window > 0 ? Retention::kWindow : Retention::kForever;
  return {.key = c_.layout().add_page(name + "k", kept, row, m.window),
          .value = c_.layout().add_page(name + "v", kept, row, m.window)};
}

void Compiler::store_kv(const std::string& name, const AttentionMixer& m, const KvFields& fields, Buffer k, Buffer v) {
  if (m.v_norm) plain_rms(name + "v_norm", m.kv_heads, m.head_dim, m.v.weight.empty() ? k : v, v);
  if (!m.k_norm.empty()) rms(name + "k_norm", m.k_norm, m.head_dim, spec_.eps, k, k, RowSet::kAll, m.kv_heads);
  if (m.rope >= 0) rotate(name + "k_rope", m.rope, m.kv_heads, m.head_dim, k);
  kv_write(name + "k_write", fields.key, 0, k);
  kv_write(name + "v_write", fields.value, 0, v);
}

void Compiler::attention_inputs(const std::string& name, const AttentionMixer& m, const KvFields& fields,
                                const AttentionBuffers& b) {
  const auto weight = [](const FloatVector& v) { return v.empty() ? nullptr : v.data(); };
  AttentionInputsArgs args{.heads = m.heads,
                           .kv_heads = m.share < 0 ? m.kv_heads : 0,
                           .head_dim = m.head_dim,
                           .eps = spec_.eps,
                           .q_norm = weight(m.q_norm),
                           .k_norm = weight(m.k_norm),
                           .v_norm = m.v_norm,
                           .q_from = b.q_from.data,
                           .q_from_stride = b.q_from.cols,
                           .k = b.k.data,
                           .k_stride = b.k.cols,
                           .v = m.v_norm && m.v.weight.empty() ? b.k.data : b.v.data,
                           .v_stride = b.v.cols,
                           .q = b.q.data,
                           .q_stride = b.q.cols,
                           .gate = b.gate.data,
                           .gate_stride = b.gate.cols,
                           .dtype = kv(),
                           .key = fields.key,
                           .value = fields.value};
  if (m.rope >= 0) {
    const RopeSpec& spec = spec_.ropes[static_cast<size_t>(m.rope)];
    const Angles& angles = angles_[static_cast<size_t>(m.rope)];
    args.pairs = static_cast<int64_t>(spec.inv_freq.size());
    args.pairing = spec.pairing;
    args.cos = angles.cos.data;
    args.sin = angles.sin.data;
  }
  c_.add(bind_attention_inputs(c_.device(), name + "inputs", args), b.q);
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
  if (own) kv_fields_[layer_] = add_kv_fields(name, m);
  const KvFields& fields = kv_fields_.at(own ? layer_ : m.share);
  if (c_.device().is_cuda() && m.head_dim <= kLongestInputHead) {
    attention_inputs(name, m, fields, {.q_from = both, .k = k, .v = v, .q = q, .gate = gate});
  } else {
    if (m.q_gate) split(name + "q.split", m.heads, {{m.head_dim, q}, {m.head_dim, gate}}, both);
    if (!m.q_norm.empty()) rms(name + "q_norm", m.q_norm, m.head_dim, spec_.eps, q, q, RowSet::kAll, m.heads);
    if (m.rope >= 0) rotate(name + "q_rope", m.rope, m.heads, m.head_dim, q);
    if (own) store_kv(name, m, fields, k, v);
  }
  AttentionArgs core{.heads = m.heads,
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
                     .max_rows = c_.options().max_rows,
                     .window = m.window,
                     .sinks = m.sinks.empty() ? nullptr : m.sinks.data(),
                     .activations = c_.options().activations};
  const bool rounds = !m.q_gate && attention_rounds(core);
  const Buffer result = rounds ? product_buffer("attention.o.rounded", o) : o;
  core.out = result.data;
  core.out_stride = result.cols;
  core.out_type = result.type;
  c_.add(bind_attention(c_.device(), name + "core", core), result);
  const Buffer gated = m.q_gate ? product_buffer("attention.gated", o) : result;
  if (m.q_gate) elementwise(name + "gate.apply", ElementwiseKind::kGate, o, gate, gated);
  linear(name + "o", m.o, gated, out);
}

}  // namespace weir
