// Tokens that are found in the text as they are spelled, before the model sees the rest: special and added ones.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "text/tokenizer_vocab.h"

namespace weir {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;
  bool single_word = false;   // only where no word character touches it
  bool lstrip = false;        // takes the white space before it along
  bool rstrip = false;        // and behind it
  bool normalized = false;    // looked for in the normalised text
  bool in_user_text = false;  // also under SpecialTokens::kText
};

// A stretch of a text: a token, or text between tokens when id is -1.
struct TextSection {
  int32_t id = -1;
  size_t begin = 0, end = 0;
};

class AddedTokens {
 public:
  enum class Order {
    kLeftmostLongest,  // tokenizer.json
    kLongestFirst,     // llama.cpp: all occurrences of the longest token, then of the next, in what is left
  };
  AddedTokens() = default;
  AddedTokens(std::vector<AddedToken> tokens, Order order);

  // Sections in order, without empty ones; white space that tokens took along belongs to no text.
  std::vector<TextSection> sections(std::string_view text, SpecialTokens mode) const;
  std::span<const AddedToken> tokens() const { return tokens_; }

 private:
  std::vector<TextSection> leftmost(std::string_view text, const ByteTrie& trie) const;
  std::vector<TextSection> longest_first(std::string_view text, const ByteTrie& trie) const;

  std::vector<AddedToken> tokens_;
  Order order_ = Order::kLeftmostLongest;
  ByteTrie all_, in_user_text_;  // values are indices of tokens_
};

}  // namespace weir
