#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "formats/gguf.h"

namespace weir {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::string_view kAlignmentKey = "general.alignment";
constexpr uint64_t kMaxString = uint64_t{1} << 30;  // as llama.cpp
constexpr uint64_t kMaxName = 65535;                // of a key or tensor
constexpr uint64_t kMinFieldBytes = 8 + 4 + 1;      // an empty key, a type, one byte
constexpr uint64_t kMinTensorBytes = 8 + 4 + 4 + 8;
constexpr uint32_t kMaxRank = 4;

// Of a value other than string and array.
int64_t scalar_bytes(GgufType type) {
  static constexpr std::array<int64_t, 13> kBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kBytes[static_cast<size_t>(type)];
}

// Walks the file from its beginning and never past its end.
class Reader {
 public:
  Reader(std::span<const std::byte> file, const std::string& name) : file_(file), name_(name) {}

  GgufContents read() {
    GgufContents contents;
    contents.version = header();
    const uint64_t tensors = count("tensors", kMinTensorBytes);
    const uint64_t fields = count("keys", kMinFieldBytes);
    std::vector<GgufField> list;
    for (uint64_t i = 0; i < fields; ++i) list.push_back(field());
    std::ranges::sort(list, {}, &GgufField::key);
    const auto twice = std::ranges::adjacent_find(list, {}, &GgufField::key);
    if (twice != list.end()) fail(name_, ": key ", printable(twice->key), ": appears twice");
    contents.metadata = GgufMetadata(name_, std::move(list));
    contents.alignment = contents.metadata.integer_or(kAlignmentKey, 32, 1, int64_t{1} << 31);
    if (!std::has_single_bit(static_cast<uint64_t>(contents.alignment))) {
      contents.metadata.fail_key(kAlignmentKey, "a power of two");
    }

    std::vector<uint64_t> offsets;
    for (uint64_t i = 0; i < tensors; ++i) {
      contents.tensors.push_back(tensor());
      offsets.push_back(take<uint64_t>("a tensor's offset"));
    }
    const uint64_t mask = static_cast<uint64_t>(contents.alignment) - 1;
    const uint64_t begin = (at_ + mask) & ~mask;
    contents.data_offset = static_cast<int64_t>(begin);
    for (size_t i = 0; i < offsets.size(); ++i) place(contents.tensors[i], offsets[i], begin, mask);
    check_overlap(contents.tensors);
    std::ranges::sort(contents.tensors, {}, &GgufTensor::name);
    const auto same = std::ranges::adjacent_find(contents.tensors, {}, &GgufTensor::name);
    if (same != contents.tensors.end()) fail(name_, ": tensor ", printable(same->name), ": appears twice");
    return contents;
  }

 private:
  uint64_t left() const { return file_.size() - at_; }

  template <class... Parts>
  [[noreturn]] void fail_here(const Parts&... parts) const {
    fail(name_, ": byte ", at_, ": ", parts...);
  }

  const std::byte* take_bytes(uint64_t bytes, std::string_view what) {
    if (bytes > left()) {
      fail_here("expected ", bytes, " bytes of ", what, ", found only ", left(), "; is the file complete?");
    }
    const std::byte* data = file_.data() + at_;
    at_ += bytes;
    return data;
  }

  template <class T>
  T take(std::string_view what) {
    T value;
    std::memcpy(&value, take_bytes(sizeof value, what), sizeof value);  // weir runs on little-endian processors only
    return value;
  }

  std::string_view take_string(std::string_view what, uint64_t limit) {
    const auto length = take<uint64_t>(what);
    if (length > limit) fail_here("expected ", what, " of at most ", limit, " bytes, found ", length);
    return {reinterpret_cast<const char*>(take_bytes(length, what)), length};
  }

  uint32_t header() {
    const size_t known = std::min(file_.size(), kMagic.size());
    if (known == 0 || std::memcmp(file_.data(), kMagic.data(), known) != 0) {
      fail(name_, ": not a GGUF file: it doesn't begin with 'GGUF'");
    }
    take_bytes(kMagic.size(), "magic");
    const auto version = take<uint32_t>("version");
    if (version != 0 && (version & 0xffff) == 0) fail(name_, ": big-endian GGUF: expected a little-endian file");
    if (version != 2 && version != 3) fail(name_, ": GGUF version: expected 2 or 3, found ", version);
    return version;
  }

  // How many entries of at least `min_bytes` each are announced.
  uint64_t count(std::string_view what, uint64_t min_bytes) {
    const auto n = take<uint64_t>(what);
    if (n > left() / min_bytes) {
      fail_here("expected at most ", left() / min_bytes, " ", what, " in the ", left(), " bytes that follow, found ", n,
                "; is the file complete?");
    }
    return n;
  }

  GgufType type(std::string_view key) {
    const auto id = take<uint32_t>("a value's type");
    if (id > static_cast<uint32_t>(GgufType::kF64)) {
      fail(name_, ": key ", printable(key), ": expected a value type from 0 to 12, found ", id);
    }
    return static_cast<GgufType>(id);
  }

