#include "server/http_request.h"

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <limits>
#include <utility>

#include "base/error.h"

namespace weir::http {
namespace {

namespace beast = boost::beast;
using BeastError = beast::http::error;
using Code = beast::error_code;
using View = beast::string_view;

std::string_view std_view(View text) { return {text.data(), text.size()}; }

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Whether a header line of `head` is a Content-Length that is a number, if too large a one for Beast's 64 bits.
bool has_huge_length(std::string_view head) {
  constexpr std::string_view kName = "content-length:";
  const std::string lower = lower_case(head);
  const size_t at = lower.find(kName);
  if (at == lower.npos) return false;
  const size_t first = lower.find_first_not_of(" \t", at + kName.size());
  if (first == lower.npos) return false;
  const size_t end = std::min(lower.find_first_not_of("0123456789", first), lower.size());
  return end - first >= 20 && (end == lower.size() || lower[end] == '\r');
}

}  // namespace

std::string_view Request::header(std::string_view lower_case_name) const {
  const auto at =
      std::find_if(headers.begin(), headers.end(), [&](const auto& h) { return h.first == lower_case_name; });
  return at == headers.end() ? std::string_view{} : std::string_view(at->second);
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = hex_digit(text[i + 1]), low = hex_digit(text[i + 2]);
    if (high < 0 || low < 0 || high + low == 0) return std::nullopt;
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

class RequestParser::Parser final : public beast::http::basic_parser<true> {
 public:
  explicit Parser(const Limits& limits) : limits_(limits) {
    eager(true);
    body_limit(static_cast<uint64_t>(limits.body));
    header_limit(std::numeric_limits<uint32_t>::max());  // limit_header() counts instead
  }

  size_t feed(std::string_view input) {
    if (refusal || is_done()) return 0;
    size_t taken = empty_lines(input);
    header_bytes_ += taken;
    Code code;
    if (const std::string_view rest = input.substr(taken); rest.size() >= least()) {
      taken += put(boost::asio::const_buffer(rest.data(), rest.size()), code);
    }
    if (code && code != BeastError::need_more) {
      if (!refusal) refusal = refusal_of(code, input);
    } else if (!is_done()) {
      // What waits for more is part of the header, or of the header of a chunk, or the trailer.
      limit_header(input.size() - taken);
    }
    return taken;
  }

  std::optional<Refusal> refusal;
  Request request;
  bool http_1_1 = false, expects_continue = false;

 private:
  void refuse(int status, std::string message, Code& code) {
    refusal = Refusal{status, std::move(message)};
    code = BeastError::bad_value;
  }

  // Bytes without which there is no point in parsing: two where there may be an empty line; and since at least
  // "0\r\n\r\n" is to come while a chunked body lasts, so many, of which Beast asserts that they have when it is called
  // again for the last chunk.
  size_t least() const { return is_header_done() && chunked() ? 5 : got_some() ? 1 : 2; }

  // RFC 9112, 2.2: empty lines before a request are ignored.
  size_t empty_lines(std::string_view input) const {
    size_t n = 0;
    while (!got_some() && input.substr(n, 2) == "\r\n") n += 2;
    return n;
  }

  // Beast's own limit counts each line by itself.
  bool limit_header(size_t pending) {
    const bool within = (is_header_done() ? 0 : header_bytes_) + pending <= static_cast<size_t>(limits_.headers);
    if (!within) refusal = too_large();
    return within;
  }

  Refusal too_large() const { return {431, concat("the request's header is longer than ", limits_.headers, " bytes")}; }

  Refusal refusal_of(Code code, std::string_view input) const {
    const bool huge = code == BeastError::bad_content_length && has_huge_length(input);
    if (code == BeastError::body_limit || huge) {
      return {413, concat("the request's body is longer than ", limits_.body, " bytes")};
    }
    if (code == BeastError::header_limit) return too_large();
    return {400, concat("not a request in HTTP/1.1: ", code.message())};
  }

  void on_request_impl(beast::http::verb, View method, View target, int version, Code& code) override {
    header_bytes_ += method.size() + target.size() + 12;  // " ", " HTTP/1.1\r\n"
    request.method = std_view(method);
    http_1_1 = version == 11;
    std::string_view rest = std_view(target);
    if (const size_t scheme = rest.find("://"); scheme != rest.npos && rest.front() != '/') {  // absolute form
      const std::string name = lower_case(rest.substr(0, scheme));
      if (name != "http" && name != "https") return refuse(400, "expected a target of http", code);
      rest.remove_prefix(scheme + 3);
      rest.remove_prefix(std::min(rest.find_first_of("/?"), rest.size()));
      if (rest.empty() || rest.front() == '?') request.path = "/";
    } else if (rest.empty() || (rest.front() != '/' && !(rest == "*" && request.method == "OPTIONS"))) {
      return refuse(400, "expected a path that begins with '/'", code);
    }
    const size_t question = std::min(rest.find('?'), rest.size());
    if (question < rest.size()) request.query = rest.substr(question + 1);
    const auto path = percent_decoded(rest.substr(0, question));
    if (!path) return refuse(400, "the path has a wrong percent escape", code);
    request.path += *path;
  }
  void on_response_impl(int, View, int, Code&) override {}

  void on_field_impl(beast::http::field known, View name, View value, Code& code) override {
    if (is_header_done()) return;                     // the trailer of a chunked body: nobody asks for it
    header_bytes_ += name.size() + value.size() + 4;  // ": ", "\r\n"
    if (!limit_header(0)) {
      code = BeastError::header_limit;
      return;
    }
    using beast::http::field;
    if (known == field::content_length) {
      if (has_length_ || value.find(',') != value.npos) return refuse(400, "more than one Content-Length", code);
      has_length_ = true;
    }
    if (known == field::transfer_encoding) {
      if (!beast::iequals(value, "chunked")) return refuse(501, "expected Transfer-Encoding: chunked", code);
      if (!http_1_1) return refuse(400, "Transfer-Encoding in HTTP/1.0", code);
    }
    if (known == field::host) {
      if (has_host_) return refuse(400, "more than one Host", code);
      has_host_ = true;
    }
    if (known == field::expect && http_1_1) {
      if (!beast::iequals(value, "100-continue")) return refuse(417, "expected Expect: 100-continue", code);
      expects_continue = true;
    }
    request.headers.emplace_back(lower_case(std_view(name)), std_view(value));
  }

  void on_header_impl(Code& code) override {
    if (http_1_1 && !has_host_) refuse(400, "no Host", code);
  }
  void on_body_init_impl(const boost::optional<uint64_t>&, Code&) override {}
  size_t on_body_impl(View bytes, Code&) override {
    request.body += std_view(bytes);
    return bytes.size();
  }
  void on_chunk_header_impl(uint64_t, View, Code&) override {}
  size_t on_chunk_body_impl(uint64_t, View bytes, Code&) override {
    request.body += std_view(bytes);
    return bytes.size();
  }
  void on_finish_impl(Code&) override {}

  const Limits limits_;
  size_t header_bytes_ = 0;
  bool has_length_ = false, has_host_ = false;
};

RequestParser::RequestParser(const Limits& limits) : parser_(std::make_unique<Parser>(limits)) {}
RequestParser::~RequestParser() = default;
size_t RequestParser::feed(std::string_view input) { return parser_->feed(input); }
const std::optional<Refusal>& RequestParser::refusal() const { return parser_->refusal; }
bool RequestParser::header_done() const { return parser_->is_header_done(); }
bool RequestParser::done() const { return parser_->is_done() && !parser_->refusal; }
Request& RequestParser::request() { return parser_->request; }
bool RequestParser::http_1_1() const { return parser_->http_1_1; }
bool RequestParser::keep_alive() const { return parser_->keep_alive(); }
bool RequestParser::expects_continue() const { return parser_->expects_continue; }

}  // namespace weir::http
