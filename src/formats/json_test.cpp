#include "formats/json.h"

#include <gtest/gtest.h>

#include <boost/json/serialize.hpp>
#include <limits>

#include "formats/testing.h"

namespace weir {
namespace {

using testing::error_of;
using testing::TempFolder;

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

JsonObject object_of(std::string_view text) {
  boost::json::value value = parse_json(text, "c.json");
  return JsonObject("c.json", "", std::move(value.as_object()));
}

std::string parse_error(std::string_view text, JsonLimits limits = {}) {
  return error_of([&] { parse_json(text, "c.json", limits); });
}

TEST(ParseJson, reads_every_kind_of_value) {
  const boost::json::value value =
      parse_json(R"( {"a":[1,-2,3.5,true,false,null,"x\n\u00e9"],"b":{"c":{}},"d":[]} )", "f");
  EXPECT_EQ(boost::json::serialize(value),
            "{\"a\":[1,-2,3.5E0,true,false,null,\"x\\n\xc3\xa9\"],\"b\":{\"c\":{}},\"d\":[]}");
  EXPECT_EQ(parse_json("18446744073709551615", "f").as_uint64(), 18446744073709551615u);
  EXPECT_EQ(parse_json("1000000000000000019884624838656", "f").as_double(), 1e30);
}

// Among them numbers that Boost's own conversion gets wrong by an ulp.
TEST(ParseJson, rounds_numbers_correctly) {
  for (const double expected :
       {1e-5, 1e-06, 3.0e-39, 5.5174067e-17, 9.2890675e-19, 4.2308542e-18, 0.1, 1e23, 8.5e-45, 5e-324,
        2.2250738585072011e-308, 1.7976931348623157e308, 0.30000000000000004, 123456789012345680.0}) {
    EXPECT_EQ(parse_json(concat(expected), "f").to_number<double>(), expected) << concat(expected);
  }
  EXPECT_EQ(parse_json("1e-400", "f").as_double(), 0.0);
}

TEST(ParseJson, keeps_long_strings_keys_and_numbers_whole) {
  const std::string text(100000, 'k');
  const boost::json::value value = parse_json("{\"" + text + "\":\"\\t" + text + "\"}", "f");
  EXPECT_EQ(value.as_object().begin()->key(), text);
  EXPECT_EQ(value.as_object().begin()->value().as_string(), "\t" + text);
  EXPECT_EQ(parse_json("0." + std::string(5000, '3'), "f").as_double(), 1.0 / 3);
}

TEST(ParseJson, refuses_what_is_not_json_and_says_where) {
  const struct {
    std::string_view text;
    std::string_view message;  // begins with; reasons of Boost's own depend on its version
  } cases[] = {
      {"", "c.json: not JSON at byte 0"},
      {"  ", "c.json: not JSON at byte 2"},
      {"{\"a\": 1", "c.json: not JSON at byte 7"},
      {"{\"a\": 1} x", "c.json: not JSON at byte 9: expected the end, found 'x'"},
      {"{\"a\": NaN}", "c.json: not JSON at byte 6"},
      {"{\"a\": Infinity}", "c.json: not JSON at byte 6"},
      {"{'a': 1}", "c.json: not JSON at byte 1"},
      {"{\"a\": 1,}", "c.json: not JSON at byte 8"},
      {"[1] // no", "c.json: not JSON at byte 4: expected the end, found '// no'"},
      {"\xef\xbb\xbf{}", "c.json: not JSON at byte 0"},
      {"{\"\xff\": 1}", "c.json: not JSON at byte 2"},
      {"{\"a\": \"\\ud800\"}", "c.json: not JSON at byte 13"},
      {"{\"a\": \"x\ny\"}", "c.json: not JSON at byte 8"},
      {"{\"a\": 01}", "c.json: not JSON at byte 7"},
      {"{\"a\": 1e999}", "c.json: not JSON at byte 11: number '1e999' is too large"},
      {"{\"a\": 1, \"b\": 2, \"a\": 3}", "c.json: not JSON at byte 23: duplicate key 'a'"},
      {"{\"o\": {\"a\": {}, \"\\u0061\": []}}", "c.json: not JSON at byte 27: duplicate key 'a'"},
  };
  for (const auto& c : cases) {
    const std::string message = parse_error(c.text);
    EXPECT_TRUE(message.starts_with(c.message)) << c.text << "\n" << message;
  }
}

TEST(ParseJson, allows_the_same_key_in_different_objects) {
  EXPECT_EQ(parse_error(R"({"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 2}]})"), "no error");
}

