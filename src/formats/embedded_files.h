// Files that are part of the program: the built-in model. They are read by the same code as files on disk, which asks
// here first; their paths begin with "builtin:".
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace weir {

struct EmbeddedFile {
  std::string_view path;             // "builtin:FOLDER/NAME"
  std::span<const std::byte> bytes;  // starts on a memory page
};

// Once, before anything asks; `files` must last.
void set_embedded_files(std::span<const EmbeddedFile> files);
std::span<const EmbeddedFile> embedded_files();

bool is_embedded(std::string_view path);
std::optional<std::span<const std::byte>> embedded_file(std::string_view path);

// As std::filesystem has it, of both kinds; false too where the system does not tell.
bool path_exists(const std::string& path);
bool is_folder(const std::string& path);
// A regular file's text. Error naming it.
std::string file_text(const std::string& path);

}  // namespace weir
