// Metadata of one architecture: keys without their prefix, "block_count" for "llama.block_count".
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "formats/gguf.h"

namespace weir {

class GgufConfig {
 public:
  explicit GgufConfig(const GgufFile& file)
      : file_(file), prefix_(concat(file.metadata().string("general.architecture"), ".")) {}

  const GgufFile& file() const { return file_; }
  bool has(std::string_view name) const { return all().has(key(name)); }
  bool is_array(std::string_view name) const;
  int64_t integer(std::string_view name, int64_t min, int64_t max) const { return all().integer(key(name), min, max); }
  int64_t integer_or(std::string_view name, int64_t fallback, int64_t min, int64_t max) const {
    return all().integer_or(key(name), fallback, min, max);
  }
  float number(std::string_view name, double min, double max) const {
    return static_cast<float>(all().number(key(name), min, max));
  }
  float number_or(std::string_view name, double fallback, double min, double max) const {
    return static_cast<float>(all().number_or(key(name), fallback, min, max));
  }
  bool boolean_or(std::string_view name, bool fallback) const { return all().boolean_or(key(name), fallback); }
  std::string_view string_or(std::string_view name, std::string_view fallback) const {
    return all().string_or(key(name), fallback);
  }
  std::vector<int64_t> integers(std::string_view name, int64_t min, int64_t max) const {
    return all().integers(key(name), min, max);
  }
  std::vector<int64_t> per_layer(std::string_view name, int64_t layers, int64_t min, int64_t max) const {
    return all().per_layer(key(name), layers, min, max);
  }
  [[noreturn]] void fail_key(std::string_view name, std::string_view expected) const {
    all().fail_key(key(name), expected);
  }

  // Error for a key that changes the result, is not among those that the architecture `honours`, and says something
  // else than that there is nothing to do.
  void refuse_options(std::initializer_list<std::string_view> honours) const;
  // The prefixes of the last of `blocks` blocks, "blk.48.", that nextn_predict_layers says are prediction heads. Each
  // must look like one: it has a tensor "blk.48.nextn.".
  std::vector<std::string> prediction_blocks(int64_t blocks) const;
  // The embedding's rows; a vocab_size or a list of tokens must not say otherwise.
  int64_t vocab() const;

 private:
  const GgufMetadata& all() const { return file_.metadata(); }
  std::string key(std::string_view name) const { return prefix_ + std::string(name); }

  const GgufFile& file_;
  std::string prefix_;
};

}  // namespace weir
