#include "models/qwen_parts.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/math.h"
#include "models/limits.h"
#include "models/rope_config.h"

namespace weir {
namespace {

constexpr int64_t kMaxDeltaDim = 256;
constexpr int64_t kMaxTaps = 8;

// Of every expert: matrices of their own, one tensor for each kind, or gate and up in one tensor.
std::vector<ExpertWeights> load_experts(TensorBinder& tensors, const std::string& p, int64_t count, int64_t inter,
                                        int64_t hidden) {
  std::vector<WeightView> gate, up, down;
  if (tensors.has(p + "gate_up_proj")) {
    const WeightView both = tensors.stack(p + "gate_up_proj", count, 2 * inter, hidden);
    for (int64_t e = 0; e < count; ++e) {
      gate.push_back(both.rows(2 * e * inter, inter));
      up.push_back(both.rows((2 * e + 1) * inter, inter));
    }
  } else {
    gate = tensors.experts(p, "gate_proj.weight", count, inter, hidden);
    up = tensors.experts(p, "up_proj.weight", count, inter, hidden);
  }
  if (tensors.has(p + "down_proj")) {
    const WeightView all = tensors.stack(p + "down_proj", count, hidden, inter);
    for (int64_t e = 0; e < count; ++e) down.push_back(all.rows(e * hidden, hidden));
  } else {
    down = tensors.experts(p, "down_proj.weight", count, hidden, inter);
  }
  std::vector<ExpertWeights> experts;
  for (size_t e = 0; e < gate.size(); ++e) experts.push_back({gate[e], up[e], down[e]});
  return experts;
}

RouterScore router_score(const GgufConfig& c) {
  switch (c.integer_or("expert_gating_func", 1, 0, 255)) {
    case 0:
    case 1:
      return RouterScore::kSoftmax;
    case 2:
      return RouterScore::kSigmoid;
    case 3:
      return RouterScore::kSoftmaxOfChosen;
    default:
      c.fail_key("expert_gating_func", "1 (softmax), 2 (sigmoid) or 3 (softmax over the chosen experts)");
  }
}

}  // namespace

QwenExperts::QwenExperts(const JsonObject& c, const DecoderConfig& numbers, bool normed, bool shared) {
  const std::string_view count = c.has("num_experts") ? "num_experts" : "num_local_experts";
  experts = c.integer(count, 0, kMaxExperts);
  is_moe.assign(static_cast<size_t>(numbers.layers), false);
  const int64_t step = c.integer_or("decoder_sparse_step", 1, 1, kMaxLayers);
  for (int64_t i = 0; experts > 0 && i < numbers.layers; ++i) is_moe[static_cast<size_t>(i)] = (i + 1) % step == 0;
  if (c.has("mlp_only_layers")) {
    // Layers beyond the last have no effect in the reference implementation.
    for (const int64_t layer : c.integers("mlp_only_layers", 0, kMaxLayers)) {
      if (layer < numbers.layers) is_moe[static_cast<size_t>(layer)] = false;
    }
  }
  if (std::ranges::find(is_moe, false) != is_moe.end() && numbers.inter == 0) {
    c.fail_field("intermediate_size", "the width of layers without experts");
  }
  if (experts == 0) return;
  top_k = c.integer("num_experts_per_tok", 1, experts);
  inter = c.integer("moe_intermediate_size", 1, kMaxWidth);
  if (shared) shared_inter = c.integer("shared_expert_intermediate_size", 1, kMaxWidth);
  renormalize = c.boolean_or("norm_topk_prob", normed);
}

QwenExperts::QwenExperts(const GgufConfig& c, bool shared) {
  experts = c.integer("expert_count", 1, kMaxExperts);
  top_k = c.integer("expert_used_count", 1, experts);
  inter = c.integer("expert_feed_forward_length", 1, kMaxWidth);
  if (shared) shared_inter = c.integer("expert_shared_feed_forward_length", 1, kMaxWidth);
  score = router_score(c);
  renormalize = c.boolean_or("expert_weights_norm", true);
  const float scale = c.number_or("expert_weights_scale", 1, -1e6, 1e6);
  scaling_factor = scale == 0 ? 1 : scale;  // 0: unset
}

FeedForward load_qwen_ffn(TensorBinder& tensors, const DecoderConfig& numbers, const QwenExperts& c, int64_t index,
                          const std::string& prefix) {
  const std::string p = prefix + "mlp.";
  const bool moe = c.is_moe.empty() ? tensors.has(p + "gate.weight") : c.is_moe[static_cast<size_t>(index)];
  if (!moe) return load_dense_ffn(tensors, numbers, p);
  MoeFfn m;
  m.score = c.score;
  m.top_k = c.top_k;
  m.renormalize = c.renormalize;
  m.scaling_factor = c.scaling_factor;
  m.router = tensors.linear(p + "gate", c.experts, numbers.hidden);
  m.inter = c.inter;
  m.experts = load_experts(tensors, p + "experts.", c.experts, c.inter, numbers.hidden);
  if (c.shared_inter > 0) {
    DecoderConfig shared = numbers;
    shared.inter = c.shared_inter;
    m.shared = load_dense_ffn(tensors, shared, p + "shared_expert.");
    m.shared_gate = tensors.linear(p + "shared_expert_gate", 1, numbers.hidden);
  }
  return m;
}

QwenDelta::QwenDelta(const JsonObject& c, int64_t layers) {
  key_heads = c.integer("linear_num_key_heads", 1, kMaxHeads);
  heads = c.integer("linear_num_value_heads", 1, kMaxHeads);
  if (heads % key_heads != 0) {
    c.fail_field("linear_num_value_heads", concat("a multiple of linear_num_key_heads = ", key_heads));
  }
  key_dim = c.integer("linear_key_head_dim", 1, kMaxDeltaDim);
  value_dim = c.integer("linear_value_head_dim", 1, kMaxDeltaDim);
  taps = c.integer_or("linear_conv_kernel_dim", 4, 2, kMaxTaps);
  if (c.has("layer_types")) {
    const std::vector<std::string> types = c.words("layer_types", layers, {"linear_attention", "full_attention"});
    for (const std::string& type : types) is_linear.push_back(type == "linear_attention");
  } else {
    const int64_t interval = c.integer_or("full_attention_interval", 4, 1, kMaxLayers);
    for (int64_t i = 0; i < layers; ++i) is_linear.push_back((i + 1) % interval != 0);
  }
}

QwenDelta::QwenDelta(const GgufConfig& c, int64_t layers) {
  key_heads = c.integer("ssm.group_count", 1, kMaxHeads);
  heads = c.integer("ssm.time_step_rank", 1, kMaxHeads);
  if (heads % key_heads != 0) c.fail_key("ssm.time_step_rank", concat("a multiple of ssm.group_count = ", key_heads));
  key_dim = c.integer("ssm.state_size", 1, kMaxDeltaDim);
  const int64_t values = c.integer("ssm.inner_size", 1, kMaxWidth);
  if (values % heads != 0 || values / heads > kMaxDeltaDim) {
    c.fail_key("ssm.inner_size",
               concat("a multiple of ssm.time_step_rank = ", heads, ", at most ", kMaxDeltaDim, " times that"));
  }
  value_dim = values / heads;
  taps = c.integer("ssm.conv_kernel", 2, kMaxTaps);
  if (c.has("attention.recurrent_layers")) {
    const std::vector<int64_t> recurrent = c.integers("attention.recurrent_layers", 0, 1);
    if (static_cast<int64_t>(recurrent.size()) < layers) {
      c.fail_key("attention.recurrent_layers", concat("at least ", layers, " entries"));
    }
    for (int64_t i = 0; i < layers; ++i) is_linear.push_back(recurrent[static_cast<size_t>(i)] == 1);
  } else {
    const int64_t interval = c.integer_or("full_attention_interval", 4, 1, kMaxLayers);
    for (int64_t i = 0; i < layers; ++i) is_linear.push_back((i + 1) % interval != 0);
  }
}

GdnMixer load_gated_delta(TensorBinder& tensors, const QwenDelta& c, int64_t hidden, const std::string& p) {
  GdnMixer m;
  m.heads = c.heads;
  m.key_heads = c.key_heads;
  m.key_dim = c.key_dim;
  m.value_dim = c.value_dim;
  m.taps = c.taps;
  m.order = c.order;
  if (tensors.has(p + "in_proj_qkvz.weight")) {
    m.qkvz = tensors.linear(p + "in_proj_qkvz", m.channels() + m.values(), hidden);
  } else {
    m.qkv = tensors.linear(p + "in_proj_qkv", m.channels(), hidden);
    m.z = tensors.linear(p + "in_proj_z", m.values(), hidden);
  }
  if (tensors.has(p + "in_proj_ba.weight")) {
    m.ba = tensors.linear(p + "in_proj_ba", 2 * m.heads, hidden);
  } else {
    m.b = tensors.linear(p + "in_proj_b", m.heads, hidden);
    m.a = tensors.linear(p + "in_proj_a", m.heads, hidden);
  }
  m.conv = tensors.floats(p + "conv1d.weight", {m.channels(), 1, m.taps});
  if (tensors.has(p + "A_log")) {
    m.decay = tensors.floats(p + "A_log", {m.heads});
    for (float& a : m.decay) a = math::exp(a);
  } else {
    m.decay = tensors.floats(p + "A", {m.heads});  // -e^(A_log)
    for (float& a : m.decay) a = -a;
  }
  m.dt_bias = tensors.floats(p + "dt_bias", {m.heads});
  m.o_norm = tensors.floats(p + "norm.weight", {m.value_dim});
  m.o = tensors.linear(p + "out_proj", hidden, m.values());
  return m;
}

DecoderConfig qwen_hybrid_config(const JsonObject& c) {
  DecoderConfig numbers(c, DecoderConfig::Layers::kHybrid);
  numbers.qkv_bias = numbers.o_bias = c.boolean_or("attention_bias", false);
  numbers.qk_norm = numbers.zero_centred = numbers.q_gate = true;
  if (!c.boolean_or("attn_output_gate", true)) c.fail_field("attn_output_gate", "true");
  const std::optional<JsonObject> parameters = c.object_if("rope_parameters");
  const JsonObject& with_factor = parameters && parameters->has("partial_rotary_factor") ? *parameters : c;
  const double factor = with_factor.number_or("partial_rotary_factor", 0.25, 0, 1);
  const auto dims = static_cast<int64_t>(static_cast<double>(numbers.head_dim) * factor);
  if (dims < 2 || dims % 2 != 0) {
    with_factor.fail_field("partial_rotary_factor",
                           concat("a share of head_dim = ", numbers.head_dim, " that is an even number"));
  }
  numbers.rope = load_rope(c, dims, {.partial = true});
  return numbers;
}

DecoderConfig qwen_hybrid_config(const GgufConfig& c, TensorBinder& tensors) {
  DecoderConfig numbers(c, DecoderConfig::Layers::kOther);
  numbers.qk_norm = numbers.zero_centred = numbers.q_gate = true;
  numbers.layers -= static_cast<int64_t>(qwen_prediction_blocks(c).size());
  numbers.rope = load_gguf_rope(c, tensors, numbers.head_dim);
  return numbers;
}

std::vector<std::string> qwen_prediction_blocks(const GgufConfig& c) {
  return c.prediction_blocks(c.integer("block_count", 1, kMaxLayers));
}

ModelSpec load_qwen_hybrid(TensorBinder& tensors, const DecoderConfig& numbers, const QwenDelta& delta,
                           const QwenExperts* experts) {
  return load_decoder(tensors, numbers, [&](int64_t index, const std::string& p, LayerSpec& layer) {
    if (delta.is_linear[static_cast<size_t>(index)]) {
      layer.mixer = load_gated_delta(tensors, delta, numbers.hidden, p + "linear_attn.");
    } else {
      layer.mixer = load_attention(tensors, numbers, p + "self_attn.");
    }
    if (experts != nullptr) {
      layer.ffn = load_qwen_ffn(tensors, numbers, *experts, index, p);
    } else {
      layer.ffn = load_dense_ffn(tensors, numbers, p + "mlp.");
    }
  });
}

}  // namespace weir
