#include "text/unigram.h"

#include <algorithm>

#include "base/error.h"
#include "text/tokenizer_unicode.h"

namespace weir {

void UnigramModel::encode(std::string_view piece, SpecialTokens mode, EncodeScratch& scratch,
                          std::vector<int32_t>& out) const {
  if (piece.empty()) return;
  if (piece.size() > INT32_MAX) fail("a piece of text of ", piece.size(), " bytes; the limit is ", INT32_MAX);
  if (scratch.words.get(piece, out)) return;
  using Node = EncodeScratch::PathNode;
  constexpr uint32_t kUnreached = UINT32_MAX;
  std::vector<Node>& path = scratch.path;
  path.assign(piece.size() + 1, Node{});
  const auto blocked = [&](int32_t id) {
    const auto i = static_cast<size_t>(id);
    return mode == SpecialTokens::kText && i < not_in_user_text.size() && not_in_user_text[i];
  };
  // Places are reached in order, so the first of equal scores stays: ties go as in the tokenizers library.
  for (size_t at = 0, length = 0; at < piece.size(); at += length) {
    length = utf8_length(piece[at]);
    const double score = path[at].score;
    const auto reach = [&](size_t end, int32_t id, double total) {
      Node& node = path[end];
      if (node.begin == kUnreached || total > node.score) node = {total, id, static_cast<uint32_t>(at)};
    };
    bool single = false;
    trie.prefixes(piece.substr(at), [&](size_t bytes, int32_t id) {
      if (blocked(id)) return;
      reach(at + bytes, id, scores[static_cast<size_t>(id)] + score);
      single = single || bytes == length;
    });
    if (single) continue;
    if (!unknown) fail("character ", printable(piece.substr(at, length)), " is no token and the file has no unk_id");
    reach(at + length, *unknown, unknown_score + score);
  }
  const size_t first = out.size();
  // Back from the end; neighbouring unknown characters are one.
  std::vector<std::pair<size_t, size_t>> parts;
  for (size_t end = piece.size(); end > 0; end = path[end].begin) {
    const Node& node = path[end];
    if (!parts.empty() && node.id == unknown && path[parts.back().second].id == unknown) {
      parts.back().first = node.begin;
    } else {
      parts.emplace_back(node.begin, end);
    }
  }
  for (size_t i = parts.size(); i-- > 0;) {
    const auto [begin, end] = parts[i];
    if (path[end].id == unknown) {
      emit_unknown(piece.substr(begin, end - begin), out);
    } else {
      out.push_back(path[end].id);
    }
  }
  scratch.words.put(piece, out.data() + first, out.size() - first);
}

void UnigramModel::emit_unknown(std::string_view text, std::vector<int32_t>& out) const {
  bool all = byte_fallback;
  for (char c : text) all = all && byte_tokens[static_cast<unsigned char>(c)] >= 0;
  if (!all) return out.push_back(*unknown);
  for (char c : text) out.push_back(byte_tokens[static_cast<unsigned char>(c)]);
}

}  // namespace weir
