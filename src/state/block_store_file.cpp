#include "state/block_store_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <random>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace weir {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::array<char, 8> kMagic = {'w', 'e', 'i', 'r', 'b', 'l', 'k', '\0'};
constexpr std::string_view kSuffix = ".block";
constexpr std::string_view kTemporary = ".tmp";
constexpr size_t kKeyDigits = 32;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  explicit operator bool() const { return fd_ >= 0; }
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string system_message(int error) { return std::error_code(error, std::generic_category()).message(); }

std::string hex(const StoreKey& key) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const uint64_t half : {key.high, key.low}) {
    for (int shift = 60; shift >= 0; shift -= 4) out += kDigits[half >> shift & 15];
  }
  return out;
}

// The key that `text` begins with.
std::optional<StoreKey> parse_key(std::string_view text) {
  if (text.size() < kKeyDigits) return std::nullopt;
  std::array<uint64_t, 2> halves{};
  for (size_t i = 0; i < kKeyDigits; ++i) {
    const char c = text[i];
    uint64_t digit = 0;
    if (c >= '0' && c <= '9') {
      digit = static_cast<uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<uint64_t>(c - 'a') + 10;
    } else {
      return std::nullopt;
    }
    halves[i / 16] = halves[i / 16] << 4 | digit;
  }
  return StoreKey{halves[0], halves[1]};
}

constexpr int64_t kSecond = 1'000'000'000;

void stamp_file(int file, int64_t stamp) {
  const timespec time = {stamp / kSecond, stamp % kSecond};
  const timespec times[2] = {time, time};
  (void)::futimens(file, times);  // the order of eviction suffers, nothing else
}

int64_t stamp_of(const struct stat& status) {
  constexpr int64_t kLast = int64_t{1} << 33;  // the year 2242: later times would overflow
  const int64_t seconds = status.st_mtim.tv_sec;
  return seconds < 0 || seconds >= kLast ? 0 : seconds * kSecond + status.st_mtim.tv_nsec;
}

template <class Span>
Digest128 digest(std::span<const Span> parts) {
  XXH3_state_t* const state = XXH3_createState();
  if (state == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state);
  for (const auto& part : parts) {
    if (!part.empty()) XXH3_128bits_update(state, part.data(), part.size());
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  return {hash.high64, hash.low64};
}

}  // namespace

struct BlockFiles::Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t parts = 0;
  StoreKey identity;
  StoreKey key;
  uint64_t bytes = 0;
  Digest128 checksum;
  uint64_t header_checksum = 0;

  uint64_t expected_checksum(std::span<const int64_t> part_bytes) const {
    std::vector<std::byte> covered(offsetof(Header, header_checksum) + part_bytes.size_bytes());
    std::memcpy(covered.data(), this, offsetof(Header, header_checksum));
    if (!part_bytes.empty()) {
      std::memcpy(covered.data() + offsetof(Header, header_checksum), part_bytes.data(), part_bytes.size_bytes());
    }
    return XXH3_64bits(covered.data(), covered.size());
  }
};

Digest128 digest_of(std::span<const std::span<const std::byte>> parts) { return digest(parts); }
Digest128 digest_of(std::span<const std::span<std::byte>> parts) { return digest(parts); }

BlockShape BlockShape::of(std::span<const std::span<const std::byte>> parts) {
  BlockShape shape;
  shape.part_bytes.reserve(parts.size());
  for (const auto& part : parts) {
    shape.part_bytes.push_back(static_cast<int64_t>(part.size()));
    shape.bytes += static_cast<int64_t>(part.size());
  }
  shape.checksum = digest_of(parts);
  return shape;
}

bool BlockShape::fits(std::span<const std::span<std::byte>> parts) const {
  if (parts.size() != part_bytes.size()) return false;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (static_cast<int64_t>(parts[i].size()) != part_bytes[i]) return false;
  }
  return true;
}

