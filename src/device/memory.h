// Memory that the engine owns: aligned to pages, zero at first, touched only when used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace weir {

// An anonymous mapping. Physical memory is taken on first touch. Throws Error when the address space is refused.
class Mapping {
 public:
  Mapping() = default;
  explicit Mapping(int64_t bytes);
  ~Mapping();
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data_), static_cast<size_t>(bytes_) / sizeof(T)};
  }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Bytes of physical memory that could still be taken (MemAvailable); 0 when unknown.
int64_t available_memory();

}  // namespace weir
