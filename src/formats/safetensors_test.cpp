#include "formats/safetensors.h"

#include <gtest/gtest.h>

#include <boost/json/serialize.hpp>

#include "formats/json.h"
#include "formats/testing.h"

namespace weir {
namespace {

using testing::error_of;
using testing::safetensors_bytes;
using testing::TempFolder;

const std::string kFile = "f.safetensors";

SafetensorsContents parse(std::string_view bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes.data(), bytes.size())), kFile);
}
std::string parse_error(std::string_view bytes) {
  return error_of([&] { parse(bytes); });
}
std::string header_error(std::string_view header, size_t data_bytes) {
  return parse_error(safetensors_bytes(header, data_bytes));
}

TEST(Safetensors, gives_name_type_shape_and_bytes_sorted_by_name) {
  const std::string bytes =
      safetensors_bytes(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
                        R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )",
                        16);
  const SafetensorsContents contents = parse(bytes);
  ASSERT_EQ(contents.tensors.size(), 2u);
  const Tensor& a = contents.tensors[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.dtype, Dtype::kF32);
  EXPECT_TRUE(a.shape.empty());
  EXPECT_EQ(a.elements(), 1);
  EXPECT_EQ(a.bytes, 4);
  EXPECT_EQ(*a.file, kFile);
  EXPECT_EQ(static_cast<int>(a.data[3]), 3);
  const Tensor& b = contents.tensors[1];
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(b.elements(), 6);
  EXPECT_EQ(b.data, a.data + 4);
  EXPECT_EQ(contents.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
}

TEST(Safetensors, knows_every_published_type_and_its_size) {
  const struct {
    std::string name;
    Dtype dtype;
    int64_t bytes;
  } cases[] = {{"F64", Dtype::kF64, 8},        {"F32", Dtype::kF32, 4},        {"F16", Dtype::kF16, 2},
               {"BF16", Dtype::kBf16, 2},      {"F8_E4M3", Dtype::kF8E4m3, 1}, {"F8_E5M2", Dtype::kF8E5m2, 1},
               {"F8_E8M0", Dtype::kF8E8m0, 1}, {"I64", Dtype::kI64, 8},        {"I32", Dtype::kI32, 4},
               {"I16", Dtype::kI16, 2},        {"I8", Dtype::kI8, 1},          {"U64", Dtype::kU64, 8},
               {"U32", Dtype::kU32, 4},        {"U16", Dtype::kU16, 2},        {"U8", Dtype::kU8, 1},
               {"BOOL", Dtype::kBool, 1}};
  for (const auto& c : cases) {
    const std::string header =
        concat("{\"t\":{\"dtype\":\"", c.name, "\",\"shape\":[3],\"data_offsets\":[0,", 3 * c.bytes, "]}}");
    const std::string bytes = safetensors_bytes(header, static_cast<size_t>(3 * c.bytes));
    const SafetensorsContents contents = parse(bytes);
    EXPECT_EQ(contents.tensors[0].dtype, c.dtype);
    EXPECT_EQ(contents.tensors[0].elements(), 3);
    EXPECT_EQ(dtype_name(c.dtype), c.name);
    EXPECT_EQ(dtype_bytes(c.dtype), c.bytes);
    // The same data under a type of another size is refused.
    const std::string other = c.bytes == 4 ? "I8" : "F32";
    const std::string lie =
        concat("{\"t\":{\"dtype\":\"", other, "\",\"shape\":[3],\"data_offsets\":[0,", 3 * c.bytes, "]}}");
    EXPECT_EQ(header_error(lie, static_cast<size_t>(3 * c.bytes)),
              concat("f.safetensors: tensor 't': ", other, " [3] takes ", other == "I8" ? 3 : 12,
                     " bytes, but data_offsets [0, ", 3 * c.bytes, "] hold ", 3 * c.bytes));
  }
}

TEST(Safetensors, accepts_empty_tensors_anywhere_and_an_empty_file) {
  const std::string bytes = safetensors_bytes(
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"z":{"dtype":"F32","shape":[0,7],"data_offsets":[2,2]},)"
      R"("y":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
      3);
  EXPECT_EQ(parse(bytes).tensors.size(), 4u);
  EXPECT_TRUE(parse(safetensors_bytes("{}", 0)).tensors.empty());
}

