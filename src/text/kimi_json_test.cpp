#include "text/kimi_json.h"

#include <gtest/gtest.h>

namespace weir {
namespace {

TEST(KimiJson, FindsNothingBehindTheEnd) {
  for (const std::string_view text : {"", "{", "1"}) {
    for (const size_t at : {text.size(), text.size() + 1, std::string_view::npos}) {
      EXPECT_FALSE(scan_json_value(text, at, JsonDialect::kPython)) << text << at;
      EXPECT_FALSE(read_json_string(text, at, JsonDialect::kStrict)) << text << at;
    }
  }
}

TEST(KimiJson, KeepsRepeatedMembersAndWhatFollows) {
  const auto members = read_json_members(R"( {"a": 1, "b": [NaN, {"a": 2}], "a" : "x"} rest)");
  ASSERT_TRUE(members);
  ASSERT_EQ(members->size(), 3u);
  EXPECT_EQ((*members)[1].value, "[NaN, {\"a\": 2}]");
  EXPECT_EQ((*members)[2].key + "=" + std::string((*members)[2].value), "a=\"x\"");
  EXPECT_FALSE(read_json_members(R"({"a": 1,})"));
  EXPECT_FALSE(is_json("NaN"));
}

}  // namespace
}  // namespace weir
