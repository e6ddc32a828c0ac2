// Qwen 2 and 2.5: Llama with biases on q, k and v.
#include "models/dense_decoder.h"
#include "models/family.h"

namespace weir {

ModelSpec load_qwen2(const Checkpoint& checkpoint) {
  const JsonObject& config = checkpoint.config();
  DecoderConfig numbers(config);
  numbers.qkv_bias = true;
  numbers.windows = qwen_windows(config, numbers.layers);
  TensorBinder tensors(checkpoint, "");
  ModelSpec spec = load_dense_decoder(tensors, numbers);
  spec.family = "qwen2";
  tensors.finish(spec.skipped);
  return spec;
}

ModelSpec load_qwen2_gguf(const GgufFile& file) {
  ModelSpec spec = load_gguf_decoder(file, RopePairing::kHalfSplit, false);
  spec.family = "qwen2";
  return spec;
}

}  // namespace weir
