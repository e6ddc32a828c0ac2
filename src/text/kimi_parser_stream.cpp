#include "text/kimi_parser_stream.h"

#include <algorithm>

#include "base/error.h"

namespace weir {
namespace {

int32_t marker_id(const Tokenizer& tokenizer, std::string_view name) {
  const std::optional<int32_t> id = tokenizer.id_of(name);
  if (!id) fail("tokenizer: expected the token ", name, " of Kimi K3's markup, found none");
  return *id;
}

}  // namespace

KimiStream::KimiStream(std::shared_ptr<const Tokenizer> tokenizer, KimiParser::Start start, std::string id_prefix)
    : tokenizer_(std::move(tokenizer)),
      open_(marker_id(*tokenizer_, "<|open|>")),
      close_(marker_id(*tokenizer_, "<|close|>")),
      sep_(marker_id(*tokenizer_, "<|sep|>")),
      decoder_(tokenizer_, true),
      parser_(start, std::move(id_prefix)) {}

std::optional<KimiMarker> KimiStream::marker_of(int32_t id) const {
  if (id == open_) return KimiMarker::kOpen;
  if (id == close_) return KimiMarker::kClose;
  if (id == sep_) return KimiMarker::kSep;
  const auto ends = tokenizer_->end_of_generation();
  if (std::binary_search(ends.begin(), ends.end(), id)) return KimiMarker::kEnd;
  return std::nullopt;
}

void KimiStream::begin(std::span<const Segment> answer, std::vector<ChatEvent>& events) {
  for (const Segment& segment : answer) {
    const std::optional<int32_t> id = segment.markup ? tokenizer_->id_of(segment.text) : std::nullopt;
    if (id) {
      push(*id, events);
    } else {
      parser_.text(segment.text, events);
    }
  }
}

void KimiStream::push(int32_t id, std::vector<ChatEvent>& events) {
  if (const std::optional<KimiMarker> marker = marker_of(id)) {
    parser_.text(decoder_.finish(), events);
    parser_.marker(*marker, events);
  } else {
    parser_.text(decoder_.push(id), events);
  }
}

void KimiStream::finish(std::vector<ChatEvent>& events) {
  parser_.text(decoder_.finish(), events);
  parser_.finish(events);
}

}  // namespace weir
