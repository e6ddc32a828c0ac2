// The numbers of Gemma 3 and 4, from config.json and from GGUF metadata.
#include <algorithm>

#include "base/error.h"
#include "models/gemma_parts.h"
#include "models/limits.h"

namespace weir {
namespace {

constexpr int64_t kPattern = 6;  // every sixth layer is full, unless the configuration says otherwise

std::vector<bool> sliding_layers(const JsonObject& c, int64_t layers) {
  std::vector<bool> sliding;
  if (!c.has("layer_types")) {
    const std::string_view key = c.has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
    const int64_t pattern = c.integer_or(key, kPattern, 1, kMaxLayers);
    for (int64_t i = 0; i < layers; ++i) sliding.push_back((i + 1) % pattern != 0);
    return sliding;
  }
  const std::vector<std::string> types = c.words("layer_types", layers, {"sliding_attention", "full_attention"});
  for (const std::string& type : types) sliding.push_back(type == "sliding_attention");
  return sliding;
}

// In GGUF: a period, or one boolean for each layer.
std::vector<bool> sliding_layers(const GgufConfig& c, int64_t layers) {
  constexpr std::string_view kKey = "attention.sliding_window_pattern";
  std::vector<bool> sliding;
  if (c.has(kKey) && c.is_array(kKey)) {
    for (const int64_t flag : c.per_layer(kKey, layers, 0, 1)) sliding.push_back(flag == 1);
    return sliding;
  }
  const int64_t pattern = c.integer_or(kKey, kPattern, 1, kMaxLayers);
  for (int64_t i = 0; i < layers; ++i) sliding.push_back((i + 1) % pattern != 0);
  return sliding;
}

// Attention of a token to later ones: 'vision' is about tokens of images, of which there are none here.
void refuse_bidirectional(const JsonObject& c) {
  constexpr std::string_view kKey = "use_bidirectional_attention";
  if (!c.has(kKey)) return;
  const boost::json::value& value = c.raw().at(kKey);
  if (value.is_bool() ? value.as_bool() : !value.is_string() || value.as_string() != "vision") {
    c.fail_field(kKey, "null, false or 'vision' (a row sees no later ones)");
  }
}

}  // namespace

GemmaConfig::GemmaConfig(const JsonObject& c) {
  hidden = c.integer("hidden_size", 1, kMaxWidth);
  vocab = c.integer("vocab_size", 1, kMaxWidth);
  max_positions = c.integer_or("max_position_embeddings", 131072, 1, kMaxContext);
  eps = static_cast<float>(c.number_or("rms_norm_eps", 1e-6, 0, 1));
  heads = c.integer("num_attention_heads", 1, kMaxHeads);
  tied = c.boolean_or("tie_word_embeddings", true);
  attention_bias = c.boolean_or("attention_bias", false);
  softcap = static_cast<float>(c.number_or("final_logit_softcapping", 0, 0, 1e6));
  if (c.has("attn_logit_softcapping")) {
    c.fail_field("attn_logit_softcapping", "null (caps on attention scores are not supported)");
  }
  if (c.string_or("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh") {
    c.fail_field("hidden_activation", "'gelu_pytorch_tanh'");
  }
  refuse_bidirectional(c);
  GemmaLayer layer;
  layer.inter = c.integer("intermediate_size", 1, kMaxWidth);
  layer.kv_heads = c.integer_or("num_key_value_heads", heads, 1, heads);
  if (heads % layer.kv_heads != 0) {
    c.fail_field("num_key_value_heads", concat("a divisor of num_attention_heads = ", heads));
  }
  layer.head_dim = c.integer_or("head_dim", 256, 2, kMaxHeadDim);
  if (layer.head_dim % 2 != 0) c.fail_field("head_dim", "an even number");
  for (const bool sliding : sliding_layers(c, c.integer("num_hidden_layers", 1, kMaxLayers))) {
    layers.push_back(layer);
    layers.back().sliding = sliding;
  }
  const bool windows = std::ranges::any_of(layers, &GemmaLayer::sliding);
  window = windows ? c.integer("sliding_window", 1, kMaxContext) : 0;
}

GemmaConfig::GemmaConfig(const GgufConfig& c) {
  c.refuse_options({"attention.sliding_window", "attention.scale", "final_logit_softcapping"});
  hidden = c.integer("embedding_length", 1, kMaxWidth);
  vocab = c.vocab();
  max_positions = c.integer("context_length", 1, kMaxContext);
  eps = c.number("attention.layer_norm_rms_epsilon", 0, 1);
  heads = c.integer("attention.head_count", 1, kMaxHeads);
  window = c.integer("attention.sliding_window", 1, kMaxContext);
  tied = c.file().find("output.weight") == nullptr;
  attention_bias = c.file().find("blk.0.attn_q.bias") != nullptr;
  softcap = c.number_or("final_logit_softcapping", 0, 0, 1e6);
  const int64_t count = c.integer("block_count", 1, kMaxLayers);
  const std::vector<int64_t> inter = c.per_layer("feed_forward_length", count, 1, kMaxWidth);
  const std::vector<int64_t> kv_heads = c.per_layer("attention.head_count_kv", count, 1, heads);
  const int64_t head_dim = c.integer("attention.key_length", 2, kMaxHeadDim);
  if (head_dim % 2 != 0) c.fail_key("attention.key_length", "an even number");
  if (c.integer_or("attention.value_length", head_dim, 1, kMaxHeadDim) != head_dim) {
    c.fail_key("attention.value_length", concat(head_dim, ", as key_length"));
  }
  const std::vector<bool> sliding = sliding_layers(c, count);
  for (size_t i = 0; i < sliding.size(); ++i) {
    if (heads % kv_heads[i] != 0) c.fail_key("attention.head_count_kv", concat("divisors of head_count = ", heads));
    layers.push_back({.sliding = sliding[i], .kv_heads = kv_heads[i], .head_dim = head_dim, .inter = inter[i]});
  }
}

}  // namespace weir
