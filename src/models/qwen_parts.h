// Parts of Qwen's newer families: mixtures of experts with a softmax router and a gated shared expert, and layers of
// Gated DeltaNet between those of attention.
// Source: transformers 5.24, models qwen3_moe, qwen3_next, qwen3_5, qwen3_5_moe; llama.cpp's converter for GGUF.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/dense_decoder.h"

namespace weir {

struct QwenExperts {
  // Layers with experts: those of decoder_sparse_step that mlp_only_layers does not name. `renormalize`: where the
  // configuration does not say. shared_expert_intermediate_size is read where there is one.
  QwenExperts(const JsonObject& config, const DecoderConfig& numbers, bool renormalize, bool shared);
  // Layers with experts: those that have a router in the file.
  QwenExperts(const GgufConfig& config, bool shared);

  int64_t experts = 0, top_k = 0, inter = 0;
  int64_t shared_inter = 0;  // 0: no shared expert
  RouterScore score = RouterScore::kSoftmax;
  bool renormalize = true;
  float scaling_factor = 1;
  std::vector<bool> is_moe;  // by layer; empty: see the file
};

// The experts of a layer, or its dense block. `prefix`: "model.layers.3."
FeedForward load_qwen_ffn(TensorBinder& tensors, const DecoderConfig& numbers, const QwenExperts& experts,
                          int64_t index, const std::string& prefix);

struct QwenDelta {
  QwenDelta(const JsonObject& config, int64_t layers);
  QwenDelta(const GgufConfig& config, int64_t layers);

  int64_t heads, key_heads, key_dim, value_dim, taps;
  KeyHeadOrder order = KeyHeadOrder::kGrouped;
  std::vector<bool> is_linear;  // by layer
};

// `prefix`: "model.layers.3.linear_attn."
GdnMixer load_gated_delta(TensorBinder& tensors, const QwenDelta& numbers, int64_t hidden, const std::string& prefix);

// Attention of these hybrids: gated, with zero-centred norms, rotating a part of each head.
DecoderConfig qwen_hybrid_config(const JsonObject& text);
// `tensors` for its rope factors. Blocks of prediction heads (nextn) are not among the layers.
DecoderConfig qwen_hybrid_config(const GgufConfig& config, TensorBinder& tensors);
// The prefixes of tensors of prediction heads, "blk.48.".
std::vector<std::string> qwen_prediction_blocks(const GgufConfig& config);

// The stack of a hybrid; `experts` null: all layers are dense.
ModelSpec load_qwen_hybrid(TensorBinder& tensors, const DecoderConfig& numbers, const QwenDelta& delta,
                           const QwenExperts* experts);

}  // namespace weir
