// Errors that a caller can do something about. A message is one line: where (file, tensor, field), what was expected,
// what was found. Programmer errors are asserts, not Errors.
#pragma once

#include <concepts>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace weir {

// `text` as one line that can't steer a terminal: control characters and bytes that are not UTF-8 become \xNN.
std::string one_line(std::string_view text);

// Ends a load, a command or a request; never thrown inside a step. what() is one_line(message): names of files and
// fields in it may be anybody's.
class Error : public std::runtime_error {
 public:
  explicit Error(std::string_view message) : std::runtime_error(one_line(message)) {}
};

namespace detail {
void append_double(std::string& out, double value);  // shortest form that reads back to the same value
inline void append(std::string& out, std::string_view text) { out += text; }
template <class T>
requires std::is_arithmetic_v<T>
void append(std::string& out, T value) {
  if constexpr (std::same_as<T, bool>) {
    out += value ? "true" : "false";
  } else if constexpr (std::same_as<T, char>) {
    out += value;
  } else if constexpr (std::integral<T>) {
    out += std::to_string(value);
  } else {
    append_double(out, value);
  }
}
}  // namespace detail

// Joins strings and numbers.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string out;
  (detail::append(out, parts), ...);
  return out;
}

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(concat(parts...));
}

// `text` cut to `limit` bytes, as one line in quotes, for quoting untrusted bytes in a message.
std::string printable(std::string_view text, size_t limit = 80);

}  // namespace weir
