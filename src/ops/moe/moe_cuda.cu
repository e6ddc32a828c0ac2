#include <algorithm>
#include <cmath>

#include "ops/cuda_op.h"
#include "ops/moe/moe_cuda.cuh"

namespace weir {
namespace {

// The memory of a step's parts, one after the other.
class Layout {
 public:
  explicit Layout(std::byte* base) : base_(base) {}
  template <class T>
  T* take(int64_t count) {
    T* at = reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return at;
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  int64_t bytes_ = 0;
};

int64_t bytes_of(const WeightView& w) {
  const int64_t scales = w.scales == nullptr ? 0
                         : w.format == WeightFormat::kMxfp4
                             ? w.out * (w.in / 32)
                             : (w.out + w.scale_rows - 1) / w.scale_rows * ((w.in + w.scale_cols - 1) / w.scale_cols) *
                                   weight_block(w.scale_format).bytes;
  return w.out * weight_row_bytes(w.format, w.in) + scales;
}

class MoeCuda : public CudaOp {
 public:
  MoeCuda(CudaDevice& device, std::string name, const MoeArgs& args) : CudaOp(device, std::move(name)), args_(args) {
    const auto count = static_cast<int64_t>(args.experts.size());
    count_ = count;
    for (const ExpertWeights& w : args.experts) bytes_ += bytes_of(w.gate) + bytes_of(w.up) + bytes_of(w.down);
    args_.experts.clear();  // the host's
    args_.gate_bias = device.upload(args.gate_bias, count * args.inter);
    args_.up_bias = device.upload(args.up_bias, count * args.inter);
    args_.down_bias = device.upload(args.down_bias, count * args.out);
    if (!args.follows) return;
    follows_ = bind_add_norm(device, this->name(), args.follows->add, args.follows->norm);
    if (sum_norm_fits(args)) norm_weight_ = device.upload(args.follows->norm.weight, args.follows->norm.size);
  }

  // Every expert is assumed to be as likely as any other.
  Cost cost(int32_t rows, int64_t) const override {
    const double read = 1 - std::pow(1 - static_cast<double>(args_.top_k) / static_cast<double>(count_), rows);
    const double products = static_cast<double>(args_.inter) * static_cast<double>(2 * args_.in + args_.out);
    return {.weight_bytes = static_cast<int64_t>(static_cast<double>(bytes_) * read),
            .flops = 2.0 * rows * static_cast<double>(args_.top_k) * products};
  }

 protected:
  // From the pairs' outputs to the op's.
  void finish(const StepBounds& bounds, const float* z) {
    if (norm_weight_ != nullptr && bounds.rows <= kMostSumNormRows) {
      return sum_norm_pairs(device(), bounds.rows, args_, norm_weight_, z);
    }
    sum_pairs(device(), bounds.rows, args_, z);
    if (follows_ != nullptr) static_cast<CudaOp&>(*follows_).enqueue(bounds);
  }

  MoeArgs args_;
  int64_t count_ = 0;  // experts

 private:
  int64_t bytes_ = 0;
  std::unique_ptr<BoundOp> follows_;
  const float* norm_weight_ = nullptr;  // where one launch does it all
};

class MoePlain final : public MoeCuda {
 public:
  MoePlain(CudaDevice& device, std::string name, const MoeArgs& args) : MoeCuda(device, std::move(name), args) {
    std::vector<ExpertWeights> uploaded;
    for (const ExpertWeights& w : args.experts) {
      uploaded.push_back({upload(device, w.gate), upload(device, w.up), upload(device, w.down)});
    }
    auto* experts = device.allocate_array<ExpertWeights>(count_);
    device.to_device(experts, uploaded.data(), count_ * static_cast<int64_t>(sizeof(ExpertWeights)));
    experts_ = experts;
    device.reserve_workspace(buffers(nullptr, args.max_rows).bytes);
  }

  void enqueue(const StepBounds& bounds) override {
    if (bounds.rows == 0) return;
    const Buffers b = buffers(device().workspace(), bounds.rows);
    multiply_plain(device(), bounds.rows, args_, experts_, b.h, b.z);
    finish(bounds, b.z);
  }

 private:
  struct Buffers {
    float* h;
    float* z;
    int64_t bytes;
  };
  Buffers buffers(std::byte* base, int64_t rows) const {
    Layout layout(base);
    const int64_t pairs = rows * args_.top_k;
    Buffers b{};
    b.h = layout.take<float>(pairs * args_.inter);
    b.z = layout.take<float>(pairs * args_.out);
    b.bytes = layout.bytes();
    return b;
  }

  const ExpertWeights* experts_ = nullptr;
};

class MoeTiles final : public MoeCuda {
 public:
  MoeTiles(CudaDevice& device, std::string name, const MoeArgs& args) : MoeCuda(device, std::move(name), args) {
    allow_plan(device, this->name(), count_);
    experts_ = upload_experts(device, args);
    for (const ExpertTiles& side : {experts_.gate_up, experts_.down}) {
      allow_few(device, this->name(), side);
      allow_many(side.format);
    }
    StepBuffers buffers;
    device.reserve_workspace(lay_out(nullptr, args.max_rows, buffers));
  }

  void enqueue(const StepBounds& bounds) override {
    if (bounds.rows == 0) return;
    StepBuffers buffers;
    lay_out(device().workspace(), bounds.rows, buffers);
    const ExpertStep step(device(), bounds.rows, args_, count_, experts_, buffers);
    step.plan();
    step.gate_up();
    step.down();
    finish(bounds, buffers.z);
  }

 private:
  // The parts lie where they do for these rows: a step of fewer has others. Returns the bytes of all.
  int64_t lay_out(std::byte* base, int64_t rows, StepBuffers& b) const {
    Layout layout(base);
    const int64_t pairs = rows * args_.top_k;
    b.plan.tile_count = layout.take<int32_t>(1);
    b.plan.tiles = layout.take<PairTile>(pairs);
    b.plan.pairs = layout.take<int32_t>(pairs);
    if (args_.x_type == RowType::kF32) b.x = layout.take<uint16_t>(rows * experts_.gate_up.width());
    b.h = layout.take<uint16_t>(pairs * experts_.down.width());
    b.z = layout.take<float>(pairs * args_.out);
    return layout.bytes();
  }

  TiledExperts experts_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_moe_cuda(CudaDevice& device, std::string name, MoeArgs args) {
  if (args.activations == Activations::kF32 || !uniform_experts(args.experts)) {
    return std::make_unique<MoePlain>(device, std::move(name), args);
  }
  return std::make_unique<MoeTiles>(device, std::move(name), args);
}

}  // namespace weir
