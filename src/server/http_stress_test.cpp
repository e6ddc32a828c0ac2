// Many clients at once: streams whose clients leave at random, idle connections, a server that stops under load.
#include <sys/resource.h>

#include <fstream>
#include <random>

#include "server/http_test_server.h"

namespace weir::http {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Streams the lines 0, 1, 2 ... to all its clients from a few threads, as an engine would.
class Choir {
 public:
  explicit Choir(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this, i] { sing(i); });
  }
  ~Choir() {
    ending_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  void add(Reply reply, int lines) {
    auto voice = std::make_shared<Voice>();
    reply->start(200, "text/plain");
    reply->on_gone([voice, this] {
      voice->gone = true;
      ++gone_;
    });
    voice->reply = std::move(reply);
    voice->lines = lines;
    const std::lock_guard lock(mutex_);
    voices_[next_++ % kParts].push_back(std::move(voice));
  }
  int gone() const { return gone_; }

 private:
  static constexpr int kParts = 4;
  struct Voice {
    Reply reply;
    int line = 0, lines = 0;
    std::atomic<bool> gone{false};
  };

  void sing(int part) {
    while (!ending_) {
      std::vector<std::shared_ptr<Voice>> voices;
      {
        const std::lock_guard lock(mutex_);
        voices = voices_[part];
      }
      for (const auto& voice : voices) {
        if (voice->reply && !voice->reply->write(concat(voice->line++, "\n"))) voice->reply = nullptr;
        if (voice->reply && voice->line == voice->lines) {
          voice->reply->finish();
          voice->reply = nullptr;
        }
      }
      {
        const std::lock_guard lock(mutex_);
        std::erase_if(voices_[part], [](const auto& voice) { return !voice->reply; });
      }
      std::this_thread::sleep_for(200us);
    }
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<Voice>> voices_[kParts];
  int next_ = 0;
  std::atomic<int> gone_{0};
  std::atomic<bool> ending_{false};
  std::vector<std::thread> threads_;
};

TEST(HttpStress, StreamsStayWholeWhileOthersLeaveAtRandom) {
  constexpr int kClients = 64, kRounds = 4, kLines = 60;
  Choir choir(4);
  Server server(test_options([&](Request request, Reply reply) {
    choir.add(std::move(reply), request.path == "/endless" ? 1 << 30 : kLines);
  }));
  std::string expected;
  for (int i = 0; i < kLines; ++i) expected += concat(i, "\n");
  std::atomic<int> whole{0}, left{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      std::mt19937 random(static_cast<uint32_t>(i));
      for (int round = 0; round < kRounds; ++round) {
        RawClient client(server.port());
        const bool leaves = random() % 2 == 0;
        client.send(get(leaves ? "/endless" : "/"));
        if (leaves) {
          client.until(concat("\n", random() % (kLines / 2), "\n"));
          random() % 2 == 0 ? client.close() : client.reset();
          ++left;
          continue;
        }
        const auto answer = client.answer();
        EXPECT_TRUE(answer.whole);
        EXPECT_TRUE(answer.body == expected);
        ++whole;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(whole + left, kClients * kRounds);
  EXPECT_TRUE(server.drain(10s));
  EXPECT_TRUE(soon([&] { return choir.gone() == left; })) << choir.gone() << " of " << left;
  EXPECT_TRUE(soon([&] { return server.counters().open == 0; }));
  EXPECT_EQ(server.counters().slow_readers, 0);
}

TEST(HttpStress, StoppingUnderLoadEndsEveryAnswer) {
  for (int round = 0; round < 5; ++round) {
    Choir choir(2);
    std::atomic<int> asked{0};
    auto server = std::make_unique<Server>(test_options([&](Request request, Reply reply) {
      if (request.path == "/") return echo(std::move(request), std::move(reply));
      ++asked;
      choir.add(std::move(reply), 1 << 30);
    }));
    std::atomic<bool> ending{false};
    std::vector<std::thread> clients;
    for (int i = 0; i < 8; ++i) {
      clients.emplace_back([&, port = server->port(), i] {
        try {
          while (!ending) {
            RawClient client(port);
            client.send(get(i % 2 == 0 ? "/" : "/stream"));
            i % 2 == 0 ? client.answer().whole : client.receive();
          }
        } catch (const Error&) {  // the listener has gone
        }
      });
    }
    std::this_thread::sleep_for(50ms);
    std::thread closer([&] { server->close_listener(); });
    server->stop();
    closer.join();
    EXPECT_EQ(server->counters().open, 0);
    EXPECT_EQ(choir.gone(), asked);
    server.reset();
    ending = true;
    for (std::thread& client : clients) client.join();
  }
}

int64_t resident_bytes() {
  int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(HttpStress, IdleConnectionsCostLittle) {
  constexpr int kConnections = 1500;
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit more = limit;
  more.rlim_cur = std::min<rlim_t>(limit.rlim_max, std::max<rlim_t>(limit.rlim_cur, 2 * kConnections + 100));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &more), 0);
  if (more.rlim_cur < 2 * kConnections + 100) GTEST_SKIP() << "only " << more.rlim_cur << " files may be open";
  Server server(test_options(echo));
  std::vector<RawClient> clients;
  clients.reserve(kConnections);
  const std::string request = get("/", concat("X-Padding: ", std::string(3000, 'x'), "\r\n"));
  const int64_t before = resident_bytes();
  for (int i = 0; i < kConnections; ++i) {
    clients.emplace_back(server.port());
    clients.back().send(request);
    ASSERT_EQ(clients.back().answer().status, 200) << i;
  }
  const int64_t each = (resident_bytes() - before) / kConnections;
  RecordProperty("bytes_per_connection", static_cast<int>(each));
  if (!kSanitized) {
    EXPECT_LT(each, 6000) << "bytes per connection, both ends";
  }
  EXPECT_EQ(server.counters().open, kConnections);
  for (RawClient& client : clients) client.send(request);
  for (RawClient& client : clients) ASSERT_EQ(client.answer().status, 200);
  server.close_listener();
  for (RawClient& client : clients) ASSERT_TRUE(client.ended_within(10s));
  clients.clear();  // the server may be waiting for the end of one that has just had its answer
  EXPECT_TRUE(soon([&] { return server.counters().open == 0; }));
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace
}  // namespace weir::http
