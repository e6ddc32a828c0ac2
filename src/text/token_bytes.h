// What tokens add to a text, by themselves.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace weir {

// Bytes, for byte tokens of SentencePiece-style vocabularies too ("<0xE2>"). Unlike the beginning of a decoded text a
// token keeps its leading space. Of special tokens: their spelling.
std::string bytes_in_text(const Tokenizer& tokenizer, int32_t id);

}  // namespace weir
