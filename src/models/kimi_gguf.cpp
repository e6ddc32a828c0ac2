#include "base/error.h"
#include "models/kimi_parts.h"
#include "models/limits.h"

namespace weir {
namespace {

constexpr int64_t kSigmoid = 2;  // expert_gating_func

constexpr GgufName kNames[] = {
    {"model.embed_tokens", "token_embd"},
    {"lm_head", "output"},
    {"model.norm", "output_norm"},
    {"model.output_attn_res_score", "output_res_score"},
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"self_attention_res_score", "attn_res_score"},
    {"mlp_res_score", "ffn_res_score"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    // KDA
    {"self_attn.q_conv1d", "ssm_conv1d_q"},
    {"self_attn.k_conv1d", "ssm_conv1d_k"},
    {"self_attn.v_conv1d", "ssm_conv1d_v"},
    {"self_attn.f_a_proj", "ssm_f_a"},
    {"self_attn.f_b_proj", "ssm_f_b"},
    {"self_attn.A", "ssm_a"},
    {"self_attn.dt_bias", "ssm_dt.bias"},
    {"self_attn.b_proj", "ssm_beta"},
    {"self_attn.g_a_proj", "ssm_g_a"},
    {"self_attn.g_b_proj", "ssm_g_b"},
    {"self_attn.o_norm", "ssm_norm"},
    // MLA; the two kinds of layers have one name for their gates in the published files
    {"self_attn.g_proj", "attn_gate"},
    {"self_attn.g_proj", "ssm_g"},
    {"self_attn.q_a_proj", "attn_q_a"},
    {"self_attn.q_a_layernorm", "attn_q_a_norm"},
    {"self_attn.q_b_proj", "attn_q_b"},
    {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
    {"self_attn.kv_b_proj", "attn_kv_b"},  // older files
    {"self_attn.k_b_proj", "attn_k_b"},
    {"self_attn.v_b_proj", "attn_v_b"},
    // feed-forward
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"block_sparse_moe.gate", "ffn_gate_inp"},
    {"block_sparse_moe.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"block_sparse_moe.experts.*.w1", "ffn_gate_exps"},
    {"block_sparse_moe.experts.*.w3", "ffn_up_exps"},
    {"block_sparse_moe.experts.*.w2", "ffn_down_exps"},
    {"block_sparse_moe.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"block_sparse_moe.shared_experts.up_proj", "ffn_up_shexp"},
    {"block_sparse_moe.shared_experts.down_proj", "ffn_down_shexp"},
    {"block_sparse_moe.routed_expert_down_proj", "ffn_routed_down"},
    {"block_sparse_moe.routed_expert_up_proj", "ffn_routed_up"},
    {"block_sparse_moe.routed_expert_norm", "ffn_routed_norm"},
};

// The same tensor of the first layer of a kind; nullptr without one.
const GgufTensor* tensor_of(const GgufConfig& c, const std::vector<bool>& layers, bool kind, const char* name) {
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] == kind) return c.file().find(concat("blk.", i, ".", name));
  }
  return nullptr;
}

}  // namespace

std::span<const GgufName> kimi_gguf_names() { return kNames; }

KimiConfig::KimiConfig(const GgufConfig& c) {
  c.refuse_options({"expert_group_count"});
  hidden = c.integer("embedding_length", 1, kMaxWidth);
  layers = c.integer("block_count", 1, kMaxLayers);
  vocab = c.vocab();
  max_positions = c.integer("context_length", 1, kMaxContext);
  eps = c.number("attention.layer_norm_rms_epsilon", 0, 1);
  tied = c.file().find("output.weight") == nullptr;
  for (int64_t kv : c.per_layer("attention.head_count_kv", layers, 0, kMaxHeads)) is_kda.push_back(kv == 0);

  const MlaDims dims = gguf_mla_dims(c);
  heads = dims.heads;
  latent = dims.latent;
  extra = dims.extra;
  nope = dims.nope;
  value = dims.value;
  q_lora = dims.q_lora;
  if (tensor_of(c, is_kda, false, "attn_q.weight") != nullptr) q_lora = 0;
  mla_gate = tensor_of(c, is_kda, false, "attn_gate.weight") != nullptr;

  kda_dim = c.integer("kda.head_dim", 1, 256);
  taps = c.integer("ssm.conv_kernel", 2, 8);
  const GgufTensor* decay = tensor_of(c, is_kda, true, "ssm_a");
  kda_heads = decay == nullptr ? heads : decay->elements();
  full_rank_gate = tensor_of(c, is_kda, true, "ssm_g.weight") != nullptr;
  bounded = c.has("kda.gate_lower_bound");
  lower_bound = bounded ? c.number("kda.gate_lower_bound", -5, 0) : 0;

  dense_inter = c.integer("feed_forward_length", 1, kMaxWidth);
  experts = c.integer_or("expert_count", 0, 0, kMaxExperts);
  const int64_t dense = experts > 0 ? c.integer_or("leading_dense_block_count", 0, 0, layers) : layers;
  for (int64_t i = 0; i < layers; ++i) is_moe.push_back(i >= dense);
  top_k = experts > 0 ? c.integer("expert_used_count", 1, experts) : 0;
  moe_inter = experts > 0 ? c.integer("expert_feed_forward_length", 1, kMaxWidth) : 0;
  shared_experts = c.integer_or("expert_shared_count", 0, 0, 1024);
  groups = c.integer_or("expert_group_count", 1, 1, kMaxExperts);
  topk_group = c.integer_or("expert_group_used_count", 1, 1, groups);
  if (experts > 0 && experts % groups != 0) {
    c.fail_key("expert_group_count", concat("a divisor of expert_count = ", experts));
  }
  if (experts > 0 && top_k > experts / groups * topk_group) {
    c.fail_key("expert_used_count", concat("at most ", experts / groups * topk_group, ", the experts of the groups"));
  }
  renormalize = c.boolean_or("expert_weights_norm", true);
  scaling_factor = c.number_or("expert_weights_scale", 1, -1e6, 1e6);
  if (experts > 0 && c.integer("expert_gating_func", 0, 255) != kSigmoid)
    c.fail_key("expert_gating_func", "2 (sigmoid)");
  latent_moe = c.integer_or("expert_latent_length", 0, 0, kMaxWidth);
  latent_norm = tensor_of(c, is_moe, true, "ffn_routed_norm.weight") != nullptr;
}

}  // namespace weir
