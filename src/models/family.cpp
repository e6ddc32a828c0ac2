#include "models/family.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/quantization_config.h"

namespace weir {

ModelSpec load_deepseek_v3(const Checkpoint& checkpoint);
ModelSpec load_glm_moe_dsa(const Checkpoint& checkpoint);
ModelSpec load_gemma3(const Checkpoint& checkpoint);
ModelSpec load_gemma4(const Checkpoint& checkpoint);
ModelSpec load_gpt_oss(const Checkpoint& checkpoint);
ModelSpec load_kimi_k3(const Checkpoint& checkpoint);
ModelSpec load_kimi_linear(const Checkpoint& checkpoint);
ModelSpec load_llama(const Checkpoint& checkpoint);
ModelSpec load_qwen2(const Checkpoint& checkpoint);
ModelSpec load_qwen3(const Checkpoint& checkpoint);
ModelSpec load_deepseek_v3_gguf(const GgufFile& file);
ModelSpec load_glm_moe_dsa_gguf(const GgufFile& file);
ModelSpec load_gemma3_gguf(const GgufFile& file);
ModelSpec load_gemma4_gguf(const GgufFile& file);
ModelSpec load_gpt_oss_gguf(const GgufFile& file);
ModelSpec load_qwen3_5(const Checkpoint& checkpoint);
ModelSpec load_qwen3_5_moe(const Checkpoint& checkpoint);
ModelSpec load_qwen3_moe(const Checkpoint& checkpoint);
ModelSpec load_qwen3_next(const Checkpoint& checkpoint);
ModelSpec load_kimi_k3_gguf(const GgufFile& file);
ModelSpec load_kimi_linear_gguf(const GgufFile& file);
ModelSpec load_llama_gguf(const GgufFile& file);
ModelSpec load_qwen2_gguf(const GgufFile& file);
ModelSpec load_qwen3_gguf(const GgufFile& file);
ModelSpec load_qwen3_5_gguf(const GgufFile& file);
ModelSpec load_qwen3_5_moe_gguf(const GgufFile& file);
ModelSpec load_qwen3_moe_gguf(const GgufFile& file);
ModelSpec load_qwen3_next_gguf(const GgufFile& file);

std::span<const Family> families() {
  static constexpr Family kFamilies[] = {
      {"deepseek_v3", "deepseek2", load_deepseek_v3, load_deepseek_v3_gguf},
      {"glm_moe_dsa", "glm-dsa", load_glm_moe_dsa, load_glm_moe_dsa_gguf},
      {"gemma3_text", "gemma3", load_gemma3, load_gemma3_gguf},
      {"gemma4_text", "gemma4", load_gemma4, load_gemma4_gguf},
      {"gpt_oss", "gpt-oss", load_gpt_oss, load_gpt_oss_gguf},
      {"kimi_k3", "kimi-k3", load_kimi_k3, load_kimi_k3_gguf, ChatFormat::kKimiK3},
      {"kimi_linear", "kimi-linear", load_kimi_linear, load_kimi_linear_gguf},
      {"llama", "llama", load_llama, load_llama_gguf},
      {"qwen2", "qwen2", load_qwen2, load_qwen2_gguf},
      {"qwen3", "qwen3", load_qwen3, load_qwen3_gguf},
      {"qwen3_5", "qwen35", load_qwen3_5, load_qwen3_5_gguf},
      {"qwen3_5_text", "qwen35", load_qwen3_5, load_qwen3_5_gguf},
      {"qwen3_5_moe", "qwen35moe", load_qwen3_5_moe, load_qwen3_5_moe_gguf},
      {"qwen3_5_moe_text", "qwen35moe", load_qwen3_5_moe, load_qwen3_5_moe_gguf},
      {"qwen3_moe", "qwen3moe", load_qwen3_moe, load_qwen3_moe_gguf},
      {"qwen3_next", "qwen3next", load_qwen3_next, load_qwen3_next_gguf},
  };
  return kFamilies;
}

namespace {

// Where generation ends: every eos_token_id that the checkpoint's configuration names.
std::vector<int64_t> stop_tokens(const Checkpoint& checkpoint, int64_t vocab) {
  std::vector<int64_t> stops;
  const auto collect = [&](const JsonObject& object) {
    for (int64_t id : object.integer_or_list("eos_token_id", 0, vocab - 1)) {
      if (std::ranges::find(stops, id) == stops.end()) stops.push_back(id);
    }
  };
  collect(checkpoint.config());
  if (const std::optional<JsonObject> text = checkpoint.config().object_if("text_config")) collect(*text);
  if (checkpoint.generation_config() != nullptr) collect(*checkpoint.generation_config());
  return stops;
}

std::vector<int64_t> stop_tokens(const GgufMetadata& metadata, int64_t vocab) {
  std::vector<int64_t> stops;
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    if (!metadata.has(key)) continue;
    const int64_t id = metadata.integer(key, 0, vocab - 1);
    if (std::ranges::find(stops, id) == stops.end()) stops.push_back(id);
  }
  return stops;
}

std::string known_names(std::string_view Family::*name) {
  std::string known;
  std::string_view last;  // a family may have two names in one column and one in the other
  for (const Family& family : families()) {
    if (family.*name == last) continue;
    last = family.*name;
    known += concat(known.empty() ? "one of " : ", ", family.*name);
  }
  return known;
}

}  // namespace

const Family* find_family(std::string_view model_type) {
  const auto found = std::ranges::find(families(), model_type, &Family::model_type);
  return found == families().end() ? nullptr : &*found;
}

const Family* find_gguf_family(std::string_view architecture) {
  const auto found = std::ranges::find(families(), architecture, &Family::architecture);
  return found == families().end() ? nullptr : &*found;
}

ModelSpec load_model(const Checkpoint& checkpoint) {
  const Family* family = find_family(checkpoint.config().string("model_type"));
  if (family == nullptr) checkpoint.config().fail_field("model_type", known_names(&Family::model_type));
  check_quantization(checkpoint.config(), checkpoint);
  if (const std::optional<JsonObject> text = checkpoint.config().object_if("text_config")) {
    check_quantization(*text, checkpoint);
  }
  ModelSpec spec = family->load(checkpoint);
  spec.chat_format = family->chat_format;
  spec.stop_tokens = stop_tokens(checkpoint, spec.vocab);
  return spec;
}

ModelSpec load_model(const GgufFile& file) {
  const GgufMetadata& metadata = file.metadata();
  if (metadata.string_or("general.type", "model") != "model") metadata.fail_key("general.type", "'model'");
  const Family* family = find_gguf_family(metadata.string("general.architecture"));
  if (family == nullptr) metadata.fail_key("general.architecture", known_names(&Family::architecture));
  ModelSpec spec = family->load_gguf(file);
  spec.chat_format = family->chat_format;
  spec.stop_tokens = stop_tokens(metadata, spec.vocab);
  return spec;
}

}  // namespace weir