BlockFiles::BlockFiles(const std::filesystem::path& directory, const StoreKey& identity, Calls calls)
    : directory_(directory.has_filename() ? directory : directory.parent_path()),  // without a slash at the end
      identity_(identity),
      calls_(std::move(calls)) {
  static_assert(sizeof(Header) == 80 && std::is_trivially_copyable_v<Header>);
  const std::string name = printable(directory_.string(), 400);
  std::error_code error;
  const std::filesystem::path parent = directory_.parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (::mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST) {
    fail("cache directory ", name, ": cannot be made: ", system_message(errno));
  }
  directory_fd_ = ::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory_fd_ < 0) fail("cache directory ", name, ": cannot be read: ", system_message(errno));
  std::random_device random;
  token_ = concat(random(), "-", random());
}

BlockFiles::~BlockFiles() {
  if (directory_fd_ >= 0) ::close(directory_fd_);
}

int64_t BlockFiles::file_bytes(const BlockShape& shape) {
  return static_cast<int64_t>(sizeof(Header) + shape.part_bytes.size() * sizeof(int64_t)) + shape.bytes;
}
std::string BlockFiles::folder_name(const StoreKey& key) { return hex(key).substr(0, 2); }
std::string BlockFiles::file_name(const StoreKey& key) { return hex(key) + std::string(kSuffix); }

int BlockFiles::open_folder(const StoreKey& key, bool make) const {
  const std::string name = folder_name(key);
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  const int folder = ::openat(directory_fd_, name.c_str(), kFlags);
  if (folder >= 0 || !make || errno != ENOENT) return folder;
  if (::mkdirat(directory_fd_, name.c_str(), 0700) != 0 && errno != EEXIST) return -1;
  return ::openat(directory_fd_, name.c_str(), kFlags);
}

BlockFiles::Result BlockFiles::failed(const char* what, const StoreKey& key, int error) const {
  const std::filesystem::path path = directory_ / folder_name(key) / file_name(key);
  return {Outcome::kFailed, concat("cannot ", what, " ", printable(path.string(), 400), ": ", system_message(error))};
}

// False: an error (errno) or, with errno 0, the end of the file.
bool BlockFiles::read_all(int file, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t done = calls_.read ? calls_.read(file, bytes) : ::read(file, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done == 0) errno = 0;
    if (done <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(done));
  }
  return true;
}

bool BlockFiles::write_all(int file, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t done = calls_.write ? calls_.write(file, bytes) : ::write(file, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done == 0) errno = EIO;
    if (done <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(done));
  }
  return true;
}

std::vector<std::byte> BlockFiles::header_of(const StoreKey& key, const BlockShape& shape) const {
  Header header;
  header.parts = static_cast<uint32_t>(shape.part_bytes.size());
  header.identity = identity_;
  header.key = key;
  header.bytes = static_cast<uint64_t>(shape.bytes);
  header.checksum = shape.checksum;
  header.header_checksum = header.expected_checksum(shape.part_bytes);
  const size_t sizes = shape.part_bytes.size() * sizeof(int64_t);
  std::vector<std::byte> out(sizeof header + sizes);
  std::memcpy(out.data(), &header, sizeof header);
  if (sizes > 0) std::memcpy(out.data() + sizeof header, shape.part_bytes.data(), sizes);
  return out;
}

