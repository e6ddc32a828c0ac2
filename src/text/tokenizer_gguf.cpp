// Tokenizers from GGUF metadata, encoding as llama.cpp does: "gpt2" (byte-level BPE) and "llama" (SentencePiece BPE).
#include <bit>
#include <cmath>

#include "base/error.h"
#include "text/bpe.h"
#include "text/tokenizer_parts.h"
#include "text/tokenizer_unicode.h"

namespace weir {
namespace {

enum Type : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

class Reader {
 public:
  explicit Reader(const GgufTokenizerData& data) : data_(data) {}

  std::unique_ptr<TokenizerParts> read() {
    const auto count = static_cast<int64_t>(data_.tokens.size());
    if (count == 0 || count > kMaxTokens) {
      fail(data_.file, ": field 'tokenizer.ggml.tokens': ", count, " tokens; expected 1 to ", kMaxTokens);
    }
    if (!data_.types.empty() && data_.types.size() != data_.tokens.size()) {
      fail(data_.file, ": field 'tokenizer.ggml.token_type': ", data_.types.size(), " types for ", count, " tokens");
    }
    if (data_.model == "llama") {
      read_llama();
    } else if (data_.model == "gpt2") {
      read_gpt2();
    } else {
      fail(data_.file, ": field 'tokenizer.ggml.model': ", printable(data_.model),
           " is not supported (gpt2, llama are)");
    }
    parts_->model = std::move(bpe_);
    find_specials();
    return std::move(parts_);
  }

 private:
  int32_t type_of(size_t id) const { return data_.types.empty() ? kNormal : data_.types[id]; }

  void add_token(size_t id, std::string_view text, bool findable) {
    if (text.size() > kMaxTokenBytes) {
      fail(data_.file, ": field 'tokenizer.ggml.tokens[", id, "]': ", text.size(), " bytes; the limit is ",
           kMaxTokenBytes);
    }
    if (is_utf8(text) || bpe_->bytes) {
      parts_->tokens.add(static_cast<int32_t>(id), text, findable);
    } else {
      parts_->tokens.add(static_cast<int32_t>(id), repaired_utf8(text), false);  // no text can match it
    }
  }

  void common() {
    bpe_->tokens = &parts_->tokens;
    bpe_->never.resize(data_.tokens.size());
    parts_->tokens.reserve(data_.tokens.size());
    std::vector<AddedToken> added;
    for (size_t id = 0; id < data_.tokens.size(); ++id) {
      const int32_t type = type_of(id);
      if (type != kControl && type != kUnknown && type != kUserDefined) continue;
      AddedToken token;
      token.id = static_cast<int32_t>(id);
      token.content = data_.tokens[id];
      token.in_user_text = type == kUserDefined;
      token.special = type != kUserDefined;
      if (token.special) {
        parts_->mark_special(token.id);
        bpe_->never[id] = true;
      }
      if (token.content.empty()) continue;
      if (token.content.size() > kMaxAddedTokenBytes) {
        fail(data_.file, ": field 'tokenizer.ggml.tokens[", id, "]': a special token of ", token.content.size(),
             " bytes; the limit is ", kMaxAddedTokenBytes);
      }
      parts_->added_ids.emplace(token.content, token.id);
      added.push_back(std::move(token));
    }
    parts_->added = AddedTokens(std::move(added), AddedTokens::Order::kLongestFirst);
  }

  void read_llama() {
    common();
    if (data_.scores.size() != data_.tokens.size()) {
      fail(data_.file, ": field 'tokenizer.ggml.scores': ", data_.scores.size(), " scores for ", data_.tokens.size(),
           " tokens");
    }
    for (size_t id = 0; id < data_.tokens.size(); ++id) {
      const std::string& text = data_.tokens[id];
      add_token(id, text, true);
      if (std::isnan(data_.scores[id])) fail(data_.file, ": field 'tokenizer.ggml.scores[", id, "]': not a number");
      // The highest score first, as an ascending unsigned integer.
      const auto bits = std::bit_cast<uint32_t>(data_.scores[id] + 0.f);
      bpe_->ranks.push_back(bits >> 31 != 0 ? bits : ~(bits | 0x80000000u));
      if (text.size() == 1) set_byte(text[0], id);
    }
    constexpr char kHex[] = "0123456789ABCDEF";
    for (int b = 0; b < 256; ++b) {
      const int32_t id = parts_->tokens.find(std::string("<0x") + kHex[b >> 4] + kHex[b & 15] + '>');
      if (id >= 0) bpe_->byte_tokens[b] = id;
    }
    for (size_t id = 0; id < data_.tokens.size() && !bpe_->unknown; ++id) {
      if (type_of(id) == kUnknown) bpe_->unknown = static_cast<int32_t>(id);
    }
    bpe_->find_word_cuts();
    parts_->llama_spaces = true;
    parts_->llama_prefix = data_.add_space_prefix.value_or(true);
    add_bos_ = data_.add_bos.value_or(true);
    using Kind = DecoderStep::Kind;
    parts_->decoder.push_back({.kind = Kind::kReplace, .pattern = std::string(kSpacePiece), .content = " "});
    parts_->decoder.push_back({.kind = Kind::kByteFallback});
    parts_->decoder.push_back({.kind = Kind::kFuse});
    if (parts_->llama_prefix) parts_->decoder.push_back({.kind = Kind::kStrip, .pattern = " ", .start = 1});
  }