TEST(ParseJson, bounds_depth_and_size) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(parse_error(nested(64)), "no error");
  EXPECT_EQ(parse_error(nested(65)), "c.json: not JSON at byte 64: more than 64 arrays and objects inside each other");
  EXPECT_EQ(parse_error(std::string(50'000'000, '[')),
            "c.json: not JSON at byte 64: more than 64 arrays and objects inside each other");
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += "{\"a\":";
  EXPECT_EQ(parse_error(objects), "c.json: not JSON at byte 320: more than 64 arrays and objects inside each other");
  EXPECT_EQ(parse_error("[1, 2]", {.max_bytes = 5}), "c.json: JSON of 6 bytes; the limit is 5");
  EXPECT_EQ(parse_error("[1, 2]", {.max_bytes = 6}), "no error");
}

TEST(ParseJson, refuses_every_strict_prefix_of_an_object) {
  const std::string_view text = R"({"a": [1.5, {"b": "c\u1234"}], "d": null, "e": true})";
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_NE(parse_error(text.substr(0, length)).find("c.json: not JSON at byte "), std::string::npos) << length;
  }
}

TEST(ReadJsonFile, names_the_file) {
  const TempFolder folder;
  folder.write("a.json", "[1, 2");
  const std::string message = error_of([&] { read_json_file(folder.file("a.json")); });
  EXPECT_TRUE(message.starts_with(folder.file("a.json") + ": not JSON at byte 5: ")) << message;
  EXPECT_EQ(error_of([&] { read_json_file(folder.file("b.json")); }),
            folder.file("b.json") + ": can't open: No such file or directory");
  folder.write("c.json", "[1]");
  EXPECT_EQ(error_of([&] { JsonObject::read(folder.file("c.json")); }),
            folder.file("c.json") + ": expected a JSON object, found an array of 1");
  folder.write("d.json", "{\"a\": 1}");
  EXPECT_EQ(JsonObject::read(folder.file("d.json")).integer("a", 0, 1), 1);
}

