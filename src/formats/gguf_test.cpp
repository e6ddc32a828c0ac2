#include "formats/gguf.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>

#include "base/error.h"
#include "formats/gguf_testing.h"
#include "formats/testing.h"

namespace weir {
namespace {

using testing::error_of;
using testing::GgufBytes;
using testing::raw;
using testing::TempFolder;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// Two small tensors and a key of every type.
GgufBytes small() {
  GgufBytes file;
  file.set("general.architecture", testing::gguf_text("test"));
  file.set("u8", testing::gguf_value<uint8_t>(GgufType::kU8, 200));
  file.set("i8", testing::gguf_value<int8_t>(GgufType::kI8, -3));
  file.set("u16", testing::gguf_value<uint16_t>(GgufType::kU16, 60000));
  file.set("i16", testing::gguf_value<int16_t>(GgufType::kI16, -300));
  file.set("u32", testing::gguf_u32(4000000000u));
  file.set("i32", testing::gguf_value<int32_t>(GgufType::kI32, -70000));
  file.set("u64", testing::gguf_value<uint64_t>(GgufType::kU64, uint64_t{1} << 40));
  file.set("i64", testing::gguf_value<int64_t>(GgufType::kI64, -(int64_t{1} << 40)));
  file.set("f32", testing::gguf_f32(0.5f));
  file.set("f64", testing::gguf_value<double>(GgufType::kF64, -0.25));
  file.set("yes", testing::gguf_bool(true));
  file.set("no", testing::gguf_bool(false));
  file.set("empty", testing::gguf_text(""));
  file.set("texts", testing::gguf_texts({"a", "", "\xce\xb2 c"}));
  file.set("numbers", testing::gguf_i32s({1, -2, 3}));
  file.set("scores", testing::gguf_array(GgufType::kF32, 2, raw(1.5f) + raw(-2.f)));
  file.set("flags", testing::gguf_array(GgufType::kBool, 2, std::string("\1\0", 2)));
  file.tensor("b.weight") = {"b.weight", {4, 2}, 0, std::string(32, '\1'), -1};
  file.tensor("a.weight") = {"a.weight", {64, 1, 3}, 8, std::string(6 * 34, '\2'), -1};
  return file;
}

TEST(Gguf, ReadsKeysOfEveryType) {
  const std::string text = small().text();
  const GgufContents file = parse_gguf(bytes_of(text), "m.gguf");
  const GgufMetadata& m = file.metadata;
  EXPECT_EQ(file.version, 3u);
  EXPECT_EQ(m.string("general.architecture"), "test");
  EXPECT_EQ(m.integer("u8", 0, 255), 200);
  EXPECT_EQ(m.integer("i8", -5, 5), -3);
  EXPECT_EQ(m.integer("u16", 0, 65535), 60000);
  EXPECT_EQ(m.integer("i16", -1000, 0), -300);
  EXPECT_EQ(m.integer("u32", 0, int64_t{1} << 32), 4000000000);
  EXPECT_EQ(m.integer("i32", -100000, 0), -70000);
  EXPECT_EQ(m.integer("u64", 0, int64_t{1} << 41), int64_t{1} << 40);
  EXPECT_EQ(m.integer("i64", -(int64_t{1} << 41), 0), -(int64_t{1} << 40));
  EXPECT_EQ(m.number("f32", 0, 1), 0.5);
  EXPECT_EQ(m.number("f64", -1, 1), -0.25);
  EXPECT_EQ(m.number("u8", 0, 255), 200);
  EXPECT_TRUE(m.boolean("yes"));
  EXPECT_FALSE(m.boolean("no"));
  EXPECT_EQ(m.string("empty"), "");
  EXPECT_EQ(m.strings("texts"), (std::vector<std::string_view>{"a", "", "\xce\xb2 c"}));
  EXPECT_EQ(m.integers("numbers", -10, 10), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(m.integers("flags", 0, 1), (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(m.floats("scores"), (std::vector<float>{1.5f, -2}));
  EXPECT_EQ(m.per_layer("numbers", 3, -10, 10), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(m.per_layer("u8", 2, 0, 255), (std::vector<int64_t>{200, 200}));
  EXPECT_FALSE(m.has("missing"));
  EXPECT_EQ(m.integer_or("missing", 7, 0, 1), 7);
  EXPECT_EQ(m.number_or("missing", 7, 0, 1), 7);
  EXPECT_EQ(m.string_or("missing", "x"), "x");
  EXPECT_TRUE(m.boolean_or("missing", true));
}

TEST(Gguf, TensorsPointIntoTheFile) {
  const std::string text = small().text();
  const GgufContents file = parse_gguf(bytes_of(text), "m.gguf");
  ASSERT_EQ(file.tensors.size(), 2u);
  const GgufTensor& a = file.tensors[0];  // sorted by name
  const GgufTensor& b = file.tensors[1];
  EXPECT_EQ(a.name, "a.weight");
  EXPECT_EQ(a.type->name, "Q8_0");
  EXPECT_EQ(a.type->format, WeightFormat::kQ8_0);
  EXPECT_EQ(a.bytes, 6 * 34);
  EXPECT_EQ(a.elements(), 64 * 3);
  EXPECT_EQ(a.ne[3], 1);
  EXPECT_EQ(static_cast<int>(a.data[0]), 2);
  EXPECT_EQ(b.bytes, 32);
  EXPECT_EQ(static_cast<int>(b.data[0]), 1);
  EXPECT_EQ((b.data - bytes_of(text).data()) % 32, 0);
  EXPECT_EQ(b.data - bytes_of(text).data(), file.data_offset);
}

TEST(Gguf, KnowsTheSizesOfAllTypesThatItReads) {
  for (const GgmlType& type : ggml_types()) {
    GgufBytes file;
    file.tensor("t") = {
        "t", {type.elements * 2, 3}, type.id, std::string(static_cast<size_t>(6 * type.bytes), 'x'), -1};
    const std::string text = file.text();
    EXPECT_EQ(parse_gguf(bytes_of(text), "f").tensors[0].bytes, 6 * type.bytes) << type.name;
    EXPECT_NE(ggml_type_text(type.id).find(type.name), std::string::npos);
    if (type.elements == 1) continue;
    file.tensor("t").ne[0] = type.elements + 1;
    EXPECT_NE(error_of([&] { parse_gguf(bytes_of(file.text()), "f"); }).find("multiple"), std::string::npos);
  }
}

TEST(Gguf, AcceptsVersion2OtherAlignmentsAndFilesOfKeysOnly) {
  GgufBytes file = small();
  file.version = 2;
  file.alignment = 4096;
  file.set("general.alignment", testing::gguf_u32(4096));
  const std::string text = file.text();
  const GgufContents contents = parse_gguf(bytes_of(text), "f");
  EXPECT_EQ(contents.alignment, 4096);
  EXPECT_EQ(contents.data_offset % 4096, 0);
  GgufBytes keys = small();
  keys.tensors.clear();
  keys.set("last", testing::gguf_text("x"));
  std::string bare = keys.text();
  while (bare.back() == 0) bare.pop_back();  // without padding
  EXPECT_GT(parse_gguf(bytes_of(bare), "f").metadata.fields().size(), 10u);
}

TEST(Gguf, EveryTruncationIsRefused) {
  const std::string text = small().text();
  for (size_t n = 0; n < text.size(); ++n) {
    const std::string cut = text.substr(0, n);
    const std::string message = error_of([&] { parse_gguf(bytes_of(cut), "cut.gguf"); });
    ASSERT_NE(message.find("cut.gguf"), std::string::npos) << n << ": " << message;
    if (n < 4) continue;  // not enough to tell what it is
    ASSERT_NE(message.find("complete?"), std::string::npos) << n << ": " << message;
  }
}

struct BadFile {
  const char* name;
  std::function<void(GgufBytes&)> spoil;
  std::vector<std::string> message_has;
};

const std::vector<BadFile>& bad_files() {
  const auto key = [](const std::string& value) { return [value](GgufBytes& f) { f.set("key", value); }; };
  const auto b = [](auto edit) { return [edit](GgufBytes& f) { edit(f.tensor("b.weight")); }; };
  static const std::string huge = raw(uint64_t{1} << 62);
  static const std::vector<BadFile> cases = {
      {"Magic", [](GgufBytes& f) { f.magic = "GGML"; }, {"GGUF"}},
      {"Version1", [](GgufBytes& f) { f.version = 1; }, {"version", "2 or 3", "1"}},
      {"Version4", [](GgufBytes& f) { f.version = 4; }, {"version", "4"}},
      {"BigEndian", [](GgufBytes& f) { f.version = 0x03000000; }, {"big-endian"}},
      {"KeyCount", [](GgufBytes& f) { f.key_count = int64_t{1} << 60; }, {"keys", "1152921504606846976"}},
      {"NegativeKeyCount", [](GgufBytes& f) { f.key_count = std::numeric_limits<int64_t>::min(); }, {"keys"}},
      {"TensorCount", [](GgufBytes& f) { f.tensor_count = int64_t{1} << 60; }, {"tensors", "1152921504606846976"}},
      {"MoreTensorsThanThereAre", [](GgufBytes& f) { f.tensor_count = 3; }, {}},
      {"KeyTwice", [](GgufBytes& f) { f.keys.push_back(f.keys[0]); }, {"general.architecture", "twice"}},
      {"LongKey", [](GgufBytes& f) { f.keys.emplace_back(std::string(70000, 'k'), testing::gguf_u32(1)); }, {"65535"}},
      {"HugeString", key(raw(8u) + huge), {"1073741824", "4611686018427387904"}},
      {"LongString", key(raw(8u) + raw(uint64_t{1} << 29)), {"536870912", "complete?"}},
      {"UnknownValueType", key(raw(13u) + huge), {"key", "13"}},
      {"NestedArray", key(raw(9u) + raw(9u) + raw(uint64_t{1})), {"key", "array of arrays"}},
      {"HugeArray", key(raw(9u) + raw(4u) + huge), {"elements", "4611686018427387904"}},
      {"HugeArrayOfStrings", key(raw(9u) + raw(8u) + huge), {"elements"}},
      {"UnknownElementType", key(raw(9u) + raw(77u) + raw(uint64_t{1})), {"key", "77"}},
      {"Boolean2", key(testing::gguf_value<uint8_t>(GgufType::kBool, 2)), {"key", "2"}},
      {"BooleanInArray", key(testing::gguf_array(GgufType::kBool, 2, "\1\3")), {"key", "3"}},
      {"Alignment0",
       [](GgufBytes& f) { f.set("general.alignment", testing::gguf_u32(0)); },
       {"general.alignment", "found 0"}},
      {"Alignment24",
       [](GgufBytes& f) { f.set("general.alignment", testing::gguf_u32(24)); },
       {"general.alignment", "power of two", "24"}},
      {"AlignmentText",
       [](GgufBytes& f) { f.set("general.alignment", testing::gguf_text("32")); },
       {"general.alignment", "'32'"}},
      {"Rank5",
       b([](auto& t) {
         t.ne = {1, 1, 1, 1, 8};
       }),
       {"b.weight", "4 dimensions", "5"}},
      {"ZeroDimension",
       b([](auto& t) {
         t.ne = {4, 0};
       }),
       {"b.weight", "positive", "0"}},
      {"NegativeDimension",
       b([](auto& t) {
         t.ne = {-4, -2};
       }),
       {"b.weight", "positive", "-4"}},
      {"OverflowOfBytes",
       b([](auto& t) {
         t.ne = {int64_t{1} << 31, int64_t{1} << 31};
       }),
       {"b.weight", "2^63"}},
      {"OverflowOfElements",
       b([](auto& t) {
         t.type = 8;
         t.ne = {int64_t{1} << 32, int64_t{1} << 32};
       }),
       {"b.weight", "2^63"}},
      {"WrapsToASmallProduct",
       b([](auto& t) {
         t.ne = {int64_t{1} << 32, int64_t{1} << 32, 1, 1};
       }),
       {"b.weight", "2^63"}},
      {"RemovedType", b([](auto& t) { t.type = 4; }), {"b.weight", "type 4", "given up"}},
      {"UnsupportedType", b([](auto& t) { t.type = 16; }), {"b.weight", "IQ2_XXS", "Q4_K"}},
      {"UnknownType", b([](auto& t) { t.type = 1000; }), {"b.weight", "1000"}},
      {"BlockDoesNotDivide", b([](auto& t) { t.type = 8; }), {"b.weight", "32", "Q8_0", "4"}},
      {"OddOffset", b([](auto& t) { t.offset = 8; }), {"b.weight", "multiple of 32", "8"}},
      {"OffsetBeyond", b([](auto& t) { t.offset = int64_t{1} << 40; }), {"b.weight", "complete?"}},
      {"OffsetWraps", b([](auto& t) { t.offset = std::numeric_limits<int64_t>::max() - 31; }), {"b.weight"}},
      {"Overlap", b([](auto& t) { t.offset = 64; }), {"b.weight", "a.weight", "bytes of its own"}},
      {"TensorTwice",
       [](GgufBytes& f) {
         f.tensors.push_back({"b.weight", {4}, 0, std::string(16, 'x'), -1});
       },
       {"b.weight", "twice"}},
      {"TooLarge",
       b([](auto& t) {
         t.ne = {4, 1000};
       }),
       {"b.weight", "16000", "complete?"}},
      {"LongTensorName",
       [](GgufBytes& f) {
         f.tensors.push_back({std::string(70000, 'n'), {4}, 0, std::string(16, 'x'), -1});
       },
       {"tensor's name", "70000"}},
  };
  return cases;
}

class BadGguf : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadGguf, IsRefusedByName) {
  GgufBytes file = small();
  GetParam().spoil(file);
  const std::string text = file.text();
  const std::string message = error_of([&] { parse_gguf(bytes_of(text), "bad.gguf"); });
  EXPECT_TRUE(message.starts_with("bad.gguf: ")) << message;
  for (const std::string& part : GetParam().message_has) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' not in: " << message;
  }
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(Cases, BadGguf, ::testing::ValuesIn(bad_files()),
                         [](const auto& param) { return param.param.name; });

TEST(Gguf, AccessErrorsNameFileKeyAndBothTypes) {
  const std::string text = small().text();
  const GgufContents file = parse_gguf(bytes_of(text), "m.gguf");
  const GgufMetadata& m = file.metadata;
  const auto check = [&](auto access, std::initializer_list<const char*> parts) {
    const std::string message = error_of(access);
    EXPECT_TRUE(message.starts_with("m.gguf: key '")) << message;
    for (const char* part : parts) EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  check([&] { m.integer("gone", 0, 9); }, {"gone", "[0, 9]", "no such key"});
  check([&] { m.integer("u8", 0, 9); }, {"u8", "[0, 9]", "found 200"});
  check([&] { m.integer("f32", 0, 9); }, {"f32", "integer", "0.5"});
  check([&] { m.integer("texts", 0, 9); }, {"texts", "array of 3 string"});
  check([&] { m.number("yes", 0, 9); }, {"yes", "number", "true"});
  check([&] { m.number("f64", 0, 9); }, {"f64", "-0.25"});
  check([&] { m.boolean("u8"); }, {"u8", "boolean", "200"});
  check([&] { m.string("numbers"); }, {"numbers", "string", "array of 3 i32"});
  check([&] { m.strings("numbers"); }, {"array of strings", "array of 3 i32"});
  check([&] { m.strings("u8"); }, {"array of strings", "200"});
  check([&] { m.integers("texts", 0, 9); }, {"integers", "string"});
  check([&] { m.integers("numbers", 0, 9); }, {"element 1"});
  check([&] { m.floats("numbers"); }, {"f32", "i32"});
  check([&] { m.per_layer("numbers", 4, -9, 9); }, {"array of 4", "array of 3"});
  check([&] { m.fail_key("u64", "less"); }, {"u64", "less", "1099511627776"});
}

TEST(Gguf, FixturesHaveTheTypesThatTheirReadmeNames) {
  const GgufFile file = GgufFile::open(WEIR_FIXTURES "/gguf/k3-tiny-mxfp4.gguf");
  std::map<std::string_view, int> types;
  for (const GgufTensor& tensor : file.tensors()) ++types[tensor.type->name];
  EXPECT_EQ(types, (std::map<std::string_view, int>{{"MXFP4", 18}, {"BF16", 88}, {"F32", 78}}));
  EXPECT_EQ(file.metadata().fields().size(), 45u);
  EXPECT_EQ(file.version(), 3u);
  EXPECT_EQ(file.metadata().strings("tokenizer.ggml.tokens").size(), 512u);
  EXPECT_EQ(file.find("blk.0.ssm_a")->ne[0], 4);
  EXPECT_EQ(file.find("blk.0.nothing"), nullptr);
}

// A model of three tensors in three files.
void write_parts(const TempFolder& folder, std::function<void(int, GgufBytes&)> edit) {
  for (int i = 0; i < 3; ++i) {
    GgufBytes part;
    if (i == 0) part.set("general.architecture", testing::gguf_text("test"));
    part.set("split.no", testing::gguf_value<uint16_t>(GgufType::kU16, static_cast<uint16_t>(i)));
    part.set("split.count", testing::gguf_value<uint16_t>(GgufType::kU16, 3));
    part.set("split.tensors.count", testing::gguf_value<int32_t>(GgufType::kI32, 3));
    const std::string name = concat("t", i);
    part.tensor(name) = {name, {8}, 0, std::string(32, static_cast<char>('a' + i)), -1};
    edit(i, part);
    folder.write(concat("m-0000", i + 1, "-of-00003.gguf"), part.text());
  }
}

TEST(GgufSplit, AnyPartOpensAllOfThem) {
  const TempFolder folder;
  write_parts(folder, [](int, GgufBytes&) {});
  for (int i = 1; i <= 3; ++i) {
    const GgufFile file = GgufFile::open(folder.path() / concat("m-0000", i, "-of-00003.gguf"));
    EXPECT_EQ(file.files(), 3);
    EXPECT_EQ(file.tensors().size(), 3u);
    EXPECT_EQ(file.metadata().string("general.architecture"), "test");
    ASSERT_NE(file.find("t2"), nullptr);
    EXPECT_EQ(static_cast<char>(file.find("t2")->data[0]), 'c');
    EXPECT_TRUE(file.find("t2")->file->ends_with("m-00003-of-00003.gguf"));
    EXPECT_GT(file.total_bytes(), 3 * 32);
  }
  const std::optional<std::filesystem::path> found = GgufFile::find_in(folder.path());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->filename(), "m-00001-of-00003.gguf");
}

TEST(GgufSplit, PartsThatDisagreeAreRefusedByName) {
  const auto u16 = [](uint16_t value) { return testing::gguf_value(GgufType::kU16, value); };
  const auto message = [](std::function<void(int, GgufBytes&)> edit) {
    const TempFolder folder;
    write_parts(folder, edit);
    return error_of([&] { GgufFile::open(folder.path() / "m-00002-of-00003.gguf"); });
  };
  const auto expect = [](const std::string& text, std::initializer_list<const char*> parts) {
    for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(message([&](int i, GgufBytes& f) {
           if (i == 2) f.set("split.no", u16(1));
         }),
         {"m-00003-of-00003.gguf", "split.no", "found 1"});
  expect(message([&](int i, GgufBytes& f) {
           if (i == 1) f.set("split.count", u16(4));
         }),
         {"m-00002-of-00003.gguf", "split.count", "found 4"});
  expect(message([&](int, GgufBytes& f) { f.set("split.count", u16(5)); }),
         {"m-00001-of-00003.gguf", "split.count", "found 5"});
  expect(message([&](int, GgufBytes& f) { f.erase("split.count"); }), {"split.count", "one file"});
  expect(message([&](int i, GgufBytes& f) {
           if (i == 1) f.erase("split.no");
         }),
         {"m-00002-of-00003.gguf", "split.no", "no such key"});
  expect(message([&](int i, GgufBytes& f) {
           if (i == 0) f.set("split.tensors.count", u16(7));
         }),
         {"split.tensors.count", "found 7"});
  expect(message([&](int i, GgufBytes& f) {
           if (i == 2) f.tensors[0].name = "t0";
         }),
         {"'t0'", "m-00003-of-00003.gguf", "once"});
  const TempFolder folder;
  write_parts(folder, [](int, GgufBytes&) {});
  std::filesystem::remove(folder.path() / "m-00002-of-00003.gguf");
  expect(error_of([&] { GgufFile::open(folder.path() / "m-00001-of-00003.gguf"); }), {"m-00002-of-00003.gguf"});
  std::filesystem::rename(folder.path() / "m-00001-of-00003.gguf", folder.path() / "other.gguf");
  expect(error_of([&] { GgufFile::open(folder.path() / "other.gguf"); }), {"other.gguf", "split.count", "name"});
}

TEST(GgufFolder, OneModelIsFoundSeveralAreRefused) {
  const TempFolder folder;
  EXPECT_FALSE(GgufFile::find_in(folder.path()));
  folder.write("a.gguf", small().text());
  folder.write("README.md", "text");
  EXPECT_EQ(GgufFile::find_in(folder.path())->filename(), "a.gguf");
  folder.write("b.gguf", small().text());
  const std::string message = error_of([&] { GgufFile::find_in(folder.path()); });
  EXPECT_NE(message.find("a.gguf"), std::string::npos) << message;
  EXPECT_NE(message.find("b.gguf"), std::string::npos) << message;
}

}  // namespace
}  // namespace weir