  GgufField field() {
    GgufField field;
    field.key = take_string("a key", kMaxName);
    field.type = type(field.key);
    if (field.type == GgufType::kString) {
      const std::string_view text = take_string("a string", kMaxString);
      field.count = static_cast<int64_t>(text.size());
      field.data = reinterpret_cast<const std::byte*>(text.data());
    } else if (field.type == GgufType::kArray) {
      array(field);
    } else {
      field.data = take_bytes(static_cast<uint64_t>(scalar_bytes(field.type)), "a value");
      if (field.type == GgufType::kBool) check_booleans(field);
    }
    return field;
  }

  void array(GgufField& field) {
    field.element = type(field.key);
    if (field.element == GgufType::kArray) {
      fail(name_, ": key ", printable(field.key), ": expected an array of values, found an array of arrays");
    }
    const bool strings = field.element == GgufType::kString;
    const uint64_t each = strings ? 8 : static_cast<uint64_t>(scalar_bytes(field.element));
    field.count = static_cast<int64_t>(count("elements", each));
    field.data = file_.data() + at_;
    if (strings) {
      for (int64_t i = 0; i < field.count; ++i) take_string("a string", kMaxString);
    } else {
      take_bytes(static_cast<uint64_t>(field.count) * each, "an array");
    }
    if (field.element == GgufType::kBool) check_booleans(field);
  }

  void check_booleans(const GgufField& field) {
    for (int64_t i = 0; i < field.count; ++i) {
      const auto value = static_cast<unsigned>(field.data[i]);
      if (value > 1) fail(name_, ": key ", printable(field.key), ": expected a boolean 0 or 1, found ", value);
    }
  }

  // Name, dimensions and type.
  GgufTensor tensor() {
    GgufTensor tensor;
    tensor.name = take_string("a tensor's name", kMaxName);
    tensor.file = &name_;
    const std::string who = concat(name_, ": tensor ", printable(tensor.name, 200), ": ");
    const auto rank = take<uint32_t>("a tensor's rank");
    if (rank > kMaxRank) fail(who, "expected at most ", kMaxRank, " dimensions, found ", rank);
    for (uint32_t d = 0; d < rank; ++d) {
      tensor.ne[d] = take<int64_t>("a tensor's dimensions");
      if (tensor.ne[d] <= 0) fail(who, "expected positive dimensions, found ", tensor.ne[d]);
    }
    const auto id = take<uint32_t>("a tensor's type");
    tensor.type = find_ggml_type(id);
    if (tensor.type == nullptr) {
      std::string known;
      for (const GgmlType& type : ggml_types()) known += concat(known.empty() ? "" : ", ", type.name);
      fail(who, "expected a type among ", known, ", found ", ggml_type_text(id));
    }
    if (tensor.ne[0] % tensor.type->elements != 0) {
      fail(who, "expected rows of a multiple of ", tensor.type->elements, " elements for ", tensor.type->name,
           ", found ", tensor.ne[0]);
    }
    tensor.bytes = tensor.ne[0] / tensor.type->elements;
    bool fits = !__builtin_mul_overflow(tensor.bytes, tensor.type->bytes, &tensor.bytes);
    int64_t elements = tensor.ne[0];
    for (uint32_t d = 1; d < kMaxRank; ++d) {
      fits = fits && !__builtin_mul_overflow(tensor.bytes, tensor.ne[d], &tensor.bytes) &&
             !__builtin_mul_overflow(elements, tensor.ne[d], &elements);
    }
    if (!fits) fail(who, "expected a size below 2^63, found larger dimensions");
    return tensor;
  }

  void place(GgufTensor& tensor, uint64_t offset, uint64_t begin, uint64_t mask) {
    const std::string who = concat(name_, ": tensor ", printable(tensor.name, 200), ": ");
    if ((offset & mask) != 0) fail(who, "expected an offset that is a multiple of ", mask + 1, ", found ", offset);
    const uint64_t data = file_.size() < begin ? 0 : file_.size() - begin;
    const auto bytes = static_cast<uint64_t>(tensor.bytes);
    if (offset > data || bytes > data - offset) {
      fail(who, "expected ", bytes, " bytes at ", offset, " of the data, found only ", data,
           " bytes of data; is the file complete?");
    }
    tensor.data = file_.data() + begin + offset;
  }

  void check_overlap(std::span<const GgufTensor> tensors) const {
    std::vector<const GgufTensor*> by_offset;
    for (const GgufTensor& tensor : tensors) by_offset.push_back(&tensor);
    std::ranges::sort(by_offset, {}, [](const GgufTensor* t) { return t->data; });
    for (size_t i = 1; i < by_offset.size(); ++i) {
      const GgufTensor& before = *by_offset[i - 1];
      if (before.data + before.bytes <= by_offset[i]->data) continue;
      fail(name_, ": tensor ", printable(by_offset[i]->name, 200), ": expected bytes of its own, found some of tensor ",
           printable(before.name, 200));
    }
  }

  std::span<const std::byte> file_;
  const std::string& name_;
  uint64_t at_ = 0;
};

}  // namespace

GgufContents parse_gguf(std::span<const std::byte> file, const std::string& name) { return Reader(file, name).read(); }

}  // namespace weir
