// Byte-pair encoding: neighbours are merged, the lowest rank first and the leftmost among equals, until no two form a
// token. One implementation for the four ways in which files say what may be merged.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "text/tokenizer_model.h"
#include "text/tokenizer_vocab.h"

namespace weir {

// Merges by the ids of the two sides, as "merges" lists have them.
class PairMerges {
 public:
  struct Merge {
    uint32_t rank = 0;
    int32_t id = -1;
  };
  void reserve(size_t count);
  void set(int32_t left, int32_t right, Merge merge);  // replaces one that is there
  const Merge* find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t pair = kFree;
    Merge merge;
  };
  static constexpr uint64_t kFree = ~uint64_t{0};
  static uint64_t key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t slot(uint64_t pair) const {
    return static_cast<size_t>((pair * 0x9e3779b97f4a7c15u) >> 32) & (slots_.size() - 1);
  }

  std::vector<Slot> slots_;
  size_t used_ = 0;
};

struct BpeModel : TokenModel {
  const TokenTable* tokens = nullptr;  // owned by TokenizerParts

  // What a symbol is at first.
  bool bytes = false;          // a byte, else a character
  bool whole_pieces = false;   // a piece that is a token as it stands is not split first (ignore_merges, tiktoken)
  bool byte_fallback = false;  // a character that is no token becomes its bytes' tokens, when all 1 to 4 exist
  bool fuse_unknown = false;   // neighbouring unknown characters are one unknown token
  std::optional<int32_t> unknown;

  // What merges: pairs of ids, or, when ranks is not empty, neighbours whose joined text is a token, by ranks[id].
  PairMerges pairs;
  std::vector<uint32_t> ranks;
  int32_t byte_tokens[256];  // "<0x00>" ...; -1 where absent
  std::vector<bool> never;   // ids that no piece may become

  // No token has U+2581 behind another character, so a piece may be cut before each such U+2581: words, then, which
  // repeat and are short.
  bool cut_words = false;

  BpeModel();
  void find_word_cuts();  // sets cut_words; after the tokens are there

  void encode(std::string_view piece, SpecialTokens mode, EncodeScratch& scratch,
              std::vector<int32_t>& out) const override;

 private:
  bool allowed(int32_t id, SpecialTokens mode) const;
  void encode_word(std::string_view word, SpecialTokens mode, EncodeScratch& scratch, std::vector<int32_t>& out) const;
  void split(std::string_view word, SpecialTokens mode, std::vector<EncodeScratch::Symbol>& symbols) const;
  void consider(std::string_view word, uint32_t left, SpecialTokens mode, EncodeScratch& scratch) const;
  bool still_there(const EncodeScratch::Candidate& candidate, const EncodeScratch& scratch) const;
  void merge(std::string_view word, SpecialTokens mode, EncodeScratch& scratch) const;
};

}  // namespace weir
