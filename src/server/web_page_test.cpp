#include "server/web_page.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/sha256.h"

namespace weir {
namespace {

// What is between the first `open` and the `close` after it.
std::string_view between(std::string_view open, std::string_view close) {
  const size_t begin = web_page().find(open) + open.size();
  return web_page().substr(begin, web_page().find(close, begin) - begin);
}

// 'sha256-...', as policies name what they allow.
std::string source_of(std::string_view content) {
  static constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out = "'sha256-";
  uint32_t bits = 0;
  int held = 0;
  for (const char digit : test::sha256_hex(content) + "00") {
    bits = bits << 4 | static_cast<uint32_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
    held += 4;
    if (held < 6) continue;
    held -= 6;
    out += kAlphabet[bits >> held & 63];
  }
  out.back() = '=';
  return out + "'";
}

TEST(WebPage, PolicyAllowsItsOwnScriptAndStyle) {
  EXPECT_NE(web_page_policy().find("script-src " + source_of(between("<script>", "</script>")) + ";"),
            std::string::npos);
  EXPECT_NE(web_page_policy().find("style-src " + source_of(between("<style>", "</style>")) + ";"), std::string::npos);
}

TEST(WebPage, IsWhole) {
  EXPECT_TRUE(web_page().starts_with("<!doctype html>"));
  EXPECT_TRUE(web_page().ends_with("</html>\n"));
  EXPECT_EQ(web_page().find("@SCRIPT@"), std::string_view::npos);
  EXPECT_EQ(web_page().find("\nimport "), std::string_view::npos);
}

TEST(WebPage, LoadsNothing) {
  for (const std::string_view word : {" src=", "url(", "@import", "import(", "innerHTML", "eval("}) {
    EXPECT_EQ(web_page().find(word), std::string_view::npos) << word;
  }
}

}  // namespace
}  // namespace weir
