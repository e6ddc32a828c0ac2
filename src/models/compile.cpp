// From parts to ops. Every mixer and feed-forward reads `x` (normed) and writes `out`; the residual scheme around them
// is the only difference between stacks.
#include <cmath>
#include <utility>

#include "base/error.h"
#include "models/circuit.h"
#include "ops/attn_residual/attn_residual.h"
#include "ops/embedding/embedding.h"
#include "ops/gate/gate.h"
#include "ops/linear/linear.h"
#include "ops/mla/mla.h"
#include "ops/norm/norm.h"
#include "ops/router/router.h"
#include "ops/short_conv/short_conv.h"

namespace weir {
namespace {

constexpr float kL2Eps = 1e-6f;  // on the sum (spec of the delta rule's q and k)

class Compiler {
 public:
  Compiler(const ModelSpec& spec, Circuit& circuit) : spec_(spec), c_(circuit) {}

  void stack() {
    Buffer stream = c_.buffer("stream.0", spec_.hidden);
    c_.add(
        bind_embedding(c_.device(), "embedding", {.table = spec_.embedding, .y = stream.data, .y_stride = stream.cols}),
        stream);
    if (spec_.rope) rope_angles(*spec_.rope);
    stream = spec_.residual_block > 0 ? residual_stack(stream) : plain_stack(stream);
    head(stream);
  }

 private:
  // --- residual schemes ---
  Buffer plain_stack(Buffer stream) {
    const Buffer x = c_.buffer("normed", spec_.hidden);
    const Buffer out = c_.buffer("sublayer", spec_.hidden);
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      const LayerSpec& layer = spec_.layers[i];
      const std::string name = concat("layers.", i, ".");
      norm(name + "input_norm", layer.input_norm, stream, x);
      mixer(name, layer, x, out);
      add(name + "mixer.add", stream, out, stream);
      norm(name + "ffn_norm", layer.ffn_norm, stream, x);
      ffn(name, layer, x, out);
      add(name + "ffn.add", stream, out, stream);
    }
    return stream;
  }

  // Attention residuals: every residual_block layers the running stream is sealed as a candidate (its buffer simply
  // stays) and a new one starts from the mixer's output.
  Buffer residual_stack(Buffer stream) {
    const Buffer read = c_.buffer("residual_read", spec_.hidden);
    const Buffer x = c_.buffer("normed", spec_.hidden);
    const Buffer out = c_.buffer("sublayer", spec_.hidden);
    std::vector<const float*> sealed;
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      const LayerSpec& layer = spec_.layers[i];
      const std::string name = concat("layers.", i, ".");
      const Buffer input = sealed.empty() ? stream : read;
      if (!sealed.empty()) residual_read(name + "mixer_residual", layer.mixer_residual, sealed, stream, read);
      norm(name + "input_norm", layer.input_norm, input, x);
      if (static_cast<int64_t>(i) % spec_.residual_block == 0) {
        sealed.push_back(stream.data);
        stream = c_.buffer(concat("stream.", sealed.size()), spec_.hidden);
        mixer(name, layer, x, stream);
      } else {
        mixer(name, layer, x, out);
        add(name + "mixer.add", stream, out, stream);
      }
      residual_read(name + "ffn_residual", layer.ffn_residual, sealed, stream, read);
      norm(name + "ffn_norm", layer.ffn_norm, read, x);
      ffn(name, layer, x, out);
      add(name + "ffn.add", stream, out, stream);
    }
    residual_read("output_residual", spec_.output_residual, sealed, stream, read);
    return read;
  }

  void residual_read(const std::string& name, const FloatVector& weight, std::vector<const float*> candidates,
                     Buffer stream, Buffer y) {
    candidates.push_back(stream.data);
    c_.add(bind_attn_residual(c_.device(), name,
                              {.candidates = std::move(candidates),
                               .stride = stream.cols,
                               .size = spec_.hidden,
                               .eps = spec_.eps,
                               .weight = weight.data(),
                               .y = y.data,
                               .y_stride = y.cols}),
           y);
  }

