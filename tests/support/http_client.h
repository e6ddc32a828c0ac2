// HTTP as a plain client speaks it, over a socket.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <map>
#include <string>
#include <vector>

namespace weir::test {

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // without the transfer's chunks

  boost::json::object json() const { return boost::json::parse(body).as_object(); }
  // The data of server-sent events; "[DONE]" as a string.
  std::vector<boost::json::value> events() const {
    std::vector<boost::json::value> out;
    for (size_t at = 0; (at = body.find("data: ", at)) != std::string::npos;) {
      const size_t end = body.find("\n\n", at);
      const std::string data = body.substr(at + 6, end - at - 6);
      out.push_back(data == "[DONE]" ? boost::json::value(data) : boost::json::parse(data));
      at = end;
    }
    return out;
  }
};

// One connection, one request.
class HttpCall {
 public:
  HttpCall(uint16_t port, const std::string& method, const std::string& path, const std::string& body = "",
           const std::vector<std::string>& headers = {})
      : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
    std::string text = method + " " + path + " HTTP/1.1\r\nHost: test\r\nConnection: close\r\n";
    for (const std::string& header : headers) text += header + "\r\n";
    if (!body.empty()) text += "Content-Type: application/json\r\n";
    text += "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    for (size_t sent = 0; connected_ && sent < text.size();) {
      const ssize_t n = send(fd_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) break;
      sent += static_cast<size_t>(n);
    }
  }
  ~HttpCall() { leave(); }
  HttpCall(const HttpCall&) = delete;
  HttpCall& operator=(const HttpCall&) = delete;

  bool connected() const { return connected_; }
  void leave() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  // Until the bytes so far, headers included, hold `part`; false when the connection ends first.
  bool wait_for(const std::string& part) {
    while (text_.find(part) == std::string::npos) {
      if (!read_some()) return false;
    }
    return true;
  }
  HttpAnswer finish() {
    while (read_some()) {}
    HttpAnswer out;
    const size_t head = text_.find("\r\n\r\n");
    if (head == std::string::npos) return out;
    out.status = std::stoi(text_.substr(9, 3));
    for (size_t at = text_.find("\r\n") + 2; at < head + 2;) {
      const size_t end = text_.find("\r\n", at), colon = text_.find(':', at);
      std::string name = text_.substr(at, colon - at);
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      const size_t value = text_.find_first_not_of(' ', colon + 1);
      out.headers[name] = text_.substr(value, end - value);
      at = end + 2;
    }
    out.body = text_.substr(head + 4);
    if (out.headers["transfer-encoding"] == "chunked") out.body = joined(out.body);
    return out;
  }

 private:
  bool read_some() {
    char bytes[65536];
    const ssize_t n = recv(fd_, bytes, sizeof bytes, 0);
    if (n <= 0) return false;
    text_.append(bytes, static_cast<size_t>(n));
    return true;
  }
  static std::string joined(const std::string& chunks) {
    std::string out;
    for (size_t at = 0; at < chunks.size();) {
      const size_t size = std::stoul(chunks.substr(at), nullptr, 16), data = chunks.find("\r\n", at) + 2;
      out += chunks.substr(data, size);
      at = data + size + 2;
      if (size == 0) break;
    }
    return out;
  }

  int fd_;
  bool connected_ = false;
  std::string text_;
};

inline HttpAnswer http_post(uint16_t port, const std::string& path, const boost::json::object& body,
                            const std::vector<std::string>& headers = {}) {
  return HttpCall(port, "POST", path, boost::json::serialize(body), headers).finish();
}
inline HttpAnswer http_get(uint16_t port, const std::string& path, const std::vector<std::string>& headers = {}) {
  return HttpCall(port, "GET", path, "", headers).finish();
}

}  // namespace weir::test
