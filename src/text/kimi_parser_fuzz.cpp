// Any sequence of markers and text parses to the same message whole and byte by byte, and the stream's events put
// together are that message, but for repeated arguments.
#include <cstdint>
#include <cstdlib>

#include "text/kimi_parser.h"

namespace {

using weir::ChatEvent;
using weir::KimiMarker;
using weir::KimiParser;

// Bytes 1 to 4 are the markers, all others are text.
void feed(KimiParser& parser, std::string_view output, bool bytes, std::vector<ChatEvent>& events) {
  size_t begin = 0;
  for (size_t i = 0; i <= output.size(); ++i) {
    const bool marker = i < output.size() && output[i] >= 1 && output[i] <= 4;
    if (marker || bytes || i == output.size()) {
      parser.text(output.substr(begin, i - begin), events);
      begin = marker ? i + 1 : i;
    }
    if (marker) parser.marker(static_cast<KimiMarker>(output[i] - 1), events);
  }
  parser.finish(events);
}

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto start = data[0] % 2 ? KimiParser::Start::kThink : KimiParser::Start::kResponse;
  const std::string_view output(reinterpret_cast<const char*>(data) + 1, size - 1);
  KimiParser whole(start), split(start);
  std::vector<ChatEvent> events, more;
  feed(whole, output, false, events);
  feed(split, output, true, more);
  const weir::ParsedMessage &a = whole.message(), &b = split.message();
  require(a.reasoning == b.reasoning && a.content == b.content && a.finish_reason == b.finish_reason);
  require(a.tool_calls.size() == b.tool_calls.size());
  std::string reasoning, content;
  std::vector<std::string> arguments;
  size_t ended = 0;
  for (const ChatEvent& event : events) {
    if (event.kind == ChatEvent::Kind::kReasoning) reasoning += event.text;
    if (event.kind == ChatEvent::Kind::kContent) content += event.text;
    if (event.kind == ChatEvent::Kind::kToolCallStart) arguments.emplace_back();
    if (event.kind == ChatEvent::Kind::kToolCallArguments) arguments.at(event.index) += event.text;
    if (event.kind != ChatEvent::Kind::kToolCallEnd) continue;
    const std::string& json = a.tool_calls.at(ended++).arguments;
    require(arguments.at(event.index).size() >= json.size());  // longer when an argument is repeated
  }
  require(reasoning == a.reasoning && content == a.content && ended == a.tool_calls.size());
  for (size_t i = 0; i < a.tool_calls.size(); ++i) require(a.tool_calls[i].arguments == b.tool_calls[i].arguments);
  return 0;
}
