#include "formats/safetensors_writer.h"

#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace weir {

SafetensorsRowWriter::SafetensorsRowWriter(std::string path, const std::string& tensor, int64_t rows, int64_t cols)
    : path_(std::move(path)), temporary_(concat(path_, ".partial.", getpid())), bytes_left_(rows * cols * 4) {
  file_ = std::fopen(temporary_.c_str(), "wb");
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
  std::remove(temporary_.c_str());
}

void SafetensorsRowWriter::fail_write() const { fail(path_, ": write failed: ", std::strerror(errno)); }

void SafetensorsRowWriter::append(std::span<const float> row) {
  assert(static_cast<int64_t>(row.size_bytes()) <= bytes_left_);
  if (!row.empty() && std::fwrite(row.data(), row.size_bytes(), 1, file_) != 1) fail_write();
  bytes_left_ -= static_cast<int64_t>(row.size_bytes());
}

void SafetensorsRowWriter::finish() {
  assert(bytes_left_ == 0);
  std::FILE* file = std::exchange(file_, nullptr);
  if (std::fclose(file) != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    std::remove(temporary_.c_str());
    errno = error;
    fail_write();
  }
}

}  // namespace weir
