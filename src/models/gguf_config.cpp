#include "models/gguf_config.h"
#include "models/limits.h"

#include <algorithm>

namespace weir {

bool GgufConfig::is_array(std::string_view name) const {
  const std::string full = key(name);
  const std::span<const GgufField> fields = all().fields();
  return std::ranges::any_of(
      fields, [&](const GgufField& field) { return field.key == full && field.type == GgufType::kArray; });
}

void GgufConfig::refuse_options(std::initializer_list<std::string_view> honours) const {
  const auto ignored = [&](std::string_view name) {
    return has(name) && std::ranges::find(honours, name) == honours.end();
  };
  if (ignored("attention.causal") && !boolean_or("attention.causal", true)) fail_key("attention.causal", "true");
  // Factors: 0 is none too.
  for (const std::string_view name : {"logit_scale", "residual_scale", "embedding_scale"}) {
    if (!ignored(name)) continue;
    const float value = number_or(name, 1, -1e30, 1e30);
    if (value != 0 && value != 1) fail_key(name, "1 in this architecture");
  }
  for (const std::string_view name : {"attn_logit_softcapping", "final_logit_softcapping", "attention.clamp_kqv",
                                      "attention.max_alibi_bias", "attention.scale"}) {
    if (ignored(name) && number_or(name, 0, -1e30, 1e30) != 0) fail_key(name, "0 in this architecture");
  }
  if (ignored("expert_group_count") && integer_or("expert_group_count", 1, 0, int64_t{1} << 32) > 1) {
    fail_key("expert_group_count", "1 in this architecture");
  }
  constexpr std::string_view kWindow = "attention.sliding_window";
  if (!ignored(kWindow)) return;
  const int64_t window = integer(kWindow, 0, kMaxContext);
  if (window != 0 && window < integer("context_length", 1, kMaxContext)) {
    fail_key(kWindow, "0, or at least context_length, in this architecture");
  }
}

std::vector<std::string> GgufConfig::prediction_blocks(int64_t blocks) const {
  constexpr std::string_view kKey = "nextn_predict_layers";
  const int64_t heads = integer_or(kKey, 0, 0, blocks - 1);
  std::vector<std::string> prefixes;
  for (int64_t i = blocks - heads; i < blocks; ++i) {
    prefixes.push_back(concat("blk.", i, "."));
    const std::string own = prefixes.back() + "nextn.";
    if (std::ranges::none_of(file_.tensors(), [&](const GgufTensor& t) { return t.name.starts_with(own); })) {
      fail_key(kKey, concat("tensors ", own, "* in a block that is a prediction head"));
    }
  }
  return prefixes;
}

int64_t GgufConfig::vocab() const {
  constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
  const GgufTensor* embedding = file_.find("token_embd.weight");
  if (embedding == nullptr) fail(file_.path(), ": tensor token_embd.weight: expected by the model, found in no file");
  const int64_t rows = embedding->ne[1];
  if (integer_or("vocab_size", rows, 1, int64_t{1} << 32) != rows) {
    fail_key("vocab_size", concat(rows, ", the rows of token_embd.weight"));
  }
  for (const GgufField& field : all().fields()) {
    if (field.key == kTokens && field.count > rows) {
      all().fail_key(kTokens, concat("at most ", rows, " tokens, the rows of token_embd.weight"));
    }
  }
  return rows;
}

}  // namespace weir
