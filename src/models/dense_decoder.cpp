#include "models/dense_decoder.h"

#include <cmath>
#include <utility>

#include "base/error.h"
#include "models/limits.h"
#include "models/rope_config.h"

namespace weir {
namespace {

constexpr GgufName kNames[] = {
    {"model.embed_tokens", "token_embd"},
    {"lm_head", "output"},
    {"model.norm", "output_norm"},
    {"rope_freqs", "rope_freqs"},
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    // Qwen's mixtures of experts
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.experts.*.gate_proj", "ffn_gate_exps"},
    {"mlp.experts.*.up_proj", "ffn_up_exps"},
    {"mlp.experts.*.down_proj", "ffn_down_exps"},
    {"mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
    // Qwen's Gated DeltaNet
    {"post_attention_layernorm", "post_attention_norm"},
    {"linear_attn.in_proj_qkvz", "ssm_in"},
    {"linear_attn.in_proj_qkv", "attn_qkv"},
    {"linear_attn.in_proj_z", "attn_gate"},
    {"linear_attn.in_proj_ba", "ssm_ba"},
    {"linear_attn.in_proj_b", "ssm_beta"},
    {"linear_attn.in_proj_a", "ssm_alpha"},
    {"linear_attn.conv1d", "ssm_conv1d"},
    {"linear_attn.A", "ssm_a"},
    {"linear_attn.dt_bias", "ssm_dt.bias"},
    {"linear_attn.norm", "ssm_norm"},
    {"linear_attn.out_proj", "ssm_out"},
};

Linear rows_of(const Linear& all, int64_t begin, int64_t count) {
  Linear part = all;
  part.weight = all.weight.rows(begin, count);
  if (!all.bias.empty()) part.bias.assign(all.bias.begin() + begin, all.bias.begin() + begin + count);
  return part;
}

FloatVector norm(TensorBinder& tensors, const DecoderConfig& c, const std::string& name, int64_t size) {
  return c.zero_centred ? tensors.zero_centred(name, {size}) : tensors.floats(name, {size});
}

}  // namespace

AttentionMixer load_attention(TensorBinder& tensors, const DecoderConfig& c, const std::string& p) {
  AttentionMixer m{.heads = c.heads,
                   .kv_heads = c.kv_heads,
                   .head_dim = c.head_dim,
                   .scale = 1.f / std::sqrt(static_cast<float>(c.head_dim))};
  m.q_gate = c.q_gate;
  const int64_t q = c.heads * c.head_dim;
  const int64_t kv = c.kv_heads * c.head_dim;
  if (!c.q_gate && tensors.has(p + "qkv_proj.weight") && !tensors.has(p + "q_proj.weight")) {
    const Linear fused = tensors.linear(p + "qkv_proj", q + 2 * kv, c.hidden, tensors.has(p + "qkv_proj.bias"));
    m.q = rows_of(fused, 0, q);
    m.k = rows_of(fused, q, kv);
    m.v = rows_of(fused, q + kv, kv);
  } else {
    m.q = tensors.linear(p + "q_proj", c.q_gate ? 2 * q : q, c.hidden, c.qkv_bias);
    m.k = tensors.linear(p + "k_proj", kv, c.hidden, c.qkv_bias);
    m.v = tensors.linear(p + "v_proj", kv, c.hidden, c.qkv_bias);
  }
  if (c.qk_norm) {
    m.q_norm = norm(tensors, c, p + "q_norm.weight", c.head_dim);
    m.k_norm = norm(tensors, c, p + "k_norm.weight", c.head_dim);
  }
  m.o = tensors.linear(p + "o_proj", c.hidden, q, c.o_bias);
  return m;
}

DenseFfn load_dense_ffn(TensorBinder& tensors, const DecoderConfig& c, const std::string& p) {
  return {.inter = c.inter,
          .gate = tensors.linear(p + "gate_proj", c.inter, c.hidden, c.mlp_bias),
          .up = tensors.linear(p + "up_proj", c.inter, c.hidden, c.mlp_bias),
          .down = tensors.linear(p + "down_proj", c.hidden, c.inter, c.mlp_bias)};
}

DecoderConfig::DecoderConfig(const JsonObject& c, Layers kind) {
  hidden = c.integer("hidden_size", 1, kMaxWidth);
  vocab = c.integer("vocab_size", 1, kMaxWidth);
  max_positions = c.integer_or("max_position_embeddings", 2048, 1, kMaxContext);
  eps = static_cast<float>(c.number_or("rms_norm_eps", 1e-6, 0, 1));
  if (c.string_or("hidden_act", "silu") != "silu") c.fail_field("hidden_act", "'silu'");
  layers = c.integer("num_hidden_layers", 1, kMaxLayers);
  inter = kind == Layers::kDense ? c.integer("intermediate_size", 1, kMaxWidth)
                                 : c.integer_or("intermediate_size", 0, 0, kMaxWidth);
  heads = c.integer("num_attention_heads", 1, kMaxHeads);
  kv_heads = c.integer_or("num_key_value_heads", heads, 1, heads);
  if (heads % kv_heads != 0) c.fail_field("num_key_value_heads", concat("a divisor of num_attention_heads = ", heads));
  if (!c.has("head_dim") && hidden % heads != 0) c.fail_field("num_attention_heads", "a divisor of hidden_size");
  head_dim = c.integer_or("head_dim", hidden / heads, 2, kMaxHeadDim);
  if (head_dim % 2 != 0) c.fail_field("head_dim", "an even number");
  tied = c.boolean_or("tie_word_embeddings", false);
  if (kind != Layers::kHybrid) rope = load_rope(c, head_dim);
}

DecoderConfig::DecoderConfig(const GgufConfig& c, Layers kind) {
  c.refuse_options({});
  hidden = c.integer("embedding_length", 1, kMaxWidth);
  vocab = c.vocab();
  max_positions = c.integer("context_length", 1, kMaxContext);
  eps = c.number("attention.layer_norm_rms_epsilon", 0, 1);
  layers = c.integer("block_count", 1, kMaxLayers);
  inter = kind == Layers::kDense ? c.integer("feed_forward_length", 1, kMaxWidth)
                                 : c.integer_or("feed_forward_length", 0, 0, kMaxWidth);
  heads = c.integer("attention.head_count", 1, kMaxHeads);
  kv_heads = c.integer_or("attention.head_count_kv", heads, 1, heads);
  if (heads % kv_heads != 0) c.fail_key("attention.head_count_kv", concat("a divisor of head_count = ", heads));
  if (!c.has("attention.key_length") && hidden % heads != 0) {
    c.fail_key("attention.head_count", "a divisor of embedding_length");
  }
  head_dim = c.integer_or("attention.key_length", hidden / heads, 2, kMaxHeadDim);
  if (c.integer_or("attention.value_length", head_dim, 1, kMaxHeadDim) != head_dim) {
    c.fail_key("attention.value_length", concat(head_dim, ", as key_length"));
  }
  if (kind == Layers::kDense && c.integer_or("expert_count", 0, 0, kMaxWidth) != 0)
    c.fail_key("expert_count", "0 in this architecture");
  tied = c.file().find("output.weight") == nullptr;
  qkv_bias = c.file().find("blk.0.attn_q.bias") != nullptr;
  o_bias = c.file().find("blk.0.attn_output.bias") != nullptr;
  mlp_bias = c.file().find("blk.0.ffn_up.bias") != nullptr;
}

ModelSpec load_decoder(TensorBinder& tensors, const DecoderConfig& c, const LayerParts& parts) {
  ModelSpec spec;
  spec.hidden = c.hidden;
  spec.vocab = c.vocab;
  spec.max_positions = c.max_positions;
  spec.eps = c.eps;
  spec.act = {.kind = ElementwiseKind::kSwiGlu};
  spec.ropes = {c.rope};
  spec.embedding = tensors.matrix("model.embed_tokens.weight", c.vocab, c.hidden);
  spec.head = tensors.head("lm_head.weight", c.tied, spec.embedding);
  spec.final_norm = norm(tensors, c, "model.norm.weight", c.hidden);
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string p = concat("model.layers.", i, ".");
    LayerSpec layer;
    layer.input_norm = norm(tensors, c, p + "input_layernorm.weight", c.hidden);
    layer.ffn_norm = norm(tensors, c, p + "post_attention_layernorm.weight", c.hidden);
    parts(i, p, layer);
    if (AttentionMixer* attention = std::get_if<AttentionMixer>(&layer.mixer); attention && !c.windows.empty()) {
      attention->window = c.windows[static_cast<size_t>(i)];
    }
    spec.layers.push_back(std::move(layer));
  }
  return spec;
}

ModelSpec load_dense_decoder(TensorBinder& tensors, const DecoderConfig& c) {
  return load_decoder(tensors, c, [&](int64_t, const std::string& p, LayerSpec& layer) {
    layer.mixer = load_attention(tensors, c, p + "self_attn.");
    layer.ffn = load_dense_ffn(tensors, c, p + "mlp.");
  });
}

std::span<const GgufName> decoder_gguf_names() { return kNames; }

RopeSpec load_gguf_rope(const GgufConfig& config, TensorBinder& tensors, int64_t head_dim) {
  const int64_t dims = config.integer_or("rope.dimension_count", head_dim, 2, head_dim);
  if (dims % 2 != 0) config.fail_key("rope.dimension_count", "an even number");
  FloatVector factors;
  if (tensors.has("rope_freqs.weight")) factors = tensors.floats("rope_freqs.weight", {dims / 2});
  return load_rope(config, dims, factors);
}

ModelSpec load_gguf_decoder(const GgufFile& file, RopePairing pairing, bool qk_norm) {
  const GgufConfig config(file);
  DecoderConfig numbers(config);
  numbers.qk_norm = qk_norm;
  TensorBinder tensors(file, kNames);
  numbers.rope = load_gguf_rope(config, tensors, numbers.head_dim);
  numbers.rope.pairing = pairing;
  ModelSpec spec = load_dense_decoder(tensors, numbers);
  tensors.finish(spec.skipped);
  return spec;
}

std::vector<int64_t> windows_of_types(const JsonObject& c, int64_t layers, int64_t window) {
  std::vector<int64_t> windows;
  const std::vector<std::string> types = c.words("layer_types", layers, {"sliding_attention", "full_attention"});
  for (const std::string& type : types) windows.push_back(type == "sliding_attention" ? window : 0);
  return windows;
}

int64_t qwen_window(const JsonObject& c) {
  if (!c.boolean_or("use_sliding_window", false)) return 0;
  if (c.raw().contains("sliding_window") && !c.has("sliding_window")) return 0;  // null: none, whatever else is said
  return c.integer_or("sliding_window", 4096, 1, kMaxContext);
}

std::vector<int64_t> qwen_windows(const JsonObject& c, int64_t layers) {
  const int64_t window = qwen_window(c);
  if (window == 0) return {};
  if (c.has("layer_types")) return windows_of_types(c, layers, window);
  const int64_t first = c.integer_or("max_window_layers", 28, 0, kMaxLayers);
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < layers; ++i) windows.push_back(i >= first ? window : 0);
  return windows;
}

}  // namespace weir
