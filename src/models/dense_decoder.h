// What Llama and Qwen share: grouped-query attention with rotary positions, SwiGLU, ordinary residuals. The families
// differ in biases and in norms on queries and keys.
#pragma once

#include <cstdint>
#include <vector>

#include "models/gguf_config.h"
#include "models/model_spec.h"
#include "models/tensor_binder.h"

namespace weir {

struct DecoderConfig {
  // The fields that these families' config.json have in common, checked. Biases and norms are left to the family.
  explicit DecoderConfig(const JsonObject& config);
  // The same from GGUF metadata; biases are where the file has them.
  explicit DecoderConfig(const GgufConfig& config);

  int64_t hidden, vocab, max_positions, layers, inter, heads, kv_heads, head_dim;
  float eps;
  bool tied;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;          // RMS norm on each head of q and k, before the rotation
  std::vector<int64_t> windows;  // by layer, 0: none; empty: none at all
  RopeSpec rope;
};

ModelSpec load_dense_decoder(TensorBinder& tensors, const DecoderConfig& config);

// A checkpoint in GGUF of one of these families. The rows of q and k are as the family's converter leaves them:
// kHalfSplit as published, kInterleavedToHalf where each head's two halves were interleaved (llama).
ModelSpec load_gguf_decoder(const GgufFile& file, RopePairing pairing, bool qk_norm);

// The windows that Qwen's config.json describes: with use_sliding_window, of the layers that layer_types names, or of
// those from max_window_layers on.
std::vector<int64_t> qwen_windows(const JsonObject& config, int64_t layers);
// By layer, from layer_types: `window` where it says sliding_attention, 0 for full_attention.
std::vector<int64_t> windows_of_types(const JsonObject& config, int64_t layers, int64_t window);

}  // namespace weir
