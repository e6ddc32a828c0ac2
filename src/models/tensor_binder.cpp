#include "models/tensor_binder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "formats/quant.h"

namespace weir {
namespace {

constexpr int64_t kMxfp4Group = 32;  // elements with one scale

[[noreturn]] void fail_tensor(const SourceTensor& tensor, std::string_view expected, std::string_view found) {
  fail(*tensor.file, ": tensor ", printable(tensor.name, 200), ": expected ", expected, ", found ", found);
}

void check_type(const SourceTensor& tensor, std::string_view expected) {
  if (tensor.type != expected) fail_tensor(tensor, concat("dtype ", expected), tensor.type);
}

std::vector<int64_t> without_ones(std::span<const int64_t> shape) {
  std::vector<int64_t> out;
  std::ranges::copy_if(shape, std::back_inserter(out), [](int64_t d) { return d != 1; });
  return out;
}

WeightFormat checked_format(const SourceTensor& tensor) {
  if (!tensor.format) fail_tensor(tensor, "dtype F32, F16 or BF16", tensor.type);
  return *tensor.format;
}

FloatVector widened(const SourceTensor& tensor, int64_t count) {
  const WeightFormat format = checked_format(tensor);
  const int64_t block = weight_block(format).elements;
  FloatVector values(static_cast<size_t>((count + block - 1) / block * block));
  dequantize_row(format, tensor.data, static_cast<int64_t>(values.size()), values.data());
  values.resize(static_cast<size_t>(count));
  // A router would rank a NaN last and say nothing; better to refuse it here.
  const auto bad = std::ranges::find_if(values, [](float x) { return !std::isfinite(x); });
  if (bad != values.end()) {
    fail_tensor(tensor, "finite numbers",
                concat(std::isnan(*bad) ? "NaN" : "infinity", " at element ", bad - values.begin()));
  }
  return values;
}

// [in, out] to [out, in], in blocks whose rows and columns both stay in L1.
template <class Element>
void transpose(const std::byte* from, int64_t in, int64_t out, std::byte* to) {
  constexpr int64_t kBlock = 64;
  for (int64_t i0 = 0; i0 < in; i0 += kBlock) {
    for (int64_t o0 = 0; o0 < out; o0 += kBlock) {
      for (int64_t o = o0; o < std::min(o0 + kBlock, out); ++o) {
        for (int64_t i = i0; i < std::min(i0 + kBlock, in); ++i) {
          std::memcpy(to + (o * in + i) * static_cast<int64_t>(sizeof(Element)),
                      from + (i * out + o) * static_cast<int64_t>(sizeof(Element)), sizeof(Element));
        }
      }
    }
  }
}

WeightView view(const SourceTensor& tensor, int64_t out, int64_t in) {
  return {.format = checked_format(tensor), .out = out, .in = in, .data = tensor.data, .row_bytes = tensor.bytes / out};
}

}  // namespace

TensorBinder::TensorBinder(const Checkpoint& checkpoint, std::string prefix, std::string stem)
    : source_(tensor_source(checkpoint)),
      maker_(checkpoint.maker()),
      prefix_(std::move(prefix)),
      stem_(std::move(stem)),
      taken_(static_cast<size_t>(source_->size())) {}

TensorBinder::TensorBinder(const GgufFile& file, std::span<const GgufName> names)
    : source_(tensor_source(file)), names_(names), taken_(static_cast<size_t>(source_->size())) {}

bool TensorBinder::has(std::string_view name) const {
  // Of a thing that checkpoints store in one of several ways, a maker has the first published one.
  if (maker_ != nullptr) return name.ends_with(".A_log");
  return find(name).has_value();
}

std::optional<int64_t> TensorBinder::find(std::string_view name) const {
  if (!names_) return source_->find(prefixed(name));
  for (const std::string& candidate : gguf_names(*names_, name)) {
    if (const std::optional<int64_t> index = source_->find(candidate)) return index;
  }
  return std::nullopt;
}

std::string TensorBinder::prefixed(std::string_view name) const {
  return name.starts_with(stem_) ? concat(prefix_, name.substr(stem_.size())) : std::string(name);
}

std::string TensorBinder::full_name(std::string_view name) const {
  if (names_) {
    const std::vector<std::string> candidates = gguf_names(*names_, name);
    if (!candidates.empty()) return candidates.front();
  }
  return prefixed(name);
}

SourceTensor TensorBinder::take(const std::string& name) {
  const std::optional<int64_t> index = find(name);
  if (!index) {
    fail(source_->place(), ": tensor ", full_name(name), ": expected by the model, found in no file");
  }
  taken_[static_cast<size_t>(*index)] = true;
  return source_->tensor(*index);
}

void TensorBinder::check_shape(const SourceTensor& tensor, std::span<const int64_t> expected) const {
  if (std::ranges::equal(tensor.shape, expected)) return;
  if (!source_->keeps_ones() && without_ones(tensor.shape) == without_ones(expected)) return;
  fail_tensor(tensor, concat("shape ", shape_text(expected)),
              shape_text(source_->keeps_ones() ? tensor.shape : without_ones(tensor.shape)));
}

WeightView TensorBinder::packed(const std::string& name, int64_t out, int64_t in) {
  const SourceTensor codes = take(name + "_packed");
  const SourceTensor scales = take(name + "_scale");
  if (in % kMxfp4Group != 0)
    fail_tensor(codes, concat("a row of a multiple of ", kMxfp4Group, " elements"), concat(in));
  check_shape(codes, std::initializer_list<int64_t>{out, in / 2});
  check_shape(scales, std::initializer_list<int64_t>{out, in / kMxfp4Group});
  return mxfp4(codes, scales, out, in);
}

WeightView TensorBinder::block_stack(const std::string& name, int64_t count, int64_t out, int64_t in) {
  const SourceTensor codes = take(name + "_blocks");
  const SourceTensor scales = take(name + "_scales");
  if (in % kMxfp4Group != 0) fail_tensor(codes, concat("rows of a multiple of ", kMxfp4Group, " elements"), concat(in));
  check_shape(codes, std::initializer_list<int64_t>{count, out, in / kMxfp4Group, kMxfp4Group / 2});
  check_shape(scales, std::initializer_list<int64_t>{count, out, in / kMxfp4Group});
  return mxfp4(codes, scales, count * out, in);
}

// Codes and scales, both row by row.
WeightView TensorBinder::mxfp4(const SourceTensor& codes, const SourceTensor& scales, int64_t out, int64_t in) const {
  check_type(codes, "U8");
  check_type(scales, "U8");
  const void* nan = std::memchr(scales.data, 255, static_cast<size_t>(scales.bytes));
  if (nan != nullptr) {
    fail_tensor(scales, "E8M0 scales below 255",
                concat("255 (NaN) at element ", static_cast<const std::byte*>(nan) - scales.data));
  }
  return {.format = WeightFormat::kMxfp4,
          .out = out,
          .in = in,
          .data = codes.data,
          .row_bytes = in / 2,
          .scales = scales.data,
          .scale_row_bytes = in / kMxfp4Group};
}

WeightView TensorBinder::scaled(const SourceTensor& codes, const std::string& name, int64_t out, int64_t in) {
  constexpr int64_t kBlock = 128;      // always, at ragged edges too
  constexpr float kLargestCode = 448;  // a value beyond FP32 would be an infinity
  check_shape(codes, std::initializer_list<int64_t>{out, in});
  const bool blocks = has(name + "_scale_inv");
  if (!blocks && !has(name + "_scale")) {
    fail(source_->place(), ": tensor ", full_name(name), "_scale_inv or ", full_name(name),
         "_scale: expected by a tensor in E4M3, found in no file");
  }
  const SourceTensor scales = take(name + (blocks ? "_scale_inv" : "_scale"));
  const int64_t rows = blocks ? (out + kBlock - 1) / kBlock : out;
  const int64_t across = blocks ? (in + kBlock - 1) / kBlock : 1;
  check_shape(scales, std::initializer_list<int64_t>{rows, across});
  for (const float scale : widened(scales, rows * across)) {
    if (!std::isfinite(scale * kLargestCode)) fail_tensor(scales, "scales below 2^119", concat(scale));
  }
  return {.format = WeightFormat::kE4m3,
          .out = out,
          .in = in,
          .data = codes.data,
          .row_bytes = in,
          .scales = scales.data,
          .scale_row_bytes = scales.bytes / rows,
          .scale_format = *scales.format,
          .scale_rows = blocks ? kBlock : 1,
          .scale_cols = blocks ? kBlock : in};
}

WeightView TensorBinder::matrix(const std::string& name, int64_t out, int64_t in) {
  if (maker_ != nullptr) return maker_->matrix(name, out, in);
  if (!has(name) && has(name + "_packed")) return packed(name, out, in);
  const SourceTensor tensor = take(name);
  if (tensor.type == "F8_E4M3") return scaled(tensor, name, out, in);
  checked_format(tensor);
  check_shape(tensor, std::initializer_list<int64_t>{out, in});
  return view(tensor, out, in);
}

WeightView TensorBinder::head(const std::string& name, bool tied, const WeightView& embedding) {
  return tied && !has(name) ? embedding : matrix(name, embedding.out, embedding.in);
}

WeightView TensorBinder::stack(const std::string& name, int64_t count, int64_t out, int64_t in) {
  if (maker_ != nullptr) return maker_->matrix(name, count * out, in);
  const SourceTensor tensor = take(name);
  checked_format(tensor);
  check_shape(tensor, std::initializer_list<int64_t>{count, out, in});
  return view(tensor, count * out, in);
}

WeightView TensorBinder::transposed_stack(const std::string& name, int64_t count, int64_t out, int64_t in,
                                          std::vector<Mapping>& owned) {
  const SourceTensor tensor = take(name);
  const WeightFormat format = checked_format(tensor);
  if (weight_block(format).elements != 1) fail_tensor(tensor, "dtype F32, F16 or BF16", tensor.type);
  check_shape(tensor, std::initializer_list<int64_t>{count, in, out});
  const Mapping& memory = owned.emplace_back(tensor.bytes);
  for (int64_t i = 0; i < count; ++i) {
    const std::byte* from = tensor.data + i * (tensor.bytes / count);
    std::byte* to = memory.data() + i * (tensor.bytes / count);
    if (weight_block(format).bytes == 2) {
      transpose<uint16_t>(from, in, out, to);
    } else {
      transpose<uint32_t>(from, in, out, to);
    }
  }
  return {
      .format = format, .out = count * out, .in = in, .data = memory.data(), .row_bytes = weight_row_bytes(format, in)};
}

std::vector<WeightView> TensorBinder::experts(const std::string& prefix, const std::string& name, int64_t experts,
                                              int64_t out, int64_t in) {
  std::vector<WeightView> views;
  const std::string stacked = concat(prefix, "*.", name);
  if (names_ || has(stacked)) {
    const WeightView all = stack(stacked, experts, out, in);
    for (int64_t e = 0; e < experts; ++e) {
      views.push_back(all.rows(e * out, out));
    }
    return views;
  }
  for (int64_t e = 0; e < experts; ++e) views.push_back(matrix(concat(prefix, e, ".", name), out, in));
  return views;
}

FloatVector TensorBinder::floats(const std::string& name, std::initializer_list<int64_t> shape) {
  if (maker_ != nullptr) {
    int64_t count = 1;
    for (const int64_t d : shape) count *= d;
    return maker_->floats(name, count);
  }
  const SourceTensor tensor = take(name);
  check_shape(tensor, shape);
  return widened(tensor, tensor.elements());
}

FloatVector TensorBinder::zero_centred(const std::string& name, std::initializer_list<int64_t> shape) {
  FloatVector weight = floats(name, shape);
  if (!names_) {
    for (float& w : weight) w = 1.f + w;
  }
  return weight;
}

FloatVector TensorBinder::first_floats(const std::string& name, int64_t count) {
  if (maker_ != nullptr) return maker_->floats(name, count);
  const SourceTensor tensor = take(name);
  if (tensor.elements() < count) fail_tensor(tensor, concat("at least ", count, " elements"), shape_text(tensor.shape));
  FloatVector values = widened(tensor, tensor.elements());
  const auto rest = std::find_if(values.begin() + count, values.end(), [](float x) { return x != 0; });
  if (rest != values.end()) {
    fail_tensor(tensor, concat(count, " elements, and only zeros after them"),
                concat(*rest, " at element ", rest - values.begin()));
  }
  values.resize(static_cast<size_t>(count));
  return values;
}

Linear TensorBinder::linear(const std::string& name, int64_t out, int64_t in, bool bias) {
  Linear linear;
  linear.weight = matrix(name + ".weight", out, in);
  if (bias) linear.bias = floats(name + ".bias", {out});
  return linear;
}

Linear TensorBinder::finite_linear(const std::string& name, int64_t out, int64_t in) {
  Linear all = linear(name, out, in);
  if (maker_ != nullptr) return all;
  const int64_t block = weight_block(all.weight.format).elements;
  FloatVector row(static_cast<size_t>((in + block - 1) / block * block));
  for (int64_t o = 0; o < out; ++o) {
    dequantize(all.weight, o, 0, static_cast<int64_t>(row.size()), row.data());
    for (int64_t i = 0; i < in; ++i) {
      const float x = row[static_cast<size_t>(i)];
      if (std::isfinite(x)) continue;
      fail(source_->place(), ": tensor ", full_name(name + ".weight"), ": expected finite numbers, found ",
           std::isnan(x) ? "NaN" : "infinity", " at row ", o, ", column ", i);
    }
  }
  return all;
}

void TensorBinder::finish(const std::vector<std::string>& skipped) const {
  for (int64_t i = 0; i < source_->size(); ++i) {
    if (taken_[static_cast<size_t>(i)]) continue;
    const SourceTensor tensor = source_->tensor(i);
    const bool skip =
        std::ranges::any_of(skipped, [&](const std::string& prefix) { return tensor.name.starts_with(prefix); });
    if (!skip) {
      fail(*tensor.file, ": tensor ", printable(tensor.name, 200), ": expected no such tensor in this model, found ",
           shape_text(tensor.shape));
    }
  }
}

}  // namespace weir
