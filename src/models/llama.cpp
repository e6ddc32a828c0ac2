// Llama 2 and 3.
#include "base/error.h"
#include "models/dense_decoder.h"
#include "models/family.h"

namespace weir {

ModelSpec load_llama(const Checkpoint& checkpoint) {
  const JsonObject& config = checkpoint.config();
  DecoderConfig numbers(config);
  numbers.qkv_bias = numbers.o_bias = config.boolean_or("attention_bias", false);
  numbers.mlp_bias = config.boolean_or("mlp_bias", false);
  TensorBinder tensors(checkpoint, "");
  ModelSpec spec = load_dense_decoder(tensors, numbers);
  spec.family = "llama";
  // Old conversions store the frequencies, which follow from the configuration.
  for (int64_t i = 0; i < numbers.layers; ++i) {
    spec.skipped.push_back(concat("model.layers.", i, ".self_attn.rotary_emb.inv_freq"));
  }
  tensors.finish(spec.skipped);
  return spec;
}

ModelSpec load_llama_gguf(const GgufFile& file) {
  ModelSpec spec = load_gguf_decoder(file, RopePairing::kInterleavedToHalf, false);
  spec.family = "llama";
  return spec;
}

}  // namespace weir
