// weir doctor: what this machine can do for a model.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/machine.h"
#include "cli/options.h"
#include "device/cuda_roof.h"
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

std::string cuda_version(int number) { return concat(number / 1000, ".", number % 1000 / 10); }

void measure_gpu(CudaDevice& device) {
  const CudaInfo& info = device.info();
  line("GPU", concat(info.name, ", compute capability ", info.major, ".", info.minor, ", ", info.sm_count,
                     " multiprocessors, L2 ", human_bytes(static_cast<double>(info.l2_bytes))));
  line("GPU driver", concat("for CUDA ", cuda_version(info.driver_version), "; this program has the runtime of ",
                            cuda_version(info.runtime_version)));
  line("GPU memory", concat(human_bytes(static_cast<double>(info.total_bytes)), ", free ",
                            human_bytes(static_cast<double>(info.free_bytes))));
  const int64_t bytes = std::min(int64_t{2} << 30, info.free_bytes / 4);
  const CudaBandwidths bandwidths = measure_cuda_bandwidths(device, bytes);
  line("GPU memory read", concat(decimals(bandwidths.read_gbs, 0), " GB/s"));
  line("GPU memory copy", concat(decimals(bandwidths.copy_gbs, 0), " GB/s, read and written"));
  if (const double peak = measure_cuda_bf16_peak(device); peak > 0) {
    line("GPU BF16 products", concat(decimals(peak, 0), " TFLOP/s"));
  }
  const CudaLatencies latencies = measure_cuda_latencies(device);
  line("GPU launches", concat(decimals(latencies.graph_node_us, 2), " us in a graph, ",
                              decimals(latencies.round_trip_us, 1), " us launched and waited for"));
  const CudaTransfers transfers = measure_cuda_transfers(device, std::min(int64_t{256} << 20, bytes));
  line("GPU transfers", concat(decimals(transfers.to_device_gbs, 1), " GB/s to it, ",
                               decimals(transfers.to_host_gbs, 1), " GB/s from it, pinned memory"));
}

void examine_gpu() {
  if (const std::string reason = why_no_cuda(); !reason.empty()) {
    line("GPU", no_gpu_report(reason));
    return;
  }
  try {
    measure_gpu(*open_cuda());
  } catch (const Error& error) {
    line("GPU", concat("not measured: ", error.what()));
  }
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
  examine_gpu();
}

}  // namespace

void add_doctor(CLI::App& app) {
  app.add_subcommand("doctor", "what this machine can do: processor, memory, disk, GPU")->callback(doctor);
}

}  // namespace weir::cli
