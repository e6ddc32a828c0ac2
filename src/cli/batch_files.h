// The two files of `weir batch`: requests that come line by line, and results that are still there after a crash.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

namespace weir::cli {

// A file descriptor that is closed at the end, but for standard input.
class OpenFile {
 public:
  explicit OpenFile(int fd = -1) : fd_(fd) {}
  OpenFile(OpenFile&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  OpenFile& operator=(OpenFile&&) = delete;
  ~OpenFile();
  int get() const { return fd_; }

 private:
  int fd_;
};

// Lines of a file, a pipe or a terminal, with no more than one of them in memory.
class BatchInput {
 public:
  static constexpr int64_t kMaxLine = int64_t{32} << 20;
  enum class Status { kLine, kWait, kEnd };
  struct Line {
    int64_t number = 0;     // from 1
    std::string text;       // without its end
    bool too_long = false;  // more than kMaxLine bytes; `text` is empty
  };

  // "-": standard input. Error: not there, a directory or a device.
  explicit BatchInput(const std::string& path);

  const std::string& name() const { return name_; }
  int fd() const { return file_.get(); }
  bool is_file() const { return is_file_; }  // can be read twice
  // kWait: nothing has come yet; poll fd(). Lines of white space are skipped. Error when reading fails.
  Status next(Line& line);
  void rewind();  // to where it was at the start

 private:
  bool take_line(Line& line);

  std::string name_;
  OpenFile file_;
  bool is_file_ = false, ended_ = false, skipping_ = false;
  std::string buffer_;
  size_t begin_ = 0, searched_ = 0;  // of the next line in buffer_; up to where it has no end
  int64_t lines_ = 0;
  off_t start_ = 0;  // of a file that somebody has read before
};

// Appends results, a line each. What a line says has been written by one call; a line without its end is the trace of a
// crash, and is cut off at the next start.
class BatchResults {
 public:
  // Error: a directory or a device, `input` itself, in use by another process, or not written by this command.
  BatchResults(const std::string& path, const BatchInput& input);

  // Whether an earlier run has a result for it. A line that has no usable id is known by its number.
  bool has(const std::string& custom_id) const { return done_.contains(custom_id); }
  bool has_line(int64_t number) const { return done_lines_.contains(number); }
  int64_t found() const { return found_; }
  bool cut_torn_line() const { return torn_; }

  // Error when the disk is full.
  void append(const boost::json::object& result);
  void sync();

 private:
  void read_results();
  void take(std::string_view line, int64_t number);

  std::string path_;
  OpenFile file_;
  std::unordered_set<std::string> done_;
  std::unordered_set<int64_t> done_lines_;
  int64_t found_ = 0;
  bool torn_ = false;
};

// The line that answers the request of line `number`. `custom_id`: a string, or null where there is no usable one; a
// second use of an id is not usable.
boost::json::object batch_result(int64_t number, const boost::json::value& custom_id, int status,
                                 boost::json::object body);

}  // namespace weir::cli
