#include "formats/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "formats/json.h"

namespace weir {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;  // as in the reference implementation
constexpr size_t kMaxRank = 8;

struct DtypeInfo {
  std::string_view name;
  int64_t bytes;
};
// Indexed by Dtype.
constexpr std::array<DtypeInfo, 16> kDtypes = {{{"F64", 8},
                                                {"F32", 4},
                                                {"F16", 2},
                                                {"BF16", 2},
                                                {"F8_E4M3", 1},
                                                {"F8_E5M2", 1},
                                                {"F8_E8M0", 1},
                                                {"I64", 8},
                                                {"I32", 4},
                                                {"I16", 2},
                                                {"I8", 1},
                                                {"U64", 8},
                                                {"U32", 4},
                                                {"U16", 2},
                                                {"U8", 1},
                                                {"BOOL", 1}}};
static_assert(kDtypes.size() == static_cast<size_t>(Dtype::kBool) + 1);

// Reads the header's entries one by one; knows where in the file it is, for messages.
class HeaderReader {
 public:
  HeaderReader(std::span<const std::byte> data, const std::string& file) : data_(data), file_(file) {}

  Tensor tensor(std::string_view name, const boost::json::value& entry) const {
    if (!entry.is_object()) fail_tensor(name, "expected an object with dtype, shape and data_offsets");
    Tensor tensor;
    tensor.name = name;
    tensor.file = &file_;
    tensor.dtype = dtype(name, entry.get_object().if_contains("dtype"));
    tensor.shape = numbers(name, "shape", entry.get_object().if_contains("shape"), kMaxRank);
    const std::vector<int64_t> offsets =
        numbers(name, "data_offsets", entry.get_object().if_contains("data_offsets"), 2);
    if (offsets.size() != 2) fail_tensor(name, "data_offsets: expected [begin, end], found ", shape_text(offsets));
    const int64_t begin = offsets[0];
    const int64_t end = offsets[1];
    if (begin > end) fail_tensor(name, "data_offsets ", shape_text(offsets), " end before they begin");
    if (end > size()) {
      fail_tensor(name, "data_offsets ", shape_text(offsets), " lie beyond the file's ", size(),
                  " bytes of data; is the file complete?");
    }
    const std::optional<int64_t> bytes = byte_count(tensor.dtype, tensor.shape);
    if (!bytes || *bytes != end - begin) {
      fail_tensor(name, dtype_name(tensor.dtype), " ", shape_text(tensor.shape), " takes ",
                  bytes ? concat(*bytes) : "more than 2^63", " bytes, but data_offsets ", shape_text(offsets), " hold ",
                  end - begin);
    }
    tensor.data = data_.data() + begin;
    tensor.bytes = end - begin;
    return tensor;
  }

  std::map<std::string, std::string> metadata(const boost::json::value& entry) const {
    if (!entry.is_object()) fail(file_, ": __metadata__: expected an object of strings");
    std::map<std::string, std::string> out;
    for (const auto& [key, value] : entry.get_object()) {
      if (!value.is_string()) fail(file_, ": __metadata__: field ", printable(key), ": expected a string");
      out.emplace(key, value.get_string());
    }
    return out;
  }

