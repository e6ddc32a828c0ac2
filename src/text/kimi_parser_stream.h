// KimiParser fed with token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/kimi_parser.h"
#include "text/tokenizer_stream.h"

namespace weir {

class KimiStream {
 public:
  // Error when the tokenizer lacks a marker. Besides the markers, special tokens (of images, reserved ones) yield no
  // text.
  KimiStream(std::shared_ptr<const Tokenizer> tokenizer, KimiParser::Start start, std::string id_prefix = "call_");

  void begin(std::span<const Segment> answer, std::vector<ChatEvent>& events);  // what the prompt has of it
  void push(int32_t id, std::vector<ChatEvent>& events);
  void finish(std::vector<ChatEvent>& events);  // no more ids

  const KimiParser& parser() const { return parser_; }

 private:
  std::optional<KimiMarker> marker_of(int32_t id) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  int32_t open_, close_, sep_;
  StreamDecoder decoder_;
  KimiParser parser_;
};

}  // namespace weir
