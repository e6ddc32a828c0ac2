// Answers that must be JSON objects, through the scheduler: they parse, and are the same alone, in a batch, and when
// they had to wait again.
#include "engine/json_mask.h"

#include <boost/json.hpp>
#include <random>

#include "engine/model_text.h"
#include "tests/support/serving.h"

namespace weir::test {
namespace {

class JsonMaskTest : public testing::Test {
 protected:
  JsonMaskTest() : model_(Model::load(fixture("kimi_k3/k3-tiny"))), text_(ModelText::of(*model_)) {
    for (const int64_t id : text_.stop_tokens({})) stops_.push_back(static_cast<int32_t>(id));
  }

  // The model's weights are random: a push towards the end keeps its answers short.
  Request request(int index, int64_t max_tokens) {
    ChatRequest chat;
    chat.messages.push_back({.role = "user", .content = {{.text = "Number " + std::to_string(index)}}});
    chat.options["thinking"] = index % 2 == 0;
    prompts_.push_back(text_.render(chat));
    Request out{.prompt = text_.encode(prompts_.back()), .max_tokens = max_tokens};
    out.stop_tokens = stops_;
    out.sampling.temperature = 1.2f;
    out.sampling.seed = static_cast<uint64_t>(index);
    for (const auto& [token, bias] : {std::pair{"\"", 4.f}, {"}", 5.f}, {"]", 3.f}, {":", 2.f}, {"<|close|>", 5.f}}) {
      const std::optional<int32_t> id = text_.tokenizer().id_of(token);
      EXPECT_TRUE(id.has_value()) << token;
      out.sampling.logit_bias.emplace_back(*id, bias);
    }
    return out;
  }
  // The mask keeps the place in one answer, so every run gets its own.
  Request masked(Request request, int index) {
    request.mask = text_.json_mask(prompts_[static_cast<size_t>(index)], stops_, model_->spec.vocab);
    return request;
  }
  ParsedMessage message(int index, const Answer& answer) {
    const auto stream = text_.answer(prompts_[static_cast<size_t>(index)]);
    std::vector<ChatEvent> events;
    for (const int32_t id : answer.tokens) stream->push(id, events);
    if (answer.end.stop_token >= 0) stream->push(answer.end.stop_token, events);
    stream->finish(events);
    return stream->message();
  }

