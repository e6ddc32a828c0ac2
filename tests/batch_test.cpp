// weir batch as a user meets it: every answer is the one that its request has alone, whatever ran beside it.
#include <pty.h>

#include <regex>

#include "cli/batch_progress.h"
#include "tests/support/batch.h"

namespace weir::test {
namespace {

TEST_F(BatchTest, EveryAnswerIsTheOneThatItsRequestHasAlone) {
  const Reference reference(k3_);
  const std::map<std::string, json::object> requests = mixed_requests(true);
  expect_answers(reference, requests, batch(lines_of(requests)));
  // With few pages requests wait, are preempted, and give their blocks to one another.
  expect_answers(reference, requests, batch(lines_of(requests), "--max-tokens 512 --max-sequences 5"));
  // And as `weir run` has it.
  const json::object& asked = requests.at("request-1");
  const CliResult run = weir(concat("run ", k3_, " --raw --json --max-tokens ", asked.at("max_tokens").as_int64(),
                                    " --temperature 0.9 --seed 1 -p ",
                                    shell_quoted(std::string(asked.at("prompt").as_string())), kExact));
  EXPECT_EQ(json::parse(run.out).at("text"), choice_of(by_id(read(out())).at("request-1")).at("text"));
}

TEST_F(BatchTest, LlamaAnswersThroughATemplate) {
  const std::string folder = path("llama");
  std::filesystem::copy(fixture("hf/llama"), folder);
  std::filesystem::copy(k3_ + "/tiktoken.model", folder + "/tiktoken.model");
  json::object config = read_json_file(k3_ + "/tokenizer_config.json").as_object();
  config["chat_template"] =
      "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if tools %}tools: {{ tools | length }}\n"
      "{% endif %}[assistant] ";
  std::ofstream(folder + "/tokenizer_config.json") << json::serialize(config);
  std::map<std::string, json::object> requests = mixed_requests(true);
  for (auto& [id, body] : requests) body.erase("reasoning_effort");
  expect_answers(Reference(folder), requests, batch(lines_of(requests), "", folder));
}

TEST_F(BatchTest, AStopStringCutsTheTextWhereverItFalls) {
  const json::object asked = completion("Tell me a story", 60, {{"ignore_eos", true}});
  const json::object full = batch(line("full", asked)).at("full");
  const std::string text(choice_of(full).at("text").as_string());
  ASSERT_GT(text.size(), 40u);
  std::map<std::string, json::object> requests;
  std::map<std::string, std::string> expected;
  for (size_t at = 0; at + 4 < text.size(); at += 3) {
    size_t begin = at, end = std::min(at + 4, text.size());  // of whole characters
    while (begin < end && (text[begin] & 0xC0) == 0x80) ++begin;
    while (end < text.size() && (text[end] & 0xC0) == 0x80) ++end;
    if (begin == end) continue;
    const std::string id = concat("stop-", at), stop = text.substr(begin, end - begin);
    json::object body = asked;
    body["stop"] = json::array{"never to be seen", stop};
    requests[id] = body;
    expected[id] = text.substr(0, text.find(stop));
  }
  const auto results = batch(lines_of(requests));
  for (const auto& [id, cut] : expected) {
    const json::object& choice = choice_of(results.at(id));
    EXPECT_EQ(choice.at("text").as_string(), cut) << id;
    EXPECT_EQ(choice.at("finish_reason"), "stop");
    EXPECT_LE(usage_of(results.at(id), "completion_tokens"), 60);
  }
  // In a chat it is looked for in content only.
  const json::object thought = chat("Hi", 30, {{"ignore_eos", true}});
  const json::object spoken = chat("Hi", 30, {{"ignore_eos", true}, {"reasoning_effort", "none"}});
  const auto both = batch(line("thought", thought) + line("spoken", spoken));
  const std::string reasoning(choice_of(both.at("thought")).at("message").at("reasoning_content").as_string());
  const std::string content(choice_of(both.at("spoken")).at("message").at("content").as_string());
  json::object a = thought, b = spoken;
  a["stop"] = first_character(reasoning);
  b["stop"] = first_character(content);
  const auto cut = batch(line("thought", a) + line("spoken", b));
  EXPECT_EQ(choice_of(cut.at("thought")), choice_of(both.at("thought")));
  EXPECT_EQ(choice_of(cut.at("spoken")).at("message").at("content"), "");
  EXPECT_EQ(choice_of(cut.at("spoken")).at("finish_reason"), "stop");
}

TEST_F(BatchTest, NLogprobsEchoToolsAndUsage) {
  const json::array tools{{{"type", "function"},
                           {"function",
                            {{"name", "get_weather"},
                             {"description", "Weather for a city."},
                             {"parameters", {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}}}}}}}}};
  const json::object sampled = completion("Once", 6, {{"temperature", 1}, {"seed", 40}, {"ignore_eos", true}});
  json::object three = sampled;
  three["n"] = 3;
  std::string lines = line("three", three);
  for (int i = 0; i < 3; ++i) {
    json::object one = sampled;
    one["seed"] = 40 + i;
    lines += line(concat("one-", i), one);
  }
  lines += line("chat-logprobs", chat("Hi", 5, {{"logprobs", true}, {"top_logprobs", 3}, {"ignore_eos", true}}));
  lines += line("logprobs", completion("Hi", 5, {{"logprobs", 2}, {"ignore_eos", true}}));
  lines += line("echo", completion("Hi there", 3, {{"echo", true}, {"ignore_eos", true}}));
  lines += line("no-echo", completion("Hi there", 3, {{"ignore_eos", true}}));
  lines += line("tools", chat("Weather in Paris?", 4, {{"tools", tools}, {"tool_choice", "auto"}}));
  lines += line("forced", completion("Hi", 4, {{"logit_bias", {{"65", 100}}}}));
  lines += line("model", chat("Hi", 1, {{"model", "some-name"}, {"user", "me"}, {"unknown_field", {1, 2}}}));
  const auto results = batch(lines);

  std::set<std::string> different;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(choice_of(results.at("three"), i).at("text"), choice_of(results.at(concat("one-", i))).at("text"));
    different.emplace(choice_of(results.at("three"), i).at("text").as_string());
  }
  EXPECT_EQ(different.size(), 3u);
  EXPECT_EQ(usage_of(results.at("three"), "completion_tokens"), 18);
  EXPECT_EQ(usage_of(results.at("three"), "prompt_tokens"), usage_of(results.at("one-0"), "prompt_tokens"));

  const json::array& content = choice_of(results.at("chat-logprobs")).at("logprobs").at("content").as_array();
  ASSERT_EQ(content.size(), 5u);
  for (const json::value& entry : content) {
    ASSERT_EQ(entry.at("top_logprobs").as_array().size(), 3u);
    EXPECT_EQ(entry.at("top_logprobs").at(0).at("logprob"), entry.at("logprob"));  // greedy
    EXPECT_EQ(entry.at("top_logprobs").at(0).at("bytes"), entry.at("bytes"));
    EXPECT_LT(entry.at("logprob").to_number<double>(), 0);
  }
  const json::object& legacy = choice_of(results.at("logprobs")).at("logprobs").as_object();
  for (const char* field : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    EXPECT_EQ(legacy.at(field).as_array().size(), 5u) << field;
  }
  EXPECT_EQ(legacy.at("text_offset").at(0), 0);
  EXPECT_TRUE(choice_of(results.at("echo")).at("logprobs").is_null());

  EXPECT_EQ(choice_of(results.at("echo")).at("text").as_string(),
            concat("Hi there", std::string_view(choice_of(results.at("no-echo")).at("text").as_string())));
  EXPECT_EQ(choice_of(results.at("forced")).at("text"), "bbbb") << "token 65";
  EXPECT_EQ(body_of(results.at("model")).at("model"), "some-name");
  EXPECT_EQ(body_of(results.at("tools")).at("model"), "k3-tiny");
  EXPECT_EQ(body_of(results.at("tools")).at("object"), "chat.completion");
  EXPECT_EQ(body_of(results.at("echo")).at("object"), "text_completion");

  const std::string rendered = file(
      "chat.json", json::serialize(json::object{{"messages", {{{"role", "user"}, {"content", "Weather in Paris?"}}}},
                                                {"tools", tools},
                                                {"tool_choice", "auto"}}));
  const CliResult render = weir(concat("render ", k3_, " ", rendered, " --json"));
  EXPECT_EQ(usage_of(results.at("tools"), "prompt_tokens"),
            static_cast<int64_t>(json::parse(render.out).at("ids").as_array().size()));
}

