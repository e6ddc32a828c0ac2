#include <boost/json/serialize.hpp>
#include <ctime>

#include "server/ids.h"
#include "server/openai_logprobs.h"
#include "server/openai_usage.h"
#include "server/piece_reply.h"
#include "server/responses.h"
#include "server/sse.h"

namespace weir::responses {
namespace {

namespace json = boost::json;
using Kind = AnswerPiece::Kind;

class ResponseReply final : public PieceReply {
 public:
  ResponseReply(Parsed parsed, const openai::Served& served, ResponseStore& store)
      : PieceReply(openai::prepare(std::move(parsed.body), served), served, random_id("call_") + "_"),
        store_(store),
        keep_(parsed.store),
        echo_(std::move(parsed.echo)),
        items_(std::move(parsed.items)),
        unique_(random_id("")),
        created_(std::time(nullptr)) {}

  void begin(std::string& out) override {
    event(out, "response.created", {{"response", response("in_progress", nullptr)}});
    event(out, "response.in_progress", {{"response", response("in_progress", nullptr)}});
  }

  void end(std::span<const Answer> answers, std::string& out) override {
    write_pieces(answers.front(), true, out);
    const std::string_view status = status_of(answers.front());
    event(out, concat("response.", status), {{"response", finished(answers.front())}});
  }

  void fault(std::span<const Answer> answers, const std::string& message, std::string& out) override {
    event(out, "error", {{"code", "server_error"}, {"message", message}, {"param", nullptr}});
    json::object failed = response("failed", answers.empty() ? nullptr : &answers.front());
    failed["error"] = {{"code", "server_error"}, {"message", message}};
    event(out, "response.failed", {{"response", std::move(failed)}});
  }

  json::object body(std::span<const Answer> answers) override { return finished(answers.front()); }

 private:
  static std::string_view status_of(const Answer& answer) {
    return answer.message().finish_reason == "length" ? "incomplete" : "completed";
  }

  void event(std::string& out, std::string_view type, json::object more) {
    json::object data{{"type", type}, {"sequence_number", sequence_++}};
    for (auto& [key, value] : more) data[key] = std::move(value);
    sse::append(out, type, data);
  }

  // Of a part of a piece's item, that has one part of content.
  void part_event(std::string& out, std::string_view type, size_t index, const AnswerPiece& piece, json::object more) {
    json::object all{{"item_id", item_id(index, piece)}, {"output_index", index}};
    if (piece.kind != Kind::kCall) all["content_index"] = 0;
    for (auto& [key, value] : more) all[key] = std::move(value);
    event(out, type, std::move(all));
  }

  void open(size_t index, const Answer& answer, std::string& out) override {
    const AnswerPiece& piece = answer.pieces()[index];
    json::object start = item(index, {.kind = piece.kind, .name = piece.name, .id = piece.id}, {}, "in_progress");
    json::value part;
    if (piece.kind != Kind::kCall) part = std::exchange(start["content"], json::array()).as_array().front();
    event(out, "response.output_item.added", {{"output_index", index}, {"item", std::move(start)}});
    if (piece.kind != Kind::kCall) part_event(out, "response.content_part.added", index, piece, {{"part", part}});
  }

  void grow(size_t index, const Answer& answer, std::string_view text, std::string& out) override {
    const AnswerPiece& piece = answer.pieces()[index];
    json::object more{{"delta", text}};
    if (piece.kind == Kind::kContent) more["logprobs"] = logprobs_from(logprobs_sent_, index, answer);
    part_event(out, concat(event_name(piece.kind), ".delta"), index, piece, std::move(more));
  }

  void close(size_t index, const Answer& answer, std::string& out) override {
    const AnswerPiece& piece = answer.pieces()[index];
    const json::array logprobs = all_logprobs(index, answer);
    json::object more{{piece.kind == Kind::kCall ? "arguments" : "text", piece.text}};
    if (piece.kind == Kind::kCall) more["name"] = piece.name;
    if (piece.kind == Kind::kContent) more["logprobs"] = logprobs;
    part_event(out, concat(event_name(piece.kind), ".done"), index, piece, std::move(more));
    json::object done = item(index, piece, logprobs, item_status(index, answer, status_of(answer)));
    if (piece.kind != Kind::kCall) {
      part_event(out, "response.content_part.done", index, piece, {{"part", done.at("content").as_array().front()}});
    }
    event(out, "response.output_item.done", {{"output_index", index}, {"item", std::move(done)}});
  }

  static std::string_view event_name(Kind kind) {
    if (kind == Kind::kReasoning) return "response.reasoning_text";
    return kind == Kind::kContent ? "response.output_text" : "response.function_call_arguments";
  }

  std::string item_id(size_t index, const AnswerPiece& piece) const {
    const std::string_view prefix = piece.kind == Kind::kReasoning ? "rs_"
                                    : piece.kind == Kind::kContent ? "msg_"
                                                                   : "fc_";
    return concat(prefix, unique_, "_", index);
  }

