#include "formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "formats/embedded_files.h"

namespace weir {
namespace {

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "something else";
}

[[noreturn]] void fail_errno(const std::string& path, std::string_view what) {
  const int error = errno;
  fail(path, ": ", what, ": ", std::strerror(error));
}

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

}  // namespace

MappedFile MappedFile::open(const std::string& path) {
  if (path.find('\0') != std::string::npos) fail(printable(path), ": a path can't contain a zero byte");
  if (is_embedded(path)) {
    const auto bytes = embedded_file(path);
    if (!bytes) fail(path, ": the program has no such file");
    return MappedFile(path, bytes->data(), static_cast<int64_t>(bytes->size()), false);
  }
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.number < 0) fail_errno(path, "can't open");
  struct stat status = {};
  if (::fstat(file.number, &status) != 0) fail_errno(path, "can't stat");
  if (!S_ISREG(status.st_mode)) fail(path, ": expected a regular file, found ", kind_of(status.st_mode));
  if (status.st_size == 0) return MappedFile(path, nullptr, 0, false);  // mmap refuses length 0
  void* data = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_SHARED, file.number, 0);
  if (data == MAP_FAILED) fail_errno(path, concat("can't map ", static_cast<int64_t>(status.st_size), " bytes"));
  return MappedFile(path, static_cast<const std::byte*>(data), status.st_size, true);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, false)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

MappedFile::~MappedFile() {
  if (mapped_) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
}

int64_t MappedFile::resident_bytes() const {
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  constexpr int64_t kPagesPerCall = 65536;  // one byte of answer each
  std::vector<unsigned char> resident(static_cast<size_t>(std::min(kPagesPerCall, (size_ + page - 1) / page)));
  int64_t total = 0;
  for (int64_t begin = 0; begin < size_; begin += kPagesPerCall * page) {
    const int64_t length = std::min(kPagesPerCall * page, size_ - begin);
    if (::mincore(const_cast<std::byte*>(data_) + begin, static_cast<size_t>(length), resident.data()) != 0) return 0;
    for (int64_t i = 0; i * page < length; ++i) {
      if (resident[static_cast<size_t>(i)] & 1) total += std::min(page, length - i * page);
    }
  }
  return total;
}

}  // namespace weir
