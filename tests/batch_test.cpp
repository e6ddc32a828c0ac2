// weir batch as a user meets it: every answer is the one that its request has alone, whatever ran beside it, whatever
// killed the program in between.
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <chrono>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "cli/batch_progress.h"
#include "formats/json.h"
#include "server/openai.h"
#include "tests/support/cli.h"
#include "tests/support/fixtures.h"

namespace weir::test {
namespace {

namespace json = boost::json;
using namespace std::chrono_literals;

constexpr const char* kExact = " --kv-dtype f32 --activations f32 --threads 2";

json::object chat(const std::string& words, int64_t max_tokens, json::object more = {}) {
  json::object body{{"messages", {{{"role", "user"}, {"content", words}}}}, {"max_tokens", max_tokens}};
  for (const auto& [key, value] : more) body[key] = value;
  return body;
}

json::object completion(json::value prompt, int64_t max_tokens, json::object more = {}) {
  json::object body{{"prompt", std::move(prompt)}, {"max_tokens", max_tokens}};
  for (const auto& [key, value] : more) body[key] = value;
  return body;
}

std::string line(const std::string& id, const json::object& body) {
  const bool is_chat = body.contains("messages");
  return json::serialize(json::object{{"custom_id", id},
                                      {"method", "POST"},
                                      {"url", is_chat ? "/v1/chat/completions" : "/v1/completions"},
                                      {"body", body}}) +
         "\n";
}

std::vector<json::object> objects(const std::string& text) {
  std::vector<json::object> out;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    out.push_back(json::parse(text.substr(at, end - at)).as_object());
  }
  EXPECT_TRUE(text.empty() || text.ends_with('\n'));
  return out;
}

// By custom_id; of those that have none by "line N" as their id says.
std::map<std::string, json::object> by_id(const std::string& text) {
  std::map<std::string, json::object> out;
  for (json::object& object : objects(text)) {
    const std::string id(object.at(object.at("custom_id").is_null() ? "id" : "custom_id").as_string());
    EXPECT_TRUE(out.emplace(id, object).second) << id << " answered twice";
  }
  return out;
}

const json::object& body_of(const json::object& result) { return result.at("response").at("body").as_object(); }
const json::object& choice_of(const json::object& result, size_t index = 0) {
  return body_of(result).at("choices").at(index).as_object();
}
int64_t usage_of(const json::object& result, std::string_view field) {
  return body_of(result).at("usage").at(field).to_number<int64_t>();
}
int64_t cached(const json::object& result) {
  return body_of(result).at("usage").at("prompt_tokens_details").at("cached_tokens").to_number<int64_t>();
}

std::string first_character(const std::string& text) {
  size_t size = 1;
  while (size < text.size() && (text[size] & 0xC0) == 0x80) ++size;
  return text.substr(0, size);
}

// A request answered by the plain loop, alone.
class Reference {
 public:
  explicit Reference(const std::string& folder) : model_(Model::load(folder)), text_(ModelText::of(*model_)) {}

  std::vector<ParsedMessage> answers(const json::object& body) const {
    const openai::Served served{.text = &text_,
                                .vocab = model_->spec.vocab,
                                .context = model_->spec.max_positions,
                                .tokens = 1 << 20,
                                .stop_tokens = model_->spec.stop_tokens};
    const openai::Endpoint endpoint =
        body.contains("messages") ? openai::Endpoint::kChat : openai::Endpoint::kCompletions;
    const openai::Job job = openai::prepare(openai::parse_body(endpoint, body), served);
    std::vector<ParsedMessage> out;
    for (size_t i = 0; i < job.requests.size(); ++i) {
      const Request& request = job.requests[i];
      const auto prompt = static_cast<int64_t>(request.prompt.size());
      Engine engine(*model_, exact_options(64, prompt + request.max_tokens));
      GenerateOptions options;
      options.max_tokens = request.max_tokens;
      options.sampling.temperature = request.sampling.temperature;
      options.sampling.seed = request.sampling.seed;
      options.stop_tokens = std::vector<int64_t>(request.stop_tokens.begin(), request.stop_tokens.end());
      const Completion done = generate(engine, request.prompt, options);
      Answer answer = openai::answer_of(job, i, served, "call_");
      std::vector<ChatEvent> events;
      for (const int32_t id : done.tokens) {
        if (!answer.push({.id = id}, events)) break;
      }
      RequestEnd end{.reason = done.finish_reason, .stop_token = done.stop_token.value_or(-1)};
      end.usage.generated_tokens = done.timings.predicted_n;
      answer.end(end, events);
      out.push_back(answer.message());
    }
    return out;
  }
  const ModelText& text() const { return text_; }