TEST(Safetensors, accepts_data_at_an_odd_address) {
  const std::string bytes = safetensors_bytes(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} )", 4);
  EXPECT_EQ(parse(bytes).tensors[0].bytes, 4);
  EXPECT_EQ(parse(safetensors_bytes(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4)).tensors.size(),
            1u);
}

TEST(Safetensors, refuses_files_that_are_none) {
  EXPECT_EQ(parse_error(""), "f.safetensors: 0 bytes are too few for a safetensors file; is the file complete?");
  EXPECT_EQ(parse_error("1234567"), "f.safetensors: 7 bytes are too few for a safetensors file; is the file complete?");
  EXPECT_EQ(parse_error("<html><body>"),
            "f.safetensors: not a safetensors file: header length 7078601349733312572, the limit is 100000000");
  EXPECT_EQ(parse_error(std::string(8, '\xff')),
            "f.safetensors: not a safetensors file: header length 18446744073709551615, the limit is 100000000");
  EXPECT_EQ(parse_error(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10)),
            "f.safetensors: not a safetensors file: header length 100000001, the limit is 100000000");
  EXPECT_EQ(parse_error(std::string("\x03\0\0\0\0\0\0\0{}", 10)),
            "f.safetensors: header length 3, but only 2 bytes follow; is the file complete?");
  EXPECT_EQ(header_error("", 0), "f.safetensors: not a safetensors file: the header doesn't begin with '{'");
  EXPECT_EQ(header_error(" {}", 0), "f.safetensors: not a safetensors file: the header doesn't begin with '{'");
  EXPECT_EQ(header_error("[1]", 0), "f.safetensors: not a safetensors file: the header doesn't begin with '{'");
}

TEST(Safetensors, refuses_bad_headers_naming_file_and_tensor) {
  // With 4 bytes of data.
  const struct {
    std::string_view entry;  // of tensor x
    std::string_view message;
  } cases[] = {
      {R"(5)", "expected an object with dtype, shape and data_offsets"},
      {R"(null)", "expected an object with dtype, shape and data_offsets"},
      {R"({})", "dtype: expected a string"},
      {R"({"dtype":7,"shape":[1],"data_offsets":[0,4]})", "dtype: expected a string"},
      {R"({"dtype":"F4","shape":[1],"data_offsets":[0,4]})", "dtype 'F4' is not known"},
      {R"({"dtype":"f32","shape":[1],"data_offsets":[0,4]})", "dtype 'f32' is not known"},
      {R"({"dtype":"","shape":[1],"data_offsets":[0,4]})", "dtype '' is not known"},
      {R"({"dtype":"F32","data_offsets":[0,4]})", "shape: expected an array of integers"},
      {R"({"dtype":"F32","shape":1,"data_offsets":[0,4]})", "shape: expected an array of integers"},
      {R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", "shape[0]: expected an integer from 0 to 2^63 - 1"},
      {R"({"dtype":"F32","shape":[1,1.5],"data_offsets":[0,4]})", "shape[1]: expected an integer from 0 to 2^63 - 1"},
      {R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})", "shape[0]: expected an integer from 0 to 2^63 - 1"},
      {R"({"dtype":"F32","shape":["1"],"data_offsets":[0,4]})", "shape[0]: expected an integer from 0 to 2^63 - 1"},
      {R"({"dtype":"F32","shape":[[1]],"data_offsets":[0,4]})", "shape[0]: expected an integer from 0 to 2^63 - 1"},
      {R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]})",
       "shape[0]: expected an integer from 0 to 2^63 - 1"},
      {R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]})",
       "shape: expected at most 8 integers, found 9"},
      {R"({"dtype":"F32","shape":[1]})", "data_offsets: expected an array of integers"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":{"begin":0}})", "data_offsets: expected an array of integers"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[]})", "data_offsets: expected [begin, end], found []"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0]})", "data_offsets: expected [begin, end], found [0]"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,8]})", "data_offsets: expected at most 2 integers, found 3"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[-4,0]})",
       "data_offsets[0]: expected an integer from 0 to 2^63 - 1"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0,4.5]})",
       "data_offsets[1]: expected an integer from 0 to 2^63 - 1"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551620]})",
       "data_offsets[1]: expected an integer from 0 to 2^63 - 1"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", "data_offsets [4, 0] end before they begin"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[1,5]})",
       "data_offsets [1, 5] lie beyond the file's 4 bytes of data; is the file complete?"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[9223372036854775803,9223372036854775807]})",
       "data_offsets [9223372036854775803, 9223372036854775807] lie beyond the file's 4 bytes of data; is the file "
       "complete?"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", "F32 [2] takes 8 bytes, but data_offsets [0, 4] hold 4"},
      // 2^62 * 4 and 2^32 * 2^32 * ... wrap to 0 or 4 in 64 bits.
      {R"({"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]})",
       "F32 [4611686018427387905] takes more than 2^63 bytes, but data_offsets [0, 4] hold 4"},
      {R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]})",
       "U8 [4294967296, 4294967296] takes more than 2^63 bytes, but data_offsets [0, 0] hold 0"},
      {R"({"dtype":"U8","shape":[9223372036854775807,3],"data_offsets":[0,4]})",
       "U8 [9223372036854775807, 3] takes more than 2^63 bytes, but data_offsets [0, 4] hold 4"},
      {R"({"dtype":"U8","shape":[0,4],"data_offsets":[0,4]})",
       "U8 [0, 4] takes 0 bytes, but data_offsets [0, 4] hold 4"},
      {R"({"dtype":"U8","shape":[3],"data_offsets":[1,4]})",
       "begins at byte 1 of the data, but bytes [0, 1) before it belong to no tensor"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"shape":[1]})", "duplicate key 'shape'"},
  };
  for (const auto& c : cases) {
    const std::string message = header_error(concat("{\"x\":", c.entry, "}"), 4);
    if (c.message.starts_with("duplicate")) {
      EXPECT_EQ(message.find("f.safetensors: header: not JSON at byte "), 0u) << message;
      EXPECT_NE(message.find(c.message), std::string::npos) << message;
    } else {
      EXPECT_EQ(message, concat("f.safetensors: tensor 'x': ", c.message)) << c.entry;
    }
  }
}

