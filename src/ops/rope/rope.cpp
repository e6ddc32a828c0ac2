#include "ops/rope/rope.h"

#include <cassert>
#include <utility>

#include "base/error.h"

namespace weir {

namespace reference {
void rope_row(const RopeArgs& args, int64_t row);
}
namespace avx2 {
void rope_row(const RopeArgs& args, int64_t row);
}
namespace avx512 {
void rope_row(const RopeArgs& args, int64_t row);
}

RopeKernel rope_kernel(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
      return reference::rope_row;
    case KernelSet::kAvx2:
      return avx2::rope_row;
    case KernelSet::kAvx512:
      return avx512::rope_row;
  }
  return reference::rope_row;
}

namespace {

class RopeAngles final : public BoundOp {
 public:
  RopeAngles(CpuDevice& device, std::string name, const RopeAnglesArgs& args)
      : BoundOp(std::move(name)), device_(device), args_(args) {}

  void run(const StepView& step) override {
    device_.pool().parallel_for(step.rows, [&](int64_t row, int) {
      const float position = static_cast<float>(step.positions[static_cast<size_t>(row)]);
      for (int64_t i = 0; i < args_.pairs; ++i) {
        const SinCos value = sin_cos(position * args_.inv_freq[i]);
        args_.cos[row * args_.pairs + i] = value.cos * args_.attention_factor;
        args_.sin[row * args_.pairs + i] = value.sin * args_.attention_factor;
      }
    });
  }

  Cost cost(int32_t rows, int64_t) const override {
    return {.flops = 45. * static_cast<double>(rows) * static_cast<double>(args_.pairs)};  // reduction and both series
  }

 private:
  CpuDevice& device_;
  RopeAnglesArgs args_;
};

class Rope final : public BoundOp {
 public:
  Rope(CpuDevice& device, std::string name, const RopeArgs& args)
      : BoundOp(std::move(name)), device_(device), args_(args), kernel_(rope_kernel(device.kernels())) {}

  void run(const StepView& step) override {
    device_.pool().parallel_for(step.rows, [&](int64_t row, int) { kernel_(args_, row); });
  }

  Cost cost(int32_t rows, int64_t) const override {
    return {.flops = 6. * static_cast<double>(rows) * static_cast<double>(args_.heads * args_.pairs)};
  }

 private:
  CpuDevice& device_;
  RopeArgs args_;
  RopeKernel kernel_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_rope_angles(Device& device, std::string name, const RopeAnglesArgs& args) {
  if (args.pairs <= 0) fail(name, ": expected at least one rotary pair, found ", args.pairs);
  assert(args.inv_freq && args.cos && args.sin);
  if (device.is_cuda()) return bind_rope_angles_cuda(device.cuda(), std::move(name), args);
  return std::make_unique<RopeAngles>(device.cpu(), std::move(name), args);
}

std::unique_ptr<BoundOp> bind_rope(Device& device, std::string name, const RopeArgs& args) {
  if (args.heads <= 0) fail(name, ": expected at least one head, found ", args.heads);
  if (args.pairs <= 0) fail(name, ": expected at least one rotary pair, found ", args.pairs);
  if (2 * args.pairs > args.head_stride) {
    fail(name, ": rotary dimension ", 2 * args.pairs, " is larger than a head of ", args.head_stride);
  }
  if (args.pairing == RopePairing::kInterleavedToHalf && args.pairs > kRopeMostReordered) {
    fail(name, ": expected at most ", kRopeMostReordered, " rotary pairs to reorder, found ", args.pairs);
  }
  assert(args.cos && args.sin && args.x);
  if (device.is_cuda()) return bind_rope_cuda(device.cuda(), std::move(name), args);
  return std::make_unique<Rope>(device.cpu(), std::move(name), args);
}

}  // namespace weir
