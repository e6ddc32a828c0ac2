#include "cli/batch_files.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/serialize.hpp>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/error.h"
#include "formats/json.h"

namespace weir::cli {
namespace {

namespace json = boost::json;

constexpr size_t kPiece = size_t{256} << 10;
constexpr std::string_view kIdPrefix = "batch_req_";

[[noreturn]] void fail_errno(const std::string& name, std::string_view what) {
  fail(name, ": ", what, ": ", std::strerror(errno));
}

struct stat status_of(int fd, const std::string& name) {
  struct stat status {};
  if (fstat(fd, &status) != 0) fail_errno(name, "can't be examined");
  return status;
}

// Opening a device could have effects of its own: looked at first.
void refuse_what_is_no_file(const std::string& name, mode_t mode, bool pipes) {
  if (S_ISREG(mode) || (pipes && S_ISFIFO(mode))) return;
  fail(name, ": expected a file, found ", S_ISDIR(mode) ? "a directory" : S_ISFIFO(mode) ? "a pipe" : "a device");
}

OpenFile open_input(const std::string& path) {
  if (path == "-") return OpenFile(STDIN_FILENO);
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) fail_errno(path, "can't be opened");
  refuse_what_is_no_file(path, status.st_mode, true);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail_errno(path, "can't be opened");
  return OpenFile(fd);
}

OpenFile open_results(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) == 0) {
    refuse_what_is_no_file(path, status.st_mode, false);
  } else if (errno != ENOENT) {
    fail_errno(path, "can't be opened");
  }
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) fail_errno(path, "can't be opened");
  return OpenFile(fd);
}

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

}  // namespace

OpenFile::~OpenFile() {
  if (fd_ > STDERR_FILENO) close(fd_);
}

// --- input ---

BatchInput::BatchInput(const std::string& path)
    : name_(path == "-" ? "standard input" : path), file_(open_input(path)) {
  is_file_ = S_ISREG(status_of(fd(), name_).st_mode);
  if (is_file_) start_ = lseek(fd(), 0, SEEK_CUR);
}

void BatchInput::rewind() {
  if (lseek(fd(), start_, SEEK_SET) != start_) fail_errno(name_, "can't be read again");
  buffer_.clear();
  begin_ = searched_ = 0;
  lines_ = 0;
  ended_ = skipping_ = false;
}

// A line whose end has come, or the last one.
bool BatchInput::take_line(Line& line) {
  const size_t end = buffer_.find('\n', searched_);
  const bool whole = end != std::string::npos;
  if (!whole && !ended_) {
    searched_ = buffer_.size();
    if (static_cast<int64_t>(buffer_.size() - begin_) > kMaxLine) {
      skipping_ = true;
      buffer_.clear();
      begin_ = searched_ = 0;
    }
    return false;
  }
  const size_t stop = whole ? end : buffer_.size();
  if (!whole && stop == begin_ && !skipping_) return false;
  line.number = ++lines_;
  line.too_long = skipping_ || static_cast<int64_t>(stop - begin_) > kMaxLine;
  line.text = line.too_long ? std::string() : buffer_.substr(begin_, stop - begin_);
  begin_ = searched_ = whole ? end + 1 : stop;
  skipping_ = false;
  return true;
}

BatchInput::Status BatchInput::next(Line& line) {
  while (true) {
    while (take_line(line)) {
      if (line.too_long || !is_blank(line.text)) return Status::kLine;
    }
    if (ended_) return Status::kEnd;
    pollfd ready{fd(), POLLIN, 0};
    if (poll(&ready, 1, 0) == 0) return Status::kWait;
    buffer_.erase(0, begin_);
    searched_ -= begin_;
    begin_ = 0;
    const size_t had = buffer_.size();
    buffer_.resize(had + kPiece);
    const ssize_t n = read(fd(), buffer_.data() + had, kPiece);
    const int error = errno;
    buffer_.resize(had + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n < 0 && (error == EINTR || error == EAGAIN)) return Status::kWait;
    if (n < 0) fail(name_, ": can't be read: ", std::strerror(error));
    ended_ = n == 0;
  }
}

// --- results ---

BatchResults::BatchResults(const std::string& path, const BatchInput& input) : path_(path), file_(open_results(path)) {
  const struct stat own = status_of(file_.get(), path), other = status_of(input.fd(), input.name());
  if (own.st_dev == other.st_dev && own.st_ino == other.st_ino) fail(path, ": expected another file than the input");
  if (flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) fail(path, ": in use by another process");
    fail_errno(path, "can't be locked");
  }
  read_results();
}

void BatchResults::read_results() {
  std::string buffer;
  int64_t offset = 0, number = 0;
  while (true) {
    const size_t had = buffer.size();
    buffer.resize(had + kPiece);
    const ssize_t n = pread(file_.get(), buffer.data() + had, kPiece, offset);
    if (n < 0) fail_errno(path_, "can't be read");
    buffer.resize(had + static_cast<size_t>(n));
    offset += n;
    size_t begin = 0;
    for (size_t end; (end = buffer.find('\n', std::max(begin, begin == 0 ? had : begin))) != std::string::npos;) {
      take(std::string_view(buffer).substr(begin, end - begin), ++number);
      begin = end + 1;
    }
    buffer.erase(0, begin);
    if (n == 0) break;
  }
  if (buffer.empty()) return;
  // Only what this command may have begun to write is cut.
  const std::string start = concat(R"({"id":")", kIdPrefix);
  const size_t common = std::min(buffer.size(), start.size());
  if (buffer.compare(0, common, start, 0, common) != 0) {
    fail(path_, ": line ", number + 1, ": not a result of weir batch: give another file");
  }
  if (ftruncate(file_.get(), offset - static_cast<int64_t>(buffer.size())) != 0) {
    fail_errno(path_, "its torn last line can't be cut");
  }
  torn_ = true;
}

void BatchResults::take(std::string_view line, int64_t number) {
  try {
    const json::value value = parse_json(line, path_);
    const std::string_view id = value.as_object().at("id").as_string();
    int64_t request = 0;
    const char* digits = id.data() + std::min(id.size(), kIdPrefix.size());
    const auto [end, error] = std::from_chars(digits, id.data() + id.size(), request);
    const json::value& custom_id = value.as_object().at("custom_id");
    if (!id.starts_with(kIdPrefix) || error != std::errc() || end != id.data() + id.size() ||
        !(custom_id.is_null() || custom_id.is_string())) {
      fail("id");
    }
    if (custom_id.is_string()) {
      done_.emplace(custom_id.get_string());
    } else {
      done_lines_.insert(request);
    }
    ++found_;
  } catch (const std::exception&) {
    fail(path_, ": line ", number, ": not a result of weir batch: give another file, or mend this one");
  }
}

void BatchResults::append(const json::object& result) {
  std::string line = json::serialize(result);
  line += '\n';
  for (std::string_view left = line; !left.empty();) {
    const ssize_t n = write(file_.get(), left.data(), left.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(path_, "can't be written");
    left.remove_prefix(static_cast<size_t>(n));
  }
}

void BatchResults::sync() {
  if (fsync(file_.get()) != 0 && errno != EINVAL) fail_errno(path_, "can't be written to the disk");
}

json::object batch_result(int64_t number, const json::value& custom_id, int status, json::object body) {
  return {{"id", concat(kIdPrefix, number)},
          {"custom_id", custom_id},
          {"response", {{"status_code", status}, {"request_id", concat("req_", number)}, {"body", std::move(body)}}},
          {"error", nullptr}};
}

}  // namespace weir::cli
