// What this machine is, for reports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weir::cli {

std::string cpu_model();                  // "unknown" when the system doesn't say
std::vector<std::string> cpu_features();  // those that kernels of models care about
int64_t total_memory();                   // bytes; 0 when unknown

// GB/s of reading a fresh file of `bytes` in `folder` with the page cache emptied of it. Error when it can't be written
// there.
double measure_disk_read(const std::string& folder, int64_t bytes);

// Why no GPU can be used, and what drivers are there.
std::string no_gpu_report(const std::string& reason);

}  // namespace weir::cli
