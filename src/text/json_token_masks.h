// Which tokens of a vocabulary may follow in an answer whose content is one JSON object. Tables for one tokenizer,
// about 2.5 MB for 150,000 tokens; made once, in tenths of a second, and shared.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/json_automaton.h"
#include "text/tokenizer.h"

namespace weir {

class JsonTokenMasks {
 public:
  // `vocab`: ids that the model knows, at least as many as the masks speak of. Error when the vocabulary lacks a byte
  // that JSON can't do without.
  JsonTokenMasks(const Tokenizer& tokenizer, int64_t vocab);

  size_t words() const { return words_; }  // of a mask: bit id % 32 of word id / 32
  int64_t vocab() const { return vocab_; }

  // Tokens that `at`, which is not done(), can take whole: no special ones, nor added ones but white space.
  // begin_token() has been called.
  void json(const JsonAutomaton& at, std::span<uint32_t> out) const;

  // What a token adds to the text; nothing for special ones, but the tags of reasoning.
  std::string_view bytes(int32_t id) const {
    const auto i = static_cast<size_t>(id);
    return std::string_view(bytes_).substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
  }

  // Reasoning that ends with </think>, behind which the object begins, white space first.
  struct Reasoning {
    int matched = 0;      // bytes of the tag that end the text so far
    bool closed = false;  // then `json` counts
    JsonAutomaton json;

    bool push(unsigned char byte);
  };
  // All tokens but those that close the tag and go on with what isn't JSON. `matched`: see Reasoning.
  void reasoning(int matched, std::span<uint32_t> out) const;

 private:
  struct Entry {
    std::vector<uint32_t> mask;       // tokens that can follow whatever contains the innermost container
    std::vector<int32_t> dependents;  // whether these can depends on that
  };
  static constexpr size_t kVariants = 8;  // in_object, in_key, run_over

  static size_t index(const JsonAutomaton& at);
  void read(const Tokenizer& tokenizer);
  void require_bytes() const;
  void build(const JsonAutomaton& probe);
  void build_reasoning(int matched);
  template <class State, class Push, class Found>
  void walk(const State& start, Push push, Found found) const;

  int64_t vocab_;
  size_t words_;
  std::string bytes_;             // of all tokens
  std::vector<size_t> offsets_;   // by id
  std::vector<int32_t> sorted_;   // plain tokens by their bytes
  std::vector<uint32_t> shared_;  // bytes that each shares with the one before it
  size_t longest_ = 0;
  std::vector<Entry> entries_;                    // by index()
  std::vector<std::vector<uint32_t>> reasoning_;  // by `matched`
};

}  // namespace weir