  void set_byte(char c, size_t id) {
    int32_t& slot = bpe_->byte_tokens[static_cast<unsigned char>(c)];
    if (slot < 0) slot = static_cast<int32_t>(id);
  }

  void read_gpt2() {
    common();
    const GgufPreTokenizer pre = gguf_pre_tokenizer(data_.pre, data_.file);
    bpe_->bytes = true;
    bpe_->whole_pieces = pre.whole_pieces;
    std::string bytes;
    for (size_t id = 0; id < data_.tokens.size(); ++id) {
      const bool plain = type_of(id) != kControl && type_of(id) != kUserDefined && type_of(id) != kUnknown;
      const bool spelled = plain && bytes_of_spelling(data_.tokens[id], bytes);
      add_token(id, spelled ? bytes : data_.tokens[id], spelled);
    }
    if (data_.merges.empty()) {
      // Kimi's ranks are its merges; other files need them.
      if (data_.pre != "kimi-k2") fail(data_.file, ": field 'tokenizer.ggml.merges': expected merges, found none");
      bpe_->whole_pieces = true;
      for (size_t id = 0; id < data_.tokens.size(); ++id) bpe_->ranks.push_back(static_cast<uint32_t>(id));
    }
    read_merges();
    for (std::string_view pattern : pre.patterns) {
      PreTokenizerStep step;
      step.regex = std::make_shared<Regex>(pattern, RegexDialect::kRust, data_.file);
      parts_->pre_tokenizer.push_back(std::move(step));
    }
    add_bos_ = data_.add_bos.value_or(pre.add_bos);
    parts_->decoder.push_back({.kind = DecoderStep::Kind::kBytes});
  }

  void read_merges() {
    if (static_cast<int64_t>(data_.merges.size()) > kMaxMerges) {
      fail(data_.file, ": field 'tokenizer.ggml.merges': more than ", kMaxMerges);
    }
    bpe_->pairs.reserve(data_.merges.size());
    std::string left, right;
    for (size_t rank = 0; rank < data_.merges.size(); ++rank) {
      const std::string_view merge = data_.merges[rank];
      const auto refuse = [&](std::string_view why) {
        fail(data_.file, ": field 'tokenizer.ggml.merges[", rank, "]': ", printable(merge), ": ", why);
      };
      const size_t space = merge.find(' ', 1);  // as llama.cpp splits it
      if (space == merge.npos || !is_utf8(merge)) refuse("expected two tokens with a space between");
      if (!bytes_of_spelling(merge.substr(0, space), left) || !bytes_of_spelling(merge.substr(space + 1), right)) {
        refuse("not the spelling of bytes");
      }
      const int32_t a = parts_->tokens.find(left), b = parts_->tokens.find(right),
                    c = parts_->tokens.find(left + right);
      if (a < 0 || b < 0 || c < 0) refuse("not in the vocabulary, or its result is not");
      if (bpe_->pairs.find(a, b) == nullptr) bpe_->pairs.set(a, b, {static_cast<uint32_t>(rank), c});
    }
  }

  std::optional<int32_t> checked(std::string_view key, const std::optional<int64_t>& id) const {
    if (!id) return std::nullopt;
    if (*id < 0 || *id >= static_cast<int64_t>(data_.tokens.size())) {
      fail(data_.file, ": field 'tokenizer.ggml.", key, "': ", *id, "; expected an id below ", data_.tokens.size());
    }
    return static_cast<int32_t>(*id);
  }

  void find_specials() {
    TokenizerParts& parts = *parts_;
    parts.bos = checked("bos_token_id", data_.bos);
    parts.eos = checked("eos_token_id", data_.eos);
    if (!parts.bos && data_.model == "llama" && data_.tokens.size() > 2) parts.bos = 1;  // SentencePiece's own
    if (!parts.eos && data_.model == "llama" && data_.tokens.size() > 2) parts.eos = 2;
    if (add_bos_ && parts.bos) parts.before.push_back(*parts.bos);
    if (data_.add_eos.value_or(false) && parts.eos) parts.after.push_back(*parts.eos);
    for (const std::optional<int32_t> id : {checked("eot_token_id", data_.eot), checked("eom_token_id", data_.eom)}) {
      if (id) parts.end_of_generation.push_back(*id);
    }
    parts.find_end_of_generation();
  }

  const GgufTokenizerData& data_;
  std::unique_ptr<TokenizerParts> parts_ = std::make_unique<TokenizerParts>();
  std::unique_ptr<BpeModel> bpe_ = std::make_unique<BpeModel>();
  bool add_bos_ = false;
};

}  // namespace

std::shared_ptr<const Tokenizer> Tokenizer::from_gguf_metadata(const GgufTokenizerData& data) {
  return std::make_shared<const Tokenizer>(Reader(data).read());
}

}  // namespace weir
