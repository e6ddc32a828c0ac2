// Weights that come from no file: for measuring a model of which only the configuration is at hand.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/cuda_device.h"
#include "device/memory.h"
#include "formats/checkpoint.h"

namespace weir {

// Small pseudo-random values, the same ones in every run. Matrices are in `format` where a row is a whole number of its
// blocks, else in BF16; with MXFP4 only those of experts, as published, unless the model has none. Routers and MLA's
// kv_b stay BF16.
class GeneratedWeights final : public TensorMaker {
 public:
  // kBf16, kQ8_0, kQ4_0 or kMxfp4. `described`: matrices are addresses without memory, which a GPU fills for itself
  // (write_rows).
  GeneratedWeights(WeightFormat format, bool has_experts, bool described = false)
      : format_(format), has_experts_(has_experts), described_(described) {}

  // CudaDevice::RowSource of described matrices: false for addresses that are none.
  bool write_rows(CudaDevice& device, std::byte* to, const std::byte* host, int64_t rows, int64_t row_bytes,
                  int64_t stride);

  WeightView matrix(std::string_view name, int64_t out, int64_t in) override;
  std::vector<float> floats(std::string_view name, int64_t count) override;
  int64_t total_bytes() const override { return bytes_; }
  const std::vector<std::span<const std::byte>>& pieces() const { return pieces_; }

 private:
  WeightFormat format_for(std::string_view name, int64_t in) const;
  std::byte* allocate(int64_t bytes);
  using Pattern = std::vector<std::byte>;
  Pattern pattern(WeightFormat format, int64_t bytes, int64_t in);
  Pattern scale_pattern(int64_t bytes, int64_t in) const;
  std::byte* fill(const Pattern& pattern, int64_t bytes);
  std::byte* describe(std::string key, const std::function<Pattern()>& make, int64_t bytes);
  uint64_t next();

  WeightFormat format_;
  bool has_experts_, described_;
  // Matrices of one shape and format share a pattern; by address, in `regions_`.
  struct Described {
    int64_t bytes = 0;
    const Pattern* pattern = nullptr;
  };
  std::map<std::string, Pattern> patterns_;
  std::map<const std::byte*, Described> regions_;
  std::deque<Mapping> memory_;
  int64_t used_ = 0;  // of the last mapping
  std::vector<std::span<const std::byte>> pieces_;
  int64_t bytes_ = 0;
  uint64_t state_ = 0x9E3779B97F4A7C15u;
};

}  // namespace weir
