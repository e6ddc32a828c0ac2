// Kimi Linear: KDA with a softplus gate, MLA without rotation, ordinary residuals, routed experts in BF16.
#include "models/family.h"
#include "models/kimi_parts.h"

namespace weir {

ModelSpec load_kimi_linear(const Checkpoint& checkpoint) {
  const JsonObject& config = checkpoint.config();
  if (config.string_or("hidden_act", "silu") != "silu") config.fail_field("hidden_act", "'silu'");
  TensorBinder tensors(checkpoint, "");
  ModelSpec spec = load_kimi_stack(tensors, KimiConfig(config));
  spec.family = "kimi_linear";
  spec.act = {.kind = ElementwiseKind::kSwiGlu};
  tensors.finish(spec.skipped);
  return spec;
}

ModelSpec load_kimi_linear_gguf(const GgufFile& file) {
  TensorBinder tensors(file, kimi_gguf_names());
  ModelSpec spec = load_kimi_stack(tensors, KimiConfig(GgufConfig(file)));
  spec.family = "kimi_linear";
  spec.act = {.kind = ElementwiseKind::kSwiGlu};
  tensors.finish(spec.skipped);
  return spec;
}

}  // namespace weir
