// Any body either is parsed or refused by a Refusal. A conversation that was taken can be stored and gone on from: the
// items of the past are never refused.
#include <boost/json/serialize.hpp>
#include <cstdlib>

#include "formats/json.h"
#include "server/responses.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  boost::json::value json;
  try {
    json = weir::parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const weir::Error&) {
    return 0;
  }
  if (!json.is_object()) return 0;
  weir::ResponseStore store;
  weir::responses::Parsed parsed;
  try {
    parsed = weir::responses::parse(json.as_object(), store);
    if (parsed.body.chat.messages.empty() || parsed.body.n != 1) std::abort();
  } catch (const weir::openai::Refusal& refusal) {
    if (refusal.status() != 400) std::abort();
    return 0;
  }
  store.put("resp_1", {.response = "{}", .items = boost::json::serialize(parsed.items)});
  weir::responses::parse({{"previous_response_id", "resp_1"}, {"input", "And?"}}, store);
  return 0;
}
