#include "text/bpe.h"

#include <algorithm>

#include "base/error.h"
#include "text/tokenizer_unicode.h"

namespace weir {

using Symbol = EncodeScratch::Symbol;
using Candidate = EncodeScratch::Candidate;

void PairMerges::reserve(size_t count) {
  size_t size = 1024;
  while (size < count * 2) size *= 2;
  if (size <= slots_.size()) return;
  std::vector<Slot> old(size);
  old.swap(slots_);
  used_ = 0;
  for (const Slot& slot : old) {
    if (slot.pair != kFree) set(static_cast<int32_t>(slot.pair >> 32), static_cast<int32_t>(slot.pair), slot.merge);
  }
}

void PairMerges::set(int32_t left, int32_t right, Merge merge) {
  reserve(used_ + 1);
  const uint64_t pair = key(left, right);
  size_t at = slot(pair);
  while (slots_[at].pair != kFree && slots_[at].pair != pair) at = (at + 1) & (slots_.size() - 1);
  if (slots_[at].pair == kFree) ++used_;
  slots_[at] = {pair, merge};
}

const PairMerges::Merge* PairMerges::find(int32_t left, int32_t right) const {
  if (slots_.empty()) return nullptr;
  const uint64_t pair = key(left, right);
  for (size_t at = slot(pair); slots_[at].pair != kFree; at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].pair == pair) return &slots_[at].merge;
  }
  return nullptr;
}

BpeModel::BpeModel() { std::fill(std::begin(byte_tokens), std::end(byte_tokens), -1); }

void BpeModel::find_word_cuts() {
  if (bytes || tokens->find(kSpacePiece) < 0) return;
  // A character that is dropped would let its neighbours merge across the cut.
  const bool all_bytes = std::find(std::begin(byte_tokens), std::end(byte_tokens), -1) == std::end(byte_tokens);
  if (ranks.empty() && !unknown && !(byte_fallback && all_bytes)) return;
  for (int32_t id = 0; id < tokens->size(); ++id) {
    const std::string_view text = tokens->text(id);
    for (size_t at = text.find(kSpacePiece, 1); at != text.npos; at = text.find(kSpacePiece, at + 1)) {
      if (!text.substr(0, at).ends_with(kSpacePiece)) return;
    }
  }
  cut_words = true;
}

bool BpeModel::allowed(int32_t id, SpecialTokens mode) const {
  const auto i = static_cast<size_t>(id);
  if (i < never.size() && never[i]) return false;
  return mode == SpecialTokens::kParse || i >= not_in_user_text.size() || !not_in_user_text[i];
}

void BpeModel::encode(std::string_view piece, SpecialTokens mode, EncodeScratch& scratch,
                      std::vector<int32_t>& out) const {
  if (piece.size() > INT32_MAX) fail("a piece of text of ", piece.size(), " bytes; the limit is ", INT32_MAX);
  if (!cut_words) return encode_word(piece, mode, scratch, out);
  size_t begin = 0;
  for (size_t at = piece.find(kSpacePiece, 1); at != piece.npos; at = piece.find(kSpacePiece, at + 1)) {
    if (piece.substr(begin, at - begin).ends_with(kSpacePiece)) continue;
    encode_word(piece.substr(begin, at - begin), mode, scratch, out);
    begin = at;
  }
  encode_word(piece.substr(begin), mode, scratch, out);
}

void BpeModel::encode_word(std::string_view word, SpecialTokens mode, EncodeScratch& scratch,
                           std::vector<int32_t>& out) const {
  if (word.empty()) return;
  if (whole_pieces) {
    const int32_t id = tokens->find(word);
    if (id >= 0 && allowed(id, mode)) return out.push_back(id);
  }
  if (scratch.words.get(word, out)) return;
  const size_t first = out.size();
  split(word, mode, scratch.symbols);
  merge(word, mode, scratch);
  for (int32_t at = scratch.symbols.empty() ? -1 : 0; at >= 0; at = scratch.symbols[static_cast<size_t>(at)].next) {
    const Symbol& symbol = scratch.symbols[static_cast<size_t>(at)];
    if (symbol.id >= 0) {
      out.push_back(symbol.id);
      continue;
    }
    // A character that is no token, where texts are merged: its bytes, as far as there are tokens for them.
    for (char c : word.substr(symbol.begin, symbol.length)) {
      int32_t id = byte_tokens[static_cast<unsigned char>(c)];
      if (id < 0 && unknown) id = *unknown;
      if (id >= 0) out.push_back(id);
    }
  }
  scratch.words.put(word, out.data() + first, out.size() - first);
}

