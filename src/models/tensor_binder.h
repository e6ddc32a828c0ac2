// Takes tensors out of a checkpoint by name, with their shapes checked, and knows at the end which were never asked
// for. Names are those of the published checkpoints, whatever the files are.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/gguf_names.h"
#include "models/model_spec.h"
#include "models/tensor_source.h"

namespace weir {

class TensorBinder {
 public:
  // `prefix` is put before every name; or, with `stem`, takes its place in every name that begins with it.
  TensorBinder(const Checkpoint& checkpoint, std::string prefix, std::string stem = "");
  // Names go through `names`.
  TensorBinder(const GgufFile& file, std::span<const GgufName> names);

  bool has(std::string_view name) const;

  // A matrix [out, in], used in place: `name` in any format of weights, E4M3 with `name` + "_scale_inv" (a scale per
  // block of 128 x 128) or "_scale" (per row), or `name` + "_packed" and "_scale" (MXFP4). Error names file and tensor:
  // missing, other shape, other dtype, MXFP4 scale 255.
  WeightView matrix(const std::string& name, int64_t out, int64_t in);
  // The output matrix: `name`, or the embedding when tied and the files hold no `name`. One that tied files hold
  // counts, as in transformers 5, whether it equals the embedding or not.
  WeightView head(const std::string& name, bool tied, const WeightView& embedding);
  // One tensor [count, out, in], as a matrix [count * out, in].
  WeightView stack(const std::string& name, int64_t count, int64_t out, int64_t in);
  // The matrices [out, in] of all experts: `prefix` + "*." + `name` as one tensor [experts, out, in], or a tensor with
  // each expert's number for the star.
  std::vector<WeightView> experts(const std::string& prefix, const std::string& name, int64_t experts, int64_t out,
                                  int64_t in);
  // Many matrices as one [count * out, in]: `name` + "_blocks" [count, out, in / 32, 16] and "_scales" (MXFP4 as
  // gpt-oss is published), in place; or `name` [count, in, out], y = x W, whose transposed copy is put into `owned`.
  WeightView block_stack(const std::string& name, int64_t count, int64_t out, int64_t in);
  WeightView transposed_stack(const std::string& name, int64_t count, int64_t out, int64_t in,
                              std::vector<Mapping>& owned);
  // A small tensor of exactly this shape, widened to FP32.
  FloatVector floats(const std::string& name, std::initializer_list<int64_t> shape);
  // The weight of a norm that multiplies by 1 + w in published checkpoints: that sum, in FP32. GGUF's converters have
  // added the 1 already.
  FloatVector zero_centred(const std::string& name, std::initializer_list<int64_t> shape);
  // At least `count` numbers in whatever shape; the first `count` are taken, the rest are zeros (A_log: [H],
  // [1, 1, H, 1] or padded).
  FloatVector first_floats(const std::string& name, int64_t count);
  Linear linear(const std::string& name, int64_t out, int64_t in, bool bias = false);
  // Without bias. Error for a NaN or an infinity: of what ranks positions, where one would go unseen.
  Linear finite_linear(const std::string& name, int64_t out, int64_t in);

  // Error naming a tensor that was never taken and starts with none of `skipped` (full names).
  void finish(const std::vector<std::string>& skipped) const;

 private:
  std::optional<int64_t> find(std::string_view name) const;
  std::string prefixed(std::string_view name) const;
  std::string full_name(std::string_view name) const;
  SourceTensor take(const std::string& name);
  WeightView packed(const std::string& name, int64_t out, int64_t in);
  WeightView mxfp4(const SourceTensor& codes, const SourceTensor& scales, int64_t out, int64_t in) const;
  WeightView scaled(const SourceTensor& codes, const std::string& name, int64_t out, int64_t in);
  void check_shape(const SourceTensor& tensor, std::span<const int64_t> expected) const;

  std::unique_ptr<const TensorSource> source_;
  TensorMaker* maker_ = nullptr;  // of a checkpoint without files: instead of source_
  std::string prefix_, stem_;
  std::optional<std::span<const GgufName>> names_;
  std::vector<bool> taken_;  // by index in the source
};

}  // namespace weir