  // The tensors must cover the data, each byte once.
  void check_coverage(std::span<const Tensor> tensors) const {
    std::vector<const Tensor*> by_offset(tensors.size());
    std::transform(tensors.begin(), tensors.end(), by_offset.begin(), [](const Tensor& t) { return &t; });
    // An empty tensor goes before the one that starts at the same byte.
    std::sort(by_offset.begin(), by_offset.end(), [](const Tensor* a, const Tensor* b) {
      return std::pair(a->data, a->bytes) < std::pair(b->data, b->bytes);
    });
    int64_t covered = 0;
    const Tensor* previous = nullptr;
    for (const Tensor* tensor : by_offset) {
      const int64_t begin = tensor->data - data_.data();
      if (begin < covered) {
        fail_tensor(tensor->name, "begins at byte ", begin, " of the data, inside tensor ",
                    printable(previous->name, 200), ", which ends at byte ", covered);
      }
      if (begin > covered) {
        fail_tensor(tensor->name, "begins at byte ", begin, " of the data, but bytes [", covered, ", ", begin,
                    ") before it belong to no tensor");
      }
      covered += tensor->bytes;
      previous = tensor;
    }
    if (covered != size()) {
      fail(file_, ": bytes [", covered, ", ", size(), ") of the data, after the last tensor",
           previous == nullptr ? "" : " " + printable(previous->name, 200), ", belong to no tensor");
    }
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail_tensor(std::string_view name, const Parts&... parts) const {
    fail(file_, ": tensor ", printable(name, 200), ": ", parts...);
  }

  int64_t size() const { return static_cast<int64_t>(data_.size()); }

  Dtype dtype(std::string_view name, const boost::json::value* field) const {
    if (field == nullptr || !field->is_string()) fail_tensor(name, "dtype: expected a string");
    const std::string_view text = field->get_string();
    const auto found = std::find_if(kDtypes.begin(), kDtypes.end(), [&](const DtypeInfo& d) { return d.name == text; });
    if (found == kDtypes.end()) fail_tensor(name, "dtype ", printable(text), " is not known");
    return static_cast<Dtype>(found - kDtypes.begin());
  }

  // An array of at most `limit` non-negative integers.
  std::vector<int64_t> numbers(std::string_view name, std::string_view key, const boost::json::value* field,
                               size_t limit) const {
    if (field == nullptr || !field->is_array()) fail_tensor(name, key, ": expected an array of integers");
    const boost::json::array& array = field->get_array();
    if (array.size() > limit) {
      fail_tensor(name, key, ": expected at most ", limit, " integers, found ", array.size());
    }
    std::vector<int64_t> out(array.size());
    for (size_t i = 0; i < array.size(); ++i) {
      if (!array[i].is_int64() || array[i].get_int64() < 0) {
        fail_tensor(name, key, "[", i, "]: expected an integer from 0 to 2^63 - 1");
      }
      out[i] = array[i].get_int64();
    }
    return out;
  }

  static std::optional<int64_t> byte_count(Dtype dtype, std::span<const int64_t> shape) {
    int64_t bytes = dtype_bytes(dtype);
    for (const int64_t dimension : shape) {
      if (__builtin_mul_overflow(bytes, dimension, &bytes)) return std::nullopt;
    }
    return bytes;
  }

  std::span<const std::byte> data_;  // after the header
  const std::string& file_;
};

// The JSON text between the length and the data.
std::string_view header_text(std::span<const std::byte> file, const std::string& name) {
  const auto size = static_cast<int64_t>(file.size());
  if (size < kLengthBytes) fail(name, ": ", size, " bytes are too few for a safetensors file; is the file complete?");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);  // weir runs on little-endian processors only
  if (length > static_cast<uint64_t>(kMaxHeaderBytes)) {
    fail(name, ": not a safetensors file: header length ", length, ", the limit is ", kMaxHeaderBytes);
  }
  if (static_cast<int64_t>(length) > size - kLengthBytes) {
    fail(name, ": header length ", length, ", but only ", size - kLengthBytes, " bytes follow; is the file complete?");
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  if (!text.starts_with('{')) fail(name, ": not a safetensors file: the header doesn't begin with '{'");
  return text;
}

}  // namespace

std::string_view dtype_name(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)].name; }
int64_t dtype_bytes(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)].bytes; }

std::string shape_text(std::span<const int64_t> shape) {
  std::string out = "[";
  for (const int64_t dimension : shape) out += concat(out.size() == 1 ? "" : ", ", dimension);
  return out + "]";
}

SafetensorsContents parse_safetensors(std::span<const std::byte> file, const std::string& name) {
  const std::string_view text = header_text(file, name);
  const std::string where = name + ": header";
  const boost::json::value header = parse_json(text, where, {.max_bytes = kMaxHeaderBytes, .max_depth = 8});
  const HeaderReader reader(file.subspan(kLengthBytes + text.size()), name);
  SafetensorsContents contents;
  contents.tensors.reserve(header.get_object().size());
  for (const auto& [key, entry] : header.get_object()) {
    if (key == "__metadata__") {
      contents.metadata = reader.metadata(entry);
    } else {
      contents.tensors.push_back(reader.tensor(key, entry));
    }
  }
  reader.check_coverage(contents.tensors);
  std::sort(contents.tensors.begin(), contents.tensors.end(),
            [](const Tensor& a, const Tensor& b) { return a.name < b.name; });
  return contents;
}

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  auto mapping = std::make_unique<const MappedFile>(MappedFile::open(path));
  SafetensorsContents contents = parse_safetensors(mapping->bytes(), mapping->path());
  return SafetensorsFile(std::move(mapping), std::move(contents));
}

}  // namespace weir
