#include "models/tensor_source.h"

namespace weir {
namespace {

std::optional<WeightFormat> weight_format(Dtype dtype) {
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

class CheckpointSource final : public TensorSource {
 public:
  explicit CheckpointSource(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  const std::string& place() const override { return checkpoint_.folder(); }
  int64_t size() const override { return static_cast<int64_t>(checkpoint_.tensors().size()); }
  SourceTensor tensor(int64_t index) const override {
    const Tensor& t = checkpoint_.tensors()[static_cast<size_t>(index)];
    return {t.name, t.file, t.shape, dtype_name(t.dtype), weight_format(t.dtype), t.data, t.bytes};
  }
  std::optional<int64_t> find(std::string_view name) const override {
    const Tensor* tensor = checkpoint_.find(name);
    if (tensor == nullptr) return std::nullopt;
    return tensor - checkpoint_.tensors().data();
  }
  bool keeps_ones() const override { return true; }

 private:
  const Checkpoint& checkpoint_;
};

class GgufSource final : public TensorSource {
 public:
  explicit GgufSource(const GgufFile& file) : file_(file) {}

  const std::string& place() const override { return file_.path(); }
  int64_t size() const override { return static_cast<int64_t>(file_.tensors().size()); }
  SourceTensor tensor(int64_t index) const override {
    const GgufTensor& t = file_.tensors()[static_cast<size_t>(index)];
    return {t.name, t.file, {t.ne[3], t.ne[2], t.ne[1], t.ne[0]}, t.type->name, t.type->format, t.data, t.bytes};
  }
  std::optional<int64_t> find(std::string_view name) const override {
    const GgufTensor* tensor = file_.find(name);
    if (tensor == nullptr) return std::nullopt;
    return tensor - file_.tensors().data();
  }
  bool keeps_ones() const override { return false; }

 private:
  const GgufFile& file_;
};

}  // namespace

int64_t SourceTensor::elements() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

std::unique_ptr<TensorSource> tensor_source(const Checkpoint& checkpoint) {
  return std::make_unique<CheckpointSource>(checkpoint);
}
std::unique_ptr<TensorSource> tensor_source(const GgufFile& file) { return std::make_unique<GgufSource>(file); }

}  // namespace weir
