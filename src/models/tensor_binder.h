// Takes tensors out of a checkpoint by name, with their shapes checked, and knows at the end which were never asked
// for.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint.h"
#include "models/model_spec.h"

namespace weir {

class TensorBinder {
 public:
  // `prefix` is put before every name.
  TensorBinder(const Checkpoint& checkpoint, std::string prefix)
      : checkpoint_(checkpoint), prefix_(std::move(prefix)) {}

  bool has(std::string_view name) const { return checkpoint_.find(prefix_ + std::string(name)) != nullptr; }

  // A matrix [out, in], used in place: `name` as F32, F16 or BF16, or `name` + "_packed" and "_scale" (MXFP4).
  // Error names file and tensor: missing, other shape, other dtype, MXFP4 scale 255.
  WeightView matrix(const std::string& name, int64_t out, int64_t in);
  // The output matrix: the embedding when tied (a copy of it in the file is then ignored), else `name`.
  WeightView head(const std::string& name, bool tied, const WeightView& embedding);
  // A small tensor of exactly this shape, widened to FP32.
  FloatVector floats(const std::string& name, std::initializer_list<int64_t> shape);
  // At least `count` numbers in whatever shape; the first `count` are taken (A_log: [H], [1, 1, H, 1] or zero-padded).
  FloatVector first_floats(const std::string& name, int64_t count);
  Linear linear(const std::string& name, int64_t out, int64_t in, bool bias = false);

  // Error naming a tensor that was never taken and starts with none of `skipped` (full names).
  void finish(const std::vector<std::string>& skipped) const;

 private:
  const Tensor& take(const std::string& name);
  const Tensor* find_taken(const std::string& name);
  WeightView packed(const std::string& name, int64_t out, int64_t in);

  const Checkpoint& checkpoint_;
  std::string prefix_;
  std::vector<const Tensor*> taken_;
};

}  // namespace weir
