// weir batch's files: bad lines, and results that survive whatever ends the program.
#include "tests/support/batch.h"

namespace weir::test {
namespace {

TEST_F(BatchTest, AProgramThatIsKilledGoesOnWhereItWas) {
  std::map<std::string, json::object> requests;
  for (int i = 0; i < 40; ++i) {
    requests[concat("r", i)] = completion(concat("prompt ", i).c_str(), 60 + i * 5, {{"ignore_eos", true}});
  }
  const std::map<std::string, json::object> whole = batch(lines_of(requests));
  std::filesystem::remove(out());
  std::mt19937 random(5);
  int killed = 0, torn = 0, status = 0;
  const std::vector<std::string> arguments{"batch",         k3_,   path("in.jsonl"),  out(), "--kv-dtype", "f32",
                                           "--activations", "f32", "--max-sequences", "3",   "--threads",  "1"};
  for (int round = 0; round < 60; ++round) {
    const int64_t before = lines_out();
    const pid_t child = start(arguments);
    if (wait_for_lines(child, before + 1 + random() % 4, status)) break;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    if (!WIFSIGNALED(status)) break;
    ++killed;
    // A crash of the machine may lose the end of what was written, too.
    const std::string text = read(out());
    const size_t last = text.rfind('\n', text.size() - 2);
    if (random() % 2 == 0 && last != std::string::npos) {
      std::filesystem::resize_file(out(), last + 2 + random() % (text.size() - last - 2));
      ++torn;
    }
  }
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << read(path("err"));
  EXPECT_GE(killed, 4);
  EXPECT_GE(torn, 1);
  const std::map<std::string, json::object> results = by_id(read(out()));
  ASSERT_EQ(results.size(), whole.size());
  for (const auto& [id, result] : whole)
    EXPECT_EQ(body_of(results.at(id)).at("choices"), body_of(result).at("choices"));
}

TEST_F(BatchTest, ATornLineIsCutAndItsRequestDoneAgain) {
  std::map<std::string, json::object> requests;
  for (int i = 0; i < 3; ++i) requests[concat("r", i)] = completion("text", 3 + i);
  batch(lines_of(requests));
  const std::string whole = read(out());
  const size_t last = whole.rfind('\n', whole.size() - 2) + 1;
  for (const size_t size : {last + 1, (last + whole.size()) / 2, whole.size() - 1}) {
    std::ofstream(out(), std::ios::binary) << whole.substr(0, size);
    const CliResult again = weir(concat("batch ", k3_, " ", path("in.jsonl"), " ", out(), kExact));
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_NE(again.err.find("torn"), std::string::npos) << again.err;
    EXPECT_NE(again.err.find("1 answered, 0 refused, 2 from before"), std::string::npos) << again.err;
    EXPECT_EQ(read(out()).substr(0, last), whole.substr(0, last));
    EXPECT_EQ(by_id(read(out())).size(), 3u);
  }
  // Nothing is left to do, and nothing changes.
  const std::string before = read(out());
  EXPECT_EQ(weir(concat("batch ", k3_, " ", path("in.jsonl"), " ", out(), kExact)).code, 0);
  EXPECT_EQ(read(out()), before);
}

TEST_F(BatchTest, ABadLineGetsAnErrorAndTheOthersTheirAnswers) {
  struct Bad {
    std::string line;
    std::vector<std::string> parts;
    const char* param = nullptr;
  };
  const auto with = [](json::object more) { return line("", chat("Hi", 2, more)); };
  const auto completes = [](json::object more) { return line("", completion("Hi", 2, more)); };
  const json::array image{{{"type", "image_url"}, {"image_url", {{"url", "x"}}}}};
  std::vector<Bad> bad{
      {"{\"custom_id\":", {"not JSON"}},
      {"[1]\n", {"object"}},
      {"{}\n", {"custom_id"}, "custom_id"},
      {R"({"custom_id":5,"method":"POST","url":"/v1/completions","body":{}})", {"custom_id", "5"}, "custom_id"},
      {R"({"custom_id":"","method":"POST","url":"/v1/completions","body":{}})", {"custom_id"}, "custom_id"},
      {R"({"custom_id":"@","method":"GET","url":"/v1/completions","body":{}})", {"POST", "GET"}, "method"},
      {R"({"custom_id":"@","method":"POST","url":"/v1/embeddings","body":{}})", {"/v1/completions"}, "url"},
      {R"({"custom_id":"@","method":"POST","url":"/v1/completions","body":[]})", {"body"}, "body"},
      {R"({"custom_id":"@","method":"POST","url":"/v1/completions","body":{}})", {"prompt"}, "prompt"},
      {R"({"custom_id":"@","method":"POST","url":"/v1/chat/completions","body":{}})", {"messages"}, "messages"},
      {with({{"messages", json::array{}}}), {"messages"}, "messages"},
      {with({{"messages", {{{"role", "user"}, {"content", image}}}}}), {"image"}, "messages[0].content[0]"},
      {with({{"messages", {{{"role", "wizard"}, {"content", "x"}}}}}), {"role", "wizard"}, "messages[0].role"},
      {with({{"messages", {{{"content", "x"}}}}}), {"role"}, "messages[0].role"},
      {with({{"temperature", "hot"}}), {"temperature", "hot"}, "temperature"},
      {with({{"temperature", -1}}), {"temperature", "-1"}, "temperature"},
      {with({{"top_p", 0}}), {"top_p"}, "top_p"},
      {with({{"top_p", 1.5}}), {"top_p"}, "top_p"},
      {with({{"min_p", 2}}), {"min_p"}, "min_p"},
      {with({{"top_k", 1.5}}), {"top_k"}, "top_k"},
      {with({{"presence_penalty", 3}}), {"presence_penalty"}, "presence_penalty"},
      {with({{"frequency_penalty", -3}}), {"frequency_penalty"}, "frequency_penalty"},
      {with({{"repetition_penalty", 0}}), {"repetition_penalty"}, "repetition_penalty"},
      {with({{"logit_bias", {{"9999", 1}}}}), {"logit_bias"}, "logit_bias"},
      {with({{"logit_bias", {{"x", 1}}}}), {"logit_bias"}, "logit_bias"},
      {with({{"logit_bias", {{"5", 101}}}}), {"logit_bias"}, "logit_bias.5"},
      {with({{"seed", 1.5}}), {"seed"}, "seed"},
      {with({{"max_tokens", 0}}), {"max_tokens"}, "max_tokens"},
      {with({{"max_completion_tokens", "9"}}), {"max_completion_tokens"}, "max_completion_tokens"},
      {with({{"max_tokens", 5000}}), {"5000", "4096"}, "messages"},
      {with({{"n", 0}}), {"n"}, "n"},
      {with({{"n", 1000}}), {"n", "1000"}, "n"},
      {with({{"stop", ""}}), {"stop"}, "stop"},
      {with({{"stop", json::array(17, "x")}}), {"stop", "16"}, "stop"},
      {with({{"stop", {"x", 5}}}), {"stop"}},
      {with({{"top_logprobs", 3}}), {"logprobs"}, "top_logprobs"},
      {with({{"logprobs", true}, {"top_logprobs", 21}}), {"top_logprobs", "21"}, "top_logprobs"},
      {with({{"logprobs", 3}}), {"logprobs"}, "logprobs"},
      {with({{"stream", true}}), {"stream"}, "stream"},
      {with({{"response_format", {{"type", "json_schema"}}}}), {"json_schema"}, "response_format.type"},
      {with({{"tool_choice", "required"}}), {"tool_choice"}, "tool_choice"},
      {with({{"tools", {{{"type", "web"}}}}}), {"tools[0]"}, "tools[0]"},
      {with({{"parallel_tool_calls", "no"}}), {"parallel_tool_calls"}, "parallel_tool_calls"},
      {with({{"reasoning_effort", "huge"}}), {"reasoning_effort", "huge"}, "reasoning_effort"},
      {with({{"chat_template_kwargs", {{"thinking", 5}}}}), {"thinking"}, "options.thinking"},
      {with({{"chat_template_kwargs", {{"images", {"x"}}}}}), {"images"}, "chat_template_kwargs.images"},
      {with({{"guided_json", {{"type", "object"}}}}), {"guided_json"}, "guided_json"},
      {with({{"functions", {{{"name", "f"}}}}}), {"functions"}, "functions"},
      {completes({{"suffix", "x"}}), {"suffix"}, "suffix"},
      {completes({{"best_of", 3}}), {"best_of"}, "best_of"},
      {completes({{"echo", true}, {"logprobs", 1}}), {"echo"}, "logprobs"},
      {completes({{"prompt", json::array{}}}), {"prompt"}, "prompt"},
      {completes({{"prompt", {1, "a"}}}), {"prompt[1]"}, "prompt[1]"},
      {completes({{"prompt", {"a", 1}}}), {"prompt[1]"}, "prompt[1]"},
      {completes({{"prompt", {1, 512}}}), {"512"}, "prompt"},
      {completes({{"prompt", {1, -1}}}), {"-1"}, "prompt[1]"},
      {completes({{"prompt", ""}}), {"prompt", "token"}, "prompt"},
  };
  std::string lines;
  for (size_t i = 0; i < bad.size(); ++i) {
    std::string text = bad[i].line;
    for (const std::string_view open : {R"("custom_id":"")", R"("custom_id":"@")"}) {
      if (open == R"("custom_id":"")" && bad[i].parts[0] == "custom_id") continue;
      if (const size_t at = text.find(open); at != std::string::npos) {
        text.replace(at, open.size(), concat(R"("custom_id":"bad-)", i, "\""));
      }
    }
    if (!text.ends_with('\n')) text += '\n';
    lines += text;
    if (i % 10 == 0) lines += "  \n" + line(concat("good-", i), completion("Hi", 2));
  }
  const auto results = batch(lines);
  const std::vector<json::object> all = objects(read(out()));
  int64_t number = 0;
  std::map<int64_t, const json::object*> by_line;
  for (const json::object& result : all) {
    by_line[std::stoll(std::string(result.at("id").as_string()).substr(10))] = &result;
  }
  for (size_t i = 0; i < bad.size(); ++i) {
    SCOPED_TRACE(bad[i].line);
    ++number;
    ASSERT_TRUE(by_line.contains(number));
    const json::object& result = *by_line[number];
    if (i % 10 == 0) number += 2;
    ASSERT_EQ(result.at("response").at("status_code"), 400) << json::serialize(result);
    const json::object& error = body_of(result).at("error").as_object();
    EXPECT_EQ(error.at("type"), "invalid_request_error");
    const std::string message(error.at("message").as_string());
    for (const std::string& part : bad[i].parts) EXPECT_NE(message.find(part), std::string::npos) << message;
    if (bad[i].param != nullptr) {
      EXPECT_EQ(error.at("param"), bad[i].param) << message;
    }
  }
  for (size_t i = 0; i < bad.size(); i += 10) {
    EXPECT_EQ(results.at(concat("good-", i)).at("response").at("status_code"), 200);
  }
  // Errors are results as well: they are not written again.
  const std::string before = read(out());
  EXPECT_EQ(weir(concat("batch ", k3_, " ", path("in.jsonl"), " ", out(), kExact)).code, 0);
  EXPECT_EQ(read(out()), before);
}

TEST_F(BatchTest, AnIdThatComesTwiceIsRefusedWithBothLines) {
  const std::string lines =
      line("a", completion("x", 1)) + line("b", completion("x", 1)) + line("a", completion("y", 1));
  expect_error(concat("batch ", k3_, " ", in(lines), " ", out()), {"lines 1 and 3", "'a'"});
  EXPECT_EQ(read(out()), "");
  // A pipe can't be read ahead: the second one is a bad line.
  for (int round = 0; round < 2; ++round) {
    int pipes[2];
    ASSERT_EQ(pipe(pipes), 0);
    fcntl(pipes[1], F_SETFD, FD_CLOEXEC);
    const pid_t child = start({"batch", k3_, "-", out()}, pipes[0]);
    ASSERT_EQ(write(pipes[1], lines.data(), lines.size()), static_cast<ssize_t>(lines.size()));
    close(pipes[0]);
    close(pipes[1]);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << read(path("err"));
    const auto results = by_id(read(out()));
    ASSERT_EQ(results.size(), 3u);
    const json::object& error = body_of(results.at("batch_req_3")).at("error").as_object();
    EXPECT_NE(std::string(error.at("message").as_string()).find("lines 1 and 3"), std::string::npos);
    EXPECT_EQ(error.at("code"), "duplicate_custom_id");
  }
}

TEST_F(BatchTest, FilesThatAreNoneAreRefused) {
  const std::string good = in(line("a", completion("x", 1)));
  const auto run = [&](const std::string& files) { return concat("batch ", k3_, " ", files); };
  expect_error(run(good + " " + good), {good, "another file"});
  std::filesystem::create_hard_link(good, path("link"));
  expect_error(run(good + " " + path("link")), {"link", "another file"});
  expect_error(run("- " + path("in")), {path("in"), "another file"}, line("a", completion("x", 1)));
  expect_error(run(good + " " + folder_.path().string()), {folder_.path().string(), "directory"});
  expect_error(run(folder_.path().string() + " " + out()), {"directory"});
  expect_error(run(good + " /dev/null"), {"/dev/null", "device"});
  expect_error(run("/dev/zero " + out()), {"/dev/zero", "device"});
  expect_error(run(path("none") + " " + out()), {"none"});
  expect_error(run(good + " " + path("none/out")), {"none/out"});
  for (const std::string text : {"hello", "hello\n", "{}\n", "{\"id\":\"x\",\"custom_id\":\"a\"}\n", "{\"id\":\"bat"}) {
    const std::string other = file("other", text);
    const CliResult result = weir(run(good + " " + other + kExact));
    if (text == "{\"id\":\"bat") {
      EXPECT_EQ(result.code, 0) << result.err;  // this may be ours
    } else {
      EXPECT_EQ(result.code, 1) << text;
      EXPECT_NE(result.err.find("not a result of weir batch"), std::string::npos) << result.err;
      EXPECT_EQ(read(other), text);
    }
  }
  expect_error(run(good + " " + out() + " --trace " + folder_.path().string()), {"directory"});
  expect_error(run(good + " " + out() + " --max-batch-rows 4"), {"--max-batch-rows", "--max-sequences"});
  EXPECT_EQ(weir(run(good)).code, 2);
  EXPECT_EQ(weir(run(good + " " + out() + " --max-sequences 0")).code, 2);
  EXPECT_EQ(weir("batch --help").code, 0);
}

TEST_F(BatchTest, CtrlCKeepsWhatIsFinished) {
  std::map<std::string, json::object> requests;
  for (int i = 0; i < 60; ++i) requests[concat("r", i)] = completion("text", 20 + 10 * i, {{"ignore_eos", true}});
  const std::string input = in(lines_of(requests));
  const std::vector<std::string> arguments{"batch",           k3_, input,     out(),
                                           "--max-sequences", "2", "--trace", path("trace")};
  int status = 0;
  pid_t child = start(arguments);
  ASSERT_FALSE(wait_for_lines(child, 2, status)) << read(path("err"));
  kill(child, SIGINT);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_NE(read(path("err")).find("Ctrl-C"), std::string::npos) << read(path("err"));
  const auto results = by_id(read(out()));  // whole lines
  EXPECT_GE(results.size(), 2u);
  EXPECT_LT(results.size(), 60u);
  EXPECT_FALSE(read(path("trace")).empty());
  // Waiting for input ends as well.
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  std::filesystem::remove(out());
  child = start({"batch", k3_, "-", out()}, pipes[0]);
  const std::string one = line("a", completion("x", 1));
  ASSERT_EQ(write(pipes[1], one.data(), one.size()), static_cast<ssize_t>(one.size()));
  ASSERT_FALSE(wait_for_lines(child, 1, status)) << "answered while more may come";
  kill(child, SIGINT);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  close(pipes[0]);
  close(pipes[1]);
}

}  // namespace
}  // namespace weir::test
