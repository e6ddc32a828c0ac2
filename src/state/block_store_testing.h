// Helpers of BlockStore's tests: a temporary folder, blocks whose bytes follow from their key, child processes.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "state/block_store.h"
#include "tests/support/temporary_folder.h"

namespace weir {

struct BlockStoreTesting {
  // The payload in host memory, to damage it.
  static std::byte* host_payload(BlockStore& store, const StoreKey& key) {
    const auto* kept = store.host_.find(key);
    return kept == nullptr ? nullptr : (*kept)->payload.get();
  }
  static bool stopping(BlockStore& store) {
    const std::lock_guard lock(store.mutex_);
    return store.stopping_;
  }
};

using test::TemporaryFolder;

using BlockBytes = std::vector<std::vector<std::byte>>;

inline StoreKey key_of(uint64_t number) { return {number * 0x9e3779b97f4a7c15, ~number * 0xbf58476d1ce4e5b9}; }

// The block that key and variant stand for, in parts of these sizes.
inline BlockBytes block_of(const StoreKey& key, const std::vector<size_t>& sizes, uint64_t variant = 0) {
  std::mt19937_64 random(key.high ^ key.low ^ (variant * 977));
  BlockBytes out;
  for (const size_t size : sizes) {
    out.emplace_back(size);
    for (std::byte& byte : out.back()) byte = static_cast<std::byte>(random() >> 56);
  }
  return out;
}

inline void put(BlockStore& store, const StoreKey& key, const BlockBytes& block) {
  const std::vector<std::span<const std::byte>> parts(block.begin(), block.end());
  store.put(key, parts);
}

inline std::optional<BlockBytes> get(BlockStore& store, const StoreKey& key, const std::vector<size_t>& sizes) {
  BlockBytes block;
  for (const size_t size : sizes) block.emplace_back(size);
  const std::vector<std::span<std::byte>> parts(block.begin(), block.end());
  if (!store.get(key, parts)) return std::nullopt;
  return block;
}

inline std::filesystem::path file_of(const std::filesystem::path& folder, const StoreKey& key) {
  return folder / BlockFiles::folder_name(key) / BlockFiles::file_name(key);
}

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

struct FolderUse {
  int64_t blocks = 0;
  int64_t bytes = 0;  // of blocks
  int64_t temporaries = 0;
};

inline FolderUse use_of(const std::filesystem::path& folder) {
  FolderUse use;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    if (entry.path().extension() == ".tmp") ++use.temporaries;
    if (entry.path().extension() != ".block") continue;
    ++use.blocks;
    use.bytes += static_cast<int64_t>(entry.file_size());
  }
  return use;
}

// Runs `body` in a child process; it returns an empty string or what went wrong.
template <class Body>
pid_t start_child(Body body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  std::string problem;
  try {
    problem = body();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (!problem.empty()) std::fprintf(stderr, "child: %s\n", problem.c_str());
  ::_exit(problem.empty() ? 0 : 1);
}

inline int wait_for(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  return status;
}

}  // namespace weir
