#include "engine/gguf_tokenizer.h"

#include "base/error.h"

namespace weir {
namespace {

constexpr int64_t kMaxId = (int64_t{1} << 31) - 1;

std::vector<std::string> strings(const GgufMetadata& metadata, const std::string& key) {
  if (!metadata.has(key)) return {};
  const std::vector<std::string_view> views = metadata.strings(key);
  return {views.begin(), views.end()};
}

}  // namespace

std::optional<GgufTokenizerData> gguf_tokenizer_data(const GgufMetadata& metadata) {
  const std::string prefix = "tokenizer.ggml.";
  if (!metadata.has(prefix + "model") && !metadata.has(prefix + "tokens")) return std::nullopt;
  GgufTokenizerData data;
  data.file = metadata.file();
  data.model = metadata.string(prefix + "model");
  if (data.model == "none" || data.model == "no_vocab") return std::nullopt;
  data.pre = metadata.string_or(prefix + "pre", "");
  data.tokens = strings(metadata, prefix + "tokens");
  data.merges = strings(metadata, prefix + "merges");
  if (metadata.has(prefix + "scores")) data.scores = metadata.floats(prefix + "scores");
  if (metadata.has(prefix + "token_type")) {
    for (const int64_t type : metadata.integers(prefix + "token_type", -kMaxId, kMaxId)) {
      data.types.push_back(static_cast<int32_t>(type));
    }
  }
  const auto id = [&](const char* name) -> std::optional<int64_t> {
    const std::string key = concat(prefix, name, "_token_id");
    if (!metadata.has(key)) return std::nullopt;
    return metadata.integer(key, 0, kMaxId);
  };
  data.bos = id("bos");
  data.eos = id("eos");
  data.eot = id("eot");
  data.eom = id("eom");
  const auto flag = [&](const char* name) -> std::optional<bool> {
    const std::string key = prefix + name;
    if (!metadata.has(key)) return std::nullopt;
    return metadata.boolean(key);
  };
  data.add_bos = flag("add_bos_token");
  data.add_eos = flag("add_eos_token");
  data.add_space_prefix = flag("add_space_prefix");
  return data;
}

std::vector<std::pair<std::string, std::string>> gguf_template_variables(const GgufTokenizerData& data,
                                                                         const GgufMetadata& metadata) {
  std::vector<std::pair<std::string, std::string>> variables;
  const auto add = [&](const char* name, std::optional<int64_t> id) {
    if (!id || *id >= static_cast<int64_t>(data.tokens.size())) return;
    variables.emplace_back(name, data.tokens[static_cast<size_t>(*id)]);
  };
  const auto of_key = [&](const char* key) -> std::optional<int64_t> {
    if (!metadata.has(key)) return std::nullopt;
    return metadata.integer(key, 0, kMaxId);
  };
  add("bos_token", data.bos);
  add("eos_token", data.eos);
  add("unk_token", of_key("tokenizer.ggml.unknown_token_id"));
  add("pad_token", of_key("tokenizer.ggml.padding_token_id"));
  return variables;
}

}  // namespace weir
