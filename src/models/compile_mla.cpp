// Multi-head latent attention in absorbed form.
#include "models/compiler.h"
#include "ops/attention/attention.h"
#include "ops/mla/mla.h"

namespace weir {

void Compiler::mix(const std::string& layer, const MlaMixer& m, Buffer x, Buffer out) {
  const std::string name = layer + "mla.";
  const int64_t key = m.latent + m.extra;
  const Buffer q = c_.buffer("mla.q", m.heads * (m.nope + m.extra));
  if (m.q_a) {
    const Buffer low = c_.buffer("mla.q_a", m.q_a->weight.out);
    linear(name + "q_a", *m.q_a, x, low);
    rms(name + "q_a_norm", m.q_a_norm, low.cols, m.latent_eps, low, low);
    linear(name + "q_b", m.q, low, q);
  } else {
    linear(name + "q", m.q, x, q);
  }
  const Buffer row = c_.buffer("mla.row", key);
  linear(name + "kv_a", m.kv_a, x, row);
  rms(name + "kv_a_norm", m.kv_a_norm, m.latent, m.latent_eps, row, row);
  const PageField field = c_.layout().add_page(name + "latent", Retention::kForever, key * state_dtype_bytes(kv()));
  kv_write(name + "write", field, 0, row);

  const MlaProjectArgs project{.kv_b = m.kv_b,
                               .k_b = m.k_b,
                               .v_b = m.v_b,
                               .heads = m.heads,
                               .nope = m.nope,
                               .extra = m.extra,
                               .value = m.value,
                               .latent = m.latent};
  const Buffer absorbed = c_.buffer("mla.absorbed", m.heads * key);
  MlaProjectArgs absorb = project;
  absorb.x = q.data;
  absorb.x_stride = q.cols;
  absorb.y = absorbed.data;
  absorb.y_stride = absorbed.cols;
  c_.add(bind_mla_absorb(c_.device(), name + "absorb", absorb), absorbed);

  const Buffer latent = c_.buffer("mla.o_latent", m.heads * m.latent);
  c_.add(bind_attention(c_.device(), name + "core",
                        {.heads = m.heads,
                         .kv_heads = 1,
                         .key_dim = key,
                         .value_dim = m.latent,
                         .scale = m.scale,
                         .dtype = kv(),
                         .key = field,
                         .value = field,
                         .value_head_stride = 0,
                         .q = absorbed.data,
                         .q_stride = absorbed.cols,
                         .out = latent.data,
                         .out_stride = latent.cols,
                         .max_rows = c_.options().max_rows}),
         latent);

  const Buffer o = c_.buffer("mla.o", m.heads * m.value);
  MlaProjectArgs expand = project;
  expand.x = latent.data;
  expand.x_stride = latent.cols;
  expand.y = o.data;
  expand.y_stride = o.cols;
  c_.add(bind_mla_expand(c_.device(), name + "expand", expand), o);
  if (m.gate) {
    const Buffer gate = c_.buffer("mla.gate", o.cols);
    linear(name + "gate", *m.gate, x, gate);
    elementwise(name + "gate.apply", ElementwiseKind::kGate, o, gate, o);
  }
  linear(name + "o", m.o, o, out);
}

}  // namespace weir
