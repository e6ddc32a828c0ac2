// The application behind a real port, in front of any engine.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <thread>

#include "engine/engine_queue.h"
#include "engine/model_text.h"
#include "server/application.h"
#include "tests/support/http_client.h"

namespace weir::test {

namespace json = boost::json;

class TestServer {
 public:
  explicit TestServer(Application::Options options = {})
      : application(std::move(options)),
        server({.port = 0,
                .handler =
                    [this](http::Request request, std::shared_ptr<http::Response> response) {
                      application.handle(std::move(request), std::move(response));
                    },
                .error_body = Application::error_body}) {
    application.count_connections([this] { return server.counters(); });
  }
  // The engine's streams have ended before, or it lives until then.
  ~TestServer() {
    server.stop();
    application.close();
  }
  uint16_t port() const { return server.port(); }
  HttpAnswer post(const std::string& path, const json::object& body, const std::vector<std::string>& headers = {}) {
    return http_post(port(), path, body, headers);
  }
  HttpAnswer get(const std::string& path, const std::vector<std::string>& headers = {}) {
    return http_get(port(), path, headers);
  }

  Application application;
  http::Server server;
};

inline bool within(std::chrono::milliseconds limit, const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

// The choices of a stream, put together as clients do it: in chats {message, logprobs, finish_reason}, elsewhere {text,
// logprobs, finish_reason}.
inline std::vector<json::object> joined_choices(const std::vector<json::value>& events) {
  std::map<int64_t, json::object> choices;
  const auto append = [](json::object& to, std::string_view key, const json::value& piece) {
    json::value& value = to[key];
    value = (value.is_string() ? std::string(value.get_string()) : std::string()) + std::string(piece.as_string());
  };
  for (const json::value& event : events) {
    if (!event.is_object() || !event.get_object().contains("choices")) continue;
    for (const json::value& one : event.at("choices").as_array()) {
      const json::object& piece = one.as_object();
      json::object& choice = choices[piece.at("index").to_number<int64_t>()];
      EXPECT_FALSE(choice.contains("finish_reason")) << "a chunk after the last one";
      if (piece.contains("text")) append(choice, "text", piece.at("text"));
      if (piece.contains("delta")) {
        if (!choice.contains("message")) choice["message"] = json::object();
        json::object& message = choice["message"].as_object();
        for (const auto& [key, value] : piece.at("delta").as_object()) {
          if (key != "tool_calls") {
            append(message, key, value);
            continue;
          }
          if (!message.contains("tool_calls")) message["tool_calls"] = json::array();
          json::array& calls = message["tool_calls"].as_array();
          const json::object& call = value.at(0).as_object();
          const auto index = call.at("index").to_number<size_t>();
          if (index == calls.size()) {
            calls.push_back(call);
            calls.back().as_object().erase("index");
          } else {
            append(calls.at(index).at("function").as_object(), "arguments", call.at("function").at("arguments"));
          }
        }
      }
      for (const auto& [key, value] :
           piece.at("logprobs").is_null() ? json::object() : piece.at("logprobs").as_object()) {
        if (!choice.contains("logprobs")) choice["logprobs"] = json::object();
        json::value& list = choice["logprobs"].as_object()[key];
        if (!value.is_array()) continue;
        if (!list.is_array()) list = json::array();
        for (const json::value& entry : value.get_array()) list.get_array().push_back(entry);
      }
      if (!piece.at("finish_reason").is_null()) choice["finish_reason"] = piece.at("finish_reason");
    }
  }
  std::vector<json::object> out;
  for (auto& [index, choice] : choices) {
    if (!choice.contains("logprobs")) choice["logprobs"] = nullptr;
    out.push_back(std::move(choice));
  }
  return out;
}

// Takes out what is made up anew for each answer: ids of calls, which must be there and differ.
inline void forget_call_ids(json::object& choice) {
  json::value* message = choice.if_contains("message");
  json::value* calls = message != nullptr ? message->as_object().if_contains("tool_calls") : nullptr;
  if (calls == nullptr) return;
  std::map<std::string, int> seen;
  for (json::value& call : calls->as_array()) {
    EXPECT_EQ(++seen[std::string(call.at("id").as_string())], 1);
    call.as_object().erase("id");
  }
}

// A stream's choices and those of the same answer in one piece.
inline void expect_same_choices(const HttpAnswer& streamed, const HttpAnswer& whole) {
  ASSERT_EQ(whole.status, 200) << whole.body;
  ASSERT_EQ(streamed.status, 200) << streamed.body;
  const std::vector<json::value> events = streamed.events();
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back(), "[DONE]");
  std::vector<json::object> joined = joined_choices(events);
  const json::array expected = whole.json().at("choices").as_array();
  ASSERT_EQ(joined.size(), expected.size());
  for (size_t i = 0; i < joined.size(); ++i) {
    json::object one = expected[i].as_object();
    one.erase("index");
    if (json::value* message = one.if_contains("message")) {
      message->as_object().erase("refusal");
      if (message->at("content").is_null()) message->as_object()["content"] = "";
    }
    forget_call_ids(one);
    forget_call_ids(joined[i]);
    EXPECT_EQ(json::value(joined[i]), json::value(one)) << json::serialize(joined[i]) << "\n" << json::serialize(one);
  }
}

}  // namespace weir::test
