// A server on a free port that says what a test wants it to say, byte for byte.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace weir::test {

class MockServer {
 public:
  struct Call {
    int64_t number = 0;  // of all that came, from 0
    std::string path, head, body;
    int socket = -1;

    void say(std::string_view bytes) const {
      while (!bytes.empty()) {
        const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent <= 0) return;  // the client has gone
        bytes.remove_prefix(static_cast<size_t>(sent));
      }
    }
    void wait(std::chrono::milliseconds time) const { std::this_thread::sleep_for(time); }
  };
  // Answers a request, on a thread of its connection. False: the connection ends.
  using Script = std::function<bool(const Call&)>;

  explicit MockServer(Script script) : script_(std::move(script)), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener_, 512) != 0 ||
        getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      fail("mock server: can't listen");
    }
    port_ = ntohs(address.sin_port);
    threads_.emplace_back([this] { accept_all(); });
  }
  ~MockServer() {
    stopping_ = true;
    shutdown(listener_, SHUT_RDWR);
    threads_.front().join();
    {
      const std::lock_guard lock(mutex_);
      for (const int open : open_) shutdown(open, SHUT_RDWR);
    }
    for (size_t i = 1; i < threads_.size(); ++i) threads_[i].join();
    close(listener_);
  }

  std::string url() const { return concat("http://127.0.0.1:", port_); }
  int64_t connections() const { return connections_; }
  int64_t calls() const { return calls_; }

 private:
  void accept_all() {
    for (;;) {
      const int connection = accept(listener_, nullptr, nullptr);
      if (stopping_ || connection < 0) return;
      const int on = 1;
      setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      ++connections_;
      {
        const std::lock_guard lock(mutex_);
        open_.insert(connection);
      }
      threads_.emplace_back([this, connection] {
        std::string bytes;
        while (answer_next(connection, bytes)) {}
        const std::lock_guard lock(mutex_);
        open_.erase(connection);
        close(connection);
      });
    }
  }

  bool answer_next(int connection, std::string& bytes) {
    size_t head = 0, size = 0;
    for (;;) {
      head = bytes.find("\r\n\r\n");
      if (head != bytes.npos) {
        const size_t length = bytes.find("Content-Length: ");
        size = length < head ? std::stoul(bytes.substr(length + 16)) : 0;
        if (bytes.size() >= head + 4 + size) break;
      }
      char buffer[65536];
      const ssize_t got = recv(connection, buffer, sizeof buffer, 0);
      if (got <= 0) return false;
      bytes.append(buffer, static_cast<size_t>(got));
    }
    Call call{calls_++, "", bytes.substr(0, head), bytes.substr(head + 4, size), connection};
    const size_t space = call.head.find(' ') + 1;
    call.path = call.head.substr(space, call.head.find(' ', space) - space);
    bytes.erase(0, head + 4 + size);
    return script_(call);
  }

  Script script_;
  int listener_;
  uint16_t port_ = 0;
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> connections_ = 0, calls_ = 0;
  std::mutex mutex_;
  std::set<int> open_;
  std::vector<std::thread> threads_;  // the first one accepts
};

}  // namespace weir::test