  std::unique_ptr<Model> model_;
  ModelText text_;
  std::vector<int32_t> stops_;
  std::vector<RenderedPrompt> prompts_;
};

TEST_F(JsonMaskTest, AnswersParseAndAreTheSameAloneBatchedAndPreempted) {
  constexpr int kRequests = 24;
  std::vector<Request> requests;
  for (int i = 0; i < kRequests; ++i) requests.push_back(request(i, 150));
  std::vector<std::vector<int32_t>> first;
  int finished = 0, cut = 0;
  int64_t preempted = 0;
  for (const bool preempt : {false, true}) {
    Serving serving(*model_, {});
    std::vector<RequestId> ids;
    for (int i = 0; i < kRequests; ++i) ids.push_back(serving.submit(masked(requests[static_cast<size_t>(i)], i)));
    std::mt19937 random(5);
    while (serving.scheduler.step()) {
      if (preempt && random() % 4 == 0) serving.scheduler.preempt_youngest();
    }
    for (int i = 0; i < kRequests; ++i) {
      const Answer& answer = serving.answer(ids[static_cast<size_t>(i)]);
      ASSERT_EQ(answer.end.error, "");
      preempted += answer.end.usage.preemptions;
      if (preempt) {
        EXPECT_EQ(answer.tokens, first[static_cast<size_t>(i)]) << i;
        continue;
      }
      first.push_back(answer.tokens);
      const ParsedMessage parsed = message(i, answer);
      if (answer.end.reason == FinishReason::kLength) {
        EXPECT_EQ(parsed.finish_reason, "length");
        ++cut;
        continue;
      }
      EXPECT_EQ(answer.end.reason, FinishReason::kStop);
      EXPECT_EQ(parsed.finish_reason, "stop");
      boost::system::error_code error;
      const boost::json::value value = boost::json::parse(parsed.content, error, {}, {.max_depth = 64});
      EXPECT_FALSE(error) << parsed.content;
      EXPECT_TRUE(value.is_object()) << parsed.content;
      EXPECT_TRUE(i % 2 == 0 || parsed.reasoning.empty());
      ++finished;
    }
  }
  EXPECT_GT(finished, kRequests / 2);
  EXPECT_GT(preempted, 10);
  for (int i = 0; i < 4; ++i) {
    Serving serving(*model_, {});
    EXPECT_EQ(serving.complete(masked(requests[static_cast<size_t>(i)], i)), first[static_cast<size_t>(i)]) << i;
  }
  Serving serving(*model_, {});
  prompts_.clear();
  const RequestId id = serving.submit(masked(request(0, 3), 0));
  serving.run();
  EXPECT_EQ(serving.answer(id).end.reason, FinishReason::kLength);
  EXPECT_EQ(message(0, serving.answer(id)).finish_reason, "length");
}

bool bit(std::span<const uint32_t> mask, int32_t id) {
  return (mask[static_cast<size_t>(id) / 32] >> (static_cast<uint32_t>(id) % 32) & 1) != 0;
}

int64_t count(std::span<const uint32_t> mask) {
  int64_t out = 0;
  for (const uint32_t word : mask) out += std::popcount(word);
  return out;
}

// Random answers behind a template whose reasoning stands between tags.
TEST(JsonMaskOfTemplates, ReasoningIsFreeAndTheRestAnObject) {
  const auto tokenizer = Tokenizer::from_folder(fixture("tokenizers/qwen2"));
  const auto tokens = std::make_shared<const JsonTokenMasks>(*tokenizer, tokenizer->vocab_size() + 3);
  const int32_t stop = *tokenizer->id_of("<|im_end|>"), think = *tokenizer->id_of("<think>"),
                close = *tokenizer->id_of("</think>"), call = *tokenizer->id_of("<tool_call>");
  std::mt19937 random(9);
  int finished = 0;
  for (int walk = 0; walk < 400; ++walk) {
    const bool inside = walk % 2 == 0, opens = walk % 4 == 1;
    JsonObjectMask mask(tokens, {.stop_tokens = {stop}, .in_reasoning = inside, .think = inside ? -1 : think});
    std::string text;
    bool reasoning = inside;
    for (int step = 0; step < 400; ++step) {
      const std::span<const uint32_t> allowed = mask.allowed();
      std::vector<int32_t> some, liked;
      for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
        if (!bit(allowed, id)) continue;
        some.push_back(id);
        const std::string_view bytes = tokens->bytes(id);
        if (reasoning ? id == close : bytes.find_first_of("\"}]") != bytes.npos) liked.push_back(id);
      }
      ASSERT_FALSE(some.empty()) << text;
      if (bit(allowed, stop)) {
        EXPECT_EQ(count(allowed), 1) << text;
        boost::system::error_code error;
        const boost::json::value value = boost::json::parse(text, error, {}, {.max_depth = 64});
        ASSERT_FALSE(error) << text;
        EXPECT_TRUE(value.is_object());
        ++finished;
        break;
      }
      EXPECT_EQ(bit(allowed, call), reasoning);
      EXPECT_EQ(bit(allowed, think), reasoning || (step == 0 && !inside));
      int32_t id = liked.empty() || random() % 3 == 0 ? some[random() % some.size()] : liked[random() % liked.size()];
      if (opens && step == 0) id = think;
      mask.push(id);
      if (reasoning) {
        text += tokens->bytes(id);
        const size_t end = text.find("</think>");
        if (end != std::string::npos) {
          reasoning = false;
          text.erase(0, end + 8);
        }
      } else if (id == think) {
        reasoning = true;
      } else {
        text += tokens->bytes(id);
      }
    }
  }
  EXPECT_GT(finished, 200);
}

}  // namespace
}  // namespace weir::test
