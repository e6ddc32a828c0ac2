// Qwen 3, dense: Llama with an RMS norm on each head of q and k.
#include "models/dense_decoder.h"
#include "models/family.h"

namespace weir {

ModelSpec load_qwen3(const Checkpoint& checkpoint) {
  const JsonObject& config = checkpoint.config();
  DecoderConfig numbers(config);
  numbers.qkv_bias = numbers.o_bias = config.boolean_or("attention_bias", false);
  numbers.qk_norm = true;
  numbers.windows = qwen_windows(config, numbers.layers);
  TensorBinder tensors(checkpoint, "");
  ModelSpec spec = load_dense_decoder(tensors, numbers);
  spec.family = "qwen3";
  tensors.finish(spec.skipped);
  return spec;
}

ModelSpec load_qwen3_gguf(const GgufFile& file) {
  ModelSpec spec = load_gguf_decoder(file, RopePairing::kHalfSplit, true);
  spec.family = "qwen3";
  return spec;
}

}  // namespace weir
