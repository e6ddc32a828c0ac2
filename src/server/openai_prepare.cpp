#include <algorithm>

#include "server/openai.h"

namespace weir::openai {
namespace {

// Tokens to generate, or a Refusal with both numbers.
int64_t room_after(int64_t prompt, const Body& body, const Served& served) {
  const std::string field(body.prompt_field);
  const int64_t room = std::min(served.context, served.tokens) - prompt;
  if (prompt + body.max_tokens.value_or(1) > served.context) {
    throw Refusal(concat("the prompt has ", prompt, " tokens",
                         body.max_tokens ? concat(" and ", body.limit_field, " asks for ", *body.max_tokens, " more")
                                         : std::string(", and the answer needs one more at least"),
                         "; the model's context is ", served.context),
                  field, "context_length_exceeded");
  }
  if (body.max_tokens) return *body.max_tokens;  // too many for the pages: the engine's refusal says so
  if (room < 1) {
    throw Refusal(concat("the prompt has ", prompt, " tokens, and there are pages for ", served.tokens), field,
                  "context_length_exceeded");
  }
  return body.endpoint == Endpoint::kChat ? room : std::min(room, kDefaultTokens);
}

void open_call(const Body& body, const Served& served, RenderedPrompt& prompt) {
  if (!served.text->opens_calls()) {
    throw Refusal(
        "request: field 'tool_choice': only auto and none are supported: this model's chat template writes calls in no "
        "way that is known",
        "tool_choice");
  }
  if (!body.chat.add_generation_prompt) {
    throw Refusal("request: field 'tool_choice': only auto and none are supported without add_generation_prompt",
                  "tool_choice");
  }
  served.text->open_call(prompt, body.call->empty() ? std::nullopt : std::optional<std::string_view>(*body.call));
}

// Where the model lies is nothing for clients.
RenderedPrompt render(const Body& body, const Served& served) {
  try {
    return served.text->render(body.chat);
  } catch (const Error& error) {
    std::string message = error.what();
    const std::string& place = served.text->place();
    for (size_t at; !place.empty() && (at = message.find(place)) != std::string::npos;) {
      const size_t end = at + place.size();
      const bool inside = end < message.size() && (message[end] == '/' || message[end] == ' ');
      message.erase(at, place.size() + (inside ? 1 : 0));
    }
    const Refusal refusal = Refusal::of(Error(message));
    throw refusal.param().empty() ? Refusal(message, "messages") : refusal;
  }
}

// As `prompt`, with its ids in `ids`.
Job::Prompt words(const Body& body, size_t index, const Served& served, std::vector<int32_t>& ids) {
  Job::Prompt out;
  if (body.endpoint == Endpoint::kChat) {
    out.rendered = render(body, served);
    if (body.call) open_call(body, served, out.rendered);
    ids = served.text->encode(out.rendered);
    return out;
  }
  if (const auto* text = std::get_if<std::string>(&body.prompts[index])) {
    ids = served.text->encode_raw(*text);
    if (body.echo) out.text = *text;
  } else {
    ids = std::get<std::vector<int32_t>>(body.prompts[index]);
    if (body.echo) out.text = served.text->tokenizer().decode(ids, true);
  }
  return out;
}

void check_stop_token(int32_t id, const Body& body, const Served& served) {
  if (id >= served.vocab) {
    throw Refusal(concat("request: field 'stop_token_ids': expected token ids below ", served.vocab, ", found ", id),
                  "stop_token_ids");
  }
  if (body.json_object && !served.text->tokenizer().is_special(id)) {
    throw Refusal(
        concat("request: field 'stop_token_ids': with response_format json_object expected special tokens, found ", id),
        "stop_token_ids");
  }
}

// One for each answer: it keeps the place in it.
std::shared_ptr<TokenMask> json_mask(const Job::Prompt& prompt, const std::vector<int32_t>& stops,
                                     const Served& served) {
  if (stops.empty()) {
    throw Refusal(
        "request: field 'response_format': json_object needs a token that ends answers, and this model names none",
        "response_format");
  }
  try {
    return served.text->json_mask(prompt.rendered, stops, served.vocab);
  } catch (const Error& error) {
    throw Refusal(concat("request: field 'response_format': json_object is not possible: ", error.what()),
                  "response_format");
  }
}

void add_prompt(Job& job, size_t index, const Served& served) {
  const Body& body = job.body;
  Request request;
  Job::Prompt prompt = words(body, index, served, request.prompt);
  prompt.tokens = static_cast<int64_t>(request.prompt.size());
  const std::string field(body.prompt_field);
  if (request.prompt.empty()) throw Refusal(concat(field, ": expected at least one token, found none"), field);
  for (const int32_t id : request.prompt) {
    if (id < 0 || id >= served.vocab) {
      throw Refusal(concat(field, ": expected token ids below ", served.vocab, ", found ", id), field);
    }
  }
  request.max_tokens = room_after(prompt.tokens, body, served);
  request.sampling = body.sampling;
  request.stop_tokens = body.stop_token_ids;
  if (!body.ignore_eos) {
    for (const int64_t id : served.text->stop_tokens(served.stop_tokens)) {
      if (id >= 0 && id < served.vocab) request.stop_tokens.push_back(static_cast<int32_t>(id));
    }
  }
  for (const int32_t id : body.stop_token_ids) check_stop_token(id, body, served);
  validate(request.sampling, served.vocab);
  job.prompts.push_back(std::move(prompt));
  for (int64_t i = 0; i < body.n; ++i) {
    if (body.json_object) request.mask = json_mask(job.prompts.back(), request.stop_tokens, served);
    job.requests.push_back(request);
    job.requests.back().sampling.seed += static_cast<uint64_t>(i);
  }
}

}  // namespace

Job prepare(Body body, const Served& served) {
  Job job{.body = std::move(body)};
  try {
    const auto answers = static_cast<int64_t>(std::max<size_t>(1, job.body.prompts.size())) * job.body.n;
    if (served.most_answers > 0 && answers > served.most_answers) {
      throw Refusal(concat("request: field 'n': expected at most ", served.most_answers,
                           " answers, which is what this server runs and lets wait, found ", answers),
                    "n");
    }
    const size_t prompts = job.body.endpoint == Endpoint::kChat ? 1 : job.body.prompts.size();
    for (size_t i = 0; i < prompts; ++i) add_prompt(job, i, served);
  } catch (const Error& error) {
    throw Refusal::of(error);
  }
  return job;
}

Answer answer_of(const Job& job, size_t index, const Served& served, std::string call_prefix) {
  const Body& body = job.body;
  const Job::Prompt& prompt = job.prompts[index / static_cast<size_t>(body.n)];
  const bool calls = body.chat.tools && !body.json_object;  // an object is not a call
  const boost::json::array* tools = calls ? &*body.chat.tools : nullptr;
  std::unique_ptr<AnswerStream> stream = body.endpoint == Endpoint::kChat
                                             ? served.text->answer(prompt.rendered, std::move(call_prefix), tools)
                                             : served.text->plain_answer();
  return Answer(std::move(stream), {.stop = body.stop,
                                    .min_tokens = body.sampling.min_tokens,
                                    .logprobs = body.logprobs(),
                                    .one_call = body.one_call});
}

}  // namespace weir::openai
