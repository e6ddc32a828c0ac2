#include "server/openai_reply.h"

#include <boost/json/array.hpp>
#include <ctime>

#include "server/ids.h"
#include "server/openai_usage.h"
#include "server/sse.h"

namespace weir::openai {
namespace {

namespace json = boost::json;

json::object call_delta(const ChatEvent& event) {
  json::object call{{"index", event.index}};
  if (event.kind == ChatEvent::Kind::kToolCallStart) {
    call["id"] = event.id;
    call["type"] = "function";
    call["function"] = {{"name", event.name}, {"arguments", ""}};
  } else {
    call["function"] = {{"arguments", event.text}};
  }
  return {{"tool_calls", json::array{std::move(call)}}};
}

}  // namespace

ChunkedReply::ChunkedReply(Body body, const Served& served)
    : served_(served), job_(prepare(std::move(body), served)), prefix_(random_id("call_")) {
  head_ = {.id = random_id(is_chat() ? "chatcmpl-" : "cmpl-"), .created = std::time(nullptr)};
  for (size_t i = 0; i < job_.requests.size(); ++i) logprobs_.emplace_back(job_, served_);
}

std::string ChunkedReply::call_prefix(size_t index) const { return concat(prefix_, "_", index, "_"); }

void ChunkedReply::begin(std::string& out) {
  for (size_t i = 0; i < logprobs_.size(); ++i) {
    if (is_chat()) {
      chunk(i, nullptr, json::object{{"role", "assistant"}, {"content", ""}}, {}, out);
    } else if (job_.body.echo) {
      chunk(i, nullptr, json::string(job_.prompts[i / static_cast<size_t>(job_.body.n)].text), {}, out);
    }
  }
}

void ChunkedReply::add(size_t index, const Answer& answer, std::span<const ChatEvent> events, std::string& out) {
  for (const ChatEvent& event : events) {
    switch (event.kind) {
      case ChatEvent::Kind::kReasoning:
        chunk(index, &answer, json::object{{"reasoning_content", event.text}}, {}, out);
        break;
      case ChatEvent::Kind::kContent:
        chunk(index, &answer, is_chat() ? json::value(json::object{{"content", event.text}}) : json::value(event.text),
              {}, out);
        break;
      case ChatEvent::Kind::kToolCallStart:
      case ChatEvent::Kind::kToolCallArguments:
        chunk(index, &answer, call_delta(event), {}, out);
        break;
      case ChatEvent::Kind::kToolCallEnd:
        break;
      case ChatEvent::Kind::kEnd:
        chunk(index, &answer, is_chat() ? json::value(json::object{}) : json::value(""), event.text, out);
    }
  }
}

void ChunkedReply::chunk(size_t index, const Answer* answer, json::value part, std::string_view finish_reason,
                         std::string& out) {
  json::object choice{{"index", static_cast<int64_t>(index)}, {is_chat() ? "delta" : "text", std::move(part)}};
  choice["logprobs"] =
      answer != nullptr && logprobs_[index].pending(*answer) ? logprobs_[index].next(*answer) : json::value();
  choice["finish_reason"] = finish_reason.empty() ? json::value() : json::value(finish_reason);
  json::object more;
  if (job_.body.include_usage) {
    more["usage"] = nullptr;
  } else if (!finish_reason.empty()) {
    more["timings"] = timings_of({answer, 1});  // no chunk of usage will follow
  }
  write({std::move(choice)}, std::move(more), out);
}

void ChunkedReply::end(std::span<const Answer> answers, std::string& out) {
  if (job_.body.include_usage) {
    write({}, {{"usage", usage_of(job_, answers)}, {"timings", timings_of(answers)}}, out);
  }
  out += "data: [DONE]\n\n";
}

void ChunkedReply::fault(std::span<const Answer>, const std::string& message, std::string& out) {
  sse::append(out, {}, Refusal(message, {}, {}, 500).body());
}

json::object ChunkedReply::body(std::span<const Answer> answers) { return response(job_, answers, served_, head_); }

void ChunkedReply::write(json::array choices, json::object more, std::string& out) const {
  json::object chunk{{"id", head_.id},
                     {"object", is_chat() ? "chat.completion.chunk" : "text_completion"},
                     {"created", head_.created},
                     {"model", job_.body.model.empty() ? served_.name : job_.body.model},
                     {"system_fingerprint", served_.fingerprint},
                     {"choices", std::move(choices)}};
  for (auto& [key, value] : more) chunk[key] = std::move(value);
  sse::append(out, {}, chunk);
}

}  // namespace weir::openai
