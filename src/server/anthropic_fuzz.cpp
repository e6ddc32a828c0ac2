// Any body either is parsed or refused by a Refusal.
#include <cstdlib>

#include "formats/json.h"
#include "server/anthropic.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  boost::json::value json;
  try {
    json = weir::parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const weir::Error&) {
    return 0;
  }
  if (!json.is_object()) return 0;
  try {
    const weir::anthropic::Messages parsed = weir::anthropic::parse_messages(json.as_object());
    if (parsed.max_tokens < 1 || parsed.body.chat.messages.empty() || parsed.body.n != 1) std::abort();
  } catch (const weir::openai::Refusal& refusal) {
    if (refusal.status() != 400) std::abort();
  }
  return 0;
}
