// Writes one FP32 tensor to a safetensors file, row by row, so that the whole never has to be in memory.
#pragma once

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

namespace weir {

class SafetensorsRowWriter {
 public:
  // A regular file appears under `path` (or where a link leads) only when finish() has succeeded. Until then it has no
  // name, so that a killed program leaves nothing behind (where the file system can't do that: PATH.partial.PID). What
  // is there already and is no file (a device, a pipe) is written directly. Throws Error naming the path.
  SafetensorsRowWriter(std::string path, const std::string& tensor, int64_t rows, int64_t cols);
  ~SafetensorsRowWriter();
  SafetensorsRowWriter(const SafetensorsRowWriter&) = delete;
  SafetensorsRowWriter& operator=(const SafetensorsRowWriter&) = delete;

  void append(std::span<const float> row);
  void finish();  // all rows must have been appended

 private:
  [[noreturn]] void fail_write() const;
  bool publish();  // gives the finished file its name

  std::string path_;       // as given
  std::string target_;     // with links resolved
  std::string temporary_;  // "": no name yet
  int64_t bytes_left_ = 0;
  std::FILE* file_ = nullptr;
};

}  // namespace weir