// Reads and checks the header, and the file's kind and size; the payload follows. With kFailed errno says why.
BlockFiles::Outcome BlockFiles::read_header(int file, const StoreKey& key, BlockShape& shape) const {
  struct stat status {};
  if (::fstat(file, &status) != 0) return Outcome::kFailed;
  if (!S_ISREG(status.st_mode)) return Outcome::kDamaged;
  Header header;
  const auto read_into = [&](void* data, size_t bytes) {
    return read_all(file, {static_cast<std::byte*>(data), bytes});
  };
  if (!read_into(&header, sizeof header)) return errno == 0 ? Outcome::kDamaged : Outcome::kFailed;
  if (header.magic != kMagic) return Outcome::kDamaged;
  if (header.version != kVersion) return Outcome::kForeign;
  if (header.parts > kMaxParts) return Outcome::kDamaged;
  shape.part_bytes.resize(header.parts);
  if (!read_into(shape.part_bytes.data(), header.parts * sizeof(int64_t))) {
    return errno == 0 ? Outcome::kDamaged : Outcome::kFailed;
  }
  if (header.header_checksum != header.expected_checksum(shape.part_bytes)) return Outcome::kDamaged;
  if (header.identity != identity_) return Outcome::kForeign;
  if (header.key != key) return Outcome::kDamaged;
  shape.bytes = 0;
  for (const int64_t part : shape.part_bytes) {
    if (part < 0 || part > kMaxBytes) return Outcome::kDamaged;
    shape.bytes += part;
  }
  shape.checksum = header.checksum;
  const bool sizes_agree = static_cast<uint64_t>(shape.bytes) == header.bytes && status.st_size == file_bytes(shape);
  return sizes_agree ? Outcome::kDone : Outcome::kDamaged;
}

BlockFiles::Scan BlockFiles::scan() {
  Scan scan;
  for (int number = 0; number < 256; ++number) {
    scan_folder(folder_name({static_cast<uint64_t>(number) << 56, 0}), scan);
  }
  return scan;
}

void BlockFiles::scan_folder(const std::string& folder_text, Scan& scan) {
  const int fd = ::openat(directory_fd_, folder_text.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return;
  DIR* const stream = fd < 0 ? nullptr : ::fdopendir(fd);
  if (stream == nullptr) {
    ++scan.failed;
    if (scan.problem.empty()) {
      scan.problem =
          concat("cannot read ", printable((directory_ / folder_text).string(), 400), ": ", system_message(errno));
    }
    if (fd >= 0) ::close(fd);
    return;
  }
  std::vector<std::string> names;  // first all names: files are removed on the way
  while (const dirent* entry = ::readdir(stream)) names.emplace_back(entry->d_name);
  for (const std::string& name : names) scan_file(fd, folder_text, name, scan);
  ::closedir(stream);
}

void BlockFiles::scan_file(int folder, const std::string& folder_text, const std::string& name, Scan& scan) {
  const std::optional<StoreKey> key = parse_key(name);
  if (!key) return;  // not ours
  const bool temporary = name.ends_with(kTemporary);
  if (!temporary && name.size() != kKeyDigits + kSuffix.size()) return;
  if (!std::string_view(name).substr(kKeyDigits).starts_with(kSuffix)) return;

  const auto drop = [&](int64_t& counter) {
    ++counter;
    if (::unlinkat(folder, name.c_str(), 0) == 0 || errno == ENOENT) return;
    ++scan.failed;
    if (scan.problem.empty()) scan.problem = failed("remove", *key, errno).problem;
  };
  // O_NONBLOCK: a pipe under this name must not hold the start.
  const Descriptor file(::openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file) {
    if (errno == ENOENT) return;
    if (errno == ELOOP || errno == ENXIO) return drop(scan.damaged);  // a link, a socket
    ++scan.failed;
    if (scan.problem.empty()) scan.problem = failed("read", *key, errno).problem;
    return;
  }
  if (temporary) {
    const bool in_work = ::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!in_work) drop(scan.leftovers);
    return;
  }
  Found found;
  found.key = *key;
  struct stat status {};
  Outcome outcome = read_header(file.get(), *key, found.shape);
  const int error = errno;
  if (outcome == Outcome::kDone && folder_text != folder_name(*key)) outcome = Outcome::kDamaged;
  switch (outcome) {
    case Outcome::kDone:
      if (::fstat(file.get(), &status) == 0) found.stamp = stamp_of(status);
      scan.blocks.push_back(std::move(found));
      break;
    case Outcome::kDamaged:
      drop(scan.damaged);
      break;
    case Outcome::kForeign:
      ++scan.foreign;
      break;
    case Outcome::kGone:
    case Outcome::kFailed:
      ++scan.failed;
      if (scan.problem.empty()) scan.problem = failed("read", *key, error).problem;
      break;
  }
}

