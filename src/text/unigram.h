// Unigram: the split of a piece with the largest sum of scores (Kudo 2018), by dynamic programming over its bytes.
#pragma once

#include <optional>
#include <vector>

#include "text/tokenizer_model.h"
#include "text/tokenizer_vocab.h"

namespace weir {

struct UnigramModel : TokenModel {
  const TokenTable* tokens = nullptr;  // owned by TokenizerParts
  ByteTrie trie;                       // of all tokens that have scores
  std::vector<double> scores;          // by id
  double unknown_score = 0;            // the lowest score, less 10
  std::optional<int32_t> unknown;
  int32_t byte_tokens[256];  // -1 where absent
  bool byte_fallback = false;

  // Throws Error when a character is unknown and the file names no token for that.
  void encode(std::string_view piece, SpecialTokens mode, EncodeScratch& scratch,
              std::vector<int32_t>& out) const override;

 private:
  void emit_unknown(std::string_view text, std::vector<int32_t>& out) const;
};

}  // namespace weir
