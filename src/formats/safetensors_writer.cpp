#include "formats/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"

namespace weir {

SafetensorsRowWriter::SafetensorsRowWriter(std::string path, const std::string& tensor, int64_t rows, int64_t cols)
    : path_(std::move(path)), bytes_left_(rows * cols * 4) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::file_status status = fs::status(path_, ignored);
  if (fs::is_directory(status)) fail(path_, ": cannot be written: it is a folder");
  const bool device = fs::exists(status) && !fs::is_regular_file(status);
  target_ = fs::is_symlink(fs::symlink_status(path_, ignored)) ? fs::weakly_canonical(path_, ignored).string() : path_;
  if (!device) {
    const std::string folder = fs::path(target_).parent_path().string();
    const int nameless = open(folder.empty() ? "." : folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (nameless >= 0) file_ = fdopen(nameless, "wb");
  }
  if (file_ == nullptr) {
    temporary_ = device ? target_ : concat(target_, ".partial.", getpid());
    file_ = std::fopen(temporary_.c_str(), "wbe");
  }
  if (file_ == nullptr) fail(path_, ": cannot be written: ", std::strerror(errno));
  std::string header = concat("{\"", tensor, "\":{\"dtype\":\"F32\",\"shape\":[", rows, ",", cols,
                              "],\"data_offsets\":[0,", bytes_left_, "]}}");
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t size = header.size();
  if (std::fwrite(&size, sizeof size, 1, file_) != 1 || std::fwrite(header.data(), header.size(), 1, file_) != 1)
    fail_write();
}

SafetensorsRowWriter::~SafetensorsRowWriter() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  if (!temporary_.empty() && temporary_ != target_) std::remove(temporary_.c_str());
}

bool SafetensorsRowWriter::publish() {
  if (temporary_.empty()) {
    // A link can't replace a file; renaming can.
    const std::string own = concat("/proc/self/fd/", fileno(file_));
    const std::string name = concat(target_, ".partial.", getpid());
    if (std::fflush(file_) != 0 || linkat(AT_FDCWD, own.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0) {
      return false;
    }
    temporary_ = name;
  }
  std::FILE* file = std::exchange(file_, nullptr);
  if (std::fclose(file) != 0) return false;
  return temporary_ == target_ || std::rename(temporary_.c_str(), target_.c_str()) == 0;
}

void SafetensorsRowWriter::fail_write() const { fail(path_, ": write failed: ", std::strerror(errno)); }

void SafetensorsRowWriter::append(std::span<const float> row) {
  assert(static_cast<int64_t>(row.size_bytes()) <= bytes_left_);
  if (!row.empty() && std::fwrite(row.data(), row.size_bytes(), 1, file_) != 1) fail_write();
  bytes_left_ -= static_cast<int64_t>(row.size_bytes());
}

void SafetensorsRowWriter::finish() {
  assert(bytes_left_ == 0);
  if (publish()) return;
  const int error = errno;
  if (!temporary_.empty() && temporary_ != target_) std::remove(temporary_.c_str());
  errno = error;
  fail_write();
}

}  // namespace weir
