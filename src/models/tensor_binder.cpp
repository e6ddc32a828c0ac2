#include "models/tensor_binder.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/number.h"

namespace weir {
namespace {

[[noreturn]] void fail_tensor(const Tensor& tensor, std::string_view expected, std::string_view found) {
  fail(*tensor.file, ": tensor ", tensor.name, ": expected ", expected, ", found ", found);
}

void check_shape(const Tensor& tensor, std::span<const int64_t> expected) {
  if (!std::ranges::equal(tensor.shape, expected)) {
    fail_tensor(tensor, concat("shape ", shape_text(expected)), shape_text(tensor.shape));
  }
}

void check_dtype(const Tensor& tensor, Dtype expected) {
  if (tensor.dtype != expected) fail_tensor(tensor, concat("dtype ", dtype_name(expected)), dtype_name(tensor.dtype));
}

std::optional<WeightFormat> float_format(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return WeightFormat::kF32;
    case Dtype::kF16:
      return WeightFormat::kF16;
    case Dtype::kBf16:
      return WeightFormat::kBf16;
    default:
      return std::nullopt;
  }
}

WeightFormat checked_format(const Tensor& tensor) {
  const std::optional<WeightFormat> format = float_format(tensor.dtype);
  if (!format) fail_tensor(tensor, "dtype F32, F16 or BF16", dtype_name(tensor.dtype));
  return *format;
}

FloatVector widened(const Tensor& tensor, int64_t count) {
  const WeightFormat format = checked_format(tensor);
  FloatVector values(static_cast<size_t>(count));
  if (format == WeightFormat::kF32) {
    std::memcpy(values.data(), tensor.data, values.size() * sizeof(float));
    return values;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, tensor.data + 2 * i, sizeof bits);
    values[i] = format == WeightFormat::kBf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
  }
  return values;
}

}  // namespace

const Tensor* TensorBinder::find_taken(const std::string& name) {
  const Tensor* tensor = checkpoint_.find(prefix_ + name);
  if (tensor != nullptr) taken_.push_back(tensor);
  return tensor;
}

const Tensor& TensorBinder::take(const std::string& name) {
  const Tensor* tensor = find_taken(name);
  if (tensor == nullptr)
    fail(checkpoint_.folder(), ": tensor ", prefix_, name, ": expected by the model, found in no file");
  return *tensor;
}

WeightView TensorBinder::packed(const std::string& name, int64_t out, int64_t in) {
  constexpr int64_t kGroup = 32;
  const Tensor& codes = take(name + "_packed");
  const Tensor& scales = take(name + "_scale");
  check_dtype(codes, Dtype::kU8);
  check_dtype(scales, Dtype::kU8);
  if (in % kGroup != 0) fail_tensor(codes, concat("a row of a multiple of ", kGroup, " elements"), concat(in));
  check_shape(codes, std::initializer_list<int64_t>{out, in / 2});
  check_shape(scales, std::initializer_list<int64_t>{out, in / kGroup});
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
          .scale_row_bytes = in / kGroup};
}

WeightView TensorBinder::matrix(const std::string& name, int64_t out, int64_t in) {
  if (!has(name) && has(name + "_packed")) return packed(name, out, in);
  const Tensor& tensor = take(name);
  const WeightFormat format = checked_format(tensor);
  check_shape(tensor, std::initializer_list<int64_t>{out, in});
  return {.format = format, .out = out, .in = in, .data = tensor.data, .row_bytes = in * dtype_bytes(tensor.dtype)};
}

WeightView TensorBinder::head(const std::string& name, bool tied, const WeightView& embedding) {
  if (!tied) return matrix(name, embedding.out, embedding.in);
  find_taken(name);
  return embedding;
}

FloatVector TensorBinder::floats(const std::string& name, std::initializer_list<int64_t> shape) {
  const Tensor& tensor = take(name);
  check_shape(tensor, shape);
  return widened(tensor, tensor.elements());
}

FloatVector TensorBinder::first_floats(const std::string& name, int64_t count) {
  const Tensor& tensor = take(name);
  if (tensor.elements() < count) fail_tensor(tensor, concat("at least ", count, " elements"), shape_text(tensor.shape));
  return widened(tensor, count);
}

Linear TensorBinder::linear(const std::string& name, int64_t out, int64_t in, bool bias) {
  Linear linear;
  linear.weight = matrix(name + ".weight", out, in);
  if (bias) linear.bias = floats(name + ".bias", {out});
  return linear;
}

void TensorBinder::finish(const std::vector<std::string>& skipped) const {
  std::vector<const Tensor*> taken = taken_;
  std::ranges::sort(taken);
  for (const Tensor& tensor : checkpoint_.tensors()) {
    if (std::ranges::binary_search(taken, &tensor)) continue;
    const bool skip =
        std::ranges::any_of(skipped, [&](const std::string& prefix) { return tensor.name.starts_with(prefix); });
    if (!skip)
      fail(*tensor.file, ": tensor ", tensor.name, ": expected no such tensor in this model, found ",
           shape_text(tensor.shape));
  }
}

}  // namespace weir
