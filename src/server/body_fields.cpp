#include "server/body_fields.h"

#include <algorithm>

#include "server/openai.h"

namespace weir::openai {

namespace json = boost::json;

bool says_nothing(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return true;
    case json::kind::bool_:
      return !value.get_bool();
    case json::kind::string:
      return value.get_string().empty();
    case json::kind::array:
      return value.get_array().empty();
    case json::kind::object:
      return value.get_object().empty();
    default:
      return false;
  }
}

void refuse(std::string_view field, std::string_view why) {
  throw Refusal(concat(kPlace, ": field '", field, "': ", why), std::string(field));
}

void refuse_fields(const JsonObject& body, std::span<const std::string_view> names) {
  for (const std::string_view name : names) {
    const json::value* value = body.raw().if_contains(name);
    if (value == nullptr || says_nothing(*value)) continue;
    refuse(body.path().empty() ? std::string(name) : concat(body.path(), ".", name),
           "not supported, and the answer would depend on it");
  }
}

std::vector<std::string> stops_of(const JsonObject& body, std::string_view name) {
  std::vector<std::string> stops;
  if (!body.has(name)) return stops;
  if (const json::value& given = body.raw().at(name); given.is_string()) {
    stops.emplace_back(given.get_string());
  } else {
    stops = body.strings(name);
  }
  if (stops.size() > kMaxStops) body.fail_field(name, concat("at most ", kMaxStops, " strings"));
  for (const std::string& stop : stops) {
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      body.fail_field(name, concat("strings of 1 to ", kMaxStopBytes, " bytes"));
    }
  }
  return stops;
}

void each_object(const JsonObject& body, std::string_view name, const std::function<void(const JsonObject&)>& call) {
  const json::value* given = body.raw().if_contains(name);
  if (given == nullptr || !given->is_array()) body.fail_field(name, "an array of objects");
  size_t index = 0;
  for (const json::value& value : given->get_array()) {
    const std::string prefix = body.path().empty() ? std::string() : concat(body.path(), ".");
    const std::string path = concat(prefix, name, "[", index++, "]");
    if (!value.is_object()) refuse(path, "expected an object");
    call(JsonObject(body.file(), path, value.get_object()));
  }
}

json::object choice_of_tool(const JsonObject& choice, const json::object& chat) {
  const std::string name = choice.string("name");
  const json::value* tools = chat.if_contains("tools");
  const bool known = tools != nullptr && std::ranges::any_of(tools->as_array(), [&](const json::value& tool) {
                       return tool.at("function").at("name").as_string() == name;
                     });
  if (!known) choice.fail_field("name", "one of the tools");
  return {{"type", "function"}, {"function", {{"name", name}}}};
}

void copy_fields(const JsonObject& from, std::span<const std::string_view> names, json::object& to) {
  for (const std::string_view name : names) {
    if (from.has(name)) to[name] = from.raw().at(name);
  }
}

}  // namespace weir::openai
