// Clients that are slow, vanish, or are too many; and a server that ends while they are there.
#include <sys/resource.h>

#include "server/http_test_server.h"

namespace weir::http {
namespace {

// A response that is streaming, with what its client's end looks like from the handler.
struct Stream {
  explicit Stream(Reply r) : reply(std::move(r)) {
    reply->on_gone([this] { ++gone; });
  }
  Reply reply;
  std::atomic<int> gone{0};
};

TEST(HttpClients, SlowHeadersAndBodiesAreTimedOut) {
  Server server(test_options(echo, {.header_time = 150ms, .body_time = 150ms}));
  RawClient header(server.port()), body(server.port()), silent(server.port());
  body.send("POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 500\r\n\r\n");
  for (int i = 0; i < 40 && server.counters().timed_out < 2; ++i) {  // neither is ever silent for long
    header.send(i == 0 ? "GET / HTTP/1.1\r\n" : "A: b\r\n");
    body.send("x");
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_EQ(header.answer().body, "error 408 at '/': the request's header took too long");
  EXPECT_EQ(body.answer().body, "error 408 at '/p': the request's body took too long");
  EXPECT_EQ(silent.to_the_end(5s), "");
  EXPECT_TRUE(silent.ended_within(0s));
  EXPECT_EQ(server.counters().timed_out, 2);
}

TEST(HttpClients, IdleConnectionsAreClosedSilently) {
  Server server(test_options(echo, {.idle_time = 100ms}));
  RawClient client(server.port());
  client.send(get("/"));
  EXPECT_EQ(client.answer().status, 200);
  EXPECT_TRUE(client.ended_within(5s));
  EXPECT_EQ(client.to_the_end(), "");
  EXPECT_EQ(server.counters().timed_out, 0);
}

TEST(HttpClients, AnswersMayTakeLongerThanAnyLimitOnRequests) {
  Desk desk;
  Server server(
      test_options(desk.handler(), {.header_time = 50ms, .body_time = 50ms, .idle_time = 50ms, .write_time = 50ms}));
  RawClient client(server.port());
  client.send(get("/"));
  auto [request, reply] = desk.next();
  reply->start(200, "text/plain");
  std::this_thread::sleep_for(150ms);
  EXPECT_TRUE(reply->write("still"));
  std::this_thread::sleep_for(150ms);
  reply->finish();
  EXPECT_EQ(client.answer().body, "still");
}

TEST(HttpClients, OneThatReadsNothingIsCutOffWhenTheBufferIsFull) {
  Desk desk;
  Server server(test_options(desk.handler(), {.stream_buffer = 100'000}));
  RawClient slow(server.port(), 4096), other(server.port());
  slow.send(get("/"));
  auto [request, reply] = desk.next();
  Stream stream(reply);
  reply->start(200, "text/plain");
  size_t written = 0;
  const std::string piece(10'000, 'x');
  while (reply->write(piece)) {
    written += piece.size();
    ASSERT_LT(written, 64u << 20);
    if (written % 1'000'000 == 0) std::this_thread::sleep_for(1ms);
  }
  EXPECT_FALSE(reply->write("more"));
  EXPECT_TRUE(soon([&] { return stream.gone == 1; }));
  EXPECT_EQ(server.counters().slow_readers, 1);
  other.send(get("/"));
  desk.next().second->send(200, "", "unharmed");
  EXPECT_EQ(other.answer().body, "unharmed");
  EXPECT_FALSE(slow.answer().whole);
}

TEST(HttpClients, OneThatTakesNothingForTooLongIsCutOff) {
  Desk desk;
  Server server(test_options(desk.handler(), {.write_time = 100ms, .stream_buffer = 64 << 20}));
  RawClient slow(server.port(), 4096);
  slow.send(get("/"));
  auto [request, reply] = desk.next();
  Stream stream(reply);
  reply->start(200, "text/plain");
  EXPECT_TRUE(reply->write(std::string(16 << 20, 'x')));
  EXPECT_TRUE(soon([&] { return stream.gone == 1; }));
  EXPECT_EQ(server.counters().slow_readers, 1);
  EXPECT_FALSE(reply->write("more"));
  // The same for an answer that is complete from the handler's side.
  RawClient second(server.port(), 4096);
  second.send(get("/"));
  desk.next().second->send(200, "", std::string(16 << 20, 'x'));
  EXPECT_TRUE(soon([&] { return server.counters().slow_readers == 2; }));
  EXPECT_TRUE(server.drain(5s));
}

TEST(HttpClients, OneThatTakesALittleAtATimeIsNotCutOff) {
  Desk desk;
  Server server(test_options(desk.handler(), {.write_time = 200ms}));
  RawClient client(server.port(), 4096);
  client.send(get("/"));
  const std::string large(12 << 20, 'x');
  desk.next().second->send(200, "", large);
  std::string got;
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < 600ms) {
    client.receive();
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_EQ(server.counters().slow_readers, 0);
  EXPECT_TRUE(client.answer().whole);
}

TEST(HttpClients, OneThatHasOnlyEndedItsSendingGetsItsAnswer) {
  Desk desk;
  Server server(test_options(desk.handler()));
  for (const bool streams : {false, true}) {
    RawClient client(server.port());
    client.send(get("/"));
    auto [request, reply] = desk.next();
    Stream stream(reply);
    if (streams) {
      reply->start(200, "text/plain");
      reply->write("first ");
    }
    client.end_sending();
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(stream.gone, 0);
    if (streams) {
      EXPECT_TRUE(reply->write("second"));
      reply->finish();
    } else {
      reply->send(200, "", "first second");
    }
    const auto answer = client.answer();
    EXPECT_TRUE(answer.head.starts_with("HTTP/1.1 200 OK\r\n")) << answer.head;
    EXPECT_EQ(answer.body, "first second");
    EXPECT_TRUE(answer.whole);
    EXPECT_TRUE(client.ended_within(5s));
  }
}

TEST(HttpClients, OneThatGoesAwayIsNoticedWithoutAWrite) {
  enum class Leave { kClose, kReset };
  Desk desk;
  Server server(test_options(desk.handler()));
  for (const Leave leave : {Leave::kClose, Leave::kReset}) {
    for (const bool streams : {false, true}) {
      for (const size_t ahead : {0, 1, 40'000}) {  // bytes sent ahead; the last more than the server reads
        RawClient client(server.port());
        client.send(get("/") + std::string(ahead, 'G'));
        auto [request, reply] = desk.next();
        Stream stream(reply);
        if (streams) reply->start(200, "text/plain");
        if (streams) client.until("\r\n\r\n");
        std::this_thread::sleep_for(10ms);
        leave == Leave::kClose ? client.close() : client.reset();
        if (leave == Leave::kClose && ahead > 20'000) {
          reply->start(200, "text/plain");  // its end lies behind bytes that are not read: a write finds out
          reply->write("x");
        }
        EXPECT_TRUE(soon([&] { return stream.gone == 1; }, 2s)) << streams << " " << ahead;
        EXPECT_FALSE(reply->write("x"));
        bool called = false;
        reply->on_gone([&] { called = true; });
        EXPECT_TRUE(called);
      }
    }
  }
  EXPECT_TRUE(soon([&] { return server.counters().open == 0; }));
  EXPECT_TRUE(server.drain(0ms));
}

TEST(HttpClients, OnGoneIsNotCalledOnceTheHandlerHasSaidEverything) {
  Desk desk;
  Server server(test_options(desk.handler()));
  RawClient client(server.port());
  client.send(get("/"));
  auto [request, reply] = desk.next();
  Stream stream(reply);
  reply->send(200, "", "done");
  EXPECT_EQ(client.answer().body, "done");
  client.reset();
  EXPECT_TRUE(soon([&] { return server.counters().open == 0; }));
  EXPECT_EQ(stream.gone, 0);
}

TEST(HttpClients, OnesBeyondTheLimitAreToldSoAndPlaceIsFoundAgain) {
  Server server(test_options(echo, {.connections = 3}));
  std::vector<RawClient> held;
  for (int i = 0; i < 3; ++i) held.emplace_back(server.port());
  EXPECT_TRUE(soon([&] { return server.counters().open == 3; }));
  RawClient beyond(server.port());
  beyond.send(get("/"));
  const auto refused = beyond.answer();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.body, "error 503 at '': too many connections");
  beyond.end_sending();
  EXPECT_TRUE(beyond.ended_within(5s));
  held.pop_back();
  EXPECT_TRUE(soon([&] { return server.counters().open == 2; }));
  RawClient again(server.port());
  again.send(get("/"));
  EXPECT_EQ(again.answer().status, 200);
}

TEST(HttpClients, WithoutFileDescriptorsTheListenerWaitsAndLives) {
  Server server(test_options(echo));
  RawClient client(int{AF_INET});
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit none = limit;
  none.rlim_cur = 0;  // open ones stay
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  client.connect(server.port());
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  std::this_thread::sleep_for(300ms);
  getrusage(RUSAGE_SELF, &after);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(server.counters().accepted, 0);
  const auto used =
      (after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1e6 +
      static_cast<double>(after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec -
                          before.ru_stime.tv_usec);
  EXPECT_LT(used, 150e3) << "microseconds of processor time in 300 ms of nothing";
  client.send(get("/"));
  EXPECT_EQ(client.answer().status, 200);
}

TEST(HttpClients, ClosingTheListenerEndsIdleConnectionsAndLetsAnswersFinish) {
  Desk desk;
  Server server(test_options(desk.handler()));
  RawClient idle(server.port()), used(server.port()), busy(server.port());
  used.send(get("/"));
  desk.next().second->send(200, "", "");
  EXPECT_EQ(used.answer().status, 200);
  busy.send(get("/"));
  auto [request, reply] = desk.next();
  server.close_listener();
  EXPECT_TRUE(idle.ended_within(5s));
  EXPECT_TRUE(used.ended_within(5s));
  EXPECT_FALSE(server.drain(20ms));
  reply->send(200, "", "the last");
  const auto answer = busy.answer();
  EXPECT_EQ(answer.body, "the last");
  EXPECT_NE(answer.head.find("Connection: close\r\n"), std::string::npos);
  EXPECT_TRUE(server.drain(5s));
  EXPECT_TRUE(busy.ended_within(5s));
  EXPECT_TRUE(soon([&] {
    RawClient late(int{AF_INET});
    try {
      late.connect(server.port());
    } catch (const Error&) {
      return true;
    }
    return false;
  }));
}

TEST(HttpClients, StoppingCutsAnswersAndTheirResponsesOutliveTheServer) {
  Desk desk;
  auto server = std::make_unique<Server>(test_options(desk.handler()));
  RawClient waiting(server->port()), streaming(server->port()), half(server->port()), full(server->port(), 4096);
  waiting.send(get("/"));
  Stream first(desk.next().second);
  streaming.send(get("/"));
  Stream second(desk.next().second);
  second.reply->start(200, "text/plain");
  half.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nx");
  full.send(get("/"));
  desk.next().second->send(200, "", std::string(16 << 20, 'x'));
  streaming.until("\r\n\r\n");
  server->stop();
  EXPECT_EQ(first.gone, 1);
  EXPECT_EQ(second.gone, 1);
  EXPECT_EQ(server->counters().open, 0);
  EXPECT_TRUE(server->drain(0ms));
  server->stop();
  server->close_listener();
  server.reset();
  first.reply->send(200, "", "late");
  EXPECT_FALSE(second.reply->write("late"));
  second.reply->finish();
  EXPECT_TRUE(waiting.ended_within(5s));
  EXPECT_TRUE(streaming.ended_within(5s));
}

}  // namespace
}  // namespace weir::http
