#include "cli/load_answer.h"

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>

#include "base/error.h"
#include "formats/json.h"

namespace weir::cli {
namespace {

namespace json = boost::json;

constexpr JsonLimits kChunkLimits{.max_bytes = int64_t{16} << 20, .max_depth = 64};

double milliseconds(LoadAnswer::Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

const json::object* object_in(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value == nullptr ? nullptr : value->if_object();
}

// Numbers of other programs: anything that is no count is not there.
std::optional<int64_t> count_in(const json::object* object, std::string_view key) {
  const json::value* value = object == nullptr ? nullptr : object->if_contains(key);
  if (value == nullptr || !value->is_int64() || value->as_int64() < 0) return std::nullopt;
  return value->as_int64();
}

std::string_view string_in(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string_view(value->as_string()) : std::string_view();
}

bool has_tool_calls(const json::object& delta) {
  const json::value* calls = delta.if_contains("tool_calls");
  return calls != nullptr && calls->is_array() && !calls->as_array().empty();
}

// Tokens that needed no computing, by any of the names that servers have for it.
std::optional<int64_t> cached_tokens(const json::object* usage, const json::object* timings, int64_t input_tokens) {
  if (usage != nullptr) {
    if (const auto cached = count_in(object_in(*usage, "prompt_tokens_details"), "cached_tokens")) return cached;
  }
  if (const auto cached = count_in(timings, "cached_n")) return cached;
  if (const auto cached = count_in(timings, "cache_n")) return cached;  // llama-server
  const std::optional<int64_t> computed = count_in(timings, "prompt_n");
  if (computed && *computed <= input_tokens) return input_tokens - *computed;
  return std::nullopt;
}

}  // namespace

LoadAnswer::LoadAnswer(Clock::time_point due, bool keep_text)
    : due_(due), keep_text_(keep_text), parser_([this](std::string_view data) { event(data); }) {}

bool LoadAnswer::feed(std::string_view bytes, Clock::time_point at) {
  now_ = at;
  try {
    parser_.feed(bytes);
  } catch (const Error& error) {
    failed(LoadFailure::kMalformed, error.what());
  }
  return record_.failure == LoadFailure::kNone;
}

void LoadAnswer::event(std::string_view data) {
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  const json::value value = parse_json(data, "chunk", kChunkLimits);
  if (!value.is_object()) fail("chunk: expected an object, found ", printable(data));
  chunk(value.as_object());
}

void LoadAnswer::chunk(const json::object& object) {
  if (const json::value* error = object.if_contains("error"); error != nullptr && !error->is_null()) {
    failed(LoadFailure::kErrorEvent, error_message(json::serialize(object)));
    return;
  }
  const json::value* choices = object.if_contains("choices");
  if (choices != nullptr && choices->is_array() && !choices->as_array().empty() && choices->as_array()[0].is_object()) {
    const json::object& choice = choices->as_array()[0].as_object();
    finished_ |= !string_in(choice, "finish_reason").empty();
    const json::object* delta = object_in(choice, "delta");
    const std::string_view text = delta == nullptr ? string_in(choice, "text") : string_in(*delta, "content");
    const bool thought = delta != nullptr && (!string_in(*delta, "reasoning_content").empty() ||
                                              !string_in(*delta, "reasoning").empty() || has_tool_calls(*delta));
    if (!text.empty() || thought) text_arrived();
    if (keep_text_) text_ += text;
  }
  const json::object* usage = object_in(object, "usage");
  const json::object* timings = object_in(object, "timings");
  const std::optional<int64_t> input = count_in(usage, "prompt_tokens"), output = count_in(usage, "completion_tokens");
  if (input && output) {
    record_.counted = true;
    record_.input_tokens = *input;
    record_.output_tokens = *output;
  }
  if (const auto cached = cached_tokens(usage, timings, record_.input_tokens)) record_.cached_tokens = cached;
}

void LoadAnswer::text_arrived() {
  if (chunks_++ == 0) {
    record_.ttft = milliseconds(now_ - due_);
  } else {
    record_.gaps.push_back(milliseconds(now_ - last_));
  }
  last_ = now_;
}

LoadRecord LoadAnswer::finish() {
  if (record_.failure != LoadFailure::kNone) return std::move(record_);
  if (!(done_ || finished_) || parser_.inside_event()) {
    return failed(LoadFailure::kClosed, concat("the answer ended without its end, after ", chunks_, " chunks"));
  }
  if (chunks_ == 0) return failed(LoadFailure::kEmpty, "the answer has no text");
  if (!record_.counted) record_.output_tokens = chunks_;
  record_.e2e = milliseconds(last_ - due_);
  return std::move(record_);
}

LoadRecord LoadAnswer::failed(LoadFailure failure, std::string_view message, int status) {
  record_.failure = failure;
  record_.message = one_line(message);
  record_.status = status;
  return record_;
}

std::string error_message(std::string_view body) {
  constexpr size_t kMost = 300;
  try {
    const json::value value = parse_json(body, "error", kChunkLimits);
    if (const json::object* object = value.if_object()) {
      if (const json::object* error = object_in(*object, "error")) object = error;
      std::string_view message = string_in(*object, "message");
      if (message.empty()) message = string_in(*object, "error");
      if (!message.empty()) return one_line(message.substr(0, kMost));
    }
  } catch (const Error&) {
    // not JSON: the body as it is
  }
  return body.empty() ? "no message" : one_line(body.substr(0, kMost));
}

}  // namespace weir::cli
