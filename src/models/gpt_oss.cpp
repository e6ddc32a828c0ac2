// gpt-oss: every layer a mixture of experts with biases; attention with sinks, over a window in some layers.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "models/dense_decoder.h"
#include "models/family.h"
#include "models/limits.h"
#include "models/rope_config.h"

namespace weir {
namespace {

constexpr double kAlpha = 1.702;  // where a file does not say: as published
constexpr double kLimit = 7;
constexpr double kTheta = 150000;

constexpr GgufName kNames[] = {
    {"model.embed_tokens", "token_embd"},
    {"lm_head", "output"},
    {"model.norm", "output_norm"},
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "post_attention_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.sinks", "attn_sinks.weight"},
    {"mlp.router", "ffn_gate_inp"},
    {"mlp.experts.*.gate_proj", "ffn_gate_exps"},
    {"mlp.experts.*.up_proj", "ffn_up_exps"},
    {"mlp.experts.*.down_proj", "ffn_down_exps"},
};

struct GptOssConfig {
  explicit GptOssConfig(const JsonObject& config);
  explicit GptOssConfig(const GgufConfig& config);

  int64_t hidden, vocab, max_positions, layers, inter, heads, kv_heads, head_dim, experts, top_k;
  float eps;
  bool tied, attention_bias;
  GluFunction act;
  RopeSpec rope;
  std::vector<int64_t> windows;  // by layer; 0: none
  bool separate;                 // gate and up of the experts are tensors of their own: GGUF, or generated weights
};

GptOssConfig::GptOssConfig(const JsonObject& c) {
  hidden = c.integer("hidden_size", 1, kMaxWidth);
  vocab = c.integer("vocab_size", 1, kMaxWidth);
  max_positions = c.integer_or("max_position_embeddings", 131072, 1, kMaxContext);
  layers = c.integer("num_hidden_layers", 1, kMaxLayers);
  inter = c.integer("intermediate_size", 1, kMaxWidth);
  heads = c.integer("num_attention_heads", 1, kMaxHeads);
  kv_heads = c.integer_or("num_key_value_heads", heads, 1, heads);
  if (heads % kv_heads != 0) c.fail_field("num_key_value_heads", concat("a divisor of num_attention_heads = ", heads));
  head_dim = c.integer_or("head_dim", 64, 2, kMaxHeadDim);
  if (head_dim % 2 != 0) c.fail_field("head_dim", "an even number");
  experts = c.integer("num_local_experts", 1, kMaxExperts);
  top_k = c.integer(c.has("num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token", 1, experts);
  eps = static_cast<float>(c.number_or("rms_norm_eps", 1e-5, 0, 1));
  tied = c.boolean_or("tie_word_embeddings", false);
  attention_bias = c.boolean_or("attention_bias", true);
  if (c.string_or("hidden_act", "silu") != "silu") c.fail_field("hidden_act", "'silu'");
  act = {.kind = ElementwiseKind::kClampedSwiGlu,
         .beta = static_cast<float>(c.number_or("swiglu_alpha", kAlpha, -1e6, 1e6)),
         .linear_beta = static_cast<float>(c.number_or("swiglu_limit", kLimit, 1e-6, 1e6))};
  for (const char* key : {"swiglu_alpha", "swiglu_limit"}) {
    if (c.raw().contains(key) && !c.has(key)) c.fail_field(key, "a number");
  }
  // The family's own scaling belongs to its published sizes; a file that means it says so.
  if (!c.has("rope_parameters") && !c.has("rope_scaling"))
    c.fail_field("rope_parameters", "an object, or rope_scaling");
  rope = load_rope(c, head_dim, {.theta = kTheta});
  const int64_t window = c.integer_or("sliding_window", 128, 1, kMaxContext);
  if (c.has("layer_types")) {
    windows = windows_of_types(c, layers, window);
  } else {
    for (int64_t i = 0; i < layers; ++i) windows.push_back(i % 2 == 0 ? window : 0);
  }
  const bool sliding = std::ranges::any_of(windows, [](int64_t w) { return w > 0; });
  if (sliding && c.raw().contains("sliding_window") && !c.has("sliding_window")) {
    c.fail_field("sliding_window", "a positive integer where layers are sliding");
  }
  separate = false;
  if (const std::optional<JsonObject> quantization = c.object_if("quantization_config")) {
    if (quantization->string("quant_method") != "mxfp4") quantization->fail_field("quant_method", "'mxfp4'");
  }
}

GptOssConfig::GptOssConfig(const GgufConfig& c) {
  c.refuse_options({"attention.sliding_window"});
  hidden = c.integer("embedding_length", 1, kMaxWidth);
  vocab = c.vocab();
  max_positions = c.integer("context_length", 1, kMaxContext);
  layers = c.integer("block_count", 1, kMaxLayers);
  inter = c.integer("expert_feed_forward_length", 1, kMaxWidth);
  heads = c.integer("attention.head_count", 1, kMaxHeads);
  kv_heads = c.integer_or("attention.head_count_kv", heads, 1, heads);
  if (heads % kv_heads != 0) c.fail_key("attention.head_count_kv", concat("a divisor of head_count = ", heads));
  head_dim = c.integer("attention.key_length", 2, kMaxHeadDim);
  if (head_dim % 2 != 0) c.fail_key("attention.key_length", "an even number");
  if (c.integer_or("attention.value_length", head_dim, 1, kMaxHeadDim) != head_dim) {
    c.fail_key("attention.value_length", concat(head_dim, ", as key_length"));
  }
  if (c.integer_or("rope.dimension_count", head_dim, 1, kMaxHeadDim) != head_dim) {
    c.fail_key("rope.dimension_count", concat(head_dim, ", as key_length"));
  }
  experts = c.integer("expert_count", 1, kMaxExperts);
  top_k = c.integer("expert_used_count", 1, experts);
  eps = c.number("attention.layer_norm_rms_epsilon", 0, 1);
  tied = c.file().find("output.weight") == nullptr;
  attention_bias = c.file().find("blk.0.attn_q.bias") != nullptr;
  act = {.kind = ElementwiseKind::kClampedSwiGlu,
         .beta = static_cast<float>(kAlpha),
         .linear_beta = static_cast<float>(kLimit)};
  rope = load_rope(c, head_dim, {});
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  const int64_t window = c.integer("attention.sliding_window", 1, kMaxContext);
  std::vector<int64_t> sliding;
  if (c.is_array(kPattern)) {
    sliding = c.per_layer(kPattern, layers, 0, 1);
  } else {
    const int64_t period = c.integer_or(kPattern, 2, 1, kMaxLayers);
    for (int64_t i = 0; i < layers; ++i) sliding.push_back((i + 1) % period != 0);
  }
  for (const int64_t flag : sliding) windows.push_back(flag == 1 ? window : 0);
  separate = true;
}

AttentionMixer load_mixer(TensorBinder& tensors, const GptOssConfig& c, int64_t window, const std::string& p) {
  AttentionMixer m{.heads = c.heads,
                   .kv_heads = c.kv_heads,
                   .head_dim = c.head_dim,
                   .scale = 1.f / std::sqrt(static_cast<float>(c.head_dim))};
  m.q = tensors.linear(p + "q_proj", c.heads * c.head_dim, c.hidden, c.attention_bias);
  m.k = tensors.linear(p + "k_proj", c.kv_heads * c.head_dim, c.hidden, c.attention_bias);
  m.v = tensors.linear(p + "v_proj", c.kv_heads * c.head_dim, c.hidden, c.attention_bias);
  m.o = tensors.linear(p + "o_proj", c.hidden, c.heads * c.head_dim, c.attention_bias);
  m.window = window;
  m.sinks = tensors.floats(p + "sinks", {c.heads});
  return m;
}

// Matrix `expert` of a stack of `count` matrices [out, in].
WeightView one_of(const WeightView& stack, int64_t count, int64_t expert) {
  return stack.rows(expert * (stack.out / count), stack.out / count);
}

// Every other row, from the first (gate) or the second (up).
WeightView every_other(const WeightView& both, int64_t first) {
  WeightView half = both.rows(first, both.out / 2);
  half.row_bytes *= 2;
  half.scale_row_bytes *= 2;
  return half;
}

void load_separate_experts(TensorBinder& tensors, const GptOssConfig& c, const std::string& p, MoeFfn& m) {
  const std::vector<WeightView> gate = tensors.experts(p, "gate_proj.weight", c.experts, c.inter, c.hidden);
  const std::vector<WeightView> up = tensors.experts(p, "up_proj.weight", c.experts, c.inter, c.hidden);
  const std::vector<WeightView> down = tensors.experts(p, "down_proj.weight", c.experts, c.hidden, c.inter);
  for (size_t e = 0; e < gate.size(); ++e) m.experts.push_back({gate[e], up[e], down[e]});
  m.gate_bias = tensors.floats(p + "*.gate_proj.bias", {c.experts, c.inter});
  m.up_bias = tensors.floats(p + "*.up_proj.bias", {c.experts, c.inter});
  m.down_bias = tensors.floats(p + "*.down_proj.bias", {c.experts, c.hidden});
}

// As published: gate and up in one tensor, row by row in turn.
void load_fused_experts(TensorBinder& tensors, const GptOssConfig& c, const std::string& p, MoeFfn& m,
                        std::vector<Mapping>& owned) {
  const auto stack = [&](const std::string& name, int64_t out, int64_t in) {
    if (tensors.has(name + "_blocks")) return tensors.block_stack(name, c.experts, out, in);
    return tensors.transposed_stack(name, c.experts, out, in, owned);
  };
  const WeightView gate_up = stack(p + "gate_up_proj", 2 * c.inter, c.hidden);
  const WeightView down = stack(p + "down_proj", c.hidden, c.inter);
  for (int64_t e = 0; e < c.experts; ++e) {
    const WeightView both = one_of(gate_up, c.experts, e);
    m.experts.push_back({every_other(both, 0), every_other(both, 1), one_of(down, c.experts, e)});
  }
  const FloatVector bias = tensors.floats(p + "gate_up_proj_bias", {c.experts, 2 * c.inter});
  for (size_t i = 0; i < bias.size(); ++i) (i % 2 == 0 ? m.gate_bias : m.up_bias).push_back(bias[i]);
  m.down_bias = tensors.floats(p + "down_proj_bias", {c.experts, c.hidden});
}

ModelSpec load_stack(TensorBinder& tensors, const GptOssConfig& c) {
  ModelSpec spec;
  spec.family = "gpt_oss";
  spec.hidden = c.hidden;
  spec.vocab = c.vocab;
  spec.max_positions = c.max_positions;
  spec.eps = c.eps;
  spec.act = c.act;
  spec.ropes = {c.rope};
  spec.embedding = tensors.matrix("model.embed_tokens.weight", c.vocab, c.hidden);
  spec.head = tensors.head("lm_head.weight", c.tied, spec.embedding);
  spec.final_norm = tensors.floats("model.norm.weight", {c.hidden});
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string p = concat("model.layers.", i, ".");
    LayerSpec layer;
    layer.input_norm = tensors.floats(p + "input_layernorm.weight", {c.hidden});
    layer.ffn_norm = tensors.floats(p + "post_attention_layernorm.weight", {c.hidden});
    layer.mixer = load_mixer(tensors, c, c.windows[static_cast<size_t>(i)], p + "self_attn.");
    MoeFfn m;
    m.score = RouterScore::kSoftmaxOfChosen;
    m.top_k = c.top_k;
    m.inter = c.inter;
    m.router = tensors.linear(p + "mlp.router", c.experts, c.hidden, true);
    if (c.separate) {
      load_separate_experts(tensors, c, p + "mlp.experts.", m);
    } else {
      load_fused_experts(tensors, c, p + "mlp.experts.", m, spec.owned);
    }
    layer.ffn = std::move(m);
    spec.layers.push_back(std::move(layer));
  }
  tensors.finish(spec.skipped);
  return spec;
}

}  // namespace

ModelSpec load_gpt_oss(const Checkpoint& checkpoint) {
  GptOssConfig config(checkpoint.config());
  config.separate = checkpoint.maker() != nullptr;
  TensorBinder tensors(checkpoint, "");
  return load_stack(tensors, config);
}

ModelSpec load_gpt_oss_gguf(const GgufFile& file) {
  const GptOssConfig config{GgufConfig(file)};
  TensorBinder tensors(file, kNames);
  return load_stack(tensors, config);
}

}  // namespace weir