// The symbols before any merge.
void BpeModel::split(std::string_view word, SpecialTokens mode, std::vector<Symbol>& symbols) const {
  symbols.clear();
  const auto add = [&](size_t begin, size_t length, int32_t id) {
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(length), id, index - 1, index + 1});
  };
  size_t unknown_begin = 0, unknown_length = 0;  // unknown characters not added yet
  const auto add_unknown = [&] {
    if (unknown_length != 0) add(unknown_begin, unknown_length, *unknown);
    unknown_length = 0;
  };
  for (size_t at = 0, length = 0; at < word.size(); at += length) {
    length = bytes ? 1 : utf8_length(word[at]);
    int32_t id = tokens->find(word.substr(at, length));
    if (id >= 0 && !allowed(id, mode)) id = -1;
    if (id >= 0 || !ranks.empty()) {
      add_unknown();
      add(at, length, id);
      continue;
    }
    if (byte_fallback) {
      bool all = true;
      for (char c : word.substr(at, length)) all = all && byte_tokens[static_cast<unsigned char>(c)] >= 0;
      if (all) {
        // Unknown characters before stay behind: the order in which the tokenizers library has them.
        for (size_t i = at; i < at + length; ++i) add(i, 1, byte_tokens[static_cast<unsigned char>(word[i])]);
        continue;
      }
    }
    if (!unknown) continue;  // dropped
    if (!fuse_unknown) add_unknown();
    if (unknown_length == 0) unknown_begin = at;
    unknown_length += length;
  }
  add_unknown();
  if (!symbols.empty()) symbols.back().next = -1;
}

namespace {

// For std:: heaps, whose top is the largest.
bool merged_later(const Candidate& a, const Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

}  // namespace

void BpeModel::consider(std::string_view word, uint32_t left, SpecialTokens mode, EncodeScratch& scratch) const {
  const Symbol& a = scratch.symbols[left];
  if (a.next < 0) return;
  const Symbol& b = scratch.symbols[static_cast<size_t>(a.next)];
  Candidate candidate{0, left, -1, a.length + b.length};
  if (!ranks.empty()) {
    if (candidate.length > tokens->longest()) return;
    candidate.id = tokens->find(word.substr(a.begin, candidate.length));
    if (candidate.id < 0) return;
    candidate.rank = ranks[static_cast<size_t>(candidate.id)];
  } else {
    const PairMerges::Merge* merge = pairs.find(a.id, b.id);
    if (merge == nullptr) return;
    candidate.id = merge->id;
    candidate.rank = merge->rank;
  }
  if (allowed(candidate.id, mode)) scratch.candidates.push_back(candidate);
}

// Whether the two symbols are still the ones that the candidate was made of.
bool BpeModel::still_there(const Candidate& candidate, const EncodeScratch& scratch) const {
  const Symbol& a = scratch.symbols[candidate.left];
  if (a.length == 0 || a.next < 0) return false;
  const Symbol& b = scratch.symbols[static_cast<size_t>(a.next)];
  if (!ranks.empty()) return a.length + b.length == candidate.length;
  const PairMerges::Merge* merge = pairs.find(a.id, b.id);
  return merge != nullptr && merge->id == candidate.id;
}

void BpeModel::merge(std::string_view word, SpecialTokens mode, EncodeScratch& scratch) const {
  std::vector<Candidate>& heap = scratch.candidates;
  std::vector<Symbol>& symbols = scratch.symbols;
  heap.clear();
  for (uint32_t i = 0; i + 1 < symbols.size(); ++i) consider(word, i, mode, scratch);
  std::make_heap(heap.begin(), heap.end(), merged_later);
  const auto add = [&](int32_t left) {
    if (left < 0) return;
    const size_t before = heap.size();
    consider(word, static_cast<uint32_t>(left), mode, scratch);
    if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), merged_later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), merged_later);
    const Candidate best = heap.back();
    heap.pop_back();
    if (!still_there(best, scratch)) continue;
    Symbol& a = symbols[best.left];
    Symbol& b = symbols[static_cast<size_t>(a.next)];
    a.length += b.length;
    a.id = best.id;
    b.length = 0;
    a.next = b.next;
    if (a.next >= 0) symbols[static_cast<size_t>(a.next)].previous = static_cast<int32_t>(best.left);
    add(a.previous);
    add(static_cast<int32_t>(best.left));
  }
}

}  // namespace weir
