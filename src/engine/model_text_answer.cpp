// The answers of models: their streams, and what constrains them.
#include <algorithm>

#include "base/error.h"
#include "engine/json_mask.h"
#include "engine/model_text.h"
#include "text/call_parser.h"
#include "text/kimi_markup.h"
#include "text/kimi_parser_stream.h"
#include "text/think_splitter.h"
#include "text/tokenizer_stream.h"

namespace weir {
namespace {

std::span<const Segment> begun_part(const RenderedPrompt& prompt) {
  return std::span<const Segment>(prompt.segments).last(prompt.begun);
}

std::string text_before_answer(const RenderedPrompt& prompt) {
  size_t begun = 0;
  for (const Segment& segment : begun_part(prompt)) begun += segment.text.size();
  return prompt.text.substr(0, prompt.text.size() - begun);
}

// What a model writes after a text that is no conversation.
class TextAnswer final : public AnswerStream {
 public:
  explicit TextAnswer(std::shared_ptr<const Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)), decoder_(tokenizer_, true) {}

  void push(int32_t id, std::vector<ChatEvent>& events) override {
    if (std::ranges::binary_search(tokenizer_->end_of_generation(), id)) message_.finish_reason = "stop";
    emit(decoder_.push(id), events);
  }
  void finish(std::vector<ChatEvent>& events) override {
    emit(decoder_.finish(), events);
    if (message_.finish_reason.empty()) message_.finish_reason = "length";
    events.push_back({.kind = ChatEvent::Kind::kEnd, .text = message_.finish_reason});
  }
  const ParsedMessage& message() const override { return message_; }

 private:
  void emit(std::string text, std::vector<ChatEvent>& events) {
    if (text.empty()) return;
    message_.content += text;
    events.push_back({.kind = ChatEvent::Kind::kContent, .text = std::move(text)});
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  StreamDecoder decoder_;
  ParsedMessage message_;
};

// What a model writes after a template's prompt: reasoning, and in the rest calls, when there is a syntax for them.
class TemplateAnswer final : public AnswerStream {
 public:
  TemplateAnswer(std::shared_ptr<const Tokenizer> tokenizer, ThinkSplitter::Start start, const CallSyntax* syntax,
                 const boost::json::array* tools, std::string call_prefix)
      : tokenizer_(std::move(tokenizer)), decoder_(tokenizer_, true), splitter_(start), syntax_(syntax) {
    if (syntax) calls_.emplace(*syntax, *tools, std::move(call_prefix));
  }

  void begin(std::string_view text) { take(text, begun_); }  // what the prompt has of the answer

  void push(int32_t id, std::vector<ChatEvent>& events) override {
    give_begun(events);
    complete_ = complete_ || std::ranges::binary_search(tokenizer_->end_of_generation(), id);
    take(decoder_.push(id), events);
    // Marks may be special tokens, which decode to nothing.
    if (!tokenizer_->is_special(id)) return;
    const std::string_view mark = tokenizer_->token_bytes(id);
    if (mark.empty() || (mark != "<think>" && mark != "</think>" && !(syntax_ && syntax_->marks(mark)))) return;
    take(mark, events);
  }
  void finish(std::vector<ChatEvent>& events) override {
    give_begun(events);
    take(decoder_.finish(), events);
    splitter_.finish(split_, split_events_);
    pass_on(events);
    if (calls_) calls_->finish(complete_, message_, events);
    message_.finish_reason = !complete_ ? "length" : message_.tool_calls.empty() ? "stop" : "tool_calls";
    events.push_back({.kind = ChatEvent::Kind::kEnd, .text = message_.finish_reason});
  }
  const ParsedMessage& message() const override { return message_; }

 private:
  void give_begun(std::vector<ChatEvent>& events) {
    std::ranges::move(begun_, std::back_inserter(events));
    begun_.clear();
  }
  void take(std::string_view text, std::vector<ChatEvent>& events) {
    splitter_.push(text, split_, split_events_);
    pass_on(events);
  }
  void pass_on(std::vector<ChatEvent>& events) {
    for (ChatEvent& event : split_events_) {
      if (event.kind == ChatEvent::Kind::kReasoning) {
        message_.reasoning += event.text;
      } else if (calls_) {
        calls_->push(event.text, message_, events);
        continue;
      } else {
        message_.content += event.text;
      }
      events.push_back(std::move(event));
    }
    split_events_.clear();
    split_ = {};
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  StreamDecoder decoder_;
  ThinkSplitter splitter_;
  const CallSyntax* syntax_;
  std::optional<CallParser> calls_;
  std::vector<ChatEvent> begun_;
  bool complete_ = false;
  ParsedMessage message_, split_;
  std::vector<ChatEvent> split_events_;
};

class KimiAnswer final : public AnswerStream {
 public:
  KimiAnswer(std::shared_ptr<const Tokenizer> tokenizer, const RenderedPrompt& prompt, std::string call_prefix)
      : stream_(std::move(tokenizer),
                open_kimi_k3_channel(prompt) == "think" ? KimiParser::Start::kThink : KimiParser::Start::kResponse,
                std::move(call_prefix)) {
    stream_.begin(begun_part(prompt), begun_);
  }