TEST(Safetensors, refuses_overlaps_holes_and_bytes_left_over) {
  const auto two = [](std::string_view a, std::string_view b, size_t data_bytes) {
    return header_error(concat("{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":", b,
                               "},\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":", a, "}}"),
                        data_bytes);
  };
  EXPECT_EQ(two("[0,2]", "[2,4]", 4), "no error");
  EXPECT_EQ(two("[2,4]", "[0,2]", 4), "no error");
  EXPECT_EQ(two("[0,2]", "[1,3]", 3),
            "f.safetensors: tensor 'b': begins at byte 1 of the data, inside tensor 'a', which ends at byte 2");
  const std::string same = two("[0,2]", "[0,2]", 2);
  EXPECT_NE(same.find("begins at byte 0 of the data, inside tensor "), std::string::npos) << same;
  EXPECT_EQ(two("[0,2]", "[3,5]", 5),
            "f.safetensors: tensor 'b': begins at byte 3 of the data, but bytes [2, 3) before it belong to no tensor");
  EXPECT_EQ(two("[0,2]", "[2,4]", 7),
            "f.safetensors: bytes [4, 7) of the data, after the last tensor 'b', belong to no tensor");
  EXPECT_EQ(header_error("{}", 1),
            "f.safetensors: bytes [0, 1) of the data, after the last tensor, belong to no tensor");
}

TEST(Safetensors, refuses_bad_json_and_metadata) {
  EXPECT_EQ(header_error("{\"x\": NaN}", 0).find("f.safetensors: header: not JSON at byte 6: "), 0u);
  EXPECT_EQ(header_error("{} {}", 0), "f.safetensors: header: not JSON at byte 3: expected the end, found '{}'");
  EXPECT_EQ(header_error("{\"\xc3\x28\":1}", 0).find("f.safetensors: header: not JSON at byte "), 0u);
  EXPECT_EQ(header_error(R"({"x":1,"x":2})", 0), "f.safetensors: header: not JSON at byte 12: duplicate key 'x'");
  std::string bomb;
  for (int i = 0; i < 100000; ++i) bomb += "{\"a\":";
  EXPECT_EQ(header_error(bomb, 0),
            "f.safetensors: header: not JSON at byte 40: more than 8 arrays and objects inside each other");
  EXPECT_EQ(header_error(R"({"__metadata__":[]})", 0), "f.safetensors: __metadata__: expected an object of strings");
  EXPECT_EQ(header_error(R"({"__metadata__":{"format":1}})", 0),
            "f.safetensors: __metadata__: field 'format': expected a string");
}

