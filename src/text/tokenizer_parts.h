// What a Tokenizer is made of. Filled by the readers (tokenizer_json.cpp, tokenizer_tiktoken.cpp, tokenizer_gguf.cpp).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_added.h"
#include "text/tokenizer_decoder.h"
#include "text/tokenizer_model.h"
#include "text/tokenizer_normalizer.h"
#include "text/tokenizer_vocab.h"

namespace weir {

class JsonObject;

// A text goes through these in order; the fields before `model` may be empty.
struct TokenizerParts {
  bool kimi_slices = false;      // the text is cut as Kimi's reference does, to spare its encoder
  AddedTokens added;             // found in the text as it is
  Normalizer normalizer;         // between these
  AddedTokens normalized_added;  // found in the normalised text
  bool llama_spaces = false;     // spaces become U+2581 (GGUF llama); with a space in front of the text and of what
  bool llama_prefix = false;     //   follows a special token
  PreTokenizer pre_tokenizer;
  std::unique_ptr<const TokenModel> model;
  std::vector<int32_t> before, after;  // ids that add_special puts around

  TokenTable tokens;                                      // all of them, added ones too, as they are decoded
  std::map<std::string, int32_t, std::less<>> added_ids;  // by content
  std::vector<bool> special;                              // by id; may be shorter than the vocabulary
  Decoder decoder;

  std::optional<int32_t> bos, eos;
  std::vector<int32_t> end_of_generation;

  bool is_special(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < special.size() && special[static_cast<size_t>(id)];
  }
  void mark_special(int32_t id);
  std::optional<int32_t> id_of(std::string_view token) const;
  // From bos, eos and the names of tokens that are known to end a turn.
  void find_end_of_generation();
  // bos_token and eos_token of tokenizer_config.json; Error when one is not a token.
  void read_config(const JsonObject& config);
};

// The expressions of a GGUF file's tokenizer.ggml.pre, to be applied one after the other.
struct GgufPreTokenizer {
  std::vector<std::string_view> patterns;
  bool whole_pieces = false;  // a piece in the vocabulary is not merged
  bool add_bos = false;
};
GgufPreTokenizer gguf_pre_tokenizer(std::string_view name, const std::string& file);

// Kimi's split, in the notation of its source.
std::string_view kimi_pattern();
// Cuts at 400,000 characters, and where more than 25,000 characters of (non-)white space follow each other.
std::vector<std::string_view> kimi_slices(std::string_view text);

}  // namespace weir
