// What is a request, what is none, and that it does not matter how its bytes are cut.
#include "server/http_request.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace weir::http {
namespace {

Limits small_limits() { return {.body = 1000, .headers = 512}; }

// Feeds `bytes` by `step` at a time; what is left over comes back.
std::string feed(RequestParser& parser, std::string_view bytes, size_t step) {
  std::string pending;
  for (size_t at = 0; at < bytes.size(); at += step) {
    pending += bytes.substr(at, step);
    pending.erase(0, parser.feed(pending));
  }
  return pending;
}

TEST(HttpRequest, PartsOfARequestHoweverItIsCut) {
  const std::string bytes =
      "\r\nPOST /a%20b/%C3%A9?x=%20&y HTTP/1.1\r\nHost: h\r\nX-Thing:  two words \r\nContent-Length: 5\r\n\r\nhelloGET";
  for (size_t step = 1; step <= bytes.size(); ++step) {
    RequestParser parser(small_limits());
    EXPECT_EQ(feed(parser, bytes, step), "GET");
    ASSERT_TRUE(parser.done()) << step;
    const Request& request = parser.request();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/a b/\xC3\xA9");
    EXPECT_EQ(request.query, "x=%20&y");
    EXPECT_EQ(request.header("x-thing"), "two words");
    EXPECT_EQ(request.header("absent"), "");
    EXPECT_EQ(request.body, "hello");
    EXPECT_TRUE(parser.keep_alive());
  }
}

TEST(HttpRequest, ChunkedBodyWithExtensionAndTrailerHoweverItIsCut) {
  const std::string bytes =
      "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3;a=b\r\nabc\r\n0A\r\n0123456789\r\n0\r\nX-Late: 1\r\n\r\n";
  for (size_t step = 1; step <= bytes.size(); ++step) {
    RequestParser parser(small_limits());
    EXPECT_EQ(feed(parser, bytes, step), "");
    ASSERT_TRUE(parser.done()) << step;
    EXPECT_EQ(parser.request().body, "abc0123456789");
    EXPECT_EQ(parser.request().header("x-late"), "");
  }
}

struct Case {
  std::string name, bytes;
  int status;
};

TEST(HttpRequest, RefusesWhatIsNoRequestHoweverItIsCut) {
  const std::string host = "Host: h\r\n", get = "GET / HTTP/1.1\r\n", post = "POST / HTTP/1.1\r\n" + host;
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n";
  const std::vector<Case> cases = {
      {"TLS", "\x16\x03\x01\x02\r\n\r\n", 400},
      {"no version", "GET /\r\n\r\n", 400},
      {"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
      {"space in the target", "GET /a b HTTP/1.1\r\n" + host + "\r\n", 400},
      {"bare line feeds", "GET / HTTP/1.1\nHost: h\n\n\r\n\r\n", 400},
      {"control in a value", get + host + "A: b\x01\r\n\r\n", 400},
      {"space before the colon", get + "Host : h\r\n\r\n", 400},
      {"no colon", get + host + "Nothing\r\n\r\n", 400},
      {"no host", get + "\r\n", 400},
      {"two hosts", get + host + host + "\r\n", 400},
      {"cut escape", "GET /a%2 HTTP/1.1\r\n" + host + "\r\n", 400},
      {"wrong escape", "GET /a%zz HTTP/1.1\r\n" + host + "\r\n", 400},
      {"NUL", "GET /a%00b HTTP/1.1\r\n" + host + "\r\n", 400},
      {"authority form", "CONNECT host:80 HTTP/1.1\r\n" + host + "\r\n", 400},
      {"relative", "GET a HTTP/1.1\r\n" + host + "\r\n", 400},
      {"other scheme", "GET ftp://h/ HTTP/1.1\r\n" + host + "\r\n", 400},
      {"two lengths", post + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400},
      {"list of lengths", post + "Content-Length: 3, 3\r\n\r\nabc", 400},
      {"different lengths", post + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
      {"negative length", post + "Content-Length: -1\r\n\r\n", 400},
      {"signed length", post + "Content-Length: +3\r\n\r\nabc", 400},
      {"hexadecimal length", post + "Content-Length: 0x3\r\n\r\nabc", 400},
      {"length, then chunked", post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"chunked, then length", chunked + "Content-Length: 3\r\n\r\n0\r\n\r\n", 400},
      {"chunked twice", chunked + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"unknown coding", post + "Transfer-Encoding: xchunked\r\n\r\n", 501},
      {"coding before chunked", post + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
      {"coding after chunked", post + "Transfer-Encoding: chunked, gzip\r\n\r\n", 501},
      {"chunked in 1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"chunk without size", chunked + "\r\n\r\nabc\r\n", 400},
      {"chunk of negative size", chunked + "\r\n-1\r\n\r\n", 400},
      {"chunk longer than its size", chunked + "\r\n2\r\nabc\r\n0\r\n\r\n", 400},
      {"chunk size past 64 bits", chunked + "\r\n11111111111111111\r\n", 400},
      {"length in the trailer", chunked + "\r\n0\r\nContent-Length: 3\r\n\r\n", 400},
      {"other expectation", post + "Expect: wonders\r\n\r\n", 417},
      {"long body", post + "Content-Length: 1001\r\n\r\n", 413},
      {"length past 64 bits", post + "Content-Length: 99999999999999999999999\r\n\r\n", 413},
      {"long chunk", chunked + "\r\n3e9\r\n", 413},
      {"long chunks", chunked + "\r\n1\r\na\r\n3e8\r\n", 413},
      {"long line", get + host + "A: " + std::string(600, 'a'), 431},
      {"long target", "GET /" + std::string(600, 'a'), 431},
      {"many lines",
       get + host +
           [] {
             std::string lines;
             for (int i = 0; i < 200; ++i) lines += "a: b\r\n";
             return lines;
           }(),
       431},
      {"long extension of a chunk", chunked + "\r\n1;" + std::string(600, 'a'), 431},
      {"long trailer", chunked + "\r\n0\r\nA: " + std::string(600, 'a'), 431},
  };
  for (const Case& c : cases) {
    for (const size_t step : {size_t{1}, size_t{7}, c.bytes.size()}) {
      RequestParser parser(small_limits());
      feed(parser, c.bytes, step);
      ASSERT_TRUE(parser.refusal()) << c.name << ", step " << step;
      EXPECT_EQ(parser.refusal()->status, c.status) << c.name << ", step " << step << ": " << parser.refusal()->message;
      EXPECT_FALSE(parser.done());
      EXPECT_EQ(parser.feed("GET / HTTP/1.1\r\nHost: h\r\n\r\n"), 0u);
    }
  }
}

TEST(HttpRequest, AcceptsAllFormsOfTargets) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"/", "/"},     {"http://h:1/x/y?q", "/x/y"}, {"HTTPS://h", "/"}, {"http://h?q", "/"}, {"/a%2Fb", "/a/b"},
      {"//a", "//a"}, {"/x://y", "/x://y"},         {"/?a?b", "/"}};
  for (const auto& [target, path] : cases) {
    RequestParser parser(small_limits());
    parser.feed("GET " + target + " HTTP/1.1\r\nHost: h\r\n\r\n");
    ASSERT_TRUE(parser.done()) << target;
    EXPECT_EQ(parser.request().path, path);
  }
  RequestParser parser(small_limits());
  parser.feed("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(parser.done());
  EXPECT_EQ(parser.request().path, "*");
}

TEST(HttpRequest, KnowsWhenTheConnectionGoesOn) {
  const auto keep_alive = [](std::string_view bytes) {
    RequestParser parser(small_limits());
    parser.feed(bytes);
    EXPECT_TRUE(parser.done());
    return parser.keep_alive();
  };
  EXPECT_TRUE(keep_alive("GET / HTTP/1.1\r\nHost: h\r\n\r\n"));
  EXPECT_FALSE(keep_alive("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
  EXPECT_FALSE(keep_alive("GET / HTTP/1.0\r\n\r\n"));
  EXPECT_TRUE(keep_alive("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
}

}  // namespace
}  // namespace weir::http