  void head(Buffer stream) {
    const Buffer rows = c_.logit_buffer("logit_rows", spec_.hidden);
    c_.add(
        bind_gather(
            c_.device(), "head.gather",
            {.size = spec_.hidden, .x = stream.data, .x_stride = stream.cols, .y = rows.data, .y_stride = rows.cols}),
        rows);
    norm("head.norm", spec_.final_norm, rows, rows, RowSet::kLogits);
    c_.logits = c_.logit_buffer("logits", spec_.vocab);
    c_.add(bind_linear(c_.device(), "head.linear",
                       {.weight = spec_.head,
                        .x = rows.data,
                        .x_stride = rows.cols,
                        .y = c_.logits.data,
                        .y_stride = c_.logits.cols,
                        .rows = RowSet::kLogits,
                        .activations = c_.options().activations,
                        .max_rows = c_.options().max_logit_rows}),
           c_.logits);
  }

  // --- small parts ---
  void linear(const std::string& name, const Linear& part, Buffer x, Buffer y) {
    c_.add(bind_linear(c_.device(), name,
                       {.weight = part.weight,
                        .bias = part.bias.empty() ? nullptr : part.bias.data(),
                        .x = x.data,
                        .x_stride = x.cols,
                        .y = y.data,
                        .y_stride = y.cols,
                        .activations = c_.options().activations,
                        .max_rows = c_.options().max_rows}),
           y);
  }

  void norm(const std::string& name, const FloatVector& weight, Buffer x, Buffer y, RowSet rows = RowSet::kAll) {
    rms(name, weight, static_cast<int64_t>(weight.size()), spec_.eps, x, y, rows);
  }

  // The first `size` elements of each row, or each of its first groups of so many.
  void rms(const std::string& name, const FloatVector& weight, int64_t size, float eps, Buffer x, Buffer y,
           RowSet rows = RowSet::kAll, int64_t groups = 1) {
    c_.add(bind_norm(c_.device(), name,
                     {.kind = NormKind::kRms,
                      .groups = groups,
                      .size = size,
                      .eps = eps,
                      .weight = weight.data(),
                      .x = x.data,
                      .x_stride = x.cols,
                      .y = y.data,
                      .y_stride = y.cols,
                      .rows = rows}),
           y);
  }

  void elementwise(const std::string& name, ElementwiseKind kind, Buffer g, Buffer u, Buffer y) {
    c_.add(bind_elementwise(c_.device(), name,
                            {.kind = kind,
                             .beta = spec_.act.beta,
                             .linear_beta = spec_.act.linear_beta,
                             .size = y.cols,
                             .g = g.data,
                             .g_stride = g.cols,
                             .u = u.data,
                             .u_stride = u.cols,
                             .y = y.data,
                             .y_stride = y.cols}),
           y);
  }
  void add(const std::string& name, Buffer a, Buffer b, Buffer y) { elementwise(name, ElementwiseKind::kAdd, a, b, y); }

  void rope_angles(const RopeSpec& rope) {
    const auto pairs = static_cast<int64_t>(rope.inv_freq.size());
    cos_ = c_.buffer("rope.cos", pairs);
    sin_ = c_.buffer("rope.sin", pairs);
    c_.add(bind_rope_angles(c_.device(), "rope.angles",
                            {.inv_freq = rope.inv_freq.data(),
                             .pairs = pairs,
                             .attention_factor = rope.attention_factor,
                             .cos = cos_.data,
                             .sin = sin_.data}),
           cos_);
  }

  void rotate(const std::string& name, int64_t heads, int64_t head_dim, Buffer x) {
    c_.add(bind_rope(c_.device(), name,
                     {.pairing = spec_.rope->pairing,
                      .heads = heads,
                      .head_stride = head_dim,
                      .pairs = static_cast<int64_t>(spec_.rope->inv_freq.size()),
                      .cos = cos_.data,
                      .sin = sin_.data,
                      .x = x.data,
                      .x_stride = x.cols}),
           x);
  }

  void kv_write(const std::string& name, PageField field, int64_t to, Buffer x) {
    c_.add(bind_kv_write(c_.device(), name,
                         {.dtype = kv(), .field = field, .to = to, .size = x.cols, .x = x.data, .x_stride = x.cols}),
           x);
  }

  StateDtype kv() const { return c_.options().kv_dtype; }

  // --- mixers ---
  void mixer(const std::string& layer, const LayerSpec& spec, Buffer x, Buffer out) {
    std::visit([&](const auto& part) { mix(layer, part, x, out); }, spec.mixer);
  }

