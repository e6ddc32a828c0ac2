// Qwen 3 with experts: Qwen 3 with a mixture of experts in some or all layers.
#include "base/error.h"
#include "models/family.h"
#include "models/qwen_parts.h"

namespace weir {
namespace {

ModelSpec load(TensorBinder& tensors, const DecoderConfig& numbers, const QwenExperts& experts) {
  ModelSpec spec = load_decoder(tensors, numbers, [&](int64_t index, const std::string& p, LayerSpec& layer) {
    layer.mixer = load_attention(tensors, numbers, p + "self_attn.");
    layer.ffn = load_qwen_ffn(tensors, numbers, experts, index, p);
  });
  spec.family = "qwen3_moe";
  tensors.finish(spec.skipped);
  return spec;
}

}  // namespace

ModelSpec load_qwen3_moe(const Checkpoint& checkpoint) {
  const JsonObject& c = checkpoint.config();
  DecoderConfig numbers(c, DecoderConfig::Layers::kOther);
  numbers.qkv_bias = numbers.o_bias = c.boolean_or("attention_bias", false);
  numbers.qk_norm = true;
  // In this family a window is that of all layers.
  numbers.windows.assign(static_cast<size_t>(numbers.layers), qwen_window(c));
  TensorBinder tensors(checkpoint, "");
  return load(tensors, numbers, QwenExperts(c, numbers, false, false));
}

ModelSpec load_qwen3_moe_gguf(const GgufFile& file) {
  const GgufConfig c(file);
  DecoderConfig numbers(c, DecoderConfig::Layers::kOther);
  numbers.qk_norm = true;
  TensorBinder tensors(file, decoder_gguf_names());
  numbers.rope = load_gguf_rope(c, tensors, numbers.head_dim);
  return load(tensors, numbers, QwenExperts(c, false));
}

}  // namespace weir
