// Kimi K3: KDA with a bounded gate, gated MLA, LatentMoE with MXFP4 experts, block attention residuals. Text only: the
// vision tower is skipped. Published layout: text tensors under "language_model.", configuration under text_config.
#include "base/error.h"
#include "models/family.h"
#include "models/kimi_parts.h"
#include "ops/attn_residual/attn_residual.h"

namespace weir {
namespace {

// The pseudo-query of one read: norm weight times projection, formed in FP32.
FloatVector residual_weight(TensorBinder& tensors, const std::string& name, int64_t hidden) {
  if (tensors.has(name + "_score.weight")) return tensors.floats(name + "_score.weight", {hidden});
  FloatVector weight = tensors.floats(name + "_norm.weight", {hidden});
  const FloatVector projection = tensors.floats(name + "_proj.weight", {1, hidden});
  for (size_t i = 0; i < weight.size(); ++i) weight[i] *= projection[i];
  return weight;
}

void check_quantization(const JsonObject& text) {
  const std::optional<JsonObject> quantization = text.object_if("quantization_config");
  if (!quantization) return;
  if (quantization->string("quant_method") != "compressed-tensors") {
    quantization->fail_field("quant_method", "'compressed-tensors'");
  }
  if (quantization->string_or("format", "mxfp4-pack-quantized") != "mxfp4-pack-quantized") {
    quantization->fail_field("format", "'mxfp4-pack-quantized'");
  }
}

GluFunction activation(const JsonObject& text) {
  const std::string name = text.string_or("hidden_act", "silu");
  if (name == "silu") return {.kind = ElementwiseKind::kSwiGlu};
  if (name != "situ") text.fail_field("hidden_act", "'situ' or 'silu'");
  return {.kind = ElementwiseKind::kSitu,
          .beta = static_cast<float>(text.number_or("activation_situ_beta", 1, 1e-6, 1e6)),
          .linear_beta = static_cast<float>(text.number_or("activation_situ_linear_beta", 0, 1e-6, 1e6))};
}

void load_residuals(TensorBinder& tensors, ModelSpec& spec) {
  if (spec.residual_block == 0) return;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const std::string prefix = concat("model.layers.", i, ".");
    spec.layers[i].mixer_residual = residual_weight(tensors, prefix + "self_attention_res", spec.hidden);
    spec.layers[i].ffn_residual = residual_weight(tensors, prefix + "mlp_res", spec.hidden);
  }
  spec.output_residual = residual_weight(tensors, "model.output_attn_res", spec.hidden);
}

}  // namespace

ModelSpec load_kimi_k3(const Checkpoint& checkpoint) {
  const JsonObject& config = checkpoint.config();
  const std::optional<JsonObject> nested = config.object_if("text_config");
  const JsonObject& text = nested ? *nested : config;
  check_quantization(text);
  KimiConfig numbers(text);
  numbers.tied = numbers.tied || config.boolean_or("tie_word_embeddings", false);

  TensorBinder tensors(checkpoint, "language_model.");
  ModelSpec spec = load_kimi_stack(tensors, numbers);
  spec.family = "kimi_k3";
  spec.act = activation(text);
  spec.residual_block = text.integer_or("attn_res_block_size", 0, 1, numbers.layers);
  const int64_t least = (numbers.layers + kMaxResidualCandidates - 2) / (kMaxResidualCandidates - 1);
  if (spec.residual_block > 0 && spec.residual_block < least) {
    text.fail_field("attn_res_block_size", concat("at least ", least, ", so that ", numbers.layers,
                                                  " layers make at most ", kMaxResidualCandidates - 1, " blocks"));
  }
  load_residuals(tensors, spec);
  spec.skipped = {"vision_tower.", "mm_projector."};
  tensors.finish(spec.skipped);
  return spec;
}

ModelSpec load_kimi_k3_gguf(const GgufFile& file) {
  const GgufConfig config(file);
  TensorBinder tensors(file, kimi_gguf_names());
  ModelSpec spec = load_kimi_stack(tensors, KimiConfig(config));
  spec.family = "kimi_k3";
  spec.act = {.kind = ElementwiseKind::kSwiGlu};
  if (config.has("activation.situ_beta")) {
    spec.act = {.kind = ElementwiseKind::kSitu,
                .beta = config.number("activation.situ_beta", 1e-6, 1e6),
                .linear_beta = config.number_or("activation.situ_linear_beta", 0, 1e-6, 1e6)};
  }
  spec.residual_block = config.integer_or("attn_res.block_size", 0, 0, static_cast<int64_t>(spec.layers.size()));
  load_residuals(tensors, spec);
  tensors.finish(spec.skipped);
  return spec;
}

}  // namespace weir
