#include "formats/quant.h"

#include <gtest/gtest.h>

#include <bit>
#include <boost/json.hpp>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace weir {
namespace {

constexpr WeightFormat kGgufFormats[] = {
    WeightFormat::kF32,   WeightFormat::kF16,       WeightFormat::kBf16, WeightFormat::kQ4_0,  WeightFormat::kQ4_1,
    WeightFormat::kQ5_0,  WeightFormat::kQ5_1,      WeightFormat::kQ8_0, WeightFormat::kQ2_K,  WeightFormat::kQ3_K,
    WeightFormat::kQ4_K,  WeightFormat::kQ5_K,      WeightFormat::kQ6_K, WeightFormat::kIq4Nl, WeightFormat::kIq4Xs,
    WeightFormat::kNvfp4, WeightFormat::kMxfp4Block};

std::vector<std::byte> bytes_of(const boost::json::value& hex) {
  const std::string text(hex.as_string());
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// tests/fixtures/gguf/gguf_blocks.json: blocks of random bytes and their values, checked against gguf-py. The decimal
// values contain infinities, which JSON lacks; their bits are what counts.
boost::json::value published_blocks() {
  std::ifstream file(WEIR_FIXTURES "/gguf/gguf_blocks.json");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  for (size_t at = text.find("Infinity"); at != std::string::npos; at = text.find("Infinity", at))
    text.replace(at, 8, "0");
  return boost::json::parse(text);
}

TEST(Quant, DequantizesThePublishedBlocksBitForBit) {
  const boost::json::value json = published_blocks();
  size_t values = 0;
  for (const WeightFormat format : kGgufFormats) {
    const boost::json::value& type = json.at("types").at(weight_format_name(format));
    const WeightBlock block = weight_block(format);
    EXPECT_EQ(type.at("block_elems").to_number<int64_t>(), block.elements);
    EXPECT_EQ(type.at("block_bytes").to_number<int64_t>(), block.bytes);
    std::vector<std::byte> row, expected;  // all blocks of the type as one row
    for (const boost::json::value& published : type.at("blocks").as_array()) {
      const std::vector<std::byte> raw = bytes_of(published.at("hex")), f32 = bytes_of(published.at("f32_hex"));
      row.insert(row.end(), raw.begin(), raw.end());
      expected.insert(expected.end(), f32.begin(), f32.end());
    }
    std::vector<float> found(expected.size() / 4);
    dequantize_row(format, row.data(), static_cast<int64_t>(found.size()), found.data());
    for (size_t i = 0; i < found.size(); ++i) {
      uint32_t bits;
      std::memcpy(&bits, expected.data() + 4 * i, 4);
      ASSERT_EQ(std::bit_cast<uint32_t>(found[i]), bits) << weight_format_name(format) << " value " << i;
    }
    values += found.size();
  }
  EXPECT_EQ(json.at("types").as_object().size(), std::size(kGgufFormats));
  EXPECT_GT(values, 5800u);
}

TEST(Quant, ReadsBlocksFromTheMiddleOfARow) {
  std::vector<std::byte> data(3 * 2 * 144);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 37 % 61);
  const WeightView weight{WeightFormat::kQ4_K, 3, 512, data.data(), 288};
  std::vector<float> row(512), part(256);
  dequantize_row(WeightFormat::kQ4_K, data.data() + 2 * 288, 512, row.data());
  dequantize(weight, 2, 256, 256, part.data());
  EXPECT_EQ(std::memcmp(row.data() + 256, part.data(), 256 * sizeof(float)), 0);
}

TEST(Quant, GivesTheTwoLayoutsOfMxfp4TheSameValues) {
  std::vector<std::byte> block(17), packed(16);
  block[0] = std::byte{120};
  for (int i = 0; i < 32; ++i) {
    const int code = (i * 5 + 3) % 16;
    block[static_cast<size_t>(1 + i % 16)] |= static_cast<std::byte>(i < 16 ? code : code << 4);
    packed[static_cast<size_t>(i / 2)] |= static_cast<std::byte>(i % 2 == 0 ? code : code << 4);
  }
  const WeightView split{WeightFormat::kMxfp4, 1, 32, packed.data(), 16, block.data(), 1};
  float a[32], b[32];
  dequantize(split, 0, 0, 32, a);
  dequantize_row(WeightFormat::kMxfp4Block, block.data(), 32, b);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(a[i], b[i]) << i;
}

}  // namespace
}  // namespace weir
