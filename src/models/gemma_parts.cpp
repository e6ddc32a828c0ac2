#include "models/gemma_parts.h"

#include <cmath>

#include "base/error.h"

namespace weir {
namespace {

constexpr GgufName kNames[] = {
    {"model.embed_tokens", "token_embd"},
    {"lm_head", "output"},
    {"model.norm", "output_norm"},
    {"rope_freqs", "rope_freqs"},
    {"model.embed_tokens_per_layer", "per_layer_token_embd"},
    {"model.per_layer_model_projection", "per_layer_model_proj"},
    {"model.per_layer_projection_norm", "per_layer_proj_norm"},
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
    {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
    {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"router.proj", "ffn_gate_inp"},
    {"router.scale", "ffn_gate_inp.scale"},
    {"router.per_expert_scale", "ffn_down_exps.scale"},
    {"experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"experts.gate_proj", "ffn_gate_exps.weight"},
    {"experts.up_proj", "ffn_up_exps.weight"},
    {"experts.down_proj", "ffn_down_exps.weight"},
    {"per_layer_input_gate", "inp_gate"},
    {"per_layer_projection", "proj"},
    {"post_per_layer_input_norm", "post_norm"},
    {"layer_scalar", "layer_output_scale.weight"},
};

class Loader {
 public:
  Loader(TensorBinder& tensors, const GemmaConfig& config) : tensors_(tensors), c_(config) {}

  ModelSpec stack() {
    ModelSpec spec;
    spec.hidden = c_.hidden;
    spec.vocab = c_.vocab;
    spec.max_positions = c_.max_positions;
    spec.eps = c_.eps;
    spec.act = {.kind = ElementwiseKind::kGeGlu};
    spec.ropes = {c_.sliding_rope, c_.full_rope};
    spec.embedding = tensors_.matrix("model.embed_tokens.weight", c_.vocab, c_.hidden);
    spec.embedding_scale = root(c_.hidden);
    spec.head = tensors_.head("lm_head.weight", c_.tied, spec.embedding);
    spec.logit_softcap = c_.softcap;
    spec.final_norm = norm("model.norm.weight", c_.hidden);
    if (c_.per_layer > 0) spec.per_layer = per_layer_table();
    for (size_t i = 0; i < c_.layers.size(); ++i) {
      const std::string p = concat("model.layers.", i, ".");
      spec.layers.push_back(layer(c_.layers[i], p));
      // Some checkpoints keep the projections that a sharing layer does not use.
      if (c_.layers[i].share < 0) continue;
      for (const char* name : {"k_proj.", "v_proj.", "k_norm."}) spec.skipped.push_back(concat(p, "self_attn.", name));
    }
    return spec;
  }

 private:
  static float root(int64_t n) { return static_cast<float>(std::sqrt(static_cast<double>(n))); }

  FloatVector norm(const std::string& name, int64_t size) {
    return c_.zero_centred ? tensors_.zero_centred(name, {size}) : tensors_.floats(name, {size});
  }

  PerLayerTable per_layer_table() {
    const int64_t width = static_cast<int64_t>(c_.layers.size()) * c_.per_layer;
    return {.size = c_.per_layer,
            .table = tensors_.matrix("model.embed_tokens_per_layer.weight", c_.per_layer_vocab, width),
            .scale = root(c_.per_layer),
            .projection = tensors_.linear("model.per_layer_model_projection", width, c_.hidden),
            .norm = tensors_.floats("model.per_layer_projection_norm.weight", {c_.per_layer}),
            .eps = c_.eps * static_cast<float>(c_.hidden)};
  }

  LayerSpec layer(const GemmaLayer& l, const std::string& p) {
    LayerSpec layer;
    layer.input_norm = norm(p + "input_layernorm.weight", c_.hidden);
    layer.post_mixer_norm = norm(p + "post_attention_layernorm.weight", c_.hidden);
    layer.ffn_norm = norm(p + "pre_feedforward_layernorm.weight", c_.hidden);
    layer.post_ffn_norm = norm(p + "post_feedforward_layernorm.weight", c_.hidden);
    layer.mixer = attention(l, p + "self_attn.");
    DenseFfn dense{.inter = l.inter,
                   .gate = tensors_.linear(p + "mlp.gate_proj", l.inter, c_.hidden),
                   .up = tensors_.linear(p + "mlp.up_proj", l.inter, c_.hidden),
                   .down = tensors_.linear(p + "mlp.down_proj", c_.hidden, l.inter)};
    if (c_.experts > 0) {
      layer.ffn = parallel(std::move(dense), p);
    } else {
      layer.ffn = std::move(dense);
    }
    if (c_.per_layer > 0) {
      layer.per_layer =
          PerLayerInput{.gate = tensors_.linear(p + "per_layer_input_gate", c_.per_layer, c_.hidden),
                        .projection = tensors_.linear(p + "per_layer_projection", c_.hidden, c_.per_layer),
                        .norm = norm(p + "post_per_layer_input_norm.weight", c_.hidden)};
    }
    // In all layers or in none: one too many is a tensor that nobody takes.
    if (tensors_.has("model.layers.0.layer_scalar")) layer.scalar = tensors_.floats(p + "layer_scalar", {1})[0];
    return layer;
  }

  AttentionMixer attention(const GemmaLayer& l, const std::string& p) {
    AttentionMixer m{.heads = c_.heads, .kv_heads = l.kv_heads, .head_dim = l.head_dim, .scale = c_.scale};
    m.rope = l.sliding ? 0 : 1;
    m.window = l.sliding ? c_.window : 0;
    m.v_norm = c_.v_norm;
    m.share = l.share;
    const int64_t q = c_.heads * l.head_dim;
    const int64_t kv = l.kv_heads * l.head_dim;
    m.q = tensors_.linear(p + "q_proj", q, c_.hidden, c_.attention_bias);
    m.q_norm = norm(p + "q_norm.weight", l.head_dim);
    if (l.share < 0) {
      m.k = tensors_.linear(p + "k_proj", kv, c_.hidden, c_.attention_bias);
      m.k_norm = norm(p + "k_norm.weight", l.head_dim);
      if (!l.k_is_v) m.v = tensors_.linear(p + "v_proj", kv, c_.hidden, c_.attention_bias);
    }
    m.o = tensors_.linear(p + "o_proj", c_.hidden, q, c_.attention_bias);
    return m;
  }

  ParallelFfn parallel(DenseFfn dense, const std::string& p) {
    ParallelFfn f;
    f.dense = std::move(dense);
    f.dense_norm = norm(p + "post_feedforward_layernorm_1.weight", c_.hidden);
    f.moe_input_norm = norm(p + "pre_feedforward_layernorm_2.weight", c_.hidden);
    f.moe_norm = norm(p + "post_feedforward_layernorm_2.weight", c_.hidden);
    // The router's input is scaled by hidden^-0.5 too: part of the norm's weight.
    f.router_norm = tensors_.floats(p + "router.scale", {c_.hidden});
    const auto factor = static_cast<float>(1 / std::sqrt(static_cast<double>(c_.hidden)));
    for (float& w : f.router_norm) w *= factor;
    MoeFfn& m = f.moe;
    m.score = RouterScore::kSoftmax;
    m.top_k = c_.top_k;
    m.inter = c_.moe_inter;
    m.router = tensors_.linear(p + "router.proj", c_.experts, c_.hidden);
    m.expert_scale = tensors_.floats(p + "router.per_expert_scale", {c_.experts});
    m.experts.resize(static_cast<size_t>(c_.experts));
    const bool split = tensors_.has(p + "experts.gate_proj");
    const WeightView gate_up =
        split ? WeightView{} : tensors_.stack(p + "experts.gate_up_proj", c_.experts, 2 * m.inter, c_.hidden);
    const WeightView gate = split ? tensors_.stack(p + "experts.gate_proj", c_.experts, m.inter, c_.hidden) : gate_up;
    const WeightView up = split ? tensors_.stack(p + "experts.up_proj", c_.experts, m.inter, c_.hidden) : gate_up;
    const WeightView down = tensors_.stack(p + "experts.down_proj", c_.experts, c_.hidden, m.inter);
    const int64_t stride = split ? m.inter : 2 * m.inter;
    for (int64_t e = 0; e < c_.experts; ++e) {
      ExpertWeights& w = m.experts[static_cast<size_t>(e)];
      w.gate = gate.rows(e * stride, m.inter);
      w.up = up.rows(e * stride + (split ? 0 : m.inter), m.inter);
      w.down = down.rows(e * c_.hidden, c_.hidden);
    }
    return f;
  }

  TensorBinder& tensors_;
  const GemmaConfig& c_;
};

}  // namespace

void check_gemma_scale(const GgufConfig& config, const GemmaConfig& numbers) {
  const float scale = config.number_or("attention.scale", 0, -1e6, 1e6);
  if (scale != 0 && scale != numbers.scale) config.fail_key("attention.scale", concat("0 or ", numbers.scale));
}

std::span<const GgufName> gemma_gguf_names() { return kNames; }

int64_t gemma_head_dim(const GemmaConfig& c, bool sliding, int64_t fallback) {
  for (const GemmaLayer& l : c.layers) {
    if (l.sliding == sliding) return l.head_dim;
  }
  return fallback;
}

ModelSpec load_gemma_stack(TensorBinder& tensors, const GemmaConfig& c) { return Loader(tensors, c).stack(); }

}  // namespace weir