// 0 or the error.
int BlockFiles::write_once(int folder, const StoreKey& key, std::span<const std::byte> header,
                           std::span<const std::byte> payload, int64_t stamp) {
  const std::string name = file_name(key);
  const std::string temporary = concat(name, ".", token_, "-", ++temporaries_, kTemporary);
  const Descriptor file(
      ::openat(folder, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return errno;
  (void)::flock(file.get(), LOCK_EX | LOCK_NB);  // tells other processes that the file is in work
  bool done = write_all(file.get(), header) && write_all(file.get(), payload);
  if (done) {
    stamp_file(file.get(), stamp);
    done = ::renameat(folder, temporary.c_str(), folder, name.c_str()) == 0;
  }
  const int error = done ? 0 : errno;
  if (!done) (void)::unlinkat(folder, temporary.c_str(), 0);
  return error;
}

BlockFiles::Result BlockFiles::write(const StoreKey& key, const BlockShape& shape, std::span<const std::byte> payload,
                                     int64_t stamp) {
  const std::vector<std::byte> header = header_of(key, shape);
  int error = ENOENT;
  // Twice: the folder may be removed under the file, and a starting process may take a temporary file for a leftover
  // before it is locked.
  for (int attempt = 0; attempt < 2 && error == ENOENT; ++attempt) {
    const Descriptor folder(open_folder(key, true));
    error = folder ? write_once(folder.get(), key, header, payload, stamp) : errno;
  }
  return error == 0 ? Result{} : failed("write", key, error);
}

BlockFiles::Result BlockFiles::read(const StoreKey& key, const BlockShape& shape,
                                    std::span<const std::span<std::byte>> parts, int64_t stamp) const {
  const auto refused = [&](int error) -> Result {
    if (error == ENOENT) return {Outcome::kGone, {}};
    if (error == ELOOP || error == ENOTDIR || error == ENXIO) return {Outcome::kDamaged, {}};
    return failed("read", key, error);
  };
  const Descriptor folder(open_folder(key, false));
  if (!folder) return refused(errno);
  const std::string name = file_name(key);
  const Descriptor file(::openat(folder.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file) return refused(errno);
  BlockShape found;
  const Outcome outcome = read_header(file.get(), key, found);
  if (outcome == Outcome::kFailed) return failed("read", key, errno);
  if (outcome != Outcome::kDone) return {outcome, {}};
  if (found != shape) return {Outcome::kForeign, {}};
  for (const auto& part : parts) {
    if (read_all(file.get(), part)) continue;
    return errno == 0 ? Result{Outcome::kDamaged, {}} : failed("read", key, errno);
  }
  if (digest_of(parts) != shape.checksum) return {Outcome::kDamaged, {}};
  stamp_file(file.get(), stamp);
  return {};
}

BlockFiles::Result BlockFiles::remove(const StoreKey& key) const {
  const Descriptor folder(open_folder(key, false));
  if (!folder) return errno == ENOENT ? Result{Outcome::kGone, {}} : failed("remove", key, errno);
  if (::unlinkat(folder.get(), file_name(key).c_str(), 0) == 0) return {};
  return errno == ENOENT ? Result{Outcome::kGone, {}} : failed("remove", key, errno);
}

void BlockFiles::set_stamp(const StoreKey& key, int64_t stamp) const {
  const Descriptor folder(open_folder(key, false));
  if (!folder) return;
  const Descriptor file(::openat(folder.get(), file_name(key).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file) stamp_file(file.get(), stamp);
}

}  // namespace weir
