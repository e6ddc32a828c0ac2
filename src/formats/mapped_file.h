// A regular file mapped read-only: bytes appear without being read first, and the page cache is shared between
// processes. Files that are part of the program (embedded_files.h) count as such.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace weir {

// The file must keep its length while it is mapped: when another process shortens it, touching the lost pages ends this
// process with SIGBUS. Replacing a file by renaming a new one over it is safe.
class MappedFile {
 public:
  // Throws Error with the path and the reason: not there, not readable, not a regular file (folder, FIFO, device).
  static MappedFile open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  // Empty for an empty file. Stays at the same address when the MappedFile is moved.
  std::span<const std::byte> bytes() const { return {data_, static_cast<size_t>(size_)}; }
  const std::string& path() const { return path_; }

  // How many of the bytes are in memory now, in whole pages; 0 when the kernel will not tell.
  int64_t resident_bytes() const;

 private:
  MappedFile(std::string path, const std::byte* data, int64_t size, bool mapped)
      : path_(std::move(path)), data_(data), size_(size), mapped_(mapped) {}

  std::string path_;
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
  bool mapped_ = false;  // by this object
};

}  // namespace weir
