// The transport over loopback, without a model: requests per second with keep-alive, and the time from write() until
// the bytes are at the client's socket while 64 streams run. Clients and server share the processors.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "server/http.h"
#include "server/http_client.h"

namespace {

using namespace weir::http;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kRequest = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";

double microseconds(Clock::duration d) { return std::chrono::duration<double, std::micro>(d).count(); }

void print_percentiles(const char* name, std::vector<double>& us) {
  std::sort(us.begin(), us.end());
  const auto at = [&](double p) { return us[static_cast<size_t>(p * static_cast<double>(us.size() - 1))]; };
  std::printf("%s: %zu samples, p50 %.0f us, p99 %.0f us, max %.0f us\n", name, us.size(), at(0.5), at(0.99),
              us.back());
}

void bench_requests(int connections) {
  Server server({.port = 0,
                 .handler = [](Request, std::shared_ptr<Response> reply) { reply->send(200, "text/plain", "hello"); }});
  std::atomic<int64_t> answered{0};
  std::atomic<bool> ending{false};
  std::vector<std::thread> threads;
  // Each thread keeps a request in flight on each of its connections.
  const int clients = std::min(connections, 2);
  for (int t = 0; t < clients; ++t) {
    threads.emplace_back([&] {
      std::vector<RawClient> own;
      for (int i = 0; i < connections / clients; ++i) own.emplace_back(server.port());
      while (!ending) {
        for (RawClient& client : own) client.send(kRequest);
        for (RawClient& client : own) answered += client.answer().whole ? 1 : 0;
      }
    });
  }
  std::this_thread::sleep_for(200ms);
  const int64_t before = answered;
  const auto begin = Clock::now();
  std::this_thread::sleep_for(2s);
  const double seconds = microseconds(Clock::now() - begin) / 1e6;
  std::printf("%d connections: %.0f requests/s\n", connections, static_cast<double>(answered - before) / seconds);
  ending = true;
  for (std::thread& thread : threads) thread.join();
}

// When the first of the bytes that wait arrived at the socket, by the system's own stamp; reads them.
std::chrono::nanoseconds arrival(const RawClient& client) {
  char bytes[512], control[256];
  iovec into{bytes, sizeof bytes};
  msghdr message{.msg_iov = &into, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  if (::recvmsg(client.socket(), &message, 0) <= 0) weir::fail("the stream has ended");
  for (const cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, const_cast<cmsghdr*>(c))) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SO_TIMESTAMPNS) continue;
    timespec at{};
    std::memcpy(&at, CMSG_DATA(c), sizeof at);
    return std::chrono::seconds(at.tv_sec) + std::chrono::nanoseconds(at.tv_nsec);
  }
  weir::fail("no time stamp");
}

// Every 5 ms one token for each stream, as after a step of an engine.
void bench_streams(int streams) {
  std::vector<std::shared_ptr<Response>> replies(static_cast<size_t>(streams));
  Server server({.port = 0, .handler = [&](Request request, std::shared_ptr<Response> reply) {
                   replies[std::stoul(request.query)] = reply;  // before the client hears of it
                   reply->start(200, "text/event-stream");
                 }});
  std::vector<RawClient> clients;
  for (int i = 0; i < streams; ++i) {
    clients.emplace_back(server.port());
    const int on = 1;
    ::setsockopt(clients.back().socket(), SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
    clients.back().send("GET /?" + std::to_string(i) + " HTTP/1.1\r\nHost: h\r\n\r\n");
    clients.back().until("\r\n\r\n");
  }
  std::vector<double> writing, arriving;
  std::vector<std::chrono::nanoseconds> written(replies.size());
  for (int step = 0; step < 200; ++step) {
    std::this_thread::sleep_for(5ms);
    for (size_t i = 0; i < replies.size(); ++i) {
      written[i] = std::chrono::system_clock::now().time_since_epoch();
      const auto begin = Clock::now();
      replies[i]->write("data: {\"choices\": [{\"delta\": {\"content\": \" token\"}}]}\n\n");
      writing.push_back(microseconds(Clock::now() - begin));
    }
    for (size_t i = 0; i < clients.size(); ++i) arriving.push_back(microseconds(arrival(clients[i]) - written[i]));
  }
  std::printf("%d streams, a token for each every 5 ms\n", streams);
  print_percentiles("  write() itself", writing);
  print_percentiles("  write() to arrival at the client's socket", arriving);
}

}  // namespace

int main() {
  bench_requests(1);
  bench_requests(64);
  bench_streams(1);
  bench_streams(64);
}
