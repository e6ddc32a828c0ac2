// The CPU as a device: its threads, the kernel set in use, per-thread scratch and the counters of a step.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "device/memory.h"
#include "device/thread_pool.h"

namespace weir {

// Which implementation of every op runs. All give the same bits in `--activations f32`.
enum class KernelSet { kReference, kAvx2, kAvx512 };

std::string_view kernel_set_name(KernelSet set);
bool kernel_set_supported(KernelSet set);  // has this processor the instructions?
KernelSet best_kernel_set();
// "auto", "reference", "avx2", "avx512"; Error for an unknown name or one that this processor lacks.
KernelSet parse_kernel_set(std::string_view name);

class CpuDevice final : public Device {
 public:
  CpuDevice(int threads, KernelSet kernels)
      : Device(false), pool_(threads), kernels_(kernels), scratch_(static_cast<size_t>(threads)) {}

  ThreadPool& pool() { return pool_; }
  int threads() const { return pool_.threads(); }
  KernelSet kernels() const { return kernels_; }

  // Asks for scratch when an op is bound; `scratch(thread)` is then at least that large, 64-byte aligned and shared by
  // all ops (its content does not outlive a parallel loop).
  void reserve_scratch(int64_t bytes_per_thread) {
    for (Mapping& block : scratch_) {
      if (block.bytes() < bytes_per_thread) block = Mapping(bytes_per_thread);
    }
  }
  std::byte* scratch(int thread) { return scratch_[static_cast<size_t>(thread)].data(); }

  // Likewise one block for all threads of an op; its content does not outlive the op's run.
  void reserve_shared(int64_t bytes) {
    if (shared_.bytes() < bytes) shared_ = Mapping(bytes);
  }
  std::byte* shared() { return shared_.data(); }

 private:
  ThreadPool pool_;
  KernelSet kernels_;
  std::vector<Mapping> scratch_;
  Mapping shared_;
};

// The kernel set of a CPU; for a GPU kReference, since its kernels read every format too.
inline KernelSet kernel_set(Device& device) {
  return device.is_cuda() ? KernelSet::kReference : device.cpu().kernels();
}

}  // namespace weir
