// What Llama and Qwen share: grouped-query attention with rotary positions, SwiGLU, ordinary residuals. The families
// differ in biases, norms and gates, and in what some of their layers have instead.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "models/gguf_config.h"
#include "models/model_spec.h"
#include "models/tensor_binder.h"

namespace weir {

struct DecoderConfig {
  // The fields that these families' config.json have in common, checked. Biases and norms are left to the family.
  // kOther: layers may lack the dense feed-forward block; its width may then be absent (inter is 0).
  // kHybrid: the same, and the rotation is left to the family too.
  enum class Layers { kDense, kOther, kHybrid };
  explicit DecoderConfig(const JsonObject& config, Layers kind = Layers::kDense);
  // The same from GGUF metadata; biases are where the file has them.
  explicit DecoderConfig(const GgufConfig& config, Layers kind = Layers::kDense);

  int64_t hidden, vocab, max_positions, layers, inter, heads, kv_heads, head_dim;
  float eps;
  bool tied;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;          // RMS norm on each head of q and k, before the rotation
  std::vector<int64_t> windows;  // by layer, 0: none; empty: none at all
  bool zero_centred = false;     // all of these norms multiply by 1 + w
  bool q_gate = false;           // AttentionMixer::q_gate
  RopeSpec rope;
};

AttentionMixer load_attention(TensorBinder& tensors, const DecoderConfig& config, const std::string& prefix);
// `prefix`: "model.layers.3.mlp."
DenseFfn load_dense_ffn(TensorBinder& tensors, const DecoderConfig& config, const std::string& prefix);

// Embedding, head, and layers with their norms; `parts` fills in mixer and feed-forward of layer `index`, whose tensors
// begin with `prefix`, "model.layers.3.".
using LayerParts = std::function<void(int64_t index, const std::string& prefix, LayerSpec& layer)>;
ModelSpec load_decoder(TensorBinder& tensors, const DecoderConfig& config, const LayerParts& parts);
ModelSpec load_dense_decoder(TensorBinder& tensors, const DecoderConfig& config);

// Of GGUF metadata; rope.dimension_count of a head are rotated.
RopeSpec load_gguf_rope(const GgufConfig& config, TensorBinder& tensors, int64_t head_dim);
std::span<const GgufName> decoder_gguf_names();
// A checkpoint in GGUF of one of these families. The rows of q and k are as the family's converter leaves them:
// kHalfSplit as published, kInterleavedToHalf where each head's two halves were interleaved (llama).
ModelSpec load_gguf_decoder(const GgufFile& file, RopePairing pairing, bool qk_norm);

// The one window of Qwen's config.json; 0: none.
int64_t qwen_window(const JsonObject& config);
// The windows that Qwen's config.json describes: with use_sliding_window, of the layers that layer_types names, or of
// those from max_window_layers on.
std::vector<int64_t> qwen_windows(const JsonObject& config, int64_t layers);
// By layer, from layer_types: `window` where it says sliding_attention, 0 for full_attention.
std::vector<int64_t> windows_of_types(const JsonObject& config, int64_t layers, int64_t window);

}  // namespace weir