  void push(int32_t id, std::vector<ChatEvent>& events) override {
    give_begun(events);
    stream_.push(id, events);
  }
  void finish(std::vector<ChatEvent>& events) override {
    give_begun(events);
    stream_.finish(events);
  }
  const ParsedMessage& message() const override { return stream_.parser().message(); }

 private:
  void give_begun(std::vector<ChatEvent>& events) {
    std::ranges::move(begun_, std::back_inserter(events));
    begun_.clear();
  }

  KimiStream stream_;
  std::vector<ChatEvent> begun_;
};

}  // namespace

const CallSyntax* ModelText::call_syntax() const {
  const ChatTemplate* chosen = tool_template_ ? std::get_if<ChatTemplate>(tool_template_.get()) : nullptr;
  return chosen ? chosen->call_syntax() : nullptr;
}

bool ModelText::opens_calls() const { return format_ == ChatFormat::kKimiK3 || call_syntax() != nullptr; }

void ModelText::open_call(RenderedPrompt& prompt, std::optional<std::string_view> tool) const {
  if (format_ == ChatFormat::kKimiK3) return open_kimi_k3_call(prompt, tool);
  const CallSyntax* syntax = call_syntax();
  if (syntax == nullptr) fail(place_, ": the chat template writes tool calls in no way that is known");
  const size_t before = prompt.segments.size();
  if (ends_in_think(prompt.text)) {
    if (!prompt.text.ends_with('\n')) prompt.add("\n", false);
    prompt.add("</think>", true);
    prompt.add("\n\n", false);
  }
  for (const auto& [piece, markup] : syntax->opening(tool)) prompt.add(piece, markup);
  prompt.begun = prompt.segments.size() - before;
}

std::unique_ptr<AnswerStream> ModelText::answer(const RenderedPrompt& prompt, std::string call_prefix,
                                                const boost::json::array* tools) const {
  tokenizer();
  if (format_ == ChatFormat::kKimiK3) {
    return std::make_unique<KimiAnswer>(tokenizer_, prompt, std::move(call_prefix));
  }
  if (prompt.text.empty()) return plain_answer();
  const auto start =
      ends_in_think(text_before_answer(prompt)) ? ThinkSplitter::Start::kReasoning : ThinkSplitter::Start::kAnswer;
  const CallSyntax* syntax = tools != nullptr && !tools->empty() ? call_syntax() : nullptr;
  auto out = std::make_unique<TemplateAnswer>(tokenizer_, start, syntax, tools, std::move(call_prefix));
  for (const Segment& segment : begun_part(prompt)) out->begin(segment.text);
  return out;
}

std::unique_ptr<AnswerStream> ModelText::plain_answer() const {
  tokenizer();
  return std::make_unique<TextAnswer>(tokenizer_);
}

std::shared_ptr<const JsonTokenMasks> ModelText::json_tokens(int64_t vocab) const {
  const std::lock_guard lock(json_tokens_->mutex);
  if (!json_tokens_->made || json_tokens_->made->vocab() != vocab) {
    json_tokens_->made = std::make_shared<const JsonTokenMasks>(tokenizer(), vocab);
  }
  return json_tokens_->made;
}

std::shared_ptr<TokenMask> ModelText::json_mask(const RenderedPrompt& prompt, std::vector<int32_t> stop_tokens,
                                                int64_t vocab) const {
  JsonAnswer shape{.stop_tokens = std::move(stop_tokens)};
  const Tokenizer& words = tokenizer();
  if (format_ == ChatFormat::kKimiK3) {
    const auto marker = [&](std::string_view name) { return words.id_of(name).value_or(-1); };
    const int32_t open = marker("<|open|>"), close = marker("<|close|>"), sep = marker("<|sep|>");
    const auto tag = [&](std::vector<int32_t>& out, int32_t bracket, std::string_view name) {
      out.push_back(bracket);
      std::ranges::copy(words.encode(name, SpecialTokens::kText, false), std::back_inserter(out));
      out.push_back(sep);
    };
    shape.in_reasoning = open_kimi_k3_channel(prompt) == "think";
    shape.close_reasoning = close;
    shape.not_in_reasoning = {open, sep};
    tag(shape.before_content, close, "think");
    shape.before_content.erase(shape.before_content.begin());  // which the model has chosen
    tag(shape.before_content, open, "response");
    tag(shape.after_content, close, "response");
    tag(shape.after_content, close, "message");
  } else {
    shape.in_reasoning = ends_in_think(prompt.text);
    if (!shape.in_reasoning) shape.think = words.id_of("<think>").value_or(-1);
  }
  return std::make_shared<JsonObjectMask>(json_tokens(vocab), std::move(shape));
}

}  // namespace weir