  void mix(const std::string& layer, const AttentionMixer& m, Buffer x, Buffer out) {
    const std::string name = layer + "attention.";
    const Buffer q = c_.buffer("attention.q", m.heads * m.head_dim);
    const Buffer k = c_.buffer("attention.k", m.kv_heads * m.head_dim);
    const Buffer v = c_.buffer("attention.v", m.kv_heads * m.head_dim);
    const Buffer o = c_.buffer("attention.o", m.heads * m.head_dim);
    linear(name + "q", m.q, x, q);
    linear(name + "k", m.k, x, k);
    linear(name + "v", m.v, x, v);
    if (!m.q_norm.empty()) rms(name + "q_norm", m.q_norm, m.head_dim, spec_.eps, q, q, RowSet::kAll, m.heads);
    if (!m.k_norm.empty()) rms(name + "k_norm", m.k_norm, m.head_dim, spec_.eps, k, k, RowSet::kAll, m.kv_heads);
    if (m.rope) {
      rotate(name + "q_rope", m.heads, m.head_dim, q);
      rotate(name + "k_rope", m.kv_heads, m.head_dim, k);
    }
    const int64_t row = k.cols * state_dtype_bytes(kv());
    const PageField keys = c_.layout().add_page(name + "k", Retention::kForever, row);
    const PageField values = c_.layout().add_page(name + "v", Retention::kForever, row);
    kv_write(name + "k_write", keys, 0, k);
    kv_write(name + "v_write", values, 0, v);
    c_.add(bind_attention(c_.device(), name + "core",
                          {.heads = m.heads,
                           .kv_heads = m.kv_heads,
                           .key_dim = m.head_dim,
                           .value_dim = m.head_dim,
                           .scale = m.scale,
                           .dtype = kv(),
                           .key = keys,
                           .value = values,
                           .value_head_stride = m.head_dim,
                           .q = q.data,
                           .q_stride = q.cols,
                           .out = o.data,
                           .out_stride = o.cols,
                           .max_rows = c_.options().max_rows}),
           o);
    linear(name + "o", m.o, o, out);
  }

