// Any text either parses or throws Error; what parses prints and parses to the same value; accessors throw Error only.
#include <boost/json/serialize.hpp>
#include <cstdlib>
#include <limits>

#include "base/error.h"
#include "formats/json.h"

namespace {

template <class Action>
void allow_error(Action action) {
  try {
    action();
  } catch (const weir::Error&) {}
}

void read_all(const weir::JsonObject& object) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const auto& [name, value] : object.raw()) {
    const std::string key(name);
    allow_error([&] { object.integer(key, 0, 100); });
    allow_error([&] { object.integer_or(key, 1, kMin, kMax); });
    allow_error([&] { object.number(key, -1e9, 1e9); });
    allow_error([&] { object.number_or(key, 1, 0, std::numeric_limits<double>::infinity()); });
    allow_error([&] { object.boolean_or(key, true); });
    allow_error([&] { object.string_or(key, ""); });
    allow_error([&] { object.integers(key, 0, kMax); });
    allow_error([&] { object.integer_or_list(key, kMin, 0); });
    allow_error([&] { object.strings(key); });
    allow_error([&] {
      if (const std::optional<weir::JsonObject> child = object.object_if(key)) read_all(*child);
    });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  allow_error([&] {
    boost::json::value value = weir::parse_json(text, "fuzz.json", {.max_bytes = 1 << 20});
    const boost::json::value again = weir::parse_json(boost::json::serialize(value), "again.json");
    if (again != value) std::abort();
    if (value.is_object()) read_all(weir::JsonObject("fuzz.json", "", std::move(value.get_object())));
  });
  return 0;
}
