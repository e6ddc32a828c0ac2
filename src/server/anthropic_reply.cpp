#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>

#include "formats/json.h"
#include "server/anthropic.h"
#include "server/ids.h"
#include "server/openai_usage.h"
#include "server/piece_reply.h"
#include "server/sse.h"

namespace weir::anthropic {
namespace {

namespace json = boost::json;

void event(std::string& out, std::string_view type, json::object more) {
  json::object data{{"type", type}};
  for (auto& [key, value] : more) data[key] = std::move(value);
  sse::append(out, type, data);
}

// A tool's input is an object by the API; what a model has written otherwise is handed on inside one.
json::object input_of(const AnswerPiece& call) {
  if (call.text.empty()) return {};
  try {
    json::value parsed = parse_json(call.text, "arguments");
    if (parsed.is_object()) return parsed.get_object();
  } catch (const Error&) {}
  return {{"arguments", call.text}};
}

class MessageReply final : public PieceReply {
 public:
  MessageReply(openai::Job job, const openai::Served& served, int64_t asked_tokens, Thinking thinking)
      : PieceReply(std::move(job), served, random_id("toolu_")),
        id_(random_id("msg_")),
        cut_by_context_(this->job().requests.front().max_tokens < asked_tokens),
        thinking_(thinking) {}

  void begin(std::string& out) override {
    json::object usage = usage_of(0, 0, 0);
    event(out, "message_start", {{"message", message({}, nullptr, std::move(usage))}});
    keep_alive(out);
  }

  void end(std::span<const Answer> answers, std::string& out) override {
    const Answer& answer = answers.front();
    write_pieces(answer, true, out);
    event(out, "message_delta",
          {{"delta", {{"stop_reason", stop_reason(answer)}, {"stop_sequence", stop_sequence(answer)}}},
           {"usage", usage_of(answer)},
           {"timings", openai::timings_of(answers)}});
    event(out, "message_stop", {});
  }

  void fault(std::span<const Answer>, const std::string& message, std::string& out) override {
    sse::append(out, "error", error_object(500, message));
  }

  void keep_alive(std::string& out) override { event(out, "ping", {}); }

  json::object body(std::span<const Answer> answers) override {
    const Answer& answer = answers.front();
    json::array content;
    for (const AnswerPiece& piece : answer.pieces()) {
      if (shown(piece)) content.push_back(block(piece));
    }
    json::object out = message(std::move(content), &answer, usage_of(answer));
    out["timings"] = openai::timings_of(answers);
    return out;
  }

 private:
  using Kind = AnswerPiece::Kind;

  bool shown(const AnswerPiece& piece) const {
    return piece.kind != Kind::kReasoning || thinking_ != Thinking::kHidden;
  }

  // The whole block; of an empty piece, how it starts.
  json::object block(const AnswerPiece& piece) const {
    switch (piece.kind) {
      case Kind::kReasoning:
        return {{"type", "thinking"},
                {"thinking", thinking_ == Thinking::kShown ? piece.text : std::string()},
                {"signature", id_}};
      case Kind::kContent:
        return {{"type", "text"}, {"text", piece.text}};
      case Kind::kCall:
        break;
    }
    return {{"type", "tool_use"}, {"id", piece.id}, {"name", piece.name}, {"input", input_of(piece)}};
  }

  void open(size_t index, const Answer& answer, std::string& out) override {
    const AnswerPiece& piece = answer.pieces()[index];
    if (!shown(piece)) return;
    json::object start = block({.kind = piece.kind, .name = piece.name, .id = piece.id});
    if (piece.kind == Kind::kReasoning) start["signature"] = "";
    event(out, "content_block_start", {{"index", block_}, {"content_block", std::move(start)}});
  }

  void grow(size_t index, const Answer& answer, std::string_view text, std::string& out) override {
    switch (answer.pieces()[index].kind) {
      case Kind::kReasoning:
        if (thinking_ == Thinking::kShown) delta({{"type", "thinking_delta"}, {"thinking", text}}, out);
        return;
      case Kind::kContent:
        return delta({{"type", "text_delta"}, {"text", text}}, out);
      case Kind::kCall:
        return delta({{"type", "input_json_delta"}, {"partial_json", text}}, out);
    }
  }

  void close(size_t index, const Answer& answer, std::string& out) override {
    const AnswerPiece& piece = answer.pieces()[index];
    if (!shown(piece)) return;
    if (piece.kind == Kind::kReasoning) delta({{"type", "signature_delta"}, {"signature", id_}}, out);
    event(out, "content_block_stop", {{"index", block_++}});
  }

  void delta(json::object what, std::string& out) const {
    event(out, "content_block_delta", {{"index", block_}, {"delta", std::move(what)}});
  }

  // `answer`: null before its end.
  json::object message(json::array content, const Answer* answer, json::object usage) {
    const std::string& asked = job().body.model;
    usage["service_tier"] = "standard";
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", asked.empty() ? served_.name : asked},
            {"content", std::move(content)},
            {"stop_reason", answer ? json::value(stop_reason(*answer)) : json::value()},
            {"stop_sequence", answer ? stop_sequence(*answer) : json::value()},
            {"usage", std::move(usage)},
            {"system_fingerprint", served_.fingerprint}};
  }

  std::string stop_reason(const Answer& answer) const {
    const std::string& reason = answer.message().finish_reason;
    if (reason == "length") return cut_by_context_ ? "model_context_window_exceeded" : "max_tokens";
    if (reason == "tool_calls") return "tool_use";
    return answer.stop_string() != nullptr ? "stop_sequence" : "end_turn";
  }

  json::value stop_sequence(const Answer& answer) const {
    return answer.stop_string() != nullptr ? json::value(*answer.stop_string()) : json::value();
  }

  json::object usage_of(const Answer& answer) {
    return usage_of(answer.usage().cached_tokens, answer.completion_tokens(), answer.reasoning_tokens());
  }

  // All three input counts together are the prompt.
  json::object usage_of(int64_t cached, int64_t output, int64_t thinking) {
    return {{"input_tokens", job().prompts.front().tokens - cached},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", cached},
            {"output_tokens", output},
            {"output_tokens_details", {{"thinking_tokens", thinking}}}};
  }

  std::string id_;
  bool cut_by_context_;
  Thinking thinking_;
  int64_t block_ = 0;  // the next or open one
};

std::string_view error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
    case 529:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

std::unique_ptr<Reply> make_reply(json::object body, const openai::Served& served, const SamplingOptions& defaults) {
  Messages parsed = parse_messages(std::move(body), defaults);
  openai::Job job = openai::prepare(std::move(parsed.body), served);
  Request& request = job.requests.front();
  const int64_t room = request.max_tokens;
  request.max_tokens = std::min(room, parsed.max_tokens);
  return std::make_unique<MessageReply>(std::move(job), served, parsed.max_tokens, parsed.thinking);
}

json::object count_tokens(json::object body, const openai::Served& served) {
  const Messages parsed = parse_messages(std::move(body), {}, Purpose::kCount);
  try {
    const RenderedPrompt prompt = served.text->render(parsed.body.chat);
    return {{"input_tokens", served.text->encode(prompt).size()}};
  } catch (const Error& error) {
    throw openai::Refusal::of(error);
  }
}

json::object error_object(int status, const std::string& message) {
  return {{"type", "error"}, {"error", {{"type", error_type(status)}, {"message", message}}}};
}

std::string error_body(int status, const std::string& message) {
  return json::serialize(error_object(status, message));
}

}  // namespace weir::anthropic
