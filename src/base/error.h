// Errors that a caller can do something about. A message is one line: where (file, tensor, field), what was expected,
// what was found. Programmer errors are asserts, not Errors.
#pragma once

#include <concepts>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace weir {

// Ends a load, a command or a request; never thrown inside a step.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
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

// `text` cut to `limit` bytes and made printable, for quoting untrusted bytes in a message.
std::string printable(std::string_view text, size_t limit = 80);

}  // namespace weir