  // What comes last is cut when the answer is, except a call that has come to its end.
  static std::string_view item_status(size_t index, const Answer& answer, std::string_view status) {
    const AnswerPiece& piece = answer.pieces()[index];
    if (piece.kind == Kind::kCall) return piece.whole ? "completed" : "incomplete";
    const bool last = index + 1 == answer.pieces().size();
    return last && status != "completed" ? "incomplete" : "completed";
  }

  json::object item(size_t index, const AnswerPiece& piece, json::array logprobs, std::string_view status) const {
    json::object out{{"id", item_id(index, piece)}};
    switch (piece.kind) {
      case Kind::kReasoning:
        out["type"] = "reasoning";
        out["summary"] = json::array();
        out["content"] = json::array{{{"type", "reasoning_text"}, {"text", piece.text}}};
        break;
      case Kind::kContent:
        out["type"] = "message";
        out["role"] = "assistant";
        out["content"] = json::array{{{"type", "output_text"},
                                      {"text", piece.text},
                                      {"annotations", json::array()},
                                      {"logprobs", std::move(logprobs)}}};
        break;
      case Kind::kCall:
        out["type"] = "function_call";
        out["call_id"] = piece.id;
        out["name"] = piece.name;
        out["arguments"] = piece.text;
    }
    out["status"] = status;
    return out;
  }

  json::array all_logprobs(size_t index, const Answer& answer) const {
    size_t from = 0;
    return logprobs_from(from, index, answer);
  }

  // Those of the piece from this token on; `from` is then behind the last of them.
  json::array logprobs_from(size_t& from, size_t index, const Answer& answer) const {
    std::vector<TokenLogprob> tokens;
    for (size_t i = from; i < answer.logprobs().size(); ++i) {
      if (answer.logprobs()[i].piece != static_cast<int32_t>(index)) continue;
      tokens.push_back(answer.logprobs()[i]);
      from = i + 1;
    }
    return tokens.empty() ? json::array() : openai::logprob_entries(served_.text->tokenizer(), tokens);
  }

  json::array output(const Answer& answer, std::string_view status) const {
    json::array out;
    for (size_t i = 0; i < answer.pieces().size(); ++i) {
      out.push_back(item(i, answer.pieces()[i], all_logprobs(i, answer), item_status(i, answer, status)));
    }
    return out;
  }

  // `answer`: null before anything of it is there.
  json::object response(std::string_view status, const Answer* answer) {
    const std::string& asked = job().body.model;
    json::object out{{"id", id()},
                     {"object", "response"},
                     {"created_at", created_},
                     {"status", status},
                     {"background", false},
                     {"error", nullptr},
                     {"incomplete_details", nullptr},
                     {"model", asked.empty() ? served_.name : asked},
                     {"output", answer ? output(*answer, status) : json::array()},
                     {"usage", nullptr},
                     {"service_tier", "default"},
                     {"system_fingerprint", served_.fingerprint}};
    for (const auto& [key, value] : echo_) out[key] = value;
    return out;
  }

  // The response of a whole answer, that is also kept.
  json::object finished(const Answer& answer) {
    const std::string_view status = status_of(answer);
    json::object out = response(status, &answer);
    if (completed_ == 0) completed_ = std::time(nullptr);
    out["completed_at"] = completed_;
    if (status == "incomplete") out["incomplete_details"] = {{"reason", "max_output_tokens"}};
    out["usage"] = usage_of(answer);
    out["timings"] = openai::timings_of({&answer, 1});
    if (std::exchange(keep_, false)) {
      for (const json::value& item : out.at("output").as_array()) items_.push_back(item);
      store_.put(id(), {.response = json::serialize(out), .items = json::serialize(items_)});
    }
    return out;
  }

  json::object usage_of(const Answer& answer) {
    const int64_t prompt = job().prompts.front().tokens, output = answer.completion_tokens();
    return {{"input_tokens", prompt},
            {"input_tokens_details", {{"cached_tokens", answer.usage().cached_tokens}, {"cache_write_tokens", 0}}},
            {"output_tokens", output},
            {"output_tokens_details", {{"reasoning_tokens", answer.reasoning_tokens()}}},
            {"total_tokens", prompt + output}};
  }

  std::string id() const { return "resp_" + unique_; }

  ResponseStore& store_;
  bool keep_;
  json::object echo_;
  json::array items_;
  std::string unique_;  // in all ids of this response
  int64_t created_, completed_ = 0;
  int64_t sequence_ = 0;
  size_t logprobs_sent_ = 0;  // tokens up to the last one with logprobs in a delta
};

}  // namespace

std::unique_ptr<Reply> make_reply(json::object body, const openai::Served& served, ResponseStore& store,
                                  const SamplingOptions& defaults) {
  return std::make_unique<ResponseReply>(parse(std::move(body), store, defaults), served, store);
}

openai::Refusal not_found(std::string_view id) {
  return openai::Refusal(concat("no response ", printable(id, 60), " is stored here (any more)"), "", "not_found", 404);
}

json::object deleted_object(std::string_view id) { return {{"id", id}, {"object", "response"}, {"deleted", true}}; }

}  // namespace weir::responses
