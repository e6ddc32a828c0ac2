// Gemma 4, text, in both styles: per-layer embeddings with K and V shared by the last layers (E2B, E4B), and experts
// beside the dense MLP with V made of K in full layers (26B).
#include <algorithm>
#include <string>

#include "base/error.h"
#include "models/family.h"
#include "models/gemma_parts.h"
#include "models/limits.h"
#include "models/rope_config.h"

namespace weir {
namespace {

constexpr int64_t kGlobalHeadDim = 512;
constexpr double kFullTheta = 1e6;
constexpr double kSlidingTheta = 1e4;
// rope_freqs divides by 1e30 where a pair is not rotated.
constexpr float kNoRotation = 1e20f;

// The last `count` layers read K and V of the last layer of their kind before them. False where there is none.
bool share(GemmaConfig& numbers, int64_t count) {
  const auto first = static_cast<int64_t>(numbers.layers.size()) - count;
  for (size_t i = static_cast<size_t>(first); i < numbers.layers.size(); ++i) {
    for (int64_t source = first - 1; source >= 0 && numbers.layers[i].share < 0; --source) {
      if (numbers.layers[static_cast<size_t>(source)].sliding == numbers.layers[i].sliding) {
        numbers.layers[i].share = static_cast<int>(source);
      }
    }
    if (numbers.layers[i].share < 0) return false;
  }
  return true;
}

// Numbers of single layers, where they differ from the model's. Older configurations have them for all full layers.
void override_layers(const JsonObject& c, GemmaConfig& numbers) {
  if (!c.has("per_layer_config")) {
    const int64_t head_dim = c.integer_or("global_head_dim", kGlobalHeadDim, 2, kMaxHeadDim);
    const bool k_is_v = c.boolean_or("attention_k_eq_v", false);
    for (GemmaLayer& layer : numbers.layers) {
      if (layer.sliding) continue;
      layer.head_dim = head_dim;
      if (k_is_v) layer.kv_heads = c.integer_or("num_global_key_value_heads", layer.kv_heads, 1, numbers.heads);
    }
    return;
  }
  const JsonObject all = c.object("per_layer_config");
  for (const auto& [key, unused] : all.raw()) {
    size_t index = 0;
    while (index < numbers.layers.size() && std::to_string(index) != key) ++index;
    if (index == numbers.layers.size()) {
      all.fail_field(key, concat("layers 0 to ", numbers.layers.size() - 1, " alone"));
    }
    const JsonObject one = all.object(key);
    GemmaLayer& layer = numbers.layers[index];
    layer.head_dim = one.integer_or("head_dim", layer.head_dim, 2, kMaxHeadDim);
    layer.kv_heads = one.integer_or("num_key_value_heads", layer.kv_heads, 1, numbers.heads);
    for (const auto& field : one.raw()) {
      if (field.key() != "head_dim" && field.key() != "num_key_value_heads") {
        one.fail_field(field.key(),
                       "no such number for a single layer (head_dim and num_key_value_heads are supported)");
      }
    }
  }
}

void load_per_layer_embeddings(const JsonObject& c, GemmaConfig& numbers) {
  // null means none, and a missing field the default.
  const std::string_view key = "hidden_size_per_layer_input";
  numbers.per_layer = c.integer_or(key, c.raw().contains(key) ? 0 : 256, 0, kMaxWidth);
  numbers.per_layer_vocab = c.integer_or("vocab_size_per_layer_input", 262144, 1, kMaxWidth);
  if (numbers.per_layer > 0 && numbers.per_layer_vocab < numbers.vocab) {
    c.fail_field("vocab_size_per_layer_input", concat("at least vocab_size = ", numbers.vocab));
  }
}

void load_experts(const JsonObject& c, GemmaConfig& numbers) {
  if (!c.boolean_or("enable_moe_block", false)) return;
  numbers.experts = c.integer("num_experts", 1, kMaxExperts);
  numbers.top_k = c.integer("top_k_experts", 1, numbers.experts);
  numbers.moe_inter = c.integer("moe_intermediate_size", 1, kMaxWidth);
}

void check_heads(const JsonObject& c, const GemmaConfig& numbers) {
  for (const GemmaLayer& layer : numbers.layers) {
    const std::string_view key = c.has("per_layer_config") ? "per_layer_config" : "num_global_key_value_heads";
    if (numbers.heads % layer.kv_heads != 0) {
      c.fail_field(key, concat("numbers of KV heads that divide num_attention_heads = ", numbers.heads));
    }
    if (layer.head_dim % 2 != 0 || layer.head_dim != gemma_head_dim(numbers, layer.sliding, 0)) {
      c.fail_field(key == "per_layer_config" ? key : "global_head_dim",
                   "an even head_dim, the same one in all layers of a kind");
    }
    if (layer.share >= 0 && numbers.layers[static_cast<size_t>(layer.share)].kv_heads != layer.kv_heads) {
      c.fail_field(key, "the KV heads of a layer also in those that share its K and V");
    }
  }
}

}  // namespace

ModelSpec load_gemma4(const Checkpoint& checkpoint) {
  const JsonObject& config = checkpoint.config();
  GemmaConfig numbers(config);
  if (numbers.layers.back().sliding) config.fail_field("layer_types", "'full_attention' for the last layer");
  numbers.v_norm = true;
  override_layers(config, numbers);
  const auto count = static_cast<int64_t>(numbers.layers.size());
  const int64_t shared = config.integer_or("num_kv_shared_layers", 0, 0, count);
  const bool wide = config.boolean_or("use_double_wide_mlp", false);
  if (shared == count || !share(numbers, shared)) {
    config.fail_field("num_kv_shared_layers", "a layer of each kind before those that share");
  }
  for (GemmaLayer& layer : numbers.layers) {
    if (layer.share >= 0 && wide) layer.inter *= 2;
    layer.k_is_v = !layer.sliding && config.boolean_or("attention_k_eq_v", false);
  }
  check_heads(config, numbers);
  load_per_layer_embeddings(config, numbers);
  load_experts(config, numbers);
  numbers.sliding_rope =
      load_rope(config, {.type = "sliding_attention", .theta = kSlidingTheta}, gemma_head_dim(numbers, true, 2));
  numbers.full_rope = load_rope(config, {.type = "full_attention", .theta = kFullTheta, .proportion = 0.25},
                                gemma_head_dim(numbers, false, 2));
  TensorBinder tensors(checkpoint, "");
  ModelSpec spec = load_gemma_stack(tensors, numbers);
  spec.family = "gemma4_text";
  tensors.finish(spec.skipped);
  return spec;
}

ModelSpec load_gemma4_gguf(const GgufFile& file) {
  const GgufConfig config(file);
  GemmaConfig numbers(config);
  check_gemma_scale(config, numbers);
  numbers.v_norm = true;
  const auto count = static_cast<int64_t>(numbers.layers.size());
  const int64_t sliding_dim =
      config.integer_or("attention.key_length_swa", numbers.layers.front().head_dim, 2, kMaxHeadDim);
  if (sliding_dim % 2 != 0) config.fail_key("attention.key_length_swa", "an even number");
  if (config.integer_or("attention.value_length_swa", sliding_dim, 1, kMaxHeadDim) != sliding_dim) {
    config.fail_key("attention.value_length_swa", concat(sliding_dim, ", as key_length_swa"));
  }
  const int64_t shared = config.integer_or("attention.shared_kv_layers", 0, 0, count - 1);
  if (!share(numbers, shared))
    config.fail_key("attention.shared_kv_layers", "a layer of each kind before those that share");
  for (size_t i = 0; i < numbers.layers.size(); ++i) {
    GemmaLayer& layer = numbers.layers[i];
    if (layer.sliding) layer.head_dim = sliding_dim;
    layer.k_is_v = layer.share < 0 && file.find(concat("blk.", i, ".attn_v.weight")) == nullptr;
    if (layer.share >= 0 && numbers.layers[static_cast<size_t>(layer.share)].kv_heads != layer.kv_heads) {
      config.fail_key("attention.head_count_kv", "the KV heads of a layer also in those that share its K and V");
    }
  }
  numbers.per_layer = config.integer_or("embedding_length_per_layer_input", 0, 0, kMaxWidth);
  numbers.per_layer_vocab = numbers.vocab;
  numbers.experts = config.integer_or("expert_count", 0, 0, kMaxExperts);
  if (numbers.experts > 0) {
    numbers.top_k = config.integer("expert_used_count", 1, numbers.experts);
    numbers.moe_inter = config.integer("expert_feed_forward_length", 1, kMaxWidth);
  }
  TensorBinder tensors(file, gemma_gguf_names());
  const int64_t full_dim = gemma_head_dim(numbers, false, 2);
  for (const bool sliding : {true, false}) {
    const std::string_view key = sliding ? "rope.dimension_count_swa" : "rope.dimension_count";
    const int64_t dims = gemma_head_dim(numbers, sliding, 2);
    if (config.integer_or(key, dims, 1, kMaxHeadDim) != dims)
      config.fail_key(key, concat(dims, ", the size of a head"));
  }
  FloatVector factors;
  if (tensors.has("rope_freqs.weight")) factors = tensors.floats("rope_freqs.weight", {full_dim / 2});
  numbers.full_rope = load_rope(config, full_dim, factors);
  for (size_t i = 0; i < factors.size(); ++i) {
    if (factors[i] > kNoRotation) numbers.full_rope.inv_freq[i] = 0;
  }
  numbers.sliding_rope = load_rope(config.number_or("rope.freq_base_swa", kSlidingTheta, 1 + 1e-6, 1e12),
                                   gemma_head_dim(numbers, true, 2));
  ModelSpec spec = load_gemma_stack(tensors, numbers);
  spec.family = "gemma4_text";
  tensors.finish(spec.skipped);
  return spec;
}

}  // namespace weir