TEST(Safetensors, refuses_a_published_file_cut_or_lengthened_anywhere) {
  const MappedFile file = MappedFile::open(WEIR_FIXTURES "/kimi_k3/k3-tiny/model-00002-of-000010.safetensors");
  const auto bytes = file.bytes();
  EXPECT_EQ(parse_safetensors(bytes, kFile).tensors.size(), 124u);
  for (size_t i = 0; i < 50; ++i) {
    const size_t length = bytes.size() * i / 50;
    const std::string message = error_of([&] { parse_safetensors(bytes.first(length), kFile); });
    EXPECT_EQ(message.find("f.safetensors: "), 0u) << length;
    EXPECT_NE(message.find("is the file complete?"), std::string::npos) << message;
  }
  const std::string message = error_of([&] { parse_safetensors(bytes.first(bytes.size() - 1), kFile); });
  EXPECT_NE(message.find("is the file complete?"), std::string::npos) << message;
  std::vector<std::byte> longer(bytes.begin(), bytes.end());
  longer.push_back({});
  EXPECT_NE(error_of([&] { parse_safetensors(longer, kFile); }).find("belong to no tensor"), std::string::npos);
}

TEST(Safetensors, refuses_or_parses_a_header_with_any_byte_changed_but_never_reads_outside) {
  const MappedFile file = MappedFile::open(WEIR_FIXTURES "/hf/llama/model-00002-of-00005.safetensors");
  std::vector<std::byte> bytes(file.bytes().begin(), file.bytes().end());
  for (size_t i = 0; i < 8 + 976; ++i) {
    for (const unsigned char mask : {0x01, 0x10, 0x80}) {
      bytes[i] ^= std::byte{mask};
      const std::string message = error_of([&] {
        for (const Tensor& tensor : parse_safetensors(bytes, kFile).tensors) {
          EXPECT_GE(tensor.data, bytes.data() + 8);
          EXPECT_LE(tensor.data + tensor.bytes, bytes.data() + bytes.size());
        }
      });
      if (i < 8) {  // the length is never right
        EXPECT_EQ(message.find("f.safetensors: "), 0u) << i;
      }
      bytes[i] ^= std::byte{mask};
    }
  }
}

TEST(SafetensorsFile, keeps_its_tensors_when_moved) {
  const TempFolder folder;
  folder.write("a.safetensors", safetensors_bytes(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", 3));
  SafetensorsFile opened = SafetensorsFile::open(folder.file("a.safetensors"));
  const SafetensorsFile file = std::move(opened);
  EXPECT_EQ(file.path(), folder.file("a.safetensors"));
  EXPECT_EQ(*file.tensors()[0].file, folder.file("a.safetensors"));
  EXPECT_EQ(static_cast<int>(file.tensors()[0].data[2]), 2);
  EXPECT_EQ(file.bytes(), static_cast<int64_t>(std::filesystem::file_size(folder.file("a.safetensors"))));
  EXPECT_EQ(file.mapping().bytes().size(), static_cast<size_t>(file.bytes()));
}

TEST(SafetensorsFile, reads_the_fixtures_metadata) {
  const SafetensorsFile file = SafetensorsFile::open(WEIR_FIXTURES "/kimi_k3/k3-tiny/golden.safetensors");
  EXPECT_TRUE(file.metadata().contains("note"));
  EXPECT_EQ(file.tensors().size(), 46u);
}

TEST(ShapeText, is_as_in_python) {
  EXPECT_EQ(shape_text(std::vector<int64_t>{512, 64}), "[512, 64]");
  EXPECT_EQ(shape_text({}), "[]");
}

}  // namespace
}  // namespace weir