TEST_F(BatchTest, PromptsThatBeginAlikeAreComputedOnce) {
  std::string lines, shared;
  for (int i = 0; i < 60; ++i) shared += concat("part ", i, " ");
  std::map<std::string, json::object> requests;
  for (int i = 0; i < 6; ++i) requests[concat("r", i)] = completion((shared + std::to_string(i)).c_str(), 4);
  const std::string cache = "--cache-dir " + path("cache");
  const auto first = batch(lines_of(requests), cache + " --trace " + path("trace"));
  int hits = 0;
  for (const auto& [id, result] : first) hits += cached(result) > 100;
  EXPECT_GE(hits, 5);
  const auto without = batch(lines_of(requests), "--no-prefix-cache");
  const auto later = batch(lines_of(requests), cache);
  for (const auto& [id, result] : first) {
    EXPECT_EQ(cached(without.at(id)), 0);
    EXPECT_GT(cached(later.at(id)), 100) << id;
    EXPECT_EQ(choice_of(without.at(id)), choice_of(result));
    EXPECT_EQ(choice_of(later.at(id)), choice_of(result));
  }
  const std::vector<json::object> trace = objects(read(path("trace")));
  ASSERT_FALSE(trace.empty());
  for (const char* field : {"step", "model_ms", "other_ms", "waiting", "running", "free_pages", "free_anchors",
                            "cached_chunks", "restore_points", "hit_tokens", "evictions", "preemptions", "spans"}) {
    EXPECT_TRUE(trace.back().contains(field)) << field;
  }
  int64_t rows = 0;
  for (const json::object& step : trace) {
    for (const json::value& span : step.at("spans").as_array()) rows += span.at(2).to_number<int64_t>();
  }
  EXPECT_GT(rows, 0);
}

