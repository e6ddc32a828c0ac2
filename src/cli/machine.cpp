#include "cli/machine.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"

namespace weir::cli {
namespace {

// The value of a line "KEY : VALUE".
std::string proc_value(const char* file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const size_t colon = line.find(':');
    const size_t begin = colon == std::string::npos ? colon : line.find_first_not_of(" \t", colon + 1);
    if (begin != std::string::npos) return line.substr(begin);
  }
  return {};
}

struct TemporaryFile {
  explicit TemporaryFile(const std::string& folder) : path(folder + "/weir-doctor-XXXXXX") {
    fd = mkstemp(path.data());
    if (fd < 0) fail(folder, ": no file can be written here: ", std::strerror(errno));
    unlink(path.c_str());
  }
  ~TemporaryFile() { close(fd); }
  std::string path;
  int fd = -1;
};

}  // namespace

std::string cpu_model() {
  const std::string name = proc_value("/proc/cpuinfo", "model name");
  return name.empty() ? "unknown" : name;
}

std::vector<std::string> cpu_features() {
  std::istringstream flags(proc_value("/proc/cpuinfo", "flags"));
  std::vector<std::string> out;
  constexpr std::string_view kKnown[] = {"avx2",        "fma",         "f16c",     "bmi2",     "avx_vnni",
                                         "avx512f",     "avx512bw",    "avx512dq", "avx512vl", "avx512_vnni",
                                         "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8", "amx_tile"};
  for (std::string flag; flags >> flag;) {
    for (const std::string_view known : kKnown) {
      if (flag == known) out.push_back(flag);
    }
  }
  return out;
}

int64_t total_memory() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
}

double measure_disk_read(const std::string& folder, int64_t bytes) {
  constexpr int64_t kPiece = int64_t{4} << 20;
  const TemporaryFile file(folder);
  std::vector<char> piece(kPiece);
  for (size_t i = 0; i < piece.size(); ++i) piece[i] = static_cast<char>(i * 2654435761u >> 13);  // no zeros to skip
  for (int64_t at = 0; at < bytes; at += kPiece) {
    if (write(file.fd, piece.data(), piece.size()) != static_cast<ssize_t>(piece.size())) {
      fail(folder, ": writing ", bytes, " bytes failed: ", std::strerror(errno));
    }
  }
  fsync(file.fd);
  posix_fadvise(file.fd, 0, 0, POSIX_FADV_DONTNEED);
  lseek(file.fd, 0, SEEK_SET);
  const auto start = std::chrono::steady_clock::now();
  int64_t done = 0;
  for (ssize_t n; (n = read(file.fd, piece.data(), piece.size())) > 0;) done += n;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return static_cast<double>(done) / seconds * 1e-9;
}

std::string no_gpu_report(const std::string& reason) {
  std::error_code error;
  std::string found;
  if (std::filesystem::exists("/dev/nvidiactl", error)) found += "; an NVIDIA driver is there (/dev/nvidiactl)";
  if (std::filesystem::exists("/dev/kfd", error)) found += "; an AMD driver is there (/dev/kfd), which weir can't use";
  return concat("not used: ", reason, found.empty() ? "; no driver was found (/dev/nvidiactl, /dev/kfd)" : found);
}

}  // namespace weir::cli
