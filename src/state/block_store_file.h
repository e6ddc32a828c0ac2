// The files of a BlockStore: one block each, <directory>/<first two digits>/<key, 32 hex digits>.block.
//
//   bytes    field (little endian)
//   0  8     magic "weirblk\0"
//   8  4     version, 1
//   12 4     number of parts, n
//   16 16    identity: high, low
//   32 16    key: high, low
//   48 8     size of the payload
//   56 16    XXH3-128 of the payload: high, low
//   72 8     XXH3-64 of bytes [0, 72) and the part sizes
//   80 8 n   part sizes
//   ...      payload: the parts one after the other
//
// A file is written under a temporary name in its folder, locked (flock) meanwhile, and renamed: what has the final
// name is whole, and a temporary file without a lock is the leftover of a process that died. The time of modification
// is the time of last use. Links are never followed, within the directory.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace weir {

// A chained 128-bit hash of a chunk of tokens and everything before it; also the identity of what computed the blocks.
struct StoreKey {
  uint64_t high = 0;
  uint64_t low = 0;
  auto operator<=>(const StoreKey&) const = default;
};

struct Digest128 {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const Digest128&) const = default;
};

// XXH3-128 of the parts one after the other.
Digest128 digest_of(std::span<const std::span<const std::byte>> parts);
Digest128 digest_of(std::span<const std::span<std::byte>> parts);

struct BlockShape {
  std::vector<int64_t> part_bytes;
  int64_t bytes = 0;   // their sum
  Digest128 checksum;  // of the payload
  bool operator==(const BlockShape&) const = default;

  static BlockShape of(std::span<const std::span<const std::byte>> parts);
  bool fits(std::span<const std::span<std::byte>> parts) const;  // the same sizes
};

class BlockFiles {
 public:
  static constexpr uint32_t kVersion = 1;
  static constexpr size_t kMaxParts = 1 << 16;
  static constexpr int64_t kMaxBytes = int64_t{1} << 40;  // of a payload

  // As ::write and ::read: bytes done, or -1 and errno.
  struct Calls {
    std::function<ssize_t(int, std::span<const std::byte>)> write;
    std::function<ssize_t(int, std::span<std::byte>)> read;
  };

  enum class Outcome {
    kDone,
    kGone,     // no such file
    kDamaged,  // header, size, checksum or kind of file
    kForeign,  // another identity or version, or another block under the same key
    kFailed,   // the system refused; `problem` says why
  };
  struct Result {
    Outcome outcome = Outcome::kDone;
    std::string problem;
  };

  struct Found {
    StoreKey key;
    BlockShape shape;
    int64_t stamp = 0;  // time of last use, in nanoseconds since 1970
  };
  struct Scan {
    std::vector<Found> blocks;
    int64_t damaged = 0;    // removed
    int64_t foreign = 0;    // left
    int64_t leftovers = 0;  // removed
    int64_t failed = 0;     // files that could not be read or removed
    std::string problem;    // the first of these
  };

  // Makes the directory where it is missing; Error when that fails or it cannot be listed.
  BlockFiles(const std::filesystem::path& directory, const StoreKey& identity, Calls calls);
  ~BlockFiles();
  BlockFiles(const BlockFiles&) = delete;
  BlockFiles& operator=(const BlockFiles&) = delete;

  Scan scan();
  // Not from two threads at once; the others may run beside it.
  Result write(const StoreKey& key, const BlockShape& shape, std::span<const std::byte> payload, int64_t stamp);
  // The payload of a file with exactly this shape, verified; sets the time of last use.
  Result read(const StoreKey& key, const BlockShape& shape, std::span<const std::span<std::byte>> parts,
              int64_t stamp) const;
  Result remove(const StoreKey& key) const;
  void set_stamp(const StoreKey& key, int64_t stamp) const;

  static int64_t file_bytes(const BlockShape& shape);
  static std::string folder_name(const StoreKey& key);
  static std::string file_name(const StoreKey& key);

 private:
  struct Header;
  int open_folder(const StoreKey& key, bool make) const;
  bool read_all(int file, std::span<std::byte> bytes) const;
  bool write_all(int file, std::span<const std::byte> bytes) const;
  Outcome read_header(int file, const StoreKey& key, BlockShape& shape) const;
  void scan_folder(const std::string& folder, Scan& scan);
  void scan_file(int folder, const std::string& folder_text, const std::string& name, Scan& scan);
  int write_once(int folder, const StoreKey& key, std::span<const std::byte> header, std::span<const std::byte> payload,
                 int64_t stamp);
  std::vector<std::byte> header_of(const StoreKey& key, const BlockShape& shape) const;
  Result failed(const char* what, const StoreKey& key, int error) const;

  std::filesystem::path directory_;
  StoreKey identity_;
  Calls calls_;
  int directory_fd_ = -1;
  std::string token_;  // makes temporary names this object's own
  uint64_t temporaries_ = 0;
};

}  // namespace weir
