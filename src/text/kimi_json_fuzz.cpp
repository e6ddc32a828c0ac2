// Any text: what a JSON parser takes is JSON; the members of an object, put together again, are the same members; a
// string that is read and quoted reads the same.
#include <boost/json/parse.hpp>
#include <cstdint>
#include <cstdlib>

#include "text/kimi_json.h"

namespace {

using weir::JsonDialect;

void require(bool holds) {
  if (!holds) std::abort();
}

void check_members(std::string_view text) {
  const auto members = weir::read_json_members(text);
  // Also behind the end, where there is nothing.
  const auto end = weir::scan_json_value(text, text.find_first_not_of(" \t\r\n"), JsonDialect::kPython);
  if (!members) return;
  require(end.has_value());
  std::string again = "{";
  for (const weir::JsonMember& member : *members) {
    require(weir::scan_json_value(member.value, 0, JsonDialect::kPython) == member.value.size());
    if (again.size() > 1) again += ", ";
    again += weir::json_quoted(member.key) + ": " + std::string(member.value);
  }
  again += "} and more";
  const auto same = weir::read_json_members(again);
  require(same && same->size() == members->size());
  for (size_t i = 0; i < same->size(); ++i) {
    require((*same)[i].key == (*members)[i].key && (*same)[i].value == (*members)[i].value);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_members(text);
  boost::system::error_code error;
  boost::json::parse(text, error, {}, {.max_depth = 100});
  if (!error) require(weir::is_json(text));
  for (const JsonDialect dialect : {JsonDialect::kStrict, JsonDialect::kPython}) {
    const auto string = weir::read_json_string(text, 0, dialect);
    if (!string) continue;
    require(weir::scan_json_value(text, 0, dialect) == string->second);
    const auto again = weir::read_json_string(weir::json_quoted(string->first), 0, JsonDialect::kStrict);
    require(again && again->first == string->first);
  }
  return 0;
}
