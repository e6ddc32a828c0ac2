#include "models/gguf_config.h"

#include <algorithm>

namespace weir {

bool GgufConfig::is_array(std::string_view name) const {
  const std::string full = key(name);
  const std::span<const GgufField> fields = all().fields();
  return std::ranges::any_of(
      fields, [&](const GgufField& field) { return field.key == full && field.type == GgufType::kArray; });
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
