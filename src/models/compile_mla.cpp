// Multi-head latent attention in absorbed form.
#include "base/error.h"
#include "models/compiler.h"
#include "ops/attention/attention.h"
#include "ops/indexer/indexer.h"
#include "ops/mla/mla.h"
#include "ops/norm/layer_norm.h"
#include "ops/sparse_attention/sparse_attention.h"

namespace weir {
namespace {

constexpr const char* kSelected = "indexer.selected";  // [rows, top_k]; kept for the layers that share it
constexpr const char* kCount = "indexer.count";
constexpr int64_t kMaxSelected = int64_t{1} << 29;  // positions of all rows of a step: 2 GiB

}  // namespace

void Compiler::select(const std::string& name, const Indexer& indexer, Buffer low, Buffer x) {
  const int64_t most = kMaxSelected / c_.options().max_rows;
  if (indexer.top_k > most) {
    fail("index_topk (attention.indexer.top_k): expected at most ", most, " in steps of ", c_.options().max_rows,
         " rows, found ", indexer.top_k);
  }
  const Buffer q = c_.buffer("indexer.q", indexer.heads * indexer.dim);
  const Buffer k = c_.buffer("indexer.k", indexer.dim);
  const Buffer weights = c_.buffer("indexer.weights", indexer.heads);
  linear(name + "q", indexer.q, low, q);
  linear(name + "k", indexer.k, x, k);
  c_.add(bind_layer_norm(c_.device(), name + "k_norm",
                         {.size = k.cols,
                          .eps = indexer.k_norm_eps,
                          .weight = indexer.k_norm.data(),
                          .bias = indexer.k_norm_bias.data(),
                          .x = k.data,
                          .x_stride = k.cols,
                          .y = k.data,
                          .y_stride = k.cols}),
         k);
  rotate(name + "q_rope", indexer.rope, indexer.heads, indexer.dim, q);
  rotate(name + "k_rope", indexer.rope, 1, indexer.dim, k);
  linear(name + "weights", indexer.weights, x, weights);
  const PageField keys = c_.layout().add_page(name + "k", Retention::kForever, k.cols * state_dtype_bytes(kv()));
  kv_write(name + "k_write", keys, 0, k);
  c_.add(bind_indexer(c_.device(), name + "choose",
                      {.heads = indexer.heads,
                       .dim = indexer.dim,
                       .top_k = indexer.top_k,
                       .scale = indexer.scale,
                       .weight_scale = indexer.weight_scale,
                       .dtype = kv(),
                       .key = keys,
                       .q = q.data,
                       .q_stride = q.cols,
                       .weights = weights.data,
                       .weights_stride = weights.cols,
                       .selected = c_.int_buffer(kSelected, indexer.top_k),
                       .count = c_.int_buffer(kCount, 1)}),
         weights);
}

void Compiler::mix(const std::string& layer, const MlaMixer& m, Buffer x, Buffer out) {
  const std::string name = layer + "mla.";
  const int64_t key_size = m.latent + m.extra;
  // What is rounded where it is read may be so where it is written: half the bytes, the same bits.
  const auto row_buffer = [&](std::string_view key, int64_t cols, bool rounded) {
    return rounded && cols % 8 == 0 ? c_.bf16_buffer(key, cols) : c_.buffer(key, cols);
  };
  const bool rounds = c_.device().is_cuda() && c_.options().activations == Activations::kAuto;
  const Buffer q = row_buffer("mla.q", m.heads * (m.nope + m.extra), rounds && m.rope < 0);
  const Buffer row = c_.buffer("mla.row", key_size);
  const Buffer gate = m.gate ? c_.buffer("mla.gate", m.heads * m.value) : Buffer{};
  const Buffer low = m.q_a ? c_.buffer("mla.q_a", m.q_a->weight.out) : Buffer{};
  const Buffer normed_low = m.q_a ? product_buffer("mla.q_a_normed", low) : Buffer{};
  linears(name,
          {{m.q_a ? "q_a" : "q", m.q_a ? &*m.q_a : &m.q, m.q_a ? low : q},
           {"kv_a", &m.kv_a, row},
           {"gate", m.gate ? &*m.gate : nullptr, gate}},
          x);
  if (m.q_a) {
    rms(name + "q_a_norm", m.q_a_norm, low.cols, m.latent_eps, low, normed_low);
    linear(name + "q_b", m.q, normed_low, q);
  }
  rms(name + "kv_a_norm", m.kv_a_norm, m.latent, m.latent_eps, row, row);
  if (m.rope >= 0) {
    rotate(name + "q_rope", m.rope, m.heads, m.nope + m.extra, q, m.nope);
    rotate(name + "k_rope", m.rope, 1, m.extra, row, m.latent);
  }
  const PageField field =
      c_.layout().add_page(name + "latent", Retention::kForever, key_size * state_dtype_bytes(kv()));
  kv_write(name + "write", field, 0, row);

  const MlaProjectArgs project{.kv_b = m.kv_b,
                               .k_b = m.k_b,
                               .v_b = m.v_b,
                               .heads = m.heads,
                               .nope = m.nope,
                               .extra = m.extra,
                               .value = m.value,
                               .latent = m.latent,
                               .activations = c_.options().activations};
  AttentionArgs core{.heads = m.heads,
                     .kv_heads = 1,
                     .key_dim = key_size,
                     .value_dim = m.latent,
                     .scale = m.scale,
                     .dtype = kv(),
                     .key = field,
                     .value = field,
                     .value_head_stride = 0,
                     .max_rows = c_.options().max_rows,
                     .activations = c_.options().activations};
  const bool core_rounds = c_.device().is_cuda() && attention_rounds(core);
  const Buffer absorbed = row_buffer("mla.absorbed", m.heads * key_size, core_rounds);
  MlaProjectArgs absorb = project;
  absorb.x = q.data;
  absorb.x_stride = q.cols;
  absorb.x_type = q.type;
  absorb.y = absorbed.data;
  absorb.y_stride = absorbed.cols;
  absorb.y_type = absorbed.type;
  c_.add(bind_mla_absorb(c_.device(), name + "absorb", absorb), absorbed);

  const Buffer latent = row_buffer("mla.o_latent", m.heads * m.latent, core_rounds);
  core.q = absorbed.data;
  core.q_stride = absorbed.cols;
  core.q_type = absorbed.type;
  core.out = latent.data;
  core.out_stride = latent.cols;
  core.out_type = latent.type;
  if (m.indexer) {
    if (!m.indexer->shared) select(name + "indexer.", *m.indexer, normed_low, x);
    c_.add(bind_sparse_attention(c_.device(), name + "core",
                                 {.attention = core,
                                  .selected = c_.int_buffer(kSelected, m.indexer->top_k),
                                  .count = c_.int_buffer(kCount, 1),
                                  .top_k = m.indexer->top_k,
                                  .workspace = sparse_workspace_}),
           latent);
  } else {
    c_.add(bind_attention(c_.device(), name + "core", core), latent);
  }

  const Buffer o = row_buffer("mla.o", m.heads * m.value, rounds && !m.gate);
  MlaProjectArgs expand = project;
  expand.x = latent.data;
  expand.x_stride = latent.cols;
  expand.x_type = latent.type;
  expand.y = o.data;
  expand.y_stride = o.cols;
  expand.y_type = o.type;
  c_.add(bind_mla_expand(c_.device(), name + "expand", expand), o);
  const Buffer gated = m.gate ? product_buffer("mla.gated", o) : o;
  if (m.gate) elementwise(name + "gate.apply", ElementwiseKind::kGate, o, gate, gated);
  linear(name + "o", m.o, gated, out);
}

}  // namespace weir
