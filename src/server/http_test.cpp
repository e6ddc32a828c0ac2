// Requests and answers over loopback: their forms, their order, their limits.
#include "server/http_test_server.h"

namespace weir::http {
namespace {

TEST(Http, AnswersRequestsOfOneConnectionInTurn) {
  Server server(test_options([](Request request, Reply reply) {
    EXPECT_EQ(request.peer, "127.0.0.1");
    EXPECT_EQ(request.header("x-a"), "1");
    echo(std::move(request), std::move(reply));
  }));
  RawClient client(server.port());
  for (const char* target : {"/a%20b?c=%20d", "/e"}) {
    client.send(get(target, "X-A: 1\r\n"));
    const auto answer = client.answer();
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, *target == '/' && target[1] == 'a' ? "GET /a b c=%20d 0" : "GET /e  0");
    EXPECT_NE(answer.head.find("\r\nContent-Type: text/plain\r\n"), std::string::npos);
    EXPECT_NE(answer.head.find("\r\nDate: "), std::string::npos);
  }
  EXPECT_EQ(server.counters().accepted, 1);
  EXPECT_EQ(server.counters().requests, 2);
}

TEST(Http, AnswersPipelinedRequestsInOrderAndOneAtATime) {
  Desk desk;
  Server server(test_options(desk.handler()));
  RawClient client(server.port());
  client.send(get("/1") + "POST /2 HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc" + get("/3"));
  for (const char* path : {"/1", "/2", "/3"}) {
    auto [request, reply] = desk.next();
    EXPECT_EQ(request.path, path);
    std::this_thread::sleep_for(10ms);
    EXPECT_TRUE(desk.empty());
    reply->send(200, "text/plain", path);
    EXPECT_EQ(client.answer().body, path);
  }
}

TEST(Http, ReadsOnlyALittleAheadOfAnAnswer) {
  Desk desk;
  Server server(test_options(desk.handler()));
  RawClient client(server.port());
  client.send(get("/"));
  auto [request, reply] = desk.next();
  std::atomic<bool> all_sent{false};
  const std::string more(16 << 20, 'a');  // more than the buffers of the system hold
  std::thread sender(
      [&] { all_sent = client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 16777216\r\n\r\n" + more); });
  std::this_thread::sleep_for(200ms);
  EXPECT_FALSE(all_sent);
  reply->send(200, "text/plain", "first");
  EXPECT_EQ(client.answer().body, "first");
  auto second = desk.next();
  EXPECT_EQ(second.first.body.size(), more.size());
  sender.join();
  EXPECT_TRUE(all_sent);
}

TEST(Http, StreamsInChunksAndGoesOnAfterwards) {
  Desk desk;
  Server server(test_options(desk.handler()));
  RawClient client(server.port());
  client.send(get("/stream") + get("/next"));
  auto [request, reply] = desk.next();
  reply->start(200, "text/event-stream", {{"Cache-Control", "no-cache"}});
  const std::string head = client.until("\r\n\r\n");
  EXPECT_NE(head.find("Transfer-Encoding: chunked\r\n"), std::string::npos);
  EXPECT_NE(head.find("Cache-Control: no-cache\r\n"), std::string::npos);
  EXPECT_TRUE(reply->write("data: 1\n\n"));
  EXPECT_EQ(client.until("\r\n"), "9\r\n");
  EXPECT_EQ(client.until("\n\n\r\n"), "data: 1\n\n\r\n");
  EXPECT_TRUE(reply->write(""));  // an empty chunk would end the answer
  EXPECT_TRUE(reply->write(std::string(20, 'x')));
  EXPECT_EQ(client.until("x\r\n"), "14\r\n" + std::string(20, 'x') + "\r\n");
  reply->finish();
  EXPECT_EQ(client.until("\r\n\r\n"), "0\r\n\r\n");
  EXPECT_FALSE(reply->write("late"));
  desk.next().second->send(404, "text/plain", "none");
  EXPECT_EQ(client.answer().status, 404);
}

TEST(Http, AnswersHeadWithoutBodyAndPassesOptionsOn) {
  Server server(test_options([](Request request, Reply reply) {
    if (request.path != "/stream") return echo(std::move(request), std::move(reply));
    reply->start(200, "text/plain");
    EXPECT_TRUE(reply->write("never sent"));
    reply->finish();
  }));
  RawClient client(server.port());
  client.send("HEAD /x HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_NE(client.answer(true).head.find("Content-Length: 10\r\n"), std::string::npos);
  client.send("HEAD /stream HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(client.answer(true).status, 200);
  client.send("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(client.answer().body, "OPTIONS *  0");
}

TEST(Http, ClosesAfterOldClientsAndOnDemand) {
  Server server(test_options([](Request request, Reply reply) {
    if (request.path != "/stream") return echo(std::move(request), std::move(reply));
    reply->start(200, "text/plain");
    reply->write("no ");
    reply->write("chunks");
    reply->finish();
  }));
  RawClient old(server.port());
  old.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_NE(old.answer().head.find("Connection: keep-alive\r\n"), std::string::npos);
  old.send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const auto stream = old.answer();
  EXPECT_TRUE(stream.whole);
  EXPECT_EQ(stream.body, "no chunks");
  EXPECT_NE(stream.head.find("Connection: close\r\n"), std::string::npos);

  RawClient one(server.port());
  one.send(get("/", "Connection: close\r\n") + get("/unread"));
  const auto answer = one.answer();
  EXPECT_EQ(answer.body, "GET /  0");
  EXPECT_NE(answer.head.find("Connection: close\r\n"), std::string::npos);
  EXPECT_TRUE(one.ended_within(5s));
  old.close();
  one.close();
  EXPECT_TRUE(soon([&] { return server.counters().open == 0; }));
}

TEST(Http, RefusesWhatIsNoRequestAndCloses) {
  Server server(test_options(echo));
  for (const std::string& bytes : {std::string("rubbish\x01\r\n\r\n"), get("/%zz"), get("relative")}) {
    RawClient client(server.port());
    client.send(bytes + get("/next"));
    const auto answer = client.answer();
    EXPECT_EQ(answer.status, 400) << bytes;
    EXPECT_TRUE(answer.body.starts_with("error 400 at ")) << answer.body;
    EXPECT_TRUE(client.ended_within(5s));
  }
  EXPECT_EQ(server.counters().refused, 3);
  EXPECT_EQ(server.counters().requests, 0);
}

TEST(Http, RefusesLongBodiesBeforeReadingThemAndTheClientCanReadIt) {
  Server server(test_options(echo, {.body = 1000}));
  {
    RawClient client(server.port());
    client.send("POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\n\r\n");
    const auto answer = client.answer();
    EXPECT_EQ(answer.status, 413);
    EXPECT_EQ(answer.body, "error 413 at '/p': the request's body is longer than 1000 bytes");
  }
  // One that sends all before it reads.
  RawClient client(server.port());
  EXPECT_TRUE(
      client.send("POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 50000000\r\n\r\n" + std::string(50'000'000, 'x')));
  EXPECT_EQ(client.answer().status, 413);
  client.end_sending();
  EXPECT_TRUE(client.ended_within(5s));
  RawClient chunked(server.port());
  chunked.send("POST /p HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 3; ++i) chunked.send("190\r\n" + std::string(400, 'x') + "\r\n");
  EXPECT_EQ(chunked.answer().status, 413);
}

TEST(Http, RefusesLongHeaders) {
  Server server(test_options(echo, {.headers = 1000}));
  RawClient client(server.port());
  client.send(get("/", "A: " + std::string(1000, 'a') + "\r\n"));
  EXPECT_EQ(client.answer().status, 431);
  RawClient many(server.port());
  std::string lines;
  for (int i = 0; i < 300; ++i) lines += "a: b\r\n";
  many.send(get("/", lines));
  EXPECT_EQ(many.answer().status, 431);
}

TEST(Http, AsksForABodyOnlyWhenItWillBeRead) {
  Server server(test_options(echo, {.body = 1000}));
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: ";
  RawClient client(server.port());
  client.send(head + "5\r\n\r\n");
  EXPECT_EQ(client.until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("hello");
  EXPECT_EQ(client.answer().body, "POST /  5");
  client.send(head + "5\r\n\r\nhello");  // did not wait: needs no invitation
  EXPECT_EQ(client.answer().status, 200);
  client.send(head + "5000\r\n\r\n");
  EXPECT_EQ(client.answer().status, 413);
}

TEST(Http, TurnsWhatHandlersFailToDoIntoErrors) {
  Server server(test_options([](Request request, Reply reply) {
    if (request.path == "/throws") throw std::runtime_error("a secret");
    if (request.path == "/strange") throw 1;
    if (request.path == "/starts") {
      reply->start(200, "text/plain");
      reply->write("some");
    }
  }));
  RawClient client(server.port());
  for (const char* path : {"/throws", "/strange", "/drops"}) {
    client.send(get(path));
    const auto answer = client.answer();
    EXPECT_EQ(answer.status, 500);
    EXPECT_EQ(answer.body, concat("error 500 at '", path, "': the server has failed to answer"));
  }
  client.send(get("/starts"));
  const auto cut = client.answer();
  EXPECT_EQ(cut.status, 200);
  EXPECT_EQ(cut.body, "some");
  EXPECT_FALSE(cut.whole);
}

TEST(Http, KeepsLinesOfHeadersApartWhateverAHandlerPutsIn) {
  Server server(test_options([](Request, Reply reply) {
    reply->send(200, "text/plain", "", {{"X-Id", "a\r\nInjected: 1"}});
  }));
  RawClient client(server.port());
  client.send(get("/"));
  EXPECT_EQ(client.answer().head.find("\r\nInjected"), std::string::npos);
}

TEST(Http, SendsLargeBodiesWhole) {
  const std::string large(20 << 20, 'z');
  Server server(test_options([&](Request, Reply reply) { reply->send(200, "text/plain", large); }));
  RawClient client(server.port());
  client.send(get("/"));
  std::this_thread::sleep_for(50ms);
  EXPECT_TRUE(client.answer().body == large);
}

TEST(Http, ListensOnIpv6) {
  std::unique_ptr<Server> server;
  auto options = test_options([](Request request, Reply reply) { reply->send(200, "", request.peer); });
  options.host = "::1";
  try {
    server = std::make_unique<Server>(options);
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  RawClient client(AF_INET6);
  sockaddr_in6 to{.sin6_family = AF_INET6, .sin6_port = htons(server->port()), .sin6_addr = in6addr_loopback};
  client.connect(reinterpret_cast<const sockaddr*>(&to), sizeof to);
  client.send(get("/"));
  EXPECT_EQ(client.answer().body, "::1");
}

TEST(Http, NamesTheAddressThatCannotBeListenedOn) {
  Server server(test_options(echo));
  auto options = test_options(echo);
  options.port = server.port();
  try {
    Server second(options);
    ADD_FAILURE() << "listens twice";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find(concat("'127.0.0.1', port ", server.port())), std::string::npos) << message;
  }
  options.host = "no such host";
  EXPECT_THROW(Server{options}, Error);
}

}  // namespace
}  // namespace weir::http