TEST(JsonObject, gives_typed_fields) {
  const JsonObject o =
      object_of(R"({"i": 5, "f": 5.0, "x": 0.25, "t": true, "s": "text", "n": null, "min": -9223372036854775808,
    "list": [1, 2.0, 3], "names": ["a", "b"], "none": [], "one": 7})");
  EXPECT_EQ(o.integer("i", 5, 5), 5);
  EXPECT_EQ(o.integer("f", kMin, kMax), 5);
  EXPECT_EQ(o.integer("min", kMin, kMax), kMin);
  EXPECT_EQ(o.number("x", 0, 1), 0.25);
  EXPECT_EQ(o.number("i", 0, 10), 5.0);
  EXPECT_TRUE(o.boolean("t"));
  EXPECT_EQ(o.string("s"), "text");
  EXPECT_EQ(o.integers("list", 1, 3), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(o.strings("names"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(o.words("names", 2, {"b", "a"}), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(error_of([&] {
              o.words("names", 2, {"a", "c"});
            }),
            "c.json: field 'names[1]': expected 'a' or 'c', found string 'b'");
  EXPECT_EQ(error_of([&] {
              o.words("names", 3, {"a", "b"});
            }),
            "c.json: field 'names': expected 3 entries, found an array of 2");
  EXPECT_TRUE(o.integers("none", 0, 0).empty());
  EXPECT_EQ(o.integer_or_list("one", 0, 9), std::vector<int64_t>{7});
  EXPECT_EQ(o.integer_or_list("list", 0, 9), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_TRUE(o.has("i"));
  EXPECT_FALSE(o.has("n"));
  EXPECT_FALSE(o.has("absent"));
}

TEST(JsonObject, falls_back_only_when_a_field_is_absent_or_null) {
  const JsonObject o = object_of(R"({"n": null, "i": 1, "s": "x", "t": false, "o": {}})");
  for (const std::string_view key : {"n", "absent"}) {
    EXPECT_EQ(o.integer_or(key, -7, 0, 1), -7);
    EXPECT_EQ(o.number_or(key, 1.5, 0, 1), 1.5);
    EXPECT_TRUE(o.boolean_or(key, true));
    EXPECT_EQ(o.string_or(key, "d"), "d");
    EXPECT_TRUE(o.integer_or_list(key, 0, 1).empty());
    EXPECT_FALSE(o.object_if(key).has_value());
  }
  EXPECT_EQ(o.integer_or("i", 0, 0, 1), 1);
  EXPECT_EQ(o.number_or("i", 0, 0, 1), 1);
  EXPECT_EQ(o.string_or("s", "d"), "x");
  EXPECT_FALSE(o.boolean_or("t", true));
  EXPECT_TRUE(o.object_if("o").has_value());
  EXPECT_EQ(error_of([&] { o.integer_or("s", 0, 0, 1); }),
            "c.json: field 's': expected an integer from 0 to 1, found string 'x'");
  EXPECT_EQ(error_of([&] { o.number_or("t", 0, 0, 1); }),
            "c.json: field 't': expected a number from 0 to 1, found false");
  EXPECT_EQ(error_of([&] { o.boolean_or("i", true); }), "c.json: field 'i': expected true or false, found 1");
  EXPECT_EQ(error_of([&] { o.string_or("i", ""); }), "c.json: field 'i': expected a string, found 1");
  EXPECT_EQ(error_of([&] { o.object_if("i"); }), "c.json: field 'i': expected an object, found 1");
}

TEST(JsonObject, refuses_wrong_types_and_ranges_naming_the_field) {
  const JsonObject o =
      object_of(R"({"x": 5.5, "s": "5", "t": true, "n": null, "big": 18446744073709551615, "huge": 1e300,
    "edge": 9223372036854775808.0, "list": [1, "2"], "names": ["a", 1], "ends": [1, 9], "o": {"p": {"q": -1}}})");
  const auto integer = [&](std::string_view key, int64_t min, int64_t max) {
    return error_of([&] { o.integer(key, min, max); });
  };
  EXPECT_EQ(integer("x", 0, 9), "c.json: field 'x': expected an integer from 0 to 9, found 5.5");
  EXPECT_EQ(integer("s", 0, kMax), "c.json: field 's': expected an integer of at least 0, found string '5'");
  EXPECT_EQ(integer("t", kMin, 9), "c.json: field 't': expected an integer of at most 9, found true");
  EXPECT_EQ(integer("n", kMin, kMax), "c.json: field 'n': expected an integer, found null");
  EXPECT_EQ(integer("absent", kMin, kMax), "c.json: field 'absent': expected an integer, found nothing");
  EXPECT_EQ(integer("big", kMin, kMax), "c.json: field 'big': expected an integer, found 18446744073709551615");
  EXPECT_EQ(integer("huge", kMin, kMax), "c.json: field 'huge': expected an integer, found 1e+300");
  EXPECT_EQ(integer("edge", kMin, kMax), "c.json: field 'edge': expected an integer, found 9223372036854775808");
  EXPECT_EQ(integer("list", 0, 9), "c.json: field 'list': expected an integer from 0 to 9, found an array of 2");
  EXPECT_EQ(integer("o", 0, 9), "c.json: field 'o': expected an integer from 0 to 9, found an object of 1 fields");
  EXPECT_EQ(error_of([&] { o.number("x", 6, 7); }), "c.json: field 'x': expected a number from 6 to 7, found 5.5");
  EXPECT_EQ(error_of([&] { o.number("s", 0, std::numeric_limits<double>::infinity()); }),
            "c.json: field 's': expected a number of at least 0, found string '5'");
  EXPECT_EQ(o.number("big", 0, 1e20), 18446744073709551615.0);
  EXPECT_EQ(error_of([&] { o.boolean("s"); }), "c.json: field 's': expected true or false, found string '5'");
  EXPECT_EQ(error_of([&] { o.string("x"); }), "c.json: field 'x': expected a string, found 5.5");
  EXPECT_EQ(error_of([&] { o.integers("x", 0, 9); }), "c.json: field 'x': expected an array of integers, found 5.5");
  EXPECT_EQ(error_of([&] { o.integers("list", 0, 9); }),
            "c.json: field 'list[1]': expected an integer from 0 to 9, found string '2'");
  EXPECT_EQ(error_of([&] { o.integer_or_list("ends", 0, 8); }),
            "c.json: field 'ends[1]': expected an integer from 0 to 8, found 9");
  EXPECT_EQ(error_of([&] { o.integer_or_list("s", 0, 8); }),
            "c.json: field 's': expected an integer from 0 to 8, found string '5'");
  EXPECT_EQ(error_of([&] { o.strings("names"); }), "c.json: field 'names[1]': expected a string, found 1");
  EXPECT_EQ(error_of([&] { o.strings("s"); }), "c.json: field 's': expected an array of strings, found string '5'");
  EXPECT_EQ(error_of([&] { o.object("x"); }), "c.json: field 'x': expected an object, found 5.5");
}

TEST(JsonObject, names_nested_fields_by_their_path_and_outlives_its_parent) {
  std::optional<JsonObject> q;
  {
    const JsonObject root = object_of(R"({"text_config": {"rope": {"theta": -1}}})");
    q = root.object("text_config").object_if("rope");
  }
  EXPECT_EQ(error_of([&] { q->number("theta", 0, 1e9); }),
            "c.json: field 'text_config.rope.theta': expected a number from 0 to 1e+09, found -1");
  EXPECT_EQ(error_of([&] { q->fail_field("type", "'yarn'"); }),
            "c.json: field 'text_config.rope.type': expected 'yarn', found nothing");
}

TEST(Json, refuses_values_that_take_more_memory_than_they_may) {
  std::string zeros = "[0";
  for (int i = 1; i < 100'000; ++i) zeros += ",0";
  zeros += "]";
  EXPECT_EQ(error_of([&] { parse_json(zeros, "z.json", {.max_memory = 1 << 20}); }),
            "z.json: JSON that takes more than 1048576 bytes of memory while it is read");
  EXPECT_EQ(parse_json(zeros, "z.json", {.max_memory = 16 << 20}).as_array().size(), 100'000u);
}

TEST(JsonObject, refuses_numbers_that_are_not_finite_even_from_a_program) {
  boost::json::object object;
  object["nan"] = std::numeric_limits<double>::quiet_NaN();
  object["inf"] = std::numeric_limits<double>::infinity();
  const JsonObject o("c.json", "", std::move(object));
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(error_of([&] { o.number("nan", -inf, inf); }), "c.json: field 'nan': expected a number, found nan");
  EXPECT_EQ(error_of([&] { o.number("inf", -inf, inf); }), "c.json: field 'inf': expected a number, found inf");
  EXPECT_EQ(error_of([&] { o.integer("nan", kMin, kMax); }), "c.json: field 'nan': expected an integer, found nan");
}

TEST(JsonObject, quotes_what_it_found_briefly_and_printably) {
  const JsonObject o = object_of("{\"s\": \"a\\nb" + std::string(1000, 'x') + "\"}");
  const std::string message = error_of([&] { o.integer("s", 0, 1); });
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_LT(message.size(), 200u);
}

}  // namespace
}  // namespace weir
