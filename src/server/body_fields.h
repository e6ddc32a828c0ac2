// What the parsers of bodies have in common, in all dialects. Refusals name the field by its path.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"

namespace weir::openai {

inline constexpr const char* kPlace = "request";  // JsonObject's name for bodies

[[noreturn]] void refuse(std::string_view field, std::string_view why);

// Null, false and empty values ask for nothing.
bool says_nothing(const boost::json::value& value);

// Fields that would change the answer and have no counterpart here; absent ones ask for nothing either.
void refuse_fields(const JsonObject& body, std::span<const std::string_view> names);

// A string or a list of them, within the limits of openai.h; none when absent.
std::vector<std::string> stops_of(const JsonObject& body, std::string_view name);

// Calls with each object of an array, its path as "NAME[0]"; absent is an error like any other value.
void each_object(const JsonObject& body, std::string_view name, const std::function<void(const JsonObject&)>& call);

// tool_choice as OpenAI's chats name one of `chat`'s tools. `choice` has its name; a refusal when no tool has it.
boost::json::object choice_of_tool(const JsonObject& choice, const boost::json::object& chat);

// Copies fields that are there.
void copy_fields(const JsonObject& from, std::span<const std::string_view> names, boost::json::object& to);

}  // namespace weir::openai