  void mix(const std::string& layer, const MlaMixer& m, Buffer x, Buffer out) {
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

  // Projection, convolution and SiLU of one of q, k, v.
  Buffer convolved(const std::string& name, std::string_view key, const Linear& projection, const FloatVector& taps,
                   int64_t count, Buffer x) {
    const Buffer raw = c_.buffer("kda.projected", projection.weight.out);
    const Buffer y = c_.buffer(key, raw.cols);
    linear(name + "_proj", projection, x, raw);
    const int64_t row = raw.cols * 4;
    c_.add(bind_short_conv(c_.device(), name + "_conv",
                           {.channels = raw.cols,
                            .taps = count,
                            .weight = taps.data(),
                            .journal = c_.layout().add_page(name + "_conv", Retention::kJournal, row),
                            .window = c_.layout().add_anchor(name + "_window", (count - 1) * row),
                            .x = raw.data,
                            .x_stride = raw.cols,
                            .y = y.data,
                            .y_stride = y.cols}),
           y);
    return y;
  }

  void l2(const std::string& name, int64_t heads, int64_t dim, float scale, Buffer x) {
    c_.add(bind_norm(c_.device(), name,
                     {.kind = NormKind::kL2,
                      .groups = heads,
                      .size = dim,
                      .eps = kL2Eps,
                      .scale = scale,
                      .x = x.data,
                      .x_stride = x.cols,
                      .y = x.data,
                      .y_stride = x.cols}),
           x);
  }

  void mix(const std::string& layer, const KdaMixer& m, Buffer x, Buffer out) {
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
    c_.add(bind_kda_gate(c_.device(), name + "decay",
                         {.bounded = m.decay == DecayKind::kBounded,
                          .lower_bound = m.lower_bound,
                          .heads = m.heads,
                          .key_dim = m.head_dim,
                          .a = m.a.data(),
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

    const Buffer o = c_.buffer("kda.o", full);
    const int64_t journal = delta_rule_journal_row_bytes(m.heads, m.head_dim, m.head_dim);
    const int64_t state = delta_rule_anchor_bytes(m.heads, m.head_dim, m.head_dim);
    c_.add(bind_delta_rule(c_.device(), name + "core",
                           {.decay = m.decay,
                            .heads = m.heads,
                            .key_dim = m.head_dim,
                            .value_dim = m.head_dim,
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

    const Buffer gate = c_.buffer("kda.gate", full);
    Buffer gate_input = x;
    if (m.gate_a) {
      gate_input = c_.buffer("kda.gate_a", m.gate_a->weight.out);
      linear(name + "gate_a", *m.gate_a, x, gate_input);
    }
    linear(name + "gate", m.gate, gate_input, gate);
    c_.add(bind_norm(c_.device(), name + "o_norm",
                     {.kind = NormKind::kRmsGated,
                      .groups = m.heads,
                      .size = m.head_dim,
                      .eps = spec_.eps,
                      .weight = m.o_norm.data(),
                      .x = o.data,
                      .x_stride = o.cols,
                      .gate = gate.data,
                      .gate_stride = gate.cols,
                      .y = o.data,
                      .y_stride = o.cols}),
           o);
    linear(name + "o", m.o, o, out);
  }

  // --- feed-forward ---
  void ffn(const std::string& layer, const LayerSpec& spec, Buffer x, Buffer out) {
    std::visit([&](const auto& part) { feed(layer + "ffn.", part, x, out); }, spec.ffn);
  }

  void feed(const std::string& name, const DenseFfn& f, Buffer x, Buffer out) {
    const Buffer gate = c_.buffer("ffn.gate", f.inter);
    const Buffer up = c_.buffer("ffn.up", f.inter);
    linear(name + "gate", f.gate, x, gate);
    linear(name + "up", f.up, x, up);
    elementwise(name + "act", spec_.act.kind, gate, up, gate);
    linear(name + "down", f.down, gate, out);
  }

  void feed(const std::string& name, const MoeFfn& f, Buffer x, Buffer out) {
    const auto experts = static_cast<int64_t>(f.experts.size());
    const Buffer logits = c_.buffer("moe.router", experts);
    const Buffer weights = c_.buffer("moe.weights", f.top_k);
    int32_t* ids = c_.int_buffer("moe.ids", f.top_k);
    linear(name + "router", f.router, x, logits);
    c_.add(bind_router(c_.device(), name + "choose",
                       {.experts = experts,
                        .top_k = f.top_k,
                        .groups = f.groups,
                        .topk_group = f.topk_group,
                        .renormalize = f.renormalize,
                        .scaling_factor = f.scaling_factor,
                        .bias = f.router_bias.data(),
                        .logits = logits.data,
                        .logits_stride = logits.cols,
                        .ids = ids,
                        .weights = weights.data}),
           weights);
    const Buffer input = f.latent ? c_.buffer("moe.latent", f.latent->down.weight.out) : x;
    if (f.latent) linear(name + "latent_down", f.latent->down, x, input);
    const Buffer routed = f.latent ? c_.buffer("moe.latent_out", input.cols) : out;
    c_.add(bind_moe(c_.device(), name + "experts",
                    {.experts = f.experts,
                     .in = input.cols,
                     .inter = f.inter,
                     .out = routed.cols,
                     .top_k = f.top_k,
                     .act = spec_.act,
                     .x = input.data,
                     .x_stride = input.cols,
                     .ids = ids,
                     .weights = weights.data,
                     .y = routed.data,
                     .y_stride = routed.cols,
                     .max_rows = c_.options().max_rows,
                     .workspace = moe_workspace_,
                     .activations = c_.options().activations}),
           routed);
    if (f.latent) {
      if (!f.latent->norm.empty()) norm(name + "latent_norm", f.latent->norm, routed, routed);
      linear(name + "latent_up", f.latent->up, routed, out);
    }
    if (f.shared) {
      const Buffer shared = c_.buffer("moe.shared", spec_.hidden);
      feed(name + "shared.", *f.shared, x, shared);
      add(name + "shared.add", out, shared, out);
    }
  }

  const ModelSpec& spec_;
  Circuit& c_;
  Buffer cos_, sin_;
  std::shared_ptr<MoeWorkspace> moe_workspace_ = std::make_shared<MoeWorkspace>();  // layers run one after the other
};

}  // namespace

std::unique_ptr<Circuit> compile(const ModelSpec& spec, CpuDevice& device, const CompileOptions& options) {
  auto circuit = std::make_unique<Circuit>(device, options);
  Compiler(spec, *circuit).stack();
  return circuit;
}

}  // namespace weir
