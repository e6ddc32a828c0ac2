#include "cli/output_file.h"

#include <filesystem>

#include "base/error.h"

namespace weir::cli {

OutputFile::OutputFile(const std::string& path) : path_(path) {
  if (path.empty()) return;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) fail(path, ": expected a file, found a directory");
  file_.reset(std::fopen(path.c_str(), "w"));
  if (!file_) fail(path, ": can't be written");
}

void OutputFile::write(std::string_view text) {
  if (!file_) return;
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size()) fail(path_, ": can't be written");
}

void OutputFile::flush() {
  if (file_ && std::fflush(file_.get()) != 0) fail(path_, ": can't be written");
}

}  // namespace weir::cli
