// What Kimi K3 and Kimi Linear share: the tensor names and config fields of KDA, MLA and expert blocks.
// Source: the published configuration and modeling files of both (moonshotai/Kimi-K3, moonshotai/Kimi-Linear-48B-A3B).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/json.h"
#include "models/gguf_config.h"
#include "models/mla_parts.h"
#include "models/model_spec.h"
#include "models/tensor_binder.h"

namespace weir {

// Numbers of config.json or GGUF metadata, checked.
struct KimiConfig {
  explicit KimiConfig(const JsonObject& text);
  // What the keys leave open is read off the tensors: the number of KDA heads, and which gates there are.
  explicit KimiConfig(const GgufConfig& config);

  MlaDims mla() const;

  int64_t hidden, layers, vocab, max_positions;
  float eps;
  // MLA
  int64_t heads, q_lora /* 0: direct */, latent, nope, extra, value;
  bool mla_gate;
  // KDA
  std::vector<bool> is_kda;  // by layer, from 0
  int64_t kda_heads, kda_dim, taps;
  bool full_rank_gate, bounded;
  float lower_bound;
  // feed-forward
  int64_t dense_inter, moe_inter, experts, top_k, shared_experts, groups, topk_group;
  std::vector<bool> is_moe;  // by layer
  bool renormalize;
  float scaling_factor;
  int64_t latent_moe;  // width of LatentMoE, 0: none
  bool latent_norm;
  bool tied;
};

KdaMixer load_kda(TensorBinder& tensors, const KimiConfig& config, const std::string& prefix);
// `layer`: "model.layers.3."; dense layers under "mlp." (or, as some writers put them, "block_sparse_moe.").
FeedForward load_ffn(TensorBinder& tensors, const KimiConfig& config, int64_t index, const std::string& layer);

// Names of both architectures in GGUF files.
std::span<const GgufName> kimi_gguf_names();

// Embedding, layers (without attention residuals), final norm and head.
ModelSpec load_kimi_stack(TensorBinder& tensors, const KimiConfig& config);

}  // namespace weir
