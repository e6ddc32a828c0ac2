// A file that a command writes beside its work: errors name it.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

namespace weir::cli {

class OutputFile {
 public:
  explicit OutputFile(const std::string& path);  // empty: none, and nothing is written. Error when it can't be
  explicit operator bool() const { return file_ != nullptr; }
  void write(std::string_view text);  // Error when the disk is full, ...
  void flush();
  void close() { file_.reset(); }  // and nothing more is written

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace weir::cli
