// The parts of tokenizer.json around the vocabulary. Throw Error naming the file, the field and the component, when
// that is not known.
#pragma once

#include <string_view>
#include <vector>

#include "formats/json.h"
#include "text/tokenizer_parts.h"

namespace weir {

// The elements of an array of objects; empty when absent.
std::vector<JsonObject> json_objects(const JsonObject& parent, std::string_view key);

Normalizer normalizer_of(const JsonObject& root);
// Sets `byte_level` when pieces are spelled byte by byte (ByteLevel, which must come last).
PreTokenizer pre_tokenizer_of(const JsonObject& root, bool& byte_level);
Decoder decoder_of(const JsonObject& root, bool byte_level);
// Sets `before` and `after`.
void read_post_processor(const JsonObject& root, TokenizerParts& parts);

}  // namespace weir
