// `weir batch` in tests: requests, results, and the answers that each request has alone.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <chrono>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "formats/json.h"
#include "server/openai.h"
#include "tests/support/cli.h"
#include "tests/support/fixtures.h"

namespace weir::test {

namespace json = boost::json;
using namespace std::chrono_literals;

inline constexpr const char* kExact = " --kv-dtype f32 --activations f32 --threads 2";

inline json::object chat(const std::string& words, int64_t max_tokens, json::object more = {}) {
  json::object body{{"messages", {{{"role", "user"}, {"content", words}}}}, {"max_tokens", max_tokens}};
  for (const auto& [key, value] : more) body[key] = value;
  return body;
}

inline json::object completion(json::value prompt, int64_t max_tokens, json::object more = {}) {
  json::object body{{"prompt", std::move(prompt)}, {"max_tokens", max_tokens}};
  for (const auto& [key, value] : more) body[key] = value;
  return body;
}

inline std::string line(const std::string& id, const json::object& body) {
  const bool is_chat = body.contains("messages");
  return json::serialize(json::object{{"custom_id", id},
                                      {"method", "POST"},
                                      {"url", is_chat ? "/v1/chat/completions" : "/v1/completions"},
                                      {"body", body}}) +
         "\n";
}

inline std::vector<json::object> objects(const std::string& text) {
  std::vector<json::object> out;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    out.push_back(json::parse(text.substr(at, end - at)).as_object());
  }
  EXPECT_TRUE(text.empty() || text.ends_with('\n'));
  return out;
}

// By custom_id; of those that have none by "line N" as their id says.
inline std::map<std::string, json::object> by_id(const std::string& text) {
  std::map<std::string, json::object> out;
  for (json::object& object : objects(text)) {
    const std::string id(object.at(object.at("custom_id").is_null() ? "id" : "custom_id").as_string());
    EXPECT_TRUE(out.emplace(id, object).second) << id << " answered twice";
  }
  return out;
}

inline const json::object& body_of(const json::object& result) { return result.at("response").at("body").as_object(); }
inline const json::object& choice_of(const json::object& result, size_t index = 0) {
  return body_of(result).at("choices").at(index).as_object();
}
inline int64_t usage_of(const json::object& result, std::string_view field) {
  return body_of(result).at("usage").at(field).to_number<int64_t>();
}
inline int64_t cached(const json::object& result) {
  return body_of(result).at("usage").at("prompt_tokens_details").at("cached_tokens").to_number<int64_t>();
}

inline std::string first_character(const std::string& text) {
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

inline std::map<std::string, json::object> mixed_requests(bool chats) {
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

inline std::string lines_of(const std::map<std::string, json::object>& requests) {
  std::string lines;
  for (const auto& [id, body] : requests) lines += line(id, body);
  return lines;
}

}  // namespace weir::test
