#include "text/token_bytes.h"

#include <charconv>
#include <optional>

namespace weir {
namespace {

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581, a space in SentencePiece-style vocabularies

// "<0x0A>" where byte tokens are spelled so.
std::optional<char> byte_of(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece.back() != '>') return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(piece.data() + 3, piece.data() + 5, value, 16);
  if (error != std::errc() || end != piece.data() + 5) return std::nullopt;
  return static_cast<char>(value);
}

}  // namespace

std::string bytes_in_text(const Tokenizer& tokenizer, int32_t id) {
  std::string out(tokenizer.token_bytes(id));
  const std::string decoded = tokenizer.decode({&id, 1}, false);
  if (decoded == out) return out;
  if (const std::optional<char> byte = byte_of(out)) return std::string(1, *byte);
  if (decoded.find(kSpaceMark) != std::string::npos) return out;
  std::string spaced;
  for (size_t at = 0; at < out.size();) {
    const bool mark = std::string_view(out).substr(at).starts_with(kSpaceMark);
    spaced += mark ? ' ' : out[at];
    at += mark ? kSpaceMark.size() : 1;
  }
  return spaced;
}

}  // namespace weir
