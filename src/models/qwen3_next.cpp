// Qwen3-Next: layers of Gated DeltaNet and of gated attention, experts in most of them.
#include "models/family.h"
#include "models/qwen_parts.h"

namespace weir {

ModelSpec load_qwen3_next(const Checkpoint& checkpoint) {
  const JsonObject& c = checkpoint.config();
  const DecoderConfig numbers = qwen_hybrid_config(c);
  const QwenExperts experts(c, numbers, true, true);
  TensorBinder tensors(checkpoint, "");
  ModelSpec spec = load_qwen_hybrid(tensors, numbers, QwenDelta(c, numbers.layers), &experts);
  spec.family = "qwen3_next";
  spec.skipped = {"mtp."};
  tensors.finish(spec.skipped);
  return spec;
}

ModelSpec load_qwen3_next_gguf(const GgufFile& file) {
  const GgufConfig c(file);
  TensorBinder tensors(file, decoder_gguf_names());
  const DecoderConfig numbers = qwen_hybrid_config(c, tensors);
  const QwenExperts experts(c, true);
  ModelSpec spec = load_qwen_hybrid(tensors, numbers, QwenDelta(c, numbers.layers), &experts);
  spec.family = "qwen3_next";
  spec.skipped = qwen_prediction_blocks(c);
  tensors.finish(spec.skipped);
  return spec;
}

}  // namespace weir
