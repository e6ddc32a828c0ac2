#include "ops/mla/mla.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "base/error.h"
#include "ops/linear/linear.h"
#include "ops/mla/mla_kernel.h"

namespace weir {

namespace reference {
void mla_absorb(const MlaTask& task);
void mla_expand(const MlaTask& task);
}  // namespace reference
namespace avx2 {
void mla_absorb(const MlaTask& task);
void mla_expand(const MlaTask& task);
}  // namespace avx2
namespace avx512 {
void mla_absorb(const MlaTask& task);
void mla_expand(const MlaTask& task);
}  // namespace avx512

namespace {

enum class Direction { kAbsorb, kExpand };

MlaKernel kernel_of(KernelSet set, Direction direction) {
  const bool absorb = direction == Direction::kAbsorb;
  switch (set) {
    case KernelSet::kReference:
      return absorb ? reference::mla_absorb : reference::mla_expand;
    case KernelSet::kAvx2:
      return absorb ? avx2::mla_absorb : avx2::mla_expand;
    case KernelSet::kAvx512:
      return absorb ? avx512::mla_absorb : avx512::mla_expand;
  }
  return absorb ? reference::mla_absorb : reference::mla_expand;
}

// A task is a head and a range of outputs of it (of the latent for absorb, of the head's values for expand): all rows
// of the step pass over that part of the weights while it is in cache.
class MlaProject final : public BoundOp {
 public:
  MlaProject(CpuDevice& device, std::string name, const MlaProjectArgs& args, Direction direction)
      : BoundOp(std::move(name)),
        device_(device),
        args_(args),
        direction_(direction),
        kernel_(kernel_of(device.kernels(), direction)),
        outputs_(direction == Direction::kAbsorb ? args.latent : args.value),
        range_(direction == Direction::kAbsorb ? kMlaAbsorbRange : kMlaExpandRange) {
    device.reserve_scratch(mla_scratch_bytes(args));
  }

  void run(const StepView& step) override {
    if (step.rows == 0) return;
    device_.counters().weight_bytes_read += weight_bytes();
    const int64_t ranges = (outputs_ + range_ - 1) / range_;
    device_.pool().parallel_for(args_.heads * ranges, [&](int64_t i, int thread) {
      const int64_t first = i % ranges * range_;
      kernel_({.args = &args_,
               .rows = step.rows,
               .head = i / ranges,
               .first = first,
               .end = std::min(first + range_, outputs_),
               .scratch = reinterpret_cast<float*>(device_.scratch(thread))});
    });
  }

  Cost cost(int32_t rows, int64_t) const override {
    const int64_t inner = direction_ == Direction::kAbsorb ? args_.nope : args_.latent;
    return {.weight_bytes = weight_bytes(),
            .flops = 2. * static_cast<double>(rows) * static_cast<double>(args_.heads * outputs_ * inner)};
  }

 private:
  int64_t weight_bytes() const {
    return args_.heads * (direction_ == Direction::kAbsorb ? args_.nope : args_.value) * args_.kv_b.row_bytes;
  }

  CpuDevice& device_;
  MlaProjectArgs args_;
  Direction direction_;
  MlaKernel kernel_;
  int64_t outputs_;  // of a head
  int64_t range_;
};

// y_h = W_h x_h, the matrices of all heads on top of each other.
class HeadProducts final : public BoundOp {
 public:
  HeadProducts(CpuDevice& device, std::string name, const MlaProjectArgs& args, Direction direction)
      : BoundOp(std::move(name)),
        device_(device),
        args_(args),
        absorb_(direction == Direction::kAbsorb),
        weight_(absorb_ ? args.k_b : args.v_b),
        outputs_(weight_.out / args.heads),
        kernel_(linear_kernel(device.kernels())) {
    device.reserve_scratch(linear_scratch_bytes());
  }

  void run(const StepView& step) override {
    if (step.rows == 0) return;
    device_.counters().weight_bytes_read += weight_.bytes();
    const int64_t ranges = (outputs_ + kRange - 1) / kRange;
    device_.pool().parallel_for(args_.heads * ranges, [&](int64_t i, int thread) {
      const int64_t head = i / ranges;
      const int64_t first = i % ranges * kRange;
      const WeightView own = weight_.rows(head * outputs_, outputs_);
      const float* x = args_.x + head * (absorb_ ? args_.nope + args_.extra : args_.latent);
      float* y = args_.y + head * (absorb_ ? args_.latent + args_.extra : args_.value);
      kernel_(own, first, std::min(first + kRange, outputs_), x, args_.x_stride, step.rows, y, args_.y_stride,
              device_.scratch(thread));
      if (!absorb_ || first != 0) return;
      for (int64_t r = 0; r < step.rows; ++r) {
        std::copy_n(x + r * args_.x_stride + args_.nope, args_.extra, y + r * args_.y_stride + args_.latent);
      }
    });
  }

