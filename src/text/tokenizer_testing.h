// Helpers of the tokenizers' tests.
#pragma once

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "formats/json.h"
#include "text/tokenizer.h"
#include "text/tokenizer_stream.h"

namespace weir::testing {

inline std::filesystem::path tokenizer_folder(const std::string& name) {
  return std::filesystem::path(WEIR_FIXTURES) / "tokenizers" / name;
}

inline std::shared_ptr<const Tokenizer> fixture_tokenizer(const std::string& name) {
  return Tokenizer::from_folder(tokenizer_folder(name));
}

inline std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::vector<int32_t> ids_of(const boost::json::value& array) {
  std::vector<int32_t> ids;
  for (const boost::json::value& id : array.as_array()) ids.push_back(id.to_number<int32_t>());
  return ids;
}

// The pieces of a stream, and at the end what it still held.
inline std::vector<std::string> streamed(const std::shared_ptr<const Tokenizer>& tokenizer,
                                         std::span<const int32_t> ids, bool skip_special, std::string& rest) {
  StreamDecoder stream(tokenizer, skip_special);
  std::vector<std::string> deltas;
  for (int32_t id : ids) deltas.push_back(stream.push(id));
  rest = stream.finish();
  return deltas;
}

}  // namespace weir::testing
