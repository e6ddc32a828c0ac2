// Multi-head latent attention as checkpoints of several families name it (DeepSeek-V2 and later, Kimi, GLM-5).
#pragma once

#include <cstdint>
#include <string>

#include "models/gguf_config.h"
#include "models/model_spec.h"
#include "models/tensor_binder.h"

namespace weir {

struct MlaDims {
  int64_t hidden = 0, heads = 0, q_lora = 0 /* 0: direct */, latent = 0, nope = 0, extra = 0, value = 0;
  bool gate = false;  // of the output
  bool bias = false;  // on q_a, kv_a and o
};

// Under `prefix`: q_proj or q_a_proj, q_a_layernorm and q_b_proj; kv_a_proj_with_mqa, kv_a_layernorm; kv_b_proj, or
// k_b_proj and v_b_proj; g_proj; o_proj.
MlaMixer load_mla(TensorBinder& tensors, const MlaDims& dims, const std::string& prefix);

// Keys of GGUF: attention.kv_lora_rank and others. Files without key_length_mla (older ones, with attn_kv_b) give the
// heads' dimensions as key_length and value_length.
MlaDims gguf_mla_dims(const GgufConfig& config);

}  // namespace weir
