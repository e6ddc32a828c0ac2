// weir doctor: what this machine can do for a model.
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/machine.h"
#include "cli/options.h"
#include "device/roof.h"

namespace weir::cli {
namespace {

void line(const char* label, const std::string& value) {
  std::printf("%-20s %s\n", label, value.c_str());
  std::fflush(stdout);
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += concat(out.empty() ? "" : " ", word);
  return out.empty() ? "none of those that kernels use" : out;
}

void doctor() {
  const int threads = default_threads();
  line("processor", concat(cpu_model(), ", ", threads, " threads"));
  line("features", joined(cpu_features()));
  std::string sets;
  for (const KernelSet set : {KernelSet::kReference, KernelSet::kAvx2, KernelSet::kAvx512}) {
    if (kernel_set_supported(set)) sets += concat(sets.empty() ? "" : " ", kernel_set_name(set));
  }
  line("kernel sets", concat(sets, "; used: ", kernel_set_name(best_kernel_set())));
  line("memory", concat(human_bytes(static_cast<double>(total_memory())), ", available ",
                        human_bytes(static_cast<double>(available_memory()))));
  for (int n = 1; n <= threads; n = n < threads ? threads : n + 1) {
    CpuDevice device(n, best_kernel_set());
    line("memory read", concat(decimals(measure_read_bandwidth(device), 1), " GB/s with ", n, " threads"));
  }
  for (const KernelSet set : {KernelSet::kAvx2, KernelSet::kAvx512}) {
    if (!kernel_set_supported(set)) continue;
    CpuDevice device(threads, set);
    line("FP32 FMA",
         concat(decimals(measure_fma_peak(device), 0), " GFLOP/s with ", threads, " threads, ", kernel_set_name(set)));
    line("8-bit integers",
         concat(decimals(measure_int8_peak(device), 0), " GOP/s with ", threads, " threads, ", kernel_set_name(set)));
  }
  try {
    line("disk read, here", concat(decimals(measure_disk_read(".", int64_t{256} << 20), 2), " GB/s"));
  } catch (const Error& error) {
    line("disk read, here", concat("not measured: ", error.what()));
  }
  line("GPU", gpu_report());
}

}  // namespace

void add_doctor(CLI::App& app) {
  app.add_subcommand("doctor", "what this machine can do: processor, memory, disk, GPU")->callback(doctor);
}

}  // namespace weir::cli
