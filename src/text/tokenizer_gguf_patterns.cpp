// tokenizer.ggml.pre: names of splits, as llama.cpp knows them.
#include <algorithm>

#include "base/error.h"
#include "text/tokenizer_parts.h"

namespace weir {
namespace {

#define WEIR_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WEIR_TAIL R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"
#define WEIR_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define WEIR_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define WEIR_CASED(contractions)                                                                         \
  R"([^\r\n\p{L}\p{N}]?)" WEIR_UPPER "*" WEIR_LOWER "+" contractions R"(|[^\r\n\p{L}\p{N}]?)" WEIR_UPPER \
  "+" WEIR_LOWER "*" contractions
#define WEIR_CASED_TAIL R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"

constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))";
constexpr std::string_view kLlama3 = WEIR_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})" WEIR_TAIL;
constexpr std::string_view kQwen2 = WEIR_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})" WEIR_TAIL;
constexpr std::string_view kQwen35 =
    WEIR_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+)"
                      R"(|\s+(?!\S)|\s+)";
constexpr std::string_view kSeedCoder =
    WEIR_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4o = WEIR_CASED(WEIR_CONTRACTIONS "?") R"(|\p{N}{1,3})" WEIR_CASED_TAIL;
constexpr std::string_view kTekken = WEIR_CASED("") R"(|\p{N})" WEIR_CASED_TAIL;
constexpr std::string_view kDeepseek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Known {
  std::vector<std::string_view> names;
  GgufPreTokenizer split;
};

const std::vector<Known>& known() {
  static const std::vector<Known> kKnown = {
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
       {{kLlama3}, true, true}},
      {{"chatglm-bpe", "glm4", "dbrx", "smaug-bpe"}, {{kLlama3}}},
      {{"qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"}, {{kQwen2}}},
      {{"qwen35"}, {{kQwen35}}},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}, {{R"(\p{N})", kGpt2}}},
      {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "modern-bert"}, {{kGpt2}}},
      {{"deepseek-v3", "hunyuan-dense", "joyai-llm"}, {{R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+", kDeepseek3}}},
      {{"kimi-k2"}, {{kimi_pattern()}}},
      {{"gpt-4o", "llama4"}, {{kGpt4o}}},
      {{"tekken"}, {{kTekken}, true, true}},
      {{"seed-coder"}, {{kSeedCoder}}},
      {{"", "default"}, {{R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}}},
  };
  return kKnown;
}

}  // namespace

GgufPreTokenizer gguf_pre_tokenizer(std::string_view name, const std::string& file) {
  for (const Known& entry : known()) {
    if (std::find(entry.names.begin(), entry.names.end(), name) != entry.names.end()) return entry.split;
  }
  fail(file, ": field 'tokenizer.ggml.pre': ", printable(name), " is not supported");
}

}  // namespace weir
