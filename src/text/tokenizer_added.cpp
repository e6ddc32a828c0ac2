#include "text/tokenizer_added.h"

#include <algorithm>

#include "text/tokenizer_unicode.h"

namespace weir {
namespace {

struct Found {
  size_t length = 0;
  int32_t token = -1;
};

// The longest key, of at most `limit` bytes, that begins at `at`; length 0 for none.
Found longest_at(const ByteTrie& trie, std::string_view text, size_t at, size_t limit) {
  Found found;
  trie.prefixes(text.substr(at, limit), [&](size_t length, int32_t token) { found = {length, token}; });
  return found;
}

bool word_ends(std::string_view text) {
  return !text.empty() && is_word_character(utf8_at(text, utf8_previous(text, text.size())));
}

bool word_begins(std::string_view text) { return !text.empty() && is_word_character(utf8_at(text, 0)); }

size_t without_spaces_at_end(std::string_view text) {
  while (!text.empty()) {
    const size_t last = utf8_previous(text, text.size());
    if (!is_white_space(utf8_at(text, last))) break;
    text = text.substr(0, last);
  }
  return text.size();
}

size_t spaces_at_start(std::string_view text) {
  size_t at = 0;
  while (at < text.size() && is_white_space(utf8_at(text, at))) at += utf8_length(text[at]);
  return at;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, Order order) : tokens_(std::move(tokens)), order_(order) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    all_.add(tokens_[i].content, static_cast<int32_t>(i));
    if (tokens_[i].in_user_text) in_user_text_.add(tokens_[i].content, static_cast<int32_t>(i));
  }
}

std::vector<TextSection> AddedTokens::sections(std::string_view text, SpecialTokens mode) const {
  const ByteTrie& trie = mode == SpecialTokens::kParse ? all_ : in_user_text_;
  if (text.empty()) return {};
  if (trie.empty()) return {{-1, 0, text.size()}};
  return order_ == Order::kLeftmostLongest ? leftmost(text, trie) : longest_first(text, trie);
}

// As AddedVocabulary::find_matches of the tokenizers library: the automaton's matches first, then the tokens' flags.
std::vector<TextSection> AddedTokens::leftmost(std::string_view text, const ByteTrie& trie) const {
  std::vector<TextSection> out;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const Found found = longest_at(trie, text, at, text.npos);
    if (found.length == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(found.token)];
    size_t begin = at, end = at + found.length;
    at = end;
    if (token.single_word && (word_ends(text.substr(0, begin)) || word_begins(text.substr(end)))) continue;
    if (token.lstrip) begin = std::max(without_spaces_at_end(text.substr(0, begin)), done);
    if (token.rstrip) end += spaces_at_start(text.substr(end));
    if (begin > done) out.push_back({-1, done, begin});
    out.push_back({token.id, begin, end});
    done = end;
  }
  if (done < text.size()) out.push_back({-1, done, text.size()});
  return out;
}

std::vector<TextSection> AddedTokens::longest_first(std::string_view text, const ByteTrie& trie) const {
  // Where tokens may begin, by the length of the longest one that may still fit there.
  std::vector<std::vector<size_t>> by_length(1);
  const auto offer = [&](size_t at, size_t limit) {
    const Found found = longest_at(trie, text, at, limit);
    if (found.length == 0) return;
    if (found.length >= by_length.size()) by_length.resize(found.length + 1);
    by_length[found.length].push_back(at);
  };
  for (size_t at = 0; at < text.size(); ++at) offer(at, text.npos);

  std::vector<bool> taken(text.size());
  std::vector<TextSection> out;
  for (size_t length = by_length.size(); --length > 0;) {
    std::vector<size_t> places = std::move(by_length[length]);
    std::sort(places.begin(), places.end());
    for (size_t at : places) {
      if (taken[at]) continue;
      size_t room = 1;
      while (room < length && !taken[at + room]) ++room;
      if (room < length) {
        offer(at, room);  // shorter, so its turn is still to come
        continue;
      }
      const Found found = longest_at(trie, text, at, length);
      std::fill_n(taken.begin() + static_cast<std::ptrdiff_t>(at), length, true);
      out.push_back({tokens_[static_cast<size_t>(found.token)].id, at, at + length});
    }
  }
  std::sort(out.begin(), out.end(), [](const TextSection& a, const TextSection& b) { return a.begin < b.begin; });
  const size_t tokens = out.size();
  size_t done = 0;
  for (size_t i = 0; i <= tokens; ++i) {
    const size_t begin = i < tokens ? out[i].begin : text.size();
    if (begin > done) out.push_back({-1, done, begin});
    if (i < tokens) done = out[i].end;
  }
  std::sort(out.begin(), out.end(), [](const TextSection& a, const TextSection& b) { return a.begin < b.begin; });
  return out;
}

}  // namespace weir
