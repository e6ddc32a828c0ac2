// Text to token ids and back, as the model's files define it: tokenizer.json (Hugging Face), tiktoken.model with
// tokenizer_config.json (Kimi), or the metadata of a GGUF file.
//
// Text is UTF-8. Bytes that are not are replaced by U+FFFD before encoding, one per maximal broken part, as Python's
// decode(errors="replace") does; decoding does the same with bytes that tokens leave broken.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weir {

enum class SpecialTokens {
  // Special and added tokens that stand in the text become their ids: for templates and raw prompts.
  kParse,
  // The text is somebody's words: nothing in it becomes a special or an added token, whatever it spells. Exceptions, as
  // they can't be markers: added tokens made of white space only, and in GGUF files tokens of type "user-defined",
  // which
  // that format matches always.
  kText,
};

// A part of a text whose special tokens count or don't.
struct TextPart {
  std::string_view text;
  SpecialTokens mode = SpecialTokens::kParse;
};

// The keys tokenizer.ggml.* of a GGUF file. Absent arrays are empty.
struct GgufTokenizerData {
  std::string file;   // for messages
  std::string model;  // "gpt2" or "llama"
  std::string pre;    // gpt2 only
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;                 // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
  std::vector<std::string> merges;            // "A B", the earliest first
  std::optional<int64_t> bos, eos, eot, eom;  // *_token_id
  std::optional<bool> add_bos, add_eos, add_space_prefix;
};

struct TokenizerParts;  // tokenizer_parts.h

// Immutable: any number of threads may use one object.
class Tokenizer {
 public:
  // tokenizer.json, else tiktoken.model, each with tokenizer_config.json where there is one. Throws Error naming file
  // and field: not there, not understood (the component is named), inconsistent, or too large.
  static std::shared_ptr<const Tokenizer> from_folder(const std::filesystem::path& folder);

  // `config` is the text of tokenizer_config.json, "" for none. `file` and `config_file` name the texts in messages.
  static std::shared_ptr<const Tokenizer> from_tokenizer_json(std::string_view json, const std::string& file,
                                                              std::string_view config = {},
                                                              const std::string& config_file = {});
  static std::shared_ptr<const Tokenizer> from_tiktoken(std::string_view ranks, const std::string& file,
                                                        std::string_view config, const std::string& config_file);
  static std::shared_ptr<const Tokenizer> from_gguf_metadata(const GgufTokenizerData& data);

  explicit Tokenizer(std::unique_ptr<const TokenizerParts> parts);
  ~Tokenizer();

  // With `add_special`, also the ids that the file's template or flags put around a text (BOS, EOS).
  // Throws Error when the text is longer than 256 MiB or a pattern gives up on it.
  std::vector<int32_t> encode(std::string_view text, SpecialTokens mode, bool add_special) const;
  // Each part on its own, but as parts of one text: what a vocabulary does at the start of a text, as with a space in
  // front of it, only happens to the first.
  std::vector<int32_t> encode_parts(std::span<const TextPart> text) const;

  // Ids outside the vocabulary decode to nothing. With `skip_special`, so do special tokens.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // The bytes that a token stands for (for byte-level vocabularies the bytes, not their printable spelling; for
  // SentencePiece-style ones the piece with its U+2581). Empty outside the vocabulary.
  std::string_view token_bytes(int32_t id) const;
  bool is_special(int32_t id) const;
  std::optional<int32_t> id_of(std::string_view token) const;  // of an added or special token, else of a piece
  int64_t vocab_size() const;                                  // the largest id plus one

  std::optional<int32_t> bos() const;
  std::optional<int32_t> eos() const;
  std::span<const int32_t> end_of_generation() const;  // ascending; eos and every other token that ends a turn

  const TokenizerParts& parts() const { return *parts_; }

 private:
  std::unique_ptr<const TokenizerParts> parts_;
};

}  // namespace weir
