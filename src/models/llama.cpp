// Llama 2 and 3: grouped-query attention with rotary positions, SwiGLU, ordinary residuals.
#include <cmath>

#include "base/error.h"
#include "models/family.h"
#include "models/rope_config.h"
#include "models/tensor_binder.h"

namespace weir {
namespace {
constexpr int64_t kMaxWidth = int64_t{1} << 24;
}

ModelSpec load_llama(const Checkpoint& checkpoint) {
  const JsonObject& c = checkpoint.config();
  ModelSpec spec;
  spec.family = "llama";
  spec.hidden = c.integer("hidden_size", 1, kMaxWidth);
  spec.vocab = c.integer("vocab_size", 1, kMaxWidth);
  spec.max_positions = c.integer_or("max_position_embeddings", 2048, 1, int64_t{1} << 32);
  spec.eps = static_cast<float>(c.number_or("rms_norm_eps", 1e-6, 0, 1));
  if (c.string_or("hidden_act", "silu") != "silu") c.fail_field("hidden_act", "'silu'");
  const int64_t layers = c.integer("num_hidden_layers", 1, 4096);
  const int64_t inter = c.integer("intermediate_size", 1, kMaxWidth);
  const int64_t heads = c.integer("num_attention_heads", 1, 65536);
  const int64_t kv_heads = c.integer_or("num_key_value_heads", heads, 1, heads);
  if (heads % kv_heads != 0) c.fail_field("num_key_value_heads", concat("a divisor of num_attention_heads = ", heads));
  if (!c.has("head_dim") && spec.hidden % heads != 0) c.fail_field("num_attention_heads", "a divisor of hidden_size");
  const int64_t head_dim = c.integer_or("head_dim", spec.hidden / heads, 2, 65536);
  if (head_dim % 2 != 0) c.fail_field("head_dim", "an even number");
  const bool attention_bias = c.boolean_or("attention_bias", false);
  const bool mlp_bias = c.boolean_or("mlp_bias", false);
  spec.act = {.kind = ElementwiseKind::kSwiGlu};
  spec.rope = load_rope(c, head_dim);

  TensorBinder tensors(checkpoint, "");
  spec.embedding = tensors.matrix("model.embed_tokens.weight", spec.vocab, spec.hidden);
  spec.head = tensors.head("lm_head.weight", c.boolean_or("tie_word_embeddings", false), spec.embedding);
  spec.final_norm = tensors.floats("model.norm.weight", {spec.hidden});
  for (int64_t i = 0; i < layers; ++i) {
    const std::string p = concat("model.layers.", i, ".");
    LayerSpec layer;
    layer.input_norm = tensors.floats(p + "input_layernorm.weight", {spec.hidden});
    layer.ffn_norm = tensors.floats(p + "post_attention_layernorm.weight", {spec.hidden});
    layer.mixer =
        AttentionMixer{.heads = heads,
                       .kv_heads = kv_heads,
                       .head_dim = head_dim,
                       .scale = 1.f / std::sqrt(static_cast<float>(head_dim)),
                       .q = tensors.linear(p + "self_attn.q_proj", heads * head_dim, spec.hidden, attention_bias),
                       .k = tensors.linear(p + "self_attn.k_proj", kv_heads * head_dim, spec.hidden, attention_bias),
                       .v = tensors.linear(p + "self_attn.v_proj", kv_heads * head_dim, spec.hidden, attention_bias),
                       .o = tensors.linear(p + "self_attn.o_proj", spec.hidden, heads * head_dim, attention_bias)};
    layer.ffn = DenseFfn{.inter = inter,
                         .gate = tensors.linear(p + "mlp.gate_proj", inter, spec.hidden, mlp_bias),
                         .up = tensors.linear(p + "mlp.up_proj", inter, spec.hidden, mlp_bias),
                         .down = tensors.linear(p + "mlp.down_proj", spec.hidden, inter, mlp_bias)};
    spec.layers.push_back(std::move(layer));
  }
  // Old conversions store the frequencies, which follow from the configuration.
  for (int64_t i = 0; i < layers; ++i)
    spec.skipped.push_back(concat("model.layers.", i, ".self_attn.rotary_emb.inv_freq"));
  tensors.finish(spec.skipped);
  return spec;
}

}  // namespace weir
