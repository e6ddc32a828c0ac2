#include "models/deepseek_parts.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "models/limits.h"
#include "models/rope_config.h"

namespace weir {
namespace {

int64_t width(const JsonObject& config, std::string_view key) { return config.integer(key, 1, kMaxWidth); }

std::vector<bool> moe_layers(const JsonObject& c, int64_t layers) {
  std::vector<bool> is_moe(static_cast<size_t>(layers), false);
  if (c.has("mlp_layer_types")) {
    const std::vector<std::string> types = c.words("mlp_layer_types", layers, {"dense", "sparse"});
    for (size_t i = 0; i < types.size(); ++i) is_moe[i] = types[i] == "sparse";
    return is_moe;
  }
  if (c.integer_or("n_routed_experts", 0, 0, kMaxExperts) == 0) return is_moe;
  const int64_t first = c.integer_or("first_k_dense_replace", 3, 0, kMaxLayers);
  const int64_t step = c.integer_or("moe_layer_freq", 1, 1, kMaxLayers);
  for (int64_t i = first; i < layers; ++i) is_moe[static_cast<size_t>(i)] = i % step == 0;
  return is_moe;
}

void refuse_unless(const JsonObject& c, std::string_view key, const std::string& only) {
  if (c.string_or(key, only) != only) c.fail_field(key, concat("'", only, "'"));
}

DenseFfn load_dense(TensorBinder& tensors, const std::string& prefix, int64_t inter, int64_t hidden) {
  return {.inter = inter,
          .gate = tensors.linear(prefix + "gate_proj", inter, hidden),
          .up = tensors.linear(prefix + "up_proj", inter, hidden),
          .down = tensors.linear(prefix + "down_proj", hidden, inter)};
}

MoeFfn load_moe(TensorBinder& tensors, const DeepseekConfig& c, const std::string& p) {
  const int64_t hidden = c.mla.hidden;
  MoeFfn m;
  m.top_k = c.top_k;
  m.groups = c.groups;
  m.topk_group = c.topk_group;
  m.renormalize = c.renormalize;
  m.scaling_factor = c.scaling_factor;
  m.router = tensors.linear(p + "gate", c.experts, hidden);
  m.router_bias = tensors.floats(p + "gate.e_score_correction_bias", {c.experts});
  m.inter = c.moe_inter;
  const auto all = [&](const char* name, int64_t out, int64_t in) {
    return tensors.experts(p + "experts.", name, c.experts, out, in);
  };
  const std::vector<WeightView> gate = all("gate_proj.weight", c.moe_inter, hidden);
  const std::vector<WeightView> up = all("up_proj.weight", c.moe_inter, hidden);
  const std::vector<WeightView> down = all("down_proj.weight", hidden, c.moe_inter);
  for (size_t e = 0; e < gate.size(); ++e) {
    ExpertWeights expert;
    expert.gate = gate[e];
    expert.up = up[e];
    expert.down = down[e];
    m.experts.push_back(expert);
  }
  if (c.shared_experts > 0) {
    m.shared = load_dense(tensors, p + "shared_experts.", c.moe_inter * c.shared_experts, hidden);
  }
  return m;
}

}  // namespace

DeepseekConfig::DeepseekConfig(const JsonObject& c, const DeepseekDefaults& defaults) {
  mla.hidden = width(c, "hidden_size");
  mla.heads = c.integer("num_attention_heads", 1, kMaxHeads);
  if (c.integer_or("num_key_value_heads", mla.heads, 1, kMaxHeads) != mla.heads) {
    c.fail_field("num_key_value_heads", concat(mla.heads, ", as num_attention_heads"));
  }
  mla.q_lora = c.integer_or("q_lora_rank", 0, 1, kMaxWidth);
  mla.latent = width(c, "kv_lora_rank");
  mla.nope = width(c, "qk_nope_head_dim");
  mla.extra = c.integer("qk_rope_head_dim", 2, kMaxWidth);
  if (mla.extra % 2 != 0) c.fail_field("qk_rope_head_dim", "an even number");
  mla.value = width(c, "v_head_dim");
  mla.bias = c.boolean_or("attention_bias", false);
  layers = c.integer("num_hidden_layers", 1, kMaxLayers);
  skipped_layers = c.integer_or("num_nextn_predict_layers", 0, 0, kMaxLayers);
  vocab = width(c, "vocab_size");
  max_positions = c.integer_or("max_position_embeddings", 4096, 1, kMaxContext);
  eps = static_cast<float>(c.number_or("rms_norm_eps", defaults.eps, 0, 1));
  tied = c.boolean_or("tie_word_embeddings", false);
  rope = load_rope(c, mla.extra);
  rope.pairing = c.boolean_or("rope_interleave", true) ? RopePairing::kInterleavedToHalf : RopePairing::kHalfSplit;
  refuse_unless(c, "hidden_act", "silu");
  if (c.boolean_or("mlp_bias", false)) c.fail_field("mlp_bias", "false");
  dense_inter = c.integer_or("intermediate_size", 0, 1, kMaxWidth);
  is_moe = moe_layers(c, layers);
  if (std::ranges::find(is_moe, false) != is_moe.end()) dense_inter = width(c, "intermediate_size");
  if (std::ranges::find(is_moe, true) != is_moe.end()) read_experts(c, defaults);
}

void DeepseekConfig::read_experts(const JsonObject& c, const DeepseekDefaults& defaults) {
  experts = c.integer("n_routed_experts", 1, kMaxExperts);
  top_k = c.integer("num_experts_per_tok", 1, experts);
  moe_inter = width(c, "moe_intermediate_size");
  const auto number = [&](std::string_view key, std::optional<int64_t> absent, int64_t min, int64_t max) {
    return absent && !c.raw().contains(key) ? *absent : c.integer(key, min, max);
  };
  shared_experts = number("n_shared_experts", defaults.shared_experts, 0, 1024);
  groups = number("n_group", defaults.groups, 1, experts);
  topk_group = number("topk_group", defaults.topk_group, 1, experts);
  if (topk_group > groups) c.fail_field("topk_group", concat("at most n_group = ", groups));
  if (experts % groups != 0) c.fail_field("n_group", concat("a divisor of n_routed_experts = ", experts));
  if (top_k > experts / groups * topk_group) {
    c.fail_field("num_experts_per_tok",
                 concat("at most ", experts / groups * topk_group, ", the experts of topk_group groups"));
  }
  renormalize = c.boolean_or("norm_topk_prob", true);
  scaling_factor = static_cast<float>(defaults.scaling_factor && !c.raw().contains("routed_scaling_factor")
                                          ? *defaults.scaling_factor
                                          : c.number("routed_scaling_factor", -1e6, 1e6));
  refuse_unless(c, "scoring_func", "sigmoid");
  refuse_unless(c, "topk_method", "noaux_tc");
}

ModelSpec load_deepseek_stack(TensorBinder& tensors, const DeepseekConfig& c) {
  ModelSpec spec;
  const int64_t hidden = c.mla.hidden;
  spec.hidden = hidden;
  spec.vocab = c.vocab;
  spec.max_positions = c.max_positions;
  spec.eps = c.eps;
  spec.act = {.kind = ElementwiseKind::kSwiGlu};
  spec.ropes.push_back(c.rope);
  spec.embedding = tensors.matrix("model.embed_tokens.weight", c.vocab, hidden);
  spec.head = tensors.head("lm_head.weight", c.tied, spec.embedding);
  spec.final_norm = tensors.floats("model.norm.weight", {hidden});
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string p = concat("model.layers.", i, ".");
    LayerSpec layer;
    layer.input_norm = tensors.floats(p + "input_layernorm.weight", {hidden});
    layer.ffn_norm = tensors.floats(p + "post_attention_layernorm.weight", {hidden});
    MlaMixer mixer = load_mla(tensors, c.mla, p + "self_attn.");
    mixer.rope = 0;
    mixer.scale = static_cast<float>(static_cast<double>(mixer.scale) * c.rope.softmax_factor);
    layer.mixer = std::move(mixer);
    if (c.is_moe[static_cast<size_t>(i)]) {
      layer.ffn = load_moe(tensors, c, p + "mlp.");
    } else {
      layer.ffn = load_dense(tensors, p + "mlp.", c.dense_inter, hidden);
    }
    spec.layers.push_back(std::move(layer));
  }
  for (int64_t i = c.layers; i < c.layers + c.skipped_layers; ++i) {
    spec.skipped.push_back(concat("model.layers.", i, "."));
    spec.skipped.push_back(concat("blk.", i, "."));
  }
  return spec;
}

}  // namespace weir
