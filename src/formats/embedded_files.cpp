#include "formats/embedded_files.h"

#include <algorithm>
#include <filesystem>

#include "formats/mapped_file.h"

namespace weir {
namespace {

constexpr std::string_view kPrefix = "builtin:";

std::span<const EmbeddedFile>& all() {
  static std::span<const EmbeddedFile> files;
  return files;
}

bool embedded_folder(std::string_view path) {
  while (path.ends_with('/')) path.remove_suffix(1);
  return std::ranges::any_of(all(), [&](const EmbeddedFile& file) {
    return file.path.size() > path.size() && file.path.starts_with(path) && file.path[path.size()] == '/';
  });
}

}  // namespace

void set_embedded_files(std::span<const EmbeddedFile> files) { all() = files; }

std::span<const EmbeddedFile> embedded_files() { return all(); }

bool is_embedded(std::string_view path) { return path.starts_with(kPrefix); }

std::optional<std::span<const std::byte>> embedded_file(std::string_view path) {
  const auto found = std::ranges::find(all(), path, &EmbeddedFile::path);
  return found == all().end() ? std::nullopt : std::optional(found->bytes);
}

bool path_exists(const std::string& path) {
  if (is_embedded(path)) return embedded_file(path) || embedded_folder(path);
  std::error_code error;
  return std::filesystem::exists(path, error);
}

bool is_folder(const std::string& path) {
  if (is_embedded(path)) return embedded_folder(path);
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

std::string file_text(const std::string& path) {
  const MappedFile file = MappedFile::open(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace weir