TEST_F(BatchTest, ProgressIsShownOnATerminal) {
  std::map<std::string, json::object> requests;
  for (int i = 0; i < 12; ++i) requests[concat("r", i)] = completion("text", 150, {{"ignore_eos", true}});
  const std::string input = in(lines_of(requests));
  winsize size{.ws_row = 24, .ws_col = 100};
  int fd = -1;
  const pid_t child = forkpty(&fd, nullptr, nullptr, &size);
  if (child == 0) {
    execl(WEIR_BINARY, "weir", "batch", k3_.c_str(), input.c_str(), out().c_str(), "--max-sequences", "2", nullptr);
    _exit(127);
  }
  std::string shown;
  char bytes[4096];
  for (ssize_t n; (n = ::read(fd, bytes, sizeof bytes)) > 0;) shown.append(bytes, static_cast<size_t>(n));
  int status = 0;
  waitpid(child, &status, 0);
  close(fd);
  EXPECT_EQ(status, 0) << shown;
  EXPECT_NE(shown.find("of 12 requests, 2 running"), std::string::npos) << shown;
  EXPECT_NE(shown.find("12 requests: 12 answered"), std::string::npos) << shown;
}

TEST(BatchProgressTest, LinesSayWhatHappens) {
  const cli::BatchCounts counts{.total = 40,
                                .answered = 7,
                                .refused = 2,
                                .skipped = 3,
                                .prompt_tokens = 200,
                                .cached_tokens = 122,
                                .generated_tokens = 500};
  EXPECT_EQ(cli::batch_state_line(counts, 8, 4),
            "12 of 40 requests (2 refused, 3 from before), 8 running, 125.0 tok/s, 61 % of the prompt tokens cached");
  EXPECT_EQ(cli::batch_state_line({.answered = 1}, 0, 0), "1 requests, 0 running, 0.0 tok/s");
  EXPECT_EQ(cli::batch_summary(counts, 1, 4),
            "12 requests: 7 answered, 2 refused, 3 from before; prompt 200 tokens (122 cached), generated 500, 125.0 "
            "tok/s in 4.0 s; 1 preemptions");
}

TEST_F(BatchTest, ARecordIsReplayedStepByStep) {
  const std::map<std::string, json::object> requests = mixed_requests(true);
  const std::string record = path("record"), first = path("first"), second = path("second"), tokens = path("tokens");
  batch(lines_of(requests), concat("--max-tokens 512 --max-sequences 5 --record ", record, " --trace ", first));
  const CliResult replayed =
      weir(concat("replay ", k3_, " ", record, " --trace ", second, " --tokens ", tokens, " ", kExact));
  EXPECT_EQ(replayed.code, 0) << replayed.err;
  const std::regex times("\"(model|other)_ms\":[0-9.]+,");
  EXPECT_EQ(std::regex_replace(read(first), times, ""), std::regex_replace(read(second), times, ""));
  EXPECT_GT(read(tokens).size(), 1000u);
  const CliResult refused = weir(concat("replay ", k3_, " ", first));
  EXPECT_NE(refused.code, 0);
  EXPECT_NE(refused.err.find("line 1: field 'engine'"), std::string::npos) << refused.err;
}

}  // namespace
}  // namespace weir::test
