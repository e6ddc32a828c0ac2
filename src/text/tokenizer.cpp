#include "text/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "formats/embedded_files.h"
#include "formats/json.h"
#include "text/tokenizer_parts.h"
#include "text/tokenizer_stream.h"
#include "text/tokenizer_unicode.h"

namespace weir {
namespace {

constexpr size_t kMaxTextBytes = size_t{256} << 20;

class Encoder {
 public:
  Encoder(const TokenizerParts& parts, std::vector<int32_t>& out) : parts_(parts), out_(out) {}

  void encode(std::string_view text, SpecialTokens mode) {
    if (text.size() > kMaxTextBytes) fail("a text of ", text.size(), " bytes; the limit is ", kMaxTextBytes);
    mode_ = mode;
    std::string repaired;
    if (!is_utf8(text)) text = repaired = repaired_utf8(text);
    if (!parts_.kimi_slices) return slice(text);
    for (std::string_view part : kimi_slices(text)) slice(part);
  }

 private:
  void slice(std::string_view text) {
    for (const TextSection& section : parts_.added.sections(text, mode_)) {
      if (section.id >= 0) {
        out_.push_back(section.id);
        after_token_ = true;
      } else {
        plain(text.substr(section.begin, section.end - section.begin), starts_text_ && section.begin == 0);
        after_token_ = false;
      }
    }
    if (!text.empty()) starts_text_ = false;
  }

  void plain(std::string_view raw, bool starts_text) {
    std::string text;
    if (parts_.llama_spaces) {
      if (parts_.llama_prefix && after_token_) text += kSpacePiece;
      for (char c : raw) {
        if (c == ' ') {
          text += kSpacePiece;
        } else {
          text += c;
        }
      }
    } else {
      text = normalized(parts_.normalizer, raw);
    }
    for (const TextSection& section : parts_.normalized_added.sections(text, mode_)) {
      if (section.id >= 0) {
        out_.push_back(section.id);
        continue;
      }
      const Pieces pieces = pieces_of(parts_.pre_tokenizer, text.substr(section.begin, section.end - section.begin),
                                      starts_text && section.begin == 0);
      for (const Pieces::Range& range : pieces.ranges) parts_.model->encode(pieces.piece(range), mode_, scratch_, out_);
    }
  }

  const TokenizerParts& parts_;
  SpecialTokens mode_ = SpecialTokens::kParse;
  std::vector<int32_t>& out_;
  EncodeScratch scratch_;
  bool starts_text_ = true;  // nothing was encoded before
  bool after_token_ = true;  // what came last is a token of the text, or nothing
};

}  // namespace

std::shared_ptr<const Tokenizer> Tokenizer::from_folder(const std::filesystem::path& folder) {
  const std::string json = (folder / "tokenizer.json").string(), ranks = (folder / "tiktoken.model").string(),
                    config = (folder / "tokenizer_config.json").string();
  const std::string config_text = path_exists(config) ? file_text(config) : std::string();
  if (path_exists(json)) return from_tokenizer_json(file_text(json), json, config_text, config);
  if (path_exists(ranks)) return from_tiktoken(file_text(ranks), ranks, config_text, config);
  fail(folder.string(), ": no tokenizer here: expected tokenizer.json, or tiktoken.model with tokenizer_config.json");
}

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerParts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, SpecialTokens mode, bool add_special) const {
  std::vector<int32_t> ids;
  if (add_special) ids = parts_->before;
  Encoder(*parts_, ids).encode(text, mode);
  if (add_special) ids.insert(ids.end(), parts_->after.begin(), parts_->after.end());
  return ids;
}

std::vector<int32_t> Tokenizer::encode_parts(std::span<const TextPart> text) const {
  std::vector<int32_t> ids;
  Encoder encoder(*parts_, ids);
  for (const TextPart& part : text) encoder.encode(part.text, part.mode);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  DecodeRun run(parts_->decoder, false);
  for (int32_t id : ids) {
    if (parts_->tokens.has(id) && !(skip_special && is_special(id))) run.push(parts_->tokens.text(id), out);
  }
  run.finish(out);
  return out;
}

std::string_view Tokenizer::token_bytes(int32_t id) const { return parts_->tokens.text(id); }
bool Tokenizer::is_special(int32_t id) const { return parts_->is_special(id); }
std::optional<int32_t> Tokenizer::id_of(std::string_view token) const { return parts_->id_of(token); }
int64_t Tokenizer::vocab_size() const { return parts_->tokens.size(); }
std::optional<int32_t> Tokenizer::bos() const { return parts_->bos; }
std::optional<int32_t> Tokenizer::eos() const { return parts_->eos; }
std::span<const int32_t> Tokenizer::end_of_generation() const { return parts_->end_of_generation; }

StreamDecoder::StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special), run_(tokenizer_->parts().decoder, true) {}

std::string StreamDecoder::push(int32_t id) {
  std::string out;
  const TokenizerParts& parts = tokenizer_->parts();
  if (parts.tokens.has(id) && !(skip_special_ && parts.is_special(id))) run_.push(parts.tokens.text(id), out);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  run_.finish(out);
  return out;
}

}  // namespace weir
