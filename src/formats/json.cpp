#include "formats/json.h"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/monotonic_resource.hpp>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "formats/mapped_file.h"

namespace weir {

struct TooMuchMemory {};

// Counts what an arena hands out; nothing is given back before the arena goes.
class CountingArena final : public boost::json::memory_resource {
 public:
  explicit CountingArena(int64_t limit) : left_(limit) {}

 private:
  void* do_allocate(size_t bytes, size_t align) override {
    left_ -= static_cast<int64_t>(bytes);
    if (left_ < 0) throw TooMuchMemory();
    return arena_.allocate(bytes, align);
  }
  void do_deallocate(void*, size_t, size_t) override {}
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  int64_t left_;
  boost::json::monotonic_resource arena_;
};

}  // namespace weir

template <>
struct boost::json::is_deallocate_trivial<weir::CountingArena> {
  static constexpr bool value = true;
};

namespace weir {
namespace {

using boost::json::error_code;

// Builds the value from the parser's events. Boost's own builder keeps the last of duplicate keys without a word.
class Builder {
 public:
  static constexpr size_t max_object_size = boost::json::object::max_size();
  static constexpr size_t max_array_size = boost::json::array::max_size();
  static constexpr size_t max_key_size = boost::json::string::max_size();
  static constexpr size_t max_string_size = boost::json::string::max_size();

  explicit Builder(boost::json::storage_ptr storage) : storage_(std::move(storage)), root_(storage_) {}

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }

  bool on_object_begin(error_code&) { return open(boost::json::object(storage_)); }
  bool on_object_end(size_t, error_code& error) { return close(error); }
  bool on_array_begin(error_code&) { return open(boost::json::array(storage_)); }
  bool on_array_end(size_t, error_code& error) { return close(error); }

  bool on_key_part(std::string_view part, size_t, error_code&) { return append(part); }
  bool on_key(std::string_view part, size_t, error_code&) {
    append(part);
    open_.back().key.swap(text_);
    text_.clear();
    return true;
  }

  bool on_string_part(std::string_view part, size_t, error_code&) { return append(part); }
  bool on_string(std::string_view part, size_t, error_code& error) {
    append(part);
    boost::json::string value(text_, storage_);
    text_.clear();
    return put(std::move(value), error);
  }

  bool on_number_part(std::string_view part, error_code&) { return append(part); }
  bool on_int64(int64_t value, std::string_view, error_code& error) { return put_number(value, error); }
  bool on_uint64(uint64_t value, std::string_view, error_code& error) { return put_number(value, error); }
  bool on_double(double approximate, std::string_view part, error_code& error) {
    append(part);
    // Boost's double may be off by an ulp; from_chars rounds correctly and leaves `value` alone when out of range.
    double value = approximate;
    std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (!std::isfinite(value)) return refuse(concat("number ", printable(text_, 40), " is too large"), error);
    return put_number(value, error);
  }

  bool on_bool(bool value, error_code& error) { return put(value, error); }
  bool on_null(error_code& error) { return put(nullptr, error); }
  bool on_comment_part(std::string_view, error_code&) { return true; }
  bool on_comment(std::string_view, error_code&) { return true; }

  const std::string& refusal() const { return refusal_; }  // empty when the parser stopped for a reason of its own
  boost::json::value take() { return std::move(root_); }

 private:
  struct Open {
    boost::json::value value;  // an object or an array
    std::string key;           // of the member being read
  };

  bool append(std::string_view part) {
    text_ += part;
    return true;
  }

  bool open(boost::json::value value) {
    open_.push_back({std::move(value), {}});
    return true;
  }

  bool close(error_code& error) {
    boost::json::value value = std::move(open_.back().value);
    open_.pop_back();
    return put(std::move(value), error);
  }

  template <class T>
  bool put_number(T value, error_code& error) {
    text_.clear();
    return put(value, error);
  }

  bool put(boost::json::value value, error_code& error) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (boost::json::object* object = open_.back().value.if_object()) {
      const std::string& key = open_.back().key;
      if (!object->emplace(key, std::move(value)).second)
        return refuse(concat("duplicate key ", printable(key)), error);
    } else {
      open_.back().value.get_array().push_back(std::move(value));
    }
    return true;
  }

  bool refuse(std::string why, error_code& error) {
    refusal_ = std::move(why);
    error = boost::json::error::syntax;  // any error stops the parser
    return false;
  }

  boost::json::storage_ptr storage_;
  std::vector<Open> open_;  // outermost first
  std::string text_;        // of the key, string or number being read
  std::string refusal_;
  boost::json::value root_;
};

}  // namespace

boost::json::value parse_json(std::string_view text, const std::string& file, JsonLimits limits) {
  const auto size = static_cast<int64_t>(text.size());
  if (size > limits.max_bytes) fail(file, ": JSON of ", size, " bytes; the limit is ", limits.max_bytes);
  boost::json::parse_options options;
  options.max_depth = static_cast<size_t>(limits.max_depth);
  boost::json::basic_parser<Builder> parser(options,
                                            boost::json::make_shared_resource<CountingArena>(limits.max_memory));
  error_code error;
  size_t parsed = 0;
  try {
    parsed = parser.write_some(false, text.data(), text.size(), error);
  } catch (const TooMuchMemory&) {
    fail(file, ": JSON that takes more than ", limits.max_memory, " bytes of memory while it is read");
  }
  const std::string& refusal = parser.handler().refusal();
  if (!refusal.empty()) fail(file, ": not JSON at byte ", parsed, ": ", refusal);
  if (error == boost::json::error::too_deep) {
    fail(file, ": not JSON at byte ", parsed, ": more than ", limits.max_depth,
         " arrays and objects inside each other");
  }
  if (error) fail(file, ": not JSON at byte ", parsed, ": ", error.message());
  if (parsed < text.size()) {
    fail(file, ": not JSON at byte ", parsed, ": expected the end, found ", printable(text.substr(parsed), 20));
  }
  return parser.handler().take();
}

boost::json::value read_json_file(const std::string& path, JsonLimits limits) {
  const MappedFile file = MappedFile::open(path);
  return parse_json({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path, limits);
}

}  // namespace weir
