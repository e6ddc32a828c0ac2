#include "base/error.h"
#include "models/deepseek_parts.h"
#include "models/limits.h"
#include "models/rope_config.h"

namespace weir {
namespace {

constexpr int64_t kSigmoid = 2;  // expert_gating_func

constexpr GgufName kNames[] = {
    {"model.embed_tokens", "token_embd"},
    {"lm_head", "output"},
    {"model.norm", "output_norm"},
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.q_a_proj", "attn_q_a"},
    {"self_attn.q_a_layernorm", "attn_q_a_norm"},
    {"self_attn.q_b_proj", "attn_q_b"},
    {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
    {"self_attn.kv_b_proj", "attn_kv_b"},  // older files
    {"self_attn.k_b_proj", "attn_k_b"},
    {"self_attn.v_b_proj", "attn_v_b"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.indexer.wq_b", "indexer.attn_q_b"},
    {"self_attn.indexer.wk", "indexer.attn_k"},
    {"self_attn.indexer.weights_proj", "indexer.proj"},
    {"self_attn.indexer.k_norm", "indexer.k_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"mlp.experts.*.gate_proj", "ffn_gate_exps"},
    {"mlp.experts.*.up_proj", "ffn_up_exps"},
    {"mlp.experts.*.down_proj", "ffn_down_exps"},
    {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
    {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
};

}  // namespace

std::span<const GgufName> deepseek_gguf_names() { return kNames; }

DeepseekConfig::DeepseekConfig(const GgufConfig& c) {
  mla = gguf_mla_dims(c);
  if (mla.extra < 2 || mla.extra % 2 != 0) c.fail_key("rope.dimension_count", "an even number of at least 2");
  if (c.file().find("blk.0.attn_q.weight") != nullptr) mla.q_lora = 0;
  mla.bias = c.file().find("blk.0.attn_output.bias") != nullptr;
  c.refuse_options({"expert_group_count"});
  const int64_t blocks = c.integer("block_count", 1, kMaxLayers);
  skipped_layers = static_cast<int64_t>(c.prediction_blocks(blocks).size());
  layers = blocks - skipped_layers;
  vocab = c.vocab();
  max_positions = c.integer("context_length", 1, kMaxContext);
  eps = c.number("attention.layer_norm_rms_epsilon", 0, 1);
  tied = c.file().find("output.weight") == nullptr;
  rope = load_rope(c, mla.extra, {});
  rope.pairing = RopePairing::kInterleavedToHalf;
  dense_inter = c.integer("feed_forward_length", 1, kMaxWidth);
  experts = c.integer_or("expert_count", 0, 0, kMaxExperts);
  const int64_t dense = experts > 0 ? c.integer_or("leading_dense_block_count", 0, 0, layers) : layers;
  for (int64_t i = 0; i < layers; ++i) is_moe.push_back(i >= dense);
  if (experts > 0) read_experts(c);
}

void DeepseekConfig::read_experts(const GgufConfig& c) {
  top_k = c.integer("expert_used_count", 1, experts);
  moe_inter = c.integer("expert_feed_forward_length", 1, kMaxWidth);
  shared_experts = c.integer_or("expert_shared_count", 0, 0, 1024);
  groups = c.integer_or("expert_group_count", 1, 1, experts);
  topk_group = c.integer_or("expert_group_used_count", 1, 1, groups);
  if (experts % groups != 0) c.fail_key("expert_group_count", concat("a divisor of expert_count = ", experts));
  if (top_k > experts / groups * topk_group) {
    c.fail_key("expert_used_count", concat("at most ", experts / groups * topk_group, ", the experts of the groups"));
  }
  renormalize = c.boolean_or("expert_weights_norm", false);
  scaling_factor = c.number_or("expert_weights_scale", 1, -1e6, 1e6);
  // Without the key, a file of deepseek2 is one of DeepSeek-V2, whose scores are a softmax.
  const std::string architecture{c.file().metadata().string("general.architecture")};
  const int64_t fallback = architecture == "glm-dsa" ? kSigmoid : 0;
  if (c.integer_or("expert_gating_func", fallback, 0, 255) != kSigmoid) {
    c.fail_key("expert_gating_func", "2 (sigmoid)");
  }
}

}  // namespace weir
