#include "text/json_automaton.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>
#include <string>

namespace weir {
namespace {

// As one token per byte.
bool accepts(std::string_view text) {
  JsonAutomaton at;
  for (const char c : text) {
    at.begin_token();
    if (!at.push(static_cast<unsigned char>(c))) return false;
  }
  return at.done();
}

bool is_object(std::string_view text) {
  boost::system::error_code error;
  const boost::json::value value =
      boost::json::parse(boost::json::string_view(text.data(), text.size()), error, {}, {.max_depth = 1000});
  return !error && value.is_object();
}

TEST(JsonAutomatonTest, TakesObjects) {
  for (const char* text :
       {"{}", " \n{ }", R"({"a":1})", R"({ "a" : [ ] , "b" : {"c":[1,-0,2.5,1e5,1E-10,-1.25e+07]} })",
        R"({"a":"\"\\\/\b\f\n\r\tA\ud83d\ude00\uFFff"})", R"({"a":[true,false,null,"",[[]],{}]})",
        "{\"\xc3\xa9\":\"\xe2\x82\xac\xf0\x9f\x98\x80\xed\x9f\xbf\xf4\x8f\xbf\xbf\xe0\xa0\x80\"}"}) {
    EXPECT_TRUE(accepts(text)) << text;
    EXPECT_TRUE(is_object(text)) << text;
  }
}

TEST(JsonAutomatonTest, RefusesWhatIsNone) {
  for (const char* text : {"",
                           "{",
                           "[]",
                           "1",
                           "\"a\"",
                           "null",
                           "{}}",
                           "{} ",
                           "{,}",
                           R"({"a"})",
                           R"({"a":})",
                           R"({"a":1,})",
                           R"({"a" 1})",
                           R"({a:1})",
                           R"({'a':1})",
                           R"({"a":01})",
                           R"({"a":+1})",
                           R"({"a":.5})",
                           R"({"a":1.})",
                           R"({"a":1e})",
                           R"({"a":-})",
                           R"({"a":[1,]})",
                           R"({"a":[1 2]})",
                           R"({"a":[1})",
                           R"({"a":{]})",
                           R"({"a":tru})",
                           R"({"a":True})",
                           R"({"a":NaN})",
                           R"({"a":"\x"})",
                           R"({"a":"\u12g4"})",
                           "{\"a\":\"\n\"}",
                           R"({"a":"\ud83d"})",
                           R"({"a":"\ud83dA"})",
                           R"({"a":"\ude00"})",
                           "{\"\x80\":1}",
                           "{\"\xc0\xaf\":1}",
                           "{\"\xed\xa0\x80\":1}",
                           "{\"\xf4\x90\x80\x80\":1}",
                           "{\"\xc3\":1}",
                           "{//\n}"}) {
    EXPECT_FALSE(accepts(text)) << text;
    EXPECT_FALSE(is_object(text) && std::string_view(text) != "{} ") << text;  // which only we end before
  }
}

TEST(JsonAutomatonTest, Bounds) {
  const auto nested = [](int depth) {
    const auto n = static_cast<size_t>(depth - 1);
    return "{\"a\":" + std::string(n, '[') + std::string(n, ']') + "}";
  };
  EXPECT_TRUE(accepts(nested(64)));
  EXPECT_FALSE(accepts(nested(65)));
  EXPECT_TRUE(accepts("{" + std::string(128, ' ') + "}"));
  EXPECT_FALSE(accepts("{" + std::string(200, ' ') + "}"));
  EXPECT_TRUE(accepts("{\"a\":" + std::string(100, '1') + "}"));
  EXPECT_FALSE(accepts("{\"a\":" + std::string(200, '1') + "}"));
  EXPECT_FALSE(accepts("{\"a\":0." + std::string(200, '1') + "}"));
  EXPECT_TRUE(accepts("{\"a\":\"" + std::string(1000, '1') + "\"}"));
  EXPECT_TRUE(accepts(R"({"a":1e99})"));
  EXPECT_FALSE(accepts(R"({"a":1e100})"));
}

// Texts that are nearly JSON, since both are asked after every change of a valid one.
TEST(JsonAutomatonTest, AgreesWithBoost) {
  std::mt19937 random(1);
  const std::string seeds[] = {R"({"a":[1,2.5e3,{"b":"x\u00e9\n"}],"c":{"d":null,"e":true}})",
                               R"({"k":"\ud83d\ude00","n":-0.5,"f":false,"o":{}})", R"( {"x" : [ [ ] , "" ] } )"};
  const std::string alphabet = "{}[]:,\"\\0123456789.eE+-truefalsn ud8cDC \n\xc3\xa9";
  int taken = 0;
  for (int i = 0; i < 200000; ++i) {
    std::string text = seeds[random() % 3];
    while (text.ends_with(' ')) text.pop_back();
    for (uint32_t k = 1 + random() % 3; k > 0; --k) {
      const size_t at = random() % text.size();
      const char c = alphabet[random() % alphabet.size()];
      const uint32_t what = random() % 3;
      if (what == 0) text[at] = c;
      if (what == 1) text.insert(at, 1, c);
      if (what == 2) text.erase(at, 1);
    }
    while (text.ends_with(' ') || text.ends_with('\n')) text.pop_back();
    // Boost parses an exponent of any length; ours ends at two digits.
    const bool ours = accepts(text), theirs = is_object(text);
    if (ours != theirs && theirs && text.find_first_of("eE") != std::string::npos) continue;
    ASSERT_EQ(ours, theirs) << text;
    taken += ours;
  }
  EXPECT_GT(taken, 10000);
}

}  // namespace
}  // namespace weir
