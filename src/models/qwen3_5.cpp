// Qwen 3.5, dense and with experts: Qwen3-Next's layers with projections of their own for q|k|v, z, b and a. Published
// checkpoints wrap the text model in one for images, of which the rest is skipped.
#include "models/family.h"
#include "models/limits.h"
#include "models/qwen_parts.h"

namespace weir {
namespace {

// Fields of other families with experts, which this one's reference implementation does not read.
void refuse_absent_options(const JsonObject& c) {
  if (!c.boolean_or("norm_topk_prob", true)) c.fail_field("norm_topk_prob", "true");
  c.integer_or("decoder_sparse_step", 1, 1, 1);
  if (c.has("mlp_only_layers") && !c.integers("mlp_only_layers", 0, kMaxWidth).empty()) {
    c.fail_field("mlp_only_layers", "an empty array");
  }
}

ModelSpec load(const Checkpoint& checkpoint, bool moe) {
  const JsonObject& root = checkpoint.config();
  const std::optional<JsonObject> nested = root.object_if("text_config");
  const JsonObject& c = nested ? *nested : root;
  DecoderConfig numbers = qwen_hybrid_config(c);
  if (nested && !c.has("tie_word_embeddings")) numbers.tied = root.boolean_or("tie_word_embeddings", false);
  std::optional<QwenExperts> experts;
  if (moe) {
    refuse_absent_options(c);
    experts.emplace(c, numbers, true, true);
  }
  if (!moe) numbers.inter = c.integer("intermediate_size", 1, kMaxWidth);

  const bool wrapped = checkpoint.find("model.language_model.embed_tokens.weight") != nullptr;
  TensorBinder tensors(checkpoint, wrapped ? "model.language_model." : "model.", "model.");
  ModelSpec spec = load_qwen_hybrid(tensors, numbers, QwenDelta(c, numbers.layers), experts ? &*experts : nullptr);
  spec.family = moe ? "qwen3_5_moe" : "qwen3_5";
  spec.skipped = {"model.visual.", "mtp."};
  tensors.finish(spec.skipped);
  return spec;
}

ModelSpec load_gguf(const GgufFile& file, bool moe) {
  const GgufConfig c(file);
  TensorBinder tensors(file, decoder_gguf_names());
  DecoderConfig numbers = qwen_hybrid_config(c, tensors);
  QwenDelta delta(c, numbers.layers);
  delta.order = KeyHeadOrder::kTiled;  // the converter orders value heads by their place in the group first
  std::optional<QwenExperts> experts;
  if (moe) experts.emplace(c, true);
  if (!moe) numbers.inter = c.integer("feed_forward_length", 1, kMaxWidth);
  ModelSpec spec = load_qwen_hybrid(tensors, numbers, delta, experts ? &*experts : nullptr);
  spec.family = moe ? "qwen3_5_moe" : "qwen3_5";
  spec.skipped = qwen_prediction_blocks(c);
  tensors.finish(spec.skipped);
  return spec;
}

}  // namespace

ModelSpec load_qwen3_5(const Checkpoint& checkpoint) { return load(checkpoint, false); }
ModelSpec load_qwen3_5_moe(const Checkpoint& checkpoint) { return load(checkpoint, true); }
ModelSpec load_qwen3_5_gguf(const GgufFile& file) { return load_gguf(file, false); }
ModelSpec load_qwen3_5_moe_gguf(const GgufFile& file) { return load_gguf(file, true); }

}  // namespace weir
