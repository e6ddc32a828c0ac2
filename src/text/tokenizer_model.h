// What turns a piece of text into ids: byte-pair merging (bpe.h) or Unigram (unigram.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace weir {

// Ids of pieces that came before in the same text: ordinary text repeats its words.
class WordCache {
 public:
  static constexpr size_t kMaxBytes = 48;  // of a piece that is kept

  // Appends the ids of `piece` and returns true when they are known.
  bool get(std::string_view piece, std::vector<int32_t>& out) const;
  void put(std::string_view piece, const int32_t* ids, size_t count);

 private:
  struct Slot {
    uint32_t hash = 0, text = 0, length = 0;  // length 0: free
    uint32_t ids = 0, count = 0;
  };
  void grow();

  std::vector<Slot> slots_;
  size_t used_ = 0;
  std::string texts_;
  std::vector<int32_t> ids_;
};

// Buffers of one encode call.
struct EncodeScratch {
  struct Symbol {  // a stretch of the piece that is one token so far
    uint32_t begin = 0, length = 0;
    int32_t id = -1;  // -1: no token of its own yet
    int32_t previous = -1, next = -1;
  };
  struct Candidate {    // two neighbours that may be merged
    uint32_t rank = 0;  // the lowest is merged first, then the leftmost
    uint32_t left = 0;  // index of the left symbol
    int32_t id = -1;    // of the result
    uint32_t length = 0;
  };
  struct PathNode {  // the best way to reach a place in the piece
    double score = 0;
    int32_t id = -1;
    uint32_t begin = UINT32_MAX;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> candidates;
  std::vector<PathNode> path;
  WordCache words;
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;

  std::vector<bool> not_in_user_text;  // ids that no piece may become under SpecialTokens::kText; may be short

  // Appends the ids of a piece. All calls with one scratch have the same mode.
  virtual void encode(std::string_view piece, SpecialTokens mode, EncodeScratch& scratch,
                      std::vector<int32_t>& out) const = 0;
};

}  // namespace weir