 private:
  std::unique_ptr<Model> model_;
  ModelText text_;
};

class BatchTest : public CliFixture {
 protected:
  std::string in(const std::string& lines) const { return file("in.jsonl", lines); }
  std::string out() const { return path("out.jsonl"); }
  std::map<std::string, json::object> batch(const std::string& lines, const std::string& options = "",
                                            const std::string& model = "") {
    std::filesystem::remove(out());
    const CliResult result =
        weir(concat("batch ", model.empty() ? k3_ : model, " ", in(lines), " ", out(), kExact, " ", options));
    EXPECT_EQ(result.code, 0) << result.err;
    err_ = result.err;
    return by_id(read(out()));
  }
  void expect_answers(const Reference& reference, const std::map<std::string, json::object>& requests,
                      const std::map<std::string, json::object>& results) {
    ASSERT_EQ(results.size(), requests.size());
    for (const auto& [id, body] : requests) {
      SCOPED_TRACE(id);
      const json::object& result = results.at(id);
      ASSERT_EQ(result.at("response").at("status_code"), 200) << json::serialize(result);
      EXPECT_TRUE(result.at("error").is_null());
      const std::vector<ParsedMessage> expected = reference.answers(body);
      ASSERT_EQ(body_of(result).at("choices").as_array().size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        const json::object& choice = choice_of(result, i);
        EXPECT_EQ(choice.at("index"), i);
        EXPECT_EQ(choice.at("finish_reason").as_string(), expected[i].finish_reason);
        if (!body.contains("messages")) {
          EXPECT_EQ(choice.at("text").as_string(), expected[i].content);
          continue;
        }
        const json::object& message = choice.at("message").as_object();
        EXPECT_EQ(message.at("content").as_string(), expected[i].content);
        EXPECT_EQ(message.contains("reasoning_content"), !expected[i].reasoning.empty());
        if (message.contains("reasoning_content")) {
          EXPECT_EQ(message.at("reasoning_content").as_string(), expected[i].reasoning);
        }
      }
    }
  }
  // Started, not waited for; standard input and errors are files.
  pid_t start(const std::vector<std::string>& arguments, int input = -1) {
    const pid_t child = fork();
    if (child != 0) return child;
    const int null = input >= 0 ? input : open("/dev/null", O_RDONLY);
    const int err = open(path("err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(null, 0);
    dup2(err, 1);
    dup2(err, 2);
    std::vector<char*> argv{const_cast<char*>(WEIR_BINARY)};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    execv(WEIR_BINARY, argv.data());
    _exit(127);
  }
  int64_t lines_out() const {
    const std::string text = read(out());
    return std::count(text.begin(), text.end(), '\n');
  }
  // Until the results have so many lines, or the child has ended: true.
  bool wait_for_lines(pid_t child, int64_t lines, int& status) const {
    for (int i = 0; i < 60000 && lines_out() < lines; ++i) {
      if (waitpid(child, &status, WNOHANG) == child) return true;
      std::this_thread::sleep_for(2ms);
    }
    return false;
  }

  const std::string k3_ = fixture("kimi_k3/k3-tiny");
  std::string err_;
};

std::map<std::string, json::object> mixed_requests(bool chats) {
  std::map<std::string, json::object> requests;
  std::mt19937 random(3);
  for (int i = 0; i < 14; ++i) {
    std::string words;
    for (int k = 0; k <= i * 2; ++k) words += concat("word", random() % 20, " ");
    json::object more;
    if (i % 3 == 1) more = {{"temperature", 0.9}, {"seed", i}, {"n", 1 + i % 4}};
    if (i % 3 == 2) more["ignore_eos"] = true;
    const int64_t tokens = 5 + i * 3;
    if (chats && i % 2 == 0) {
      if (i % 4 == 0) more["reasoning_effort"] = "none";
      requests[concat("request-", i)] = chat(words, tokens, more);
    } else if (i % 5 == 3) {
      requests[concat("request-", i)] = completion({words, "another"}, tokens, more);
    } else {
      requests[concat("request-", i)] = completion(words.c_str(), tokens, more);
    }
  }
  return requests;
}

std::string lines_of(const std::map<std::string, json::object>& requests) {
  std::string lines;
  for (const auto& [id, body] : requests) lines += line(id, body);
  return lines;
}

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
      {with({{"response_format", {{"type", "json_object"}}}}), {"json_object"}, "response_format.type"},
      {with({{"tool_choice", "required"}}), {"tool_choice"}, "tool_choice"},
      {with({{"tools", {{{"type", "web"}}}}}), {"tools[0]"}, "tools[0]"},
      {with({{"parallel_tool_calls", false}}), {"parallel_tool_calls"}, "parallel_tool_calls"},
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

}  // namespace
}  // namespace weir::test
