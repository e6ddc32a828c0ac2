// What Gemma 3 and 4 share: alternating windows with rotations of their own, norms before and after every sublayer,
// GeGLU, a scaled embedding. Gemma 4 adds per-layer embeddings, shared K and V, and experts beside the dense MLP.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/gguf_config.h"
#include "models/model_spec.h"
#include "models/tensor_binder.h"

namespace weir {

struct GemmaLayer {
  bool sliding = false;
  int64_t kv_heads = 0, head_dim = 0, inter = 0;
  int share = -1;       // the layer whose K and V are read
  bool k_is_v = false;  // V is made of the projection of K
};

struct GemmaConfig {
  // The fields of config.json that both families have, checked. What is left: rotations, and what the family adds.
  explicit GemmaConfig(const JsonObject& config);
  // The same from GGUF metadata.
  explicit GemmaConfig(const GgufConfig& config);

  int64_t hidden, vocab, max_positions, heads, window;
  float eps;
  bool tied, attention_bias = false;
  float softcap = 0;  // of the logits; 0: none
  std::vector<GemmaLayer> layers;

  bool zero_centred = false;  // norms are stored as w - 1
  bool v_norm = false;        // RMS norm without weight on each head of V
  float scale = 1;            // of attention scores
  RopeSpec sliding_rope, full_rope;
  int64_t per_layer = 0, per_layer_vocab = 0;  // width and rows of the per-layer embeddings; 0: none
  int64_t experts = 0, top_k = 0, moe_inter = 0;
};

// The one head dimension of all sliding or all full layers; `fallback` when there is none of the kind.
int64_t gemma_head_dim(const GemmaConfig& config, bool sliding, int64_t fallback);

ModelSpec load_gemma_stack(TensorBinder& tensors, const GemmaConfig& config);

// attention.scale in GGUF, if any, must be the one that the family has.
void check_gemma_scale(const GgufConfig& config, const GemmaConfig& numbers);

std::span<const GgufName> gemma_gguf_names();

}  // namespace weir
