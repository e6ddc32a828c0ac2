// A blocking client that sends and receives bytes as it is told to, right or wrong: for tests and benches.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace weir::http {

class RawClient {
 public:
  struct Answer {
    int status = 0;          // 0: the connection ended before a whole head
    std::string head, body;  // body: without the framing of chunks
    bool whole = false;      // as long as its head promises
  };
  static constexpr std::chrono::milliseconds kPatience{10'000};

  explicit RawClient(int family) : fd_(::socket(family, SOCK_STREAM, 0)) {}  // not connected yet
  explicit RawClient(uint16_t port, int receive_buffer = 0) : RawClient(int{AF_INET}) {
    if (receive_buffer > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    connect(port);
  }
  ~RawClient() { close(); }
  RawClient(RawClient&& other) noexcept : fd_(std::exchange(other.fd_, -1)), received_(std::move(other.received_)) {}
  RawClient& operator=(RawClient&&) = delete;

  void connect(uint16_t port) {
    sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    connect(reinterpret_cast<const sockaddr*>(&to), sizeof to);
  }
  void connect(const sockaddr* to, socklen_t size) {
    const int on = 1;
    if (::connect(fd_, to, size) != 0) fail("connect: ", std::strerror(errno));
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }

  // False when the server has closed the connection before all was sent.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  int socket() const { return fd_; }
  void end_sending() { ::shutdown(fd_, SHUT_WR); }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  void reset() {
    const linger hard{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }

  // Reads once more; false at the end of the connection, or when nothing comes in time.
  bool receive(std::chrono::milliseconds patience = kPatience) {
    pollfd wait{fd_, POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(patience.count())) <= 0) return false;
    char bytes[65536];
    const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
    if (n <= 0) {
      ended_ = true;
      return false;
    }
    received_.append(bytes, static_cast<size_t>(n));
    return true;
  }
  // What has come up to and with `mark`; all there is when the connection ends before.
  std::string until(std::string_view mark, std::chrono::milliseconds patience = kPatience) {
    size_t at;
    while ((at = received_.find(mark)) == std::string::npos) {
      if (!receive(patience)) return std::exchange(received_, {});
    }
    return cut(at + mark.size());
  }
  std::string to_the_end(std::chrono::milliseconds patience = kPatience) {
    while (receive(patience)) {}
    return std::exchange(received_, {});
  }
  // Whether the server closes the connection in time; what it sends before is kept.
  bool ended_within(std::chrono::milliseconds patience) {
    while (receive(patience)) {}
    return ended_;
  }

  // The next answer; `head_only`: to a HEAD request.
  Answer answer(bool head_only = false) {
    Answer out;
    out.head = until("\r\n\r\n");
    if (!out.head.ends_with("\r\n\r\n") || out.head.size() < 12) return out;
    out.status = std::atoi(out.head.c_str() + 9);
    if (head_only || out.status == 204 || out.status == 304 || out.status / 100 == 1) {
      out.whole = true;
    } else if (out.head.find("Transfer-Encoding: chunked\r\n") != std::string::npos) {
      read_chunks(out);
    } else if (const size_t at = out.head.find("Content-Length: "); at != std::string::npos) {
      const auto length = std::strtoull(out.head.c_str() + at + 16, nullptr, 10);
      while (received_.size() < length && receive()) {}
      out.whole = received_.size() >= length;
      out.body = cut(std::min<size_t>(length, received_.size()));
    } else {
      out.body = to_the_end();
      out.whole = ended_;
    }
    return out;
  }

 private:
  std::string cut(size_t size) {
    std::string out = received_.substr(0, size);
    received_.erase(0, size);
    return out;
  }
  void read_chunks(Answer& out) {
    for (;;) {
      const std::string line = until("\r\n");
      if (!line.ends_with("\r\n")) return;
      const auto size = std::strtoull(line.c_str(), nullptr, 16);
      while (received_.size() < size + 2) {
        if (!receive()) return;
      }
      out.body += cut(size);
      if (cut(2) != "\r\n") return;
      if (size == 0) {
        out.whole = true;
        return;
      }
    }
  }

  int fd_ = -1;
  bool ended_ = false;
  std::string received_;
};

}  // namespace weir::http
