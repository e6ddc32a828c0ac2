// The tokenizer's part of a GGUF file's metadata.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/gguf_metadata.h"
#include "text/tokenizer.h"

namespace weir {

// The keys tokenizer.ggml.*; nullopt when the file has no tokenizer (no such keys, or the model "none"). Error naming
// the key.
std::optional<GgufTokenizerData> gguf_tokenizer_data(const GgufMetadata& metadata);

// bos_token, eos_token ... as a chat template sees them: the texts of the tokens.
std::vector<std::pair<std::string, std::string>> gguf_template_variables(const GgufTokenizerData& data,
                                                                         const GgufMetadata& metadata);

}  // namespace weir
