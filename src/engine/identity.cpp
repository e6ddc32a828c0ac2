#define XXH_INLINE_ALL
#include "engine/identity.h"

#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "formats/embedded_files.h"

namespace weir {
namespace {

// To be raised whenever a change to the engine changes the bits of any state (docs/numerics.md).
constexpr int64_t kNumericsVersion = 1;
constexpr int64_t kSample = 64 << 10;

class Hash {
 public:
  void add(const void* data, size_t bytes) { state_ = XXH3_128bits_withSeed(data, bytes, state_.low64 ^ rotated()); }
  void add(std::string_view text) {
    add(static_cast<int64_t>(text.size()));
    add(text.data(), text.size());
  }
  void add(int64_t number) { add(&number, sizeof(number)); }
  StoreKey key() const { return {state_.high64, state_.low64}; }

 private:
  uint64_t rotated() const { return state_.high64 << 1 | state_.high64 >> 63; }
  XXH128_hash_t state_{};
};

void add_file(Hash& hash, const std::string& path) {
  if (const auto embedded = embedded_file(path)) {
    hash.add(path);
    hash.add(embedded->data(), embedded->size());
    return;
  }
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) fail(printable(path, 300), ": cannot be read for the cache's identity");
  hash.add(std::filesystem::path(path).filename().string());
  hash.add(info.st_size);
  hash.add(info.st_mtim.tv_sec);
  hash.add(info.st_mtim.tv_nsec);
  std::ifstream file(path, std::ios::binary);
  std::vector<char> sample(static_cast<size_t>(kSample));
  for (const int64_t at : {int64_t{0}, std::max<int64_t>(0, info.st_size - kSample)}) {
    file.clear();
    file.seekg(at);
    file.read(sample.data(), kSample);
    hash.add(sample.data(), static_cast<size_t>(file.gcount()));
  }
}

}  // namespace

StoreKey engine_identity(const Engine& engine) {
  Hash hash;
  hash.add(kNumericsVersion);
  hash.add(engine.model().spec.family);
  hash.add(static_cast<int64_t>(engine.options().kv_dtype));
  hash.add(static_cast<int64_t>(engine.options().activations));
  const StateLayout& layout = engine.circuit().layout();
  for (const StateLayout::Group& group : layout.groups()) {
    hash.add(static_cast<int64_t>(group.retention));
    hash.add(group.window);
    for (const StateLayout::Part& part : group.parts) {
      hash.add(part.name);
      hash.add(part.bytes);
    }
  }
  for (const StateLayout::Part& part : layout.anchor_parts()) {
    hash.add(part.name);
    hash.add(part.bytes);
  }
  if (const Checkpoint* checkpoint = engine.model().checkpoint()) {
    const std::filesystem::path config = std::filesystem::path(checkpoint->folder()) / "config.json";
    if (path_exists(config.string())) add_file(hash, config.string());
  }
  for (const std::string& path : engine.model().file_paths()) add_file(hash, path);
  return hash.key();
}

}  // namespace weir
