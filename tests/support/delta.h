// Fixtures kept as what they share with others (tools/fixture_delta.py has the format): put together when asked for,
// once per build folder.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/support/sha256.h"

namespace weir::test {

inline std::string read_whole(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("fixture ", path.string(), " cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

// The file that `delta` stands for.
inline std::string assembled(const std::filesystem::path& delta) {
  const std::string bytes = read_whole(delta);
  size_t at = 0;
  const auto take = [&](size_t count) {
    if (count > bytes.size() - at) fail("fixture ", delta.string(), " is cut short");
    at += count;
    return bytes.data() + at - count;
  };
  const auto number = [&](size_t width) {
    uint64_t value = 0;
    std::memcpy(&value, take(width), width);
    return value;
  };
  if (std::string(take(8), 8) != "WDELTA1\n") fail("fixture ", delta.string(), " is no delta");
  const uint64_t size = number(8);
  const std::string digest(take(32), 32);
  std::vector<std::string> sources(number(4));
  for (std::string& source : sources) {
    const size_t length = number(4);
    source = read_whole(delta.parent_path() / std::string(take(length), length));
  }
  struct Piece {
    uint64_t source, offset, length;
  };
  std::vector<Piece> pieces(number(8));
  for (Piece& piece : pieces) {
    piece.source = number(4);
    piece.offset = number(8);
    piece.length = number(8);
  }
  std::string out;
  out.reserve(size);
  for (const Piece& piece : pieces) {
    if (piece.source == 0xFFFFFFFFu) {
      out.append(take(piece.length), piece.length);
    } else {
      out.append(sources.at(piece.source), piece.offset, piece.length);
    }
  }
  std::string hex;
  for (const char c : digest) {
    hex += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4];
    hex += "0123456789abcdef"[static_cast<unsigned char>(c) & 15];
  }
  if (out.size() != size || sha256_hex(out) != hex) fail("fixture ", delta.string(), ": its sources have changed");
  return out;
}

inline void write_atomically(const std::filesystem::path& path, const std::string& bytes) {
  const std::filesystem::path partial = path.string() + "." + std::to_string(::getpid());
  std::ofstream(partial, std::ios::binary) << bytes;
  std::filesystem::rename(partial, path);
}

// `path` where it exists as it is; else the file put together from `path`.delta, or a copy of the folder with the files
// put together that lie there as deltas. Tests run in parallel: each file appears whole or not at all.
inline std::string with_deltas(const std::string& path, const std::string& cache) {
  namespace fs = std::filesystem;
  const std::string delta = path + ".delta";
  if (fs::exists(delta)) {
    const fs::path out =
        fs::path(cache) / (std::to_string(fs::hash_value(delta)) + "-" + fs::path(path).filename().string());
    fs::create_directories(cache);
    if (!fs::exists(out) || fs::last_write_time(out) < fs::last_write_time(delta))
      write_atomically(out, assembled(delta));
    return out.string();
  }
  if (!fs::is_directory(path)) return path;
  bool any = false;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) any |= entry.path().extension() == ".delta";
  if (!any) return path;
  const fs::path folder =
      fs::path(cache) / (std::to_string(fs::hash_value(path)) + "-" + fs::path(path).filename().string());
  fs::create_directories(folder);
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (!entry.is_regular_file()) continue;
    const bool is_delta = entry.path().extension() == ".delta";
    const fs::path out = folder / (is_delta ? entry.path().stem() : entry.path().filename());
    if (fs::exists(out) && fs::last_write_time(out) >= fs::last_write_time(entry.path())) continue;
    write_atomically(out, is_delta ? assembled(entry.path()) : read_whole(entry.path()));
  }
  return folder.string();
}

}  // namespace weir::test
