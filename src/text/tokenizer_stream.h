// Decoding one id at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "text/tokenizer.h"
#include "text/tokenizer_decoder.h"

namespace weir {

// Text of one sequence as its ids arrive. The pieces put together are Tokenizer::decode of all ids, with one exception:
// byte tokens of SentencePiece-style vocabularies. There a run of byte tokens that is not UTF-8 as a whole decodes to
// one U+FFFD per byte, valid characters included, and a stream has given those characters away by then.
class StreamDecoder {
 public:
  StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special);

  // The text that is complete now, often empty: never half a character.
  std::string push(int32_t id);
  // What was held back; bytes that never became a character as U+FFFD. The next push begins a new text.
  std::string finish();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  DecodeRun run_;
};

}  // namespace weir
