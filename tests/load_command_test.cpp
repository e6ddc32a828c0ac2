// `weir load` as a user meets it, against servers that behave and servers that don't.
#include <boost/json.hpp>
#include <mutex>

#include "tests/support/cli.h"
#include "tests/support/mock_server.h"

namespace weir::test {
namespace {

namespace json = boost::json;
using Call = MockServer::Call;
using std::chrono::milliseconds;

std::string whole(int status, const std::string& body, const std::string& more = "") {
  return concat("HTTP/1.1 ", status, " Status\r\nContent-Type: application/json\r\n", more,
                "Content-Length: ", body.size(), "\r\n\r\n", body);
}

const std::string kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

std::string piece(const std::string& bytes) {
  char size[32];
  std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  return size + bytes + "\r\n";
}

std::string text_event(const std::string& text) {
  return concat("data: {\"choices\":[{\"index\":0,\"text\":\"", text, "\",\"finish_reason\":null}]}\n\n");
}

std::string end_events(int64_t prompt, int64_t completion, int64_t cached) {
  return concat("data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n",
                "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":", prompt, ",\"completion_tokens\":", completion,
                ",\"prompt_tokens_details\":{\"cached_tokens\":", cached, "}}}\n\ndata: [DONE]\n\n");
}

// What is asked before the load. False: it is part of the load.
bool answered_setup(const Call& call) {
  if (call.path == "/v1/models") {
    call.say(whole(200, R"({"object":"list","data":[{"id":"mock","object":"model"}]})"));
  } else if (call.path == "/tokenize") {
    const std::string text(json::parse(call.body).at("content").as_string());
    const auto spaces = std::count(text.begin(), text.end(), ' ');
    json::array tokens(static_cast<size_t>(spaces + 1), 7);  // a token a word
    call.say(whole(200, json::serialize(json::object{{"tokens", tokens}})));
  } else {
    return false;
  }
  return true;
}

int64_t words_of(const Call& call) {
  const std::string prompt(json::parse(call.body).at("prompt").as_string());
  return std::count(prompt.begin(), prompt.end(), ' ') + 1;
}

// A server that answers everything, four tokens in three chunks, `gap` apart.
bool good_answer(const Call& call, milliseconds gap) {
  if (answered_setup(call)) return true;
  call.wait(gap);
  call.say(kStreamHead + piece(text_event("one")));
  call.wait(gap);
  call.say(piece(text_event("two three")));
  call.wait(gap);
  call.say(piece(text_event("four")) + piece(end_events(words_of(call), 4, 3)) + "0\r\n\r\n");
  return true;
}

class LoadCommandTest : public CliFixture {
 protected:
  json::object report(const MockServer& server, const std::string& arguments, int code = 0) {
    last_ = weir(concat("load ", server.url(), " --output json ", arguments));
    EXPECT_EQ(last_.code, code) << last_.out << last_.err;
    return json::parse(last_.out).as_object();
  }
  CliResult last_;
};

double number(const json::object& report, const char* key) { return report.at(key).to_number<double>(); }

TEST_F(LoadCommandTest, MeasuresAServerThatAnswers) {
  std::mutex mutex;
  std::vector<json::object> bodies;
  MockServer server([&](const Call& call) {
    if (call.path == "/v1/completions") {
      const std::lock_guard lock(mutex);
      bodies.push_back(json::parse(call.body).as_object());
    }
    return good_answer(call, milliseconds(20));
  });
  const json::object out = report(server, "-n 6 -c 2 --prompts random:40,4 --goodput tpot:1000,e2e:5 --seed 3");
  EXPECT_EQ(out.at("model").as_string(), "mock");
  EXPECT_EQ(out.at("completed").as_int64(), 6);
  EXPECT_EQ(out.at("failed").as_int64(), 0);
  EXPECT_EQ(out.at("total_input_tokens").as_int64(), 240);
  EXPECT_EQ(out.at("total_output_tokens").as_int64(), 24);
  EXPECT_EQ(out.at("total_cached_tokens").as_int64(), 18);
  EXPECT_EQ(out.at("max_in_flight").as_int64(), 2);
  EXPECT_GE(number(out, "mean_ttft_ms"), 20);
  EXPECT_GE(number(out, "median_itl_ms"), 20);
  EXPECT_GE(number(out, "median_tpot_ms"), 40.0 / 3);
  EXPECT_GE(number(out, "p99_e2el_ms"), 60);
  EXPECT_LT(number(out, "mean_ttft_ms"), number(out, "mean_e2el_ms"));
  EXPECT_EQ(number(out, "request_goodput"), 0);  // 5 ms are not enough
  EXPECT_NEAR(number(out, "output_throughput") * number(out, "duration"), 24, 1e-6);
  EXPECT_GE(number(out, "duration"), 0.18);
  // The connections are used again.
  EXPECT_LE(server.connections(), 3);
  ASSERT_EQ(bodies.size(), 6u);
  std::set<std::string> prompts;
  for (const json::object& body : bodies) {
    EXPECT_EQ(body.at("max_tokens").as_int64(), 4);
    EXPECT_TRUE(body.at("stream").as_bool());
    EXPECT_TRUE(body.at("stream_options").at("include_usage").as_bool());
    EXPECT_TRUE(body.at("ignore_eos").as_bool());
    prompts.insert(std::string(body.at("prompt").as_string()));
  }
  EXPECT_EQ(prompts.size(), 6u);
}

TEST_F(LoadCommandTest, TheTableAndTheCsvLineSayTheSame) {
  MockServer server([](const Call& call) { return good_answer(call, milliseconds(1)); });
  const CliResult table = weir(concat("load ", server.url(), " -n 2 --prompts random:5,4"));
  ASSERT_EQ(table.code, 0) << table.err;
  for (const char* part : {"2 completed, 0 failed", "10 in (6 cached, 60.0 %), 8 out", "TTFT", "TPOT", "ITL", "E2E"}) {
    EXPECT_NE(table.out.find(part), std::string::npos) << part << "\n" << table.out;
  }
  const CliResult csv = weir(concat("load ", server.url(), " -n 2 --prompts random:5,4 --output csv"));
  ASSERT_EQ(csv.code, 0) << csv.err;
  EXPECT_EQ(std::count(csv.out.begin(), csv.out.end(), '\n'), 2);
  EXPECT_TRUE(csv.out.starts_with("url,model,endpoint,prompts,")) << csv.out;
  EXPECT_NE(csv.out.find(",\"random:5,4\","), std::string::npos) << csv.out;
}

TEST_F(LoadCommandTest, AnAnswerMayBeCutAnywhere) {
  MockServer server([](const Call& call) {
    if (answered_setup(call)) return true;
    const std::string all = kStreamHead + piece(": keep-alive\n\n") + piece(text_event("one")) +
                            piece(text_event("t\xc3\xa4o")) + piece(end_events(5, 2, 0)) + "0\r\n\r\n";
    for (const char byte : all) {
      call.say({&byte, 1});
      if (call.number % 2 == 0) std::this_thread::yield();
    }
    return true;
  });
  const json::object out = report(server, "-n 8 -c 4 --prompts random:5,4");
  EXPECT_EQ(out.at("completed").as_int64(), 8);
  EXPECT_EQ(out.at("total_output_tokens").as_int64(), 16);
}

// Each answer goes wrong in its own way; the run goes on, counts them by kind and quotes the first.
TEST_F(LoadCommandTest, CountsFailuresByKind) {
  std::atomic<int> next = 0;
  MockServer server([&](const Call& call) {
    if (answered_setup(call)) return true;
    switch (next++) {
      case 0:
        call.say(whole(503, R"({"error":{"message":"try\nlater","type":"x"}})"));
        return true;
      case 1:
        call.say(whole(503, "busy"));
        return true;
      case 2:
        call.say(kStreamHead + piece(text_event("one")));
        return false;  // closed within the answer
      case 3:
        return false;
      case 4:
        call.say(kStreamHead + piece("data: {\"choices\": [\n\n") + "0\r\n\r\n");
        return false;
      case 5:
        call.say(whole(200, "<html>not a stream</html>"));
        return true;
      case 6:
        call.say("SSH-2.0-OpenSSH_9.2\r\n");
        return false;
      case 7:
        call.say(kStreamHead + piece(text_event("one")) + piece("data: {\"error\":{\"message\":\"nan\"}}\n\n") +
                 "0\r\n\r\n");
        return true;
      case 8:
        call.say(kStreamHead + piece(end_events(5, 0, 0)) + "0\r\n\r\n");
        return true;
      case 9:
        call.say(kStreamHead + piece(text_event("one")) + "0\r\n\r\n");
        return true;  // no end
      default:
        return good_answer(call, milliseconds(1));
    }
  });
  const json::object out = report(server, "-n 12 --prompts random:5,4", 1);
  EXPECT_EQ(out.at("completed").as_int64(), 2);
  EXPECT_EQ(out.at("failed").as_int64(), 10);
  EXPECT_EQ(json::serialize(out.at("failures")),
            R"({"closed":3,"empty":1,"error event":1,"http 503":2,"malformed":3})");
  EXPECT_EQ(out.at("first_failure").as_string(), "http 503: try\\x0alater");
  EXPECT_NE(last_.err.find("10 of 12 requests failed; the first one: http 503"), std::string::npos) << last_.err;
  EXPECT_EQ(std::count(last_.err.begin(), last_.err.end(), '\n'), 1) << last_.err;
}

TEST_F(LoadCommandTest, ARequestThatTakesTooLongFails) {
  std::atomic<int> next = 0;
  MockServer server([&](const Call& call) {
    if (answered_setup(call)) return true;
    if (next++ > 0) return good_answer(call, milliseconds(1));
    call.say(kStreamHead + piece(text_event("one")));
    call.wait(milliseconds(700));
    return false;
  });
  const json::object out = report(server, "-n 3 --prompts random:5,4 --timeout 0.3", 1);
  EXPECT_EQ(json::serialize(out.at("failures")), R"({"timeout":1})");
  EXPECT_EQ(out.at("completed").as_int64(), 2);
}

TEST_F(LoadCommandTest, AConnectionThatWasClosedInIdlenessIsNoFailure) {
  MockServer server([&](const Call& call) {
    good_answer(call, milliseconds(1));
    return false;  // says keep-alive, and closes
  });
  const json::object out = report(server, "-n 5 --prompts random:5,4");
  EXPECT_EQ(out.at("completed").as_int64(), 5);
}

TEST_F(LoadCommandTest, NobodyThereIsOneClearError) {
  std::string url;
  {
    MockServer server([](const Call&) { return false; });
    url = server.url();
  }
  expect_error("load " + url, {url, "connect", "refused"});
  expect_error("load " + url + " --model m --prompts random:5", {url, "refused"});
  expect_error("load https://example.org", {"https is not supported"});
  expect_error("load ftp://example.org", {"http://HOST"});
}

TEST_F(LoadCommandTest, OpenLoadComesAsItIsDue) {
  MockServer server([](const Call& call) { return good_answer(call, milliseconds(40)); });
  const json::object out = report(server, "--rate 200 -n 40 --prompts random:5,4 --seed 1");
  EXPECT_EQ(out.at("completed").as_int64(), 40);
  // 0.2 s of arrivals, each answered in 0.12 s: one after the other they would take 4.8 s.
  EXPECT_GT(out.at("max_in_flight").as_int64(), 5);
  EXPECT_LT(number(out, "duration"), 4);
  EXPECT_EQ(out.at("load").as_string(), "open");
}

TEST_F(LoadCommandTest, ConversationsCarryTheAnswersOn) {
  std::mutex mutex;
  std::vector<json::array> asked;
  MockServer server([&](const Call& call) {
    if (answered_setup(call)) return true;
    {
      const std::lock_guard lock(mutex);
      asked.push_back(json::parse(call.body).at("messages").as_array());
    }
    call.say(
        kStreamHead +
        piece("data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"
              "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"fine \"}}]}\n\n"
              "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"thanks\"},\"finish_reason\":\"stop\"}]}\n\n"
              "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2},"
              "\"timings\":{\"cache_n\":4,\"prompt_n\":5}}\n\ndata: [DONE]\n\n") +
        "0\r\n\r\n");
    return true;
  });
  const json::object out = report(server, "--endpoint chat --prompts turns:3,6,2 -n 6");
  EXPECT_EQ(out.at("completed").as_int64(), 6);
  EXPECT_EQ(out.at("total_cached_tokens").as_int64(), 24);
  ASSERT_EQ(asked.size(), 6u);
  EXPECT_EQ(asked[0].size(), 1u);
  EXPECT_EQ(asked[2].size(), 5u);
  EXPECT_EQ(asked[2].at(3).at("content").as_string(), "fine thanks");
  EXPECT_EQ(asked[2].at(0), asked[0].at(0));
  EXPECT_EQ(asked[3].size(), 1u);
  EXPECT_NE(asked[3].at(0), asked[0].at(0));
}

TEST_F(LoadCommandTest, WithoutTokenizePromptsAreSizedByUsage) {
  std::mutex mutex;
  std::vector<int64_t> sizes;
  MockServer server([&](const Call& call) {
    if (call.path == "/tokenize") {
      call.say(whole(404, "not here"));
      return true;
    }
    if (answered_setup(call)) return true;
    {
      const std::lock_guard lock(mutex);
      sizes.push_back(words_of(call));
    }
    // Two tokens a word, and one in front.
    call.say(kStreamHead + piece(text_event("one") + end_events(2 * words_of(call) + 1, 1, 0)) + "0\r\n\r\n");
    return true;
  });
  const json::object out = report(server, "-n 2 --prompts random:100,1");
  EXPECT_EQ(out.at("total_input_tokens").as_int64(), 202);
  EXPECT_EQ(sizes.back(), 50);
}

TEST_F(LoadCommandTest, WarmUpAsksOtherPromptsAndDoesNotCount) {
  std::mutex mutex;
  std::vector<std::string> prompts;
  MockServer server([&](const Call& call) {
    if (call.path == "/v1/completions") {
      const std::lock_guard lock(mutex);
      prompts.emplace_back(json::parse(call.body).at("prompt").as_string());
    }
    return good_answer(call, milliseconds(1));
  });
  const json::object out = report(server, "-n 4 --warmup 2 --prompts repeat:2,6,4");
  EXPECT_EQ(out.at("completed").as_int64(), 4);
  ASSERT_EQ(prompts.size(), 6u);
  EXPECT_EQ(prompts[2], prompts[4]);
  EXPECT_EQ(prompts[3], prompts[5]);
  EXPECT_NE(prompts[2], prompts[3]);
  EXPECT_EQ(std::set<std::string>(prompts.begin(), prompts.begin() + 4).size(), 4u);
}

// 64 streams of 40 chunks at a time: processor time, which other work on the machine does not change.
TEST_F(LoadCommandTest, AChunkCostsLittleAt64Connections) {
  constexpr int64_t kRequests = 256, kChunks = 40;
  MockServer server([](const Call& call) {
    if (answered_setup(call)) return true;
    call.say(kStreamHead);
    for (int64_t i = 0; i < kChunks; ++i) {
      call.wait(milliseconds(5));
      call.say(piece(text_event("word")));
    }
    call.say(piece(end_events(5, kChunks, 0)) + "0\r\n\r\n");
    return true;
  });
  const json::object out = report(server, concat("-c 64 --prompts random:5,40 -n ", kRequests));
  EXPECT_EQ(out.at("completed").as_int64(), kRequests);
  EXPECT_EQ(out.at("total_output_tokens").as_int64(), kRequests * kChunks);
  const double cpu_us = number(out, "client_cpu_percent") / 100 * number(out, "duration") * 1e6;
  RecordProperty("cpu_us_per_chunk", concat(cpu_us / (kRequests * kChunks)));
  EXPECT_LT(cpu_us / (kRequests * kChunks), 100);
  EXPECT_GT(number(out, "median_client_chunk_us"), 0);
}

TEST_F(LoadCommandTest, CtrlCPrintsWhatWasMeasured) {
  MockServer server([](const Call& call) { return good_answer(call, milliseconds(30)); });
  const std::string command = concat(WEIR_BINARY, " load ", server.url(), " --duration 60 -c 2 --prompts random:5,4",
                                     " --output json & sleep 1; kill -INT $!; wait $!");
  const int status = std::system(concat("(", command, ") >", path("out"), " 2>", path("err")).c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_EQ(read(path("err")), "weir: interrupted\n");
  const json::object out = json::parse(read(path("out"))).as_object();
  EXPECT_TRUE(out.at("interrupted").as_bool());
  EXPECT_GT(out.at("completed").as_int64(), 0);
  EXPECT_EQ(out.at("failed").as_int64(), 0);
  EXPECT_LE(out.at("cancelled").as_int64(), 2);
}

TEST_F(LoadCommandTest, TheKeyIsSentAndNotShown) {
  std::atomic<int> with_key = 0;
  MockServer server([&](const Call& call) {
    with_key += call.head.find("Authorization: Bearer s3cret\r\n") != std::string::npos ||
                call.head.ends_with("Authorization: Bearer s3cret");
    return good_answer(call, milliseconds(1));
  });
  setenv("WEIR_LOAD_TEST_KEY", "s3cret", 1);
  const json::object out = report(server, "-n 2 --prompts random:5,4 --api-key-env WEIR_LOAD_TEST_KEY");
  EXPECT_EQ(with_key, server.calls());
  EXPECT_EQ(last_.out.find("s3cret"), std::string::npos);
  expect_error(concat("load ", server.url(), " --api-key-env WEIR_NO_SUCH_KEY"), {"WEIR_NO_SUCH_KEY"});
}

}  // namespace
}  // namespace weir::test
