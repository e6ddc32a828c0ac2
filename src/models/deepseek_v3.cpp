// DeepSeek-V3 and R1, Kimi-K2: MLA with rotation, experts in groups by sigmoid scores with a correction bias. The layer
// for multi-token prediction is skipped.
#include "models/deepseek_parts.h"
#include "models/family.h"

namespace weir {

ModelSpec load_deepseek_v3(const Checkpoint& checkpoint) {
  TensorBinder tensors(checkpoint, "");
  const DeepseekConfig numbers(checkpoint.config(),
                               {.shared_experts = 1, .groups = 8, .topk_group = 4, .scaling_factor = 2.5});
  ModelSpec spec = load_deepseek_stack(tensors, numbers);
  spec.family = "deepseek_v3";
  tensors.finish(spec.skipped);
  return spec;
}

ModelSpec load_deepseek_v3_gguf(const GgufFile& file) {
  TensorBinder tensors(file, deepseek_gguf_names());
  ModelSpec spec = load_deepseek_stack(tensors, DeepseekConfig(GgufConfig(file)));
  spec.family = "deepseek_v3";
  tensors.finish(spec.skipped);
  return spec;
}

}  // namespace weir
