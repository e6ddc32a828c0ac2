#include "models/kimi_parts.h"

#include <algorithm>

#include "base/error.h"
#include "base/math.h"
#include "models/limits.h"

namespace weir {
namespace {

int64_t width(const JsonObject& config, std::string_view key) { return config.integer(key, 1, kMaxWidth); }

// layer_types (newer writers) wins over the 1-based lists of linear_attn_config (published files).
std::vector<bool> kda_layers(const JsonObject& text, const JsonObject* linear, int64_t layers) {
  std::vector<bool> is_kda(static_cast<size_t>(layers), false);
  if (text.has("layer_types")) {
    const std::vector<std::string> types = text.words("layer_types", layers, {"linear_attention", "full_attention"});
    for (size_t i = 0; i < types.size(); ++i) is_kda[i] = types[i] == "linear_attention";
    return is_kda;
  }
  if (linear == nullptr) text.fail_field("linear_attn_config", "an object with kda_layers and full_attn_layers");
  std::vector<int> seen(static_cast<size_t>(layers), 0);
  for (int64_t layer : linear->integers("kda_layers", 1, layers)) {
    is_kda[static_cast<size_t>(layer - 1)] = true;
    ++seen[static_cast<size_t>(layer - 1)];
  }
  for (int64_t layer : linear->integers("full_attn_layers", 1, layers)) ++seen[static_cast<size_t>(layer - 1)];
  for (size_t i = 0; i < seen.size(); ++i) {
    if (seen[i] != 1) {
      linear->fail_field(
          "kda_layers", concat("layer ", i + 1, " (counted from 1) in exactly one of kda_layers and full_attn_layers"));
    }
  }
  return is_kda;
}

std::vector<bool> moe_layers(const JsonObject& text, int64_t layers) {
  std::vector<bool> is_moe(static_cast<size_t>(layers), false);
  if (text.has("mlp_layer_types")) {
    const std::vector<std::string> types = text.words("mlp_layer_types", layers, {"dense", "sparse"});
    for (size_t i = 0; i < types.size(); ++i) is_moe[i] = types[i] == "sparse";
    return is_moe;
  }
  if (text.integer_or("num_experts", 0, 0, kMaxExperts) == 0) return is_moe;
  const int64_t first = text.integer_or("first_k_dense_replace", 0, 0, kMaxLayers);
  const int64_t step = text.integer_or("moe_layer_freq", 1, 1, kMaxLayers);
  for (int64_t i = first; i < layers; ++i) is_moe[static_cast<size_t>(i)] = i % step == 0;
  return is_moe;
}

// One number under the name that newer writers use, or in linear_attn_config.
int64_t linear_number(const JsonObject& text, const JsonObject* linear, std::string_view key,
                      std::string_view published, int64_t min, int64_t max) {
  if (text.has(key)) return text.integer(key, min, max);
  if (linear == nullptr) text.fail_field("linear_attn_config", "an object");
  return linear->integer(published, min, max);
}

DenseFfn load_dense(TensorBinder& tensors, const std::string& prefix, int64_t inter, int64_t hidden) {
  return {.inter = inter,
          .gate = tensors.linear(prefix + "gate_proj", inter, hidden),
          .up = tensors.linear(prefix + "up_proj", inter, hidden),
          .down = tensors.linear(prefix + "down_proj", hidden, inter)};
}

}  // namespace

KimiConfig::KimiConfig(const JsonObject& text) {
  hidden = width(text, "hidden_size");
  layers = text.integer("num_hidden_layers", 1, kMaxLayers);
  vocab = width(text, "vocab_size");
  const std::string_view length_key =
      text.has("max_position_embeddings") ? "max_position_embeddings" : "model_max_length";
  max_positions = text.integer_or(length_key, int64_t{1} << 20, 1, kMaxContext);
  eps = static_cast<float>(text.number_or("rms_norm_eps", 1e-6, 0, 1));
  tied = text.boolean_or("tie_word_embeddings", false);

  heads = text.integer("num_attention_heads", 1, 65536);
  q_lora = text.integer_or("q_lora_rank", 0, 1, kMaxWidth);
  latent = width(text, "kv_lora_rank");
  nope = width(text, "qk_nope_head_dim");
  extra = text.integer("qk_rope_head_dim", 0, kMaxWidth);
  value = width(text, "v_head_dim");
  if (text.boolean_or("attention_bias", false)) text.fail_field("attention_bias", "false (biases are not supported)");
  mla_gate = text.boolean_or("mla_use_output_gate", false);
  if (!text.boolean_or("mla_use_nope", true)) text.fail_field("mla_use_nope", "true (these models do not rotate)");

  const std::optional<JsonObject> linear = text.object_if("linear_attn_config");
  const JsonObject* lin = linear ? &*linear : nullptr;
  is_kda = kda_layers(text, lin, layers);
  kda_heads = linear_number(text, lin, "linear_num_heads", "num_heads", 1, 65536);
  kda_dim = linear_number(text, lin, "linear_head_dim", "head_dim", 1, 256);
  taps = linear_number(text, lin, "linear_conv_kernel_dim", "short_conv_kernel_size", 2, 8);
  full_rank_gate = lin != nullptr && lin->boolean_or("use_full_rank_gate", false);
  bounded = lin != nullptr && lin->has("gate_lower_bound");
  lower_bound = bounded ? static_cast<float>(lin->number("gate_lower_bound", -5, 0)) : 0;

  dense_inter = text.integer_or("intermediate_size", 0, 1, kMaxWidth);
  is_moe = moe_layers(text, layers);
  if (std::ranges::find(is_moe, false) != is_moe.end()) dense_inter = width(text, "intermediate_size");
  if (std::ranges::find(is_moe, true) != is_moe.end()) text.integer("num_experts", 1, kMaxExperts);
  experts = text.integer_or("num_experts", 0, 1, kMaxExperts);
  const std::string_view top_k_key =
      text.has("num_experts_per_token") ? "num_experts_per_token" : "num_experts_per_tok";
  top_k = experts > 0 ? text.integer(top_k_key, 1, experts) : 0;
  moe_inter = experts > 0 ? width(text, "moe_intermediate_size") : 0;
  shared_experts = text.integer_or("num_shared_experts", 0, 0, 1024);
  groups = text.integer_or("num_expert_group", 1, 1, kMaxExperts);
  topk_group = text.integer_or("topk_group", 1, 1, groups);
  if (experts > 0 && experts % groups != 0)
    text.fail_field("num_expert_group", concat("a divisor of num_experts = ", experts));
  if (experts > 0 && top_k > experts / groups * topk_group) {
    text.fail_field(top_k_key, concat("at most ", experts / groups * topk_group, ", the experts of topk_group groups"));
  }
  renormalize = text.boolean_or("moe_renormalize", true);
  scaling_factor = static_cast<float>(text.number_or("routed_scaling_factor", 1, -1e6, 1e6));
  if (text.string_or("moe_router_activation_func", "sigmoid") != "sigmoid") {
    text.fail_field("moe_router_activation_func", "'sigmoid'");
  }
  latent_moe = text.integer_or("routed_expert_hidden_size", 0, 1, kMaxWidth);
  latent_norm = text.boolean_or("latent_moe_use_norm", false);
}

MlaDims KimiConfig::mla() const {
  return {.hidden = hidden,
          .heads = heads,
          .q_lora = q_lora,
          .latent = latent,
          .nope = nope,
          .extra = extra,
          .value = value,
          .gate = mla_gate};
}

KdaMixer load_kda(TensorBinder& tensors, const KimiConfig& c, const std::string& p) {
  const int64_t full = c.kda_heads * c.kda_dim;
  KdaMixer m;
  m.heads = c.kda_heads;
  m.head_dim = c.kda_dim;
  m.taps = c.taps;
  m.decay = c.bounded ? DecayKind::kBounded : DecayKind::kUnbounded;
  m.lower_bound = c.lower_bound;
  m.q = tensors.linear(p + "q_proj", full, c.hidden);
  m.k = tensors.linear(p + "k_proj", full, c.hidden);
  m.v = tensors.linear(p + "v_proj", full, c.hidden);
  m.q_conv = tensors.floats(p + "q_conv1d.weight", {full, 1, c.taps});
  m.k_conv = tensors.floats(p + "k_conv1d.weight", {full, 1, c.taps});
  m.v_conv = tensors.floats(p + "v_conv1d.weight", {full, 1, c.taps});
  m.f_a = tensors.linear(p + "f_a_proj", c.kda_dim, c.hidden);
  m.f_b = tensors.linear(p + "f_b_proj", full, c.kda_dim);
  if (tensors.has(p + "A_log")) {
    m.a = tensors.first_floats(p + "A_log", c.kda_heads);
    for (float& a : m.a) a = math::exp(a);
  } else {
    m.a = tensors.first_floats(p + "A", c.kda_heads);  // -e^(A_log)
    for (float& a : m.a) a = -a;
  }
  m.dt_bias = tensors.floats(p + "dt_bias", {full});
  m.beta = tensors.linear(p + "b_proj", c.kda_heads, c.hidden);
  if (c.full_rank_gate) {
    m.gate = tensors.linear(p + "g_proj", full, c.hidden);
  } else {
    m.gate_a = tensors.linear(p + "g_a_proj", c.kda_dim, c.hidden);
    m.gate = tensors.linear(p + "g_b_proj", full, c.kda_dim);
  }
  m.o_norm = tensors.floats(p + "o_norm.weight", {c.kda_dim});
  m.o = tensors.linear(p + "o_proj", c.hidden, full);
  return m;
}

FeedForward load_ffn(TensorBinder& tensors, const KimiConfig& c, int64_t index, const std::string& layer) {
  const std::string sparse = layer + "block_sparse_moe.";
  if (!c.is_moe[static_cast<size_t>(index)]) {
    const bool misplaced = tensors.has(sparse + "gate_proj.weight") && !tensors.has(layer + "mlp.gate_proj.weight");
    return load_dense(tensors, misplaced ? sparse : layer + "mlp.", c.dense_inter, c.hidden);
  }
  MoeFfn m;
  m.top_k = c.top_k;
  m.groups = c.groups;
  m.topk_group = c.topk_group;
  m.renormalize = c.renormalize && c.top_k > 1;  // a single expert keeps its score
  m.scaling_factor = c.scaling_factor;
  m.router = tensors.linear(sparse + "gate", c.experts, c.hidden);
  m.router_bias = tensors.floats(sparse + "gate.e_score_correction_bias", {c.experts});
  m.inter = c.moe_inter;
  const int64_t expert_width = c.latent_moe > 0 ? c.latent_moe : c.hidden;
  const auto all = [&](const char* name, int64_t out, int64_t in) {
    return tensors.experts(sparse + "experts.", name, c.experts, out, in);
  };
  const std::vector<WeightView> gate = all("w1.weight", c.moe_inter, expert_width);
  const std::vector<WeightView> up = all("w3.weight", c.moe_inter, expert_width);
  const std::vector<WeightView> down = all("w2.weight", expert_width, c.moe_inter);
  for (size_t e = 0; e < gate.size(); ++e) m.experts.push_back({gate[e], up[e], down[e]});
  if (c.shared_experts > 0) {
    m.shared = load_dense(tensors, sparse + "shared_experts.", c.moe_inter * c.shared_experts, c.hidden);
  }
  if (c.latent_moe > 0) {
    m.latent.emplace();
    m.latent->down = tensors.linear(sparse + "routed_expert_down_proj", c.latent_moe, c.hidden);
    m.latent->up = tensors.linear(sparse + "routed_expert_up_proj", c.hidden, c.latent_moe);
    if (c.latent_norm) m.latent->norm = tensors.floats(sparse + "routed_expert_norm.weight", {c.latent_moe});
  }
  return m;
}

ModelSpec load_kimi_stack(TensorBinder& tensors, const KimiConfig& c) {
  ModelSpec spec;
  spec.hidden = c.hidden;
  spec.vocab = c.vocab;
  spec.max_positions = c.max_positions;
  spec.eps = c.eps;
  spec.embedding = tensors.matrix("model.embed_tokens.weight", c.vocab, c.hidden);
  spec.head = tensors.head("lm_head.weight", c.tied, spec.embedding);
  spec.final_norm = tensors.floats("model.norm.weight", {c.hidden});
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string prefix = concat("model.layers.", i, ".");
    LayerSpec layer;
    layer.input_norm = tensors.floats(prefix + "input_layernorm.weight", {c.hidden});
    layer.ffn_norm = tensors.floats(prefix + "post_attention_layernorm.weight", {c.hidden});
    if (c.is_kda[static_cast<size_t>(i)]) {
      layer.mixer = load_kda(tensors, c, prefix + "self_attn.");
    } else {
      layer.mixer = load_mla(tensors, c.mla(), prefix + "self_attn.");
    }
    layer.ffn = load_ffn(tensors, c, i, prefix);
    spec.layers.push_back(std::move(layer));
  }
  return spec;
}

}  // namespace weir
