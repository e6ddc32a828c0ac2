// What DeepSeek-V3 and GLM-5 share: MLA with rotation, experts chosen in groups, and their configuration fields.
// Source: configuration and modeling files of transformers (deepseek_v3, glm_moe_dsa), and GGUF's deepseek2 and
// glm-dsa.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/json.h"
#include "models/gguf_config.h"
#include "models/mla_parts.h"
#include "models/model_spec.h"
#include "models/tensor_binder.h"

namespace weir {

// Where config.json does not say; without a value the field must be there.
struct DeepseekDefaults {
  double eps = 1e-6;
  std::optional<int64_t> shared_experts, groups, topk_group;
  std::optional<double> scaling_factor;
};

// Numbers of config.json or GGUF metadata, checked.
struct DeepseekConfig {
  DeepseekConfig(const JsonObject& config, const DeepseekDefaults& defaults);
  explicit DeepseekConfig(const GgufConfig& config);

  MlaDims mla;
  int64_t layers = 0 /* without those of multi-token prediction, which are skipped */, skipped_layers = 0;
  int64_t vocab = 0, max_positions = 0;
  float eps = 1e-6f;
  bool tied = false;
  RopeSpec rope;
  int64_t dense_inter = 0, moe_inter = 0, experts = 0, top_k = 0, shared_experts = 0, groups = 1, topk_group = 1;
  std::vector<bool> is_moe;  // by layer
  bool renormalize = true;
  float scaling_factor = 1;

 private:
  void read_experts(const JsonObject& config, const DeepseekDefaults& defaults);
  void read_experts(const GgufConfig& config);
};

// Names of both architectures in GGUF files.
std::span<const GgufName> deepseek_gguf_names();

// The whole model, but for indexers; ropes[0] is of MLA.
ModelSpec load_deepseek_stack(TensorBinder& tensors, const DeepseekConfig& config);

}  // namespace weir
