#include "engine/schedule_log.h"

#include <boost/json/serialize.hpp>

#include <limits>

#include "base/error.h"
#include "engine/scheduler.h"
#include "formats/json.h"

namespace weir {
namespace {

namespace json = boost::json;

constexpr int64_t kMostTokens = int64_t{1} << 32;
constexpr double kLargest = std::numeric_limits<float>::max();

// 64 bits without sign as text: JSON's numbers are doubles for many readers.
uint64_t unsigned_field(const JsonObject& object, std::string_view key) {
  const std::string text = object.string(key);
  size_t end = 0;
  uint64_t value = 0;
  for (; end < text.size() && end < 20 && text[end] >= '0' && text[end] <= '9'; ++end) {
    value = value * 10 + static_cast<uint64_t>(text[end] - '0');
  }
  if (end == 0 || end != text.size()) object.fail_field(key, "a number without sign, as text");
  return value;
}

json::object sampling_json(const SamplingOptions& s) {
  json::array bias;
  for (const auto& [id, value] : s.logit_bias) bias.push_back(json::array{id, value});
  return {{"temperature", s.temperature},
          {"seed", std::to_string(s.seed)},
          {"top_k", s.top_k},
          {"top_p", s.top_p},
          {"min_p", s.min_p},
          {"presence_penalty", s.presence_penalty},
          {"frequency_penalty", s.frequency_penalty},
          {"repetition_penalty", s.repetition_penalty},
          {"logit_bias", std::move(bias)},
          {"min_tokens", s.min_tokens},
          {"top_logprobs", s.top_logprobs}};
}

float real(const JsonObject& object, std::string_view key) {
  return static_cast<float>(object.number(key, -kLargest, kLargest));
}

SamplingOptions sampling_of(const JsonObject& object) {
  SamplingOptions s;
  s.temperature = real(object, "temperature");
  s.seed = unsigned_field(object, "seed");
  s.top_k = static_cast<int32_t>(object.integer("top_k", 0, INT32_MAX));
  s.top_p = real(object, "top_p");
  s.min_p = real(object, "min_p");
  s.presence_penalty = real(object, "presence_penalty");
  s.frequency_penalty = real(object, "frequency_penalty");
  s.repetition_penalty = real(object, "repetition_penalty");
  const json::value* bias = object.raw().if_contains("logit_bias");
  if (bias == nullptr || !bias->is_array()) object.fail_field("logit_bias", "an array of pairs");
  for (const json::value& pair : bias->get_array()) {
    if (!pair.is_array() || pair.get_array().size() != 2 || !pair.get_array()[0].is_int64() ||
        !pair.get_array()[1].is_number()) {
      object.fail_field("logit_bias", "pairs of an id and a number");
    }
    const json::array& both = pair.get_array();
    s.logit_bias.emplace_back(static_cast<int32_t>(both[0].get_int64()), both[1].to_number<float>());
  }
  s.min_tokens = object.integer("min_tokens", 0, kMostTokens);
  s.top_logprobs = static_cast<int32_t>(object.integer("top_logprobs", -1, kMaxTopLogprobs));
  return s;
}

std::vector<int32_t> ids_of(const JsonObject& object, std::string_view key) {
  const std::vector<int64_t> wide = object.integers(key, 0, INT32_MAX);
  return {wide.begin(), wide.end()};
}

Request request_of(const JsonObject& object) {
  Request request;
  if (object.boolean("mask")) object.fail_field("mask", "false, since a token mask is not in the log");
  request.prompt = ids_of(object, "prompt");
  request.max_tokens = object.integer("max_tokens", 1, kMostTokens);
  request.sampling = sampling_of(object.object("sampling"));
  request.stop_tokens = ids_of(object, "stop_tokens");
  request.priority = static_cast<int32_t>(object.integer("priority", INT32_MIN, INT32_MAX));
  request.client = unsigned_field(object, "client");
  return request;
}

std::string_view first_line(std::string_view log) { return log.substr(0, std::min(log.find('\n'), log.size())); }

// True when it was a step.
bool repeat(const JsonObject& line, Scheduler& scheduler) {
  if (line.has("step")) {
    scheduler.step_with(static_cast<int32_t>(line.integer("step", 0, INT32_MAX)));
    return true;
  }
  if (line.has("submit")) {
    const std::string why = scheduler.submit(unsigned_field(line, "submit"), request_of(line));
    if (!why.empty()) line.fail_field("submit", concat("a request that this engine takes (", why, ")"));
  } else if (line.has("cancel")) {
    scheduler.cancel(unsigned_field(line, "cancel"));
  } else if (line.has("preempt")) {
    scheduler.preempt_youngest();
  } else if (!line.has("engine")) {
    fail(line.file(), ": expected submit, cancel, preempt or step");
  }
  return false;
}

}  // namespace

RecordedEngine RecordedEngine::of(const EngineOptions& options, int64_t cached_anchors, bool prefix_cache) {
  return {options.max_batch_rows, options.max_sequences, options.max_tokens, cached_anchors, prefix_cache};
}

RecordedEngine RecordedEngine::of(std::string_view log, const std::string& file) {
  const std::string place = concat(file, ": line 1");
  json::value value = parse_json(first_line(log), place);
  if (!value.is_object()) fail(place, ": expected a JSON object");
  const JsonObject engine = JsonObject(place, "", std::move(value.get_object())).object("engine");
  RecordedEngine out;
  out.max_batch_rows = static_cast<int32_t>(engine.integer("max_batch_rows", 1, 65536));
  out.max_sequences = engine.integer("max_sequences", 1, out.max_batch_rows);
  out.max_tokens = engine.integer("max_tokens", 1, kMostTokens);
  out.cached_anchors = engine.integer("cached_anchors", 0, kMostTokens);
  out.prefix_cache = engine.boolean("prefix_cache");
  return out;
}

void RecordedEngine::apply(EngineOptions& options) const {
  options.max_batch_rows = max_batch_rows;
  options.max_sequences = max_sequences;
  options.max_logit_rows = static_cast<int32_t>(max_sequences);
  options.max_tokens = max_tokens;
  options.cached_anchors = cached_anchors;
  options.all_blocks = true;
}

void ScheduleLog::began(const RecordedEngine& engine) {
  write(concat("{\"engine\":{\"max_batch_rows\":", engine.max_batch_rows, ",\"max_sequences\":", engine.max_sequences,
               ",\"max_tokens\":", engine.max_tokens, ",\"cached_anchors\":", engine.cached_anchors,
               ",\"prefix_cache\":", engine.prefix_cache ? "true" : "false", "}}\n"));
}

void ScheduleLog::submitted(RequestId id, const Request& request) {
  const json::object line{{"submit", std::to_string(id)},
                          {"prompt", json::array(request.prompt.begin(), request.prompt.end())},
                          {"max_tokens", request.max_tokens},
                          {"sampling", sampling_json(request.sampling)},
                          {"stop_tokens", json::array(request.stop_tokens.begin(), request.stop_tokens.end())},
                          {"priority", request.priority},
                          {"client", std::to_string(request.client)},
                          {"mask", request.mask != nullptr}};
  write(json::serialize(line) + "\n");
}

void ScheduleLog::cancelled(RequestId id) { write(concat("{\"cancel\":\"", id, "\"}\n")); }

void ScheduleLog::preempted() { write("{\"preempt\":true}\n"); }

void ScheduleLog::stepped(int32_t prompt_rows) { write(concat("{\"step\":", prompt_rows, "}\n")); }

int64_t replay(std::string_view log, const std::string& file, Scheduler& scheduler) {
  int64_t steps = 0;
  for (int64_t number = 1; !log.empty(); ++number) {
    const size_t end = std::min(log.find('\n'), log.size() - 1);
    const std::string_view text = log.substr(0, end + 1);
    log.remove_prefix(end + 1);
    const std::string place = concat(file, ": line ", number);
    json::value value = parse_json(text, place);
    if (!value.is_object()) fail(place, ": expected a JSON object");
    steps += repeat(JsonObject(place, "", std::move(value.get_object())), scheduler) ? 1 : 0;
  }
  return steps;
}

}  // namespace weir