  Cost cost(int32_t rows, int64_t) const override {
    return {.weight_bytes = weight_.bytes(),
            .flops = 2. * static_cast<double>(rows) * static_cast<double>(weight_.out * weight_.in)};
  }

 private:
  static constexpr int64_t kRange = 128;  // outputs of an item: a multiple of the kernels' tile

  CpuDevice& device_;
  MlaProjectArgs args_;
  bool absorb_;
  WeightView weight_;
  int64_t outputs_;  // of a head
  LinearKernel kernel_;
};

void check_part(const std::string& name, const char* what, const WeightView& weight, int64_t out, int64_t in,
                KernelSet set) {
  if (weight.out != out || weight.in != in) {
    fail(name, ": expected ", what, " of [", out, ", ", in, "], found [", weight.out, ", ", weight.in, "]");
  }
  check_weight(name, weight, set);
}

std::unique_ptr<BoundOp> on_cuda(CudaDevice& device, std::string name, const MlaProjectArgs& args,
                                 Direction direction) {
  return direction == Direction::kAbsorb ? bind_mla_absorb_cuda(device, std::move(name), args)
                                         : bind_mla_expand_cuda(device, std::move(name), args);
}

std::unique_ptr<BoundOp> bind(Device& device, std::string name, const MlaProjectArgs& args, Direction direction) {
  const KernelSet readers = kernel_set(device);
  if (args.heads <= 0 || args.nope <= 0 || args.value <= 0 || args.latent <= 0 || args.extra < 0) {
    fail(name, ": expected positive dimensions, found heads ", args.heads, ", nope ", args.nope, ", extra ", args.extra,
         ", value ", args.value, ", latent ", args.latent);
  }
  const bool bf16 = args.x_type == RowType::kBf16 || args.y_type == RowType::kBf16;
  if (bf16 && (!device.is_cuda() || args.activations != Activations::kAuto)) {
    fail(name, ": BF16 rows are multiplied on a GPU with --activations auto, expected FP32 rows");
  }
  if (args.kv_b.empty()) {
    check_part(name, "k_b", args.k_b, args.heads * args.latent, args.nope, readers);
    check_part(name, "v_b", args.v_b, args.heads * args.value, args.latent, readers);
    assert(args.x && args.y);
    if (device.is_cuda()) return on_cuda(device.cuda(), std::move(name), args, direction);
    return std::make_unique<HeadProducts>(device.cpu(), std::move(name), args, direction);
  }
  if (args.kv_b.out != args.heads * (args.nope + args.value) || args.kv_b.in != args.latent) {
    fail(name, ": expected kv_b of [", args.heads * (args.nope + args.value), ", ", args.latent, "], found [",
         args.kv_b.out, ", ", args.kv_b.in, "]");
  }
  const WeightFormat format = args.kv_b.format;
  if (format == WeightFormat::kMxfp4 || format == WeightFormat::kNvfp4) {
    fail(name, ": kv_b in ", weight_format_name(format), " is not supported");
  }
  check_weight(name, args.kv_b, readers);
  if (args.latent % weight_block(format).elements != 0 || args.kv_b.row_bytes < weight_row_bytes(format, args.latent)) {
    fail(name, ": expected ", weight_format_name(format), " rows of ", args.latent, " elements, found ",
         args.kv_b.row_bytes, " bytes");
  }
  assert(args.kv_b.data && args.x && args.y);
  if (device.is_cuda()) return on_cuda(device.cuda(), std::move(name), args, direction);
  return std::make_unique<MlaProject>(device.cpu(), std::move(name), args, direction);
}

}  // namespace

std::unique_ptr<BoundOp> bind_mla_absorb(Device& device, std::string name, const MlaProjectArgs& args) {
  return bind(device, std::move(name), args, Direction::kAbsorb);
}

std::unique_ptr<BoundOp> bind_mla_expand(Device& device, std::string name, const MlaProjectArgs& args) {
  return bind(device, std::move(name), args, Direction::kExpand);
}

}  // namespace weir
