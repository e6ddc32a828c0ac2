#include "models/generated_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/number.h"

namespace weir {
namespace {

constexpr int64_t kPattern = int64_t{1} << 20;

bool is_expert(std::string_view name) { return name.find(".experts.") != std::string_view::npos; }

// Routers, and MLA's up-projections of latents, which are used in BF16 or wider.
bool stays_wide(std::string_view name) {
  return name.ends_with("block_sparse_moe.gate.weight") || name.ends_with("mlp.gate.weight") ||
         name.ends_with("mlp.router.weight") || name.ends_with("router.proj.weight") ||
         name.ends_with("kv_b_proj.weight");
}

void store16(std::byte* at, uint16_t bits) { std::memcpy(at, &bits, sizeof bits); }

}  // namespace

uint64_t GeneratedWeights::next() {  // xorshift64
  state_ ^= state_ << 13;
  state_ ^= state_ >> 7;
  state_ ^= state_ << 17;
  return state_;
}

WeightFormat GeneratedWeights::format_for(std::string_view name, int64_t in) const {
  if (stays_wide(name)) return WeightFormat::kBf16;
  if (format_ == WeightFormat::kMxfp4 && has_experts_ && !is_expert(name)) return WeightFormat::kBf16;
  return in % weight_block(format_).elements == 0 ? format_ : WeightFormat::kBf16;
}

// Few large mappings: systems limit their number.
std::byte* GeneratedWeights::allocate(int64_t bytes) {
  constexpr int64_t kMapping = int64_t{256} << 20;
  const int64_t rounded = (bytes + 63) / 64 * 64;
  if (memory_.empty() || memory_.back().bytes() - used_ < rounded) {
    memory_.emplace_back(std::max(rounded, kMapping));
    used_ = 0;
  }
  used_ += rounded;
  return memory_.back().data() + used_ - rounded;
}

// Blocks repeat after a mebibyte, which no kernel notices: what is read is memory of its own all the same.
GeneratedWeights::Pattern GeneratedWeights::pattern(WeightFormat format, int64_t bytes, int64_t in) {
  const int64_t block = std::max<int64_t>(weight_block(format).bytes, 2);
  const int64_t unique = std::min(bytes, kPattern / block * block);
  Pattern data(static_cast<size_t>(unique));
  for (int64_t at = 0; at < unique; at += 8) {
    const uint64_t word = next();
    std::memcpy(data.data() + at, &word, static_cast<size_t>(std::min<int64_t>(8, unique - at)));
  }
  // Weights of about 1 / sqrt(in): sums of products stay near 1.
  const float scale = 1.f / std::sqrt(static_cast<float>(in));
  for (int64_t at = 0; at + block <= unique; at += block) {
    if (format == WeightFormat::kBf16) {
      const auto random = static_cast<float>(next() >> 40) * 0x1p-23f - 1;  // [-1, 1)
      store16(data.data() + at, f32_to_bf16(random * scale * 1.7f));
    } else if (format == WeightFormat::kQ8_0) {
      store16(data.data() + at, f32_to_f16(scale / 74));  // codes are uniform: their deviation is 74
    } else if (format == WeightFormat::kQ4_0) {
      store16(data.data() + at, f32_to_f16(scale / 4.6f));
    }
  }
  return data;
}

// E2M1 codes have a deviation of about 2.4: the scale 2^e nearest to 1 / (2.4 sqrt(in)).
GeneratedWeights::Pattern GeneratedWeights::scale_pattern(int64_t bytes, int64_t in) const {
  const int exponent = static_cast<int>(std::lround(-std::log2(2.4 * std::sqrt(static_cast<double>(in)))));
  return Pattern(static_cast<size_t>(std::min(bytes, kPattern)), static_cast<std::byte>(127 + exponent));
}

std::byte* GeneratedWeights::fill(const Pattern& pattern, int64_t bytes) {
  std::byte* data = allocate(bytes);
  const auto unique = static_cast<int64_t>(pattern.size());
  for (int64_t done = 0; done < bytes; done += unique) {
    std::memcpy(data + done, pattern.data(), static_cast<size_t>(std::min(unique, bytes - done)));
  }
  pieces_.emplace_back(data, static_cast<size_t>(bytes));
  return data;
}

std::byte* GeneratedWeights::describe(std::string key, const std::function<Pattern()>& make, int64_t bytes) {
  const auto [found, is_new] = patterns_.try_emplace(std::move(key));
  if (is_new) found->second = make();
  std::byte* data = allocate(bytes);
  regions_[data] = {bytes, &found->second};
  return data;
}

bool GeneratedWeights::write_rows(CudaDevice& device, std::byte* to, const std::byte* host, int64_t rows,
                                  int64_t row_bytes, int64_t stride) {
  auto found = regions_.upper_bound(host);
  if (found == regions_.begin()) return false;
  --found;
  const int64_t offset = host - found->first;
  if (offset + (rows - 1) * stride + row_bytes > found->second.bytes) return false;
  const Pattern& pattern = *found->second.pattern;
  const auto unique = static_cast<int64_t>(pattern.size());
  // One period, from where the rows begin, then copies of what is there: rows that lie apart get the values of rows
  // that don't.
  const int64_t bytes = rows * row_bytes, phase = offset % unique;
  const int64_t first = std::min(bytes, unique - phase), second = std::min(bytes - first, phase);
  device.to_device(to, pattern.data() + phase, first);
  if (second > 0) device.to_device(to + first, pattern.data(), second);
  for (int64_t done = first + second; done < bytes; done *= 2) device.copy(to + done, to, std::min(done, bytes - done));
  return true;
}

WeightView GeneratedWeights::matrix(std::string_view name, int64_t out, int64_t in) {
  const WeightFormat format = format_for(name, in);
  WeightView view{.format = format, .out = out, .in = in, .row_bytes = weight_row_bytes(format, in)};
  const int64_t bytes = out * view.row_bytes;
  const std::string shape = concat(weight_format_name(format), " ", out, " ", in);
  const auto make = [&] { return pattern(format, bytes, in); };
  // Routers that are alike would choose alike.
  view.data = described_ ? describe(stays_wide(name) ? std::string(name) : shape, make, bytes) : fill(make(), bytes);
  bytes_ += bytes;
  if (format == WeightFormat::kMxfp4) {
    view.scale_row_bytes = in / 32;
    const int64_t scales = out * view.scale_row_bytes;
    view.scales = described_ ? describe(
                                   "scales " + shape, [&] { return scale_pattern(scales, in); }, scales)
                             : fill(scale_pattern(scales, in), scales);
    bytes_ += scales;
  }
  return view;
}

std::vector<float> GeneratedWeights::floats(std::string_view name, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  if (name.find("norm") != std::string_view::npos) {
    std::ranges::fill(values, 1.f);
    return values;
  }
  if (name.find("e_score_correction_bias") != std::string_view::npos) return values;  // generated routers are balanced
  for (float& value : values) value = (static_cast<float>(next() >> 40) * 0x1p-23f - 1) * 0.25f;
  return values;
}

}  // namespace weir
