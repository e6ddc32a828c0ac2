#include <algorithm>
#include <charconv>
#include <set>

#include "base/error.h"
#include "formats/gguf.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kExtension = ".gguf";
constexpr int64_t kMaxFiles = 65535;

// STEM-00002-of-00003.gguf
struct SplitName {
  std::string stem;
  int64_t number = 0;  // from 1
  int64_t count = 0;

  std::string file(int64_t i) const {
    const auto digits = [](int64_t n) {
      const std::string text = concat(n);
      return std::string(text.size() < 5 ? 5 - text.size() : 0, '0') + text;
    };
    return concat(stem, "-", digits(i), "-of-", digits(count), kExtension);
  }
};

std::optional<int64_t> five_digits(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.size() != 5 || error != std::errc() || end != text.data() + text.size() || value < 1) return std::nullopt;
  return value;
}

std::optional<SplitName> split_name(const std::string& file) {
  constexpr size_t kTail = std::string_view("-00001-of-00003.gguf").size();
  if (file.size() <= kTail || !file.ends_with(kExtension)) return std::nullopt;
  const std::string_view tail = std::string_view(file).substr(file.size() - kTail);
  const std::optional<int64_t> number = five_digits(tail.substr(1, 5));
  const std::optional<int64_t> count = five_digits(tail.substr(10, 5));
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || !number || !count || *number > *count) return std::nullopt;
  return SplitName{file.substr(0, file.size() - kTail), *number, *count};
}

int64_t split_count(const GgufMetadata& metadata) { return metadata.integer_or("split.count", 1, 0, kMaxFiles); }

}  // namespace

GgufContents GgufFile::add_file(const fs::path& path) {
  mappings_.push_back(std::make_unique<const MappedFile>(MappedFile::open(path.string())));
  GgufContents contents = parse_gguf(mappings_.back()->bytes(), mappings_.back()->path());
  tensors_.insert(tensors_.end(), contents.tensors.begin(), contents.tensors.end());
  return contents;
}

void GgufFile::sort_tensors() {
  std::ranges::sort(tensors_, {}, &GgufTensor::name);
  const auto twice = std::ranges::adjacent_find(tensors_, {}, &GgufTensor::name);
  if (twice == tensors_.end()) return;
  fail(*twice->file, ": tensor ", printable(twice->name, 200), ": expected once, found in ", *std::next(twice)->file,
       " too");
}

GgufFile GgufFile::open(const fs::path& path) {
  const std::optional<SplitName> split = split_name(path.filename().string());
  const auto file_path = [&](int64_t i) { return split ? path.parent_path() / split->file(i) : path; };
  GgufFile model;
  GgufContents first = model.add_file(file_path(1));
  const int64_t files = split_count(first.metadata);
  model.version_ = first.version;
  model.metadata_ = std::move(first.metadata);
  if (files <= 1) {
    // A name alone makes no split model; but then the named file itself is meant.
    if (!split || split->number == 1) return model;
    fail(model.path(), ": key 'split.count': expected ", split->count, " as in the name, found a model in one file");
  }
  if (!split) {
    fail(model.path(), ": key 'split.count': one of ", files,
         " files: expected a name like MODEL-00001-of-00003.gguf, to find the others by");
  }
  if (split->count != files) model.metadata_.fail_key("split.count", concat(split->count, ", as in the file's name"));
  for (int64_t i = 1; i <= files; ++i) {
    const GgufContents part = i == 1 ? GgufContents{.metadata = model.metadata_} : model.add_file(file_path(i));
    if (part.metadata.integer("split.no", 0, kMaxFiles) != i - 1) {
      part.metadata.fail_key("split.no", concat(i - 1, ", as in the file's name"));
    }
    if (split_count(part.metadata) != files) part.metadata.fail_key("split.count", concat(files, ", as in the first"));
  }
  const auto found = static_cast<int64_t>(model.tensors_.size());
  if (model.metadata_.integer_or("split.tensors.count", found, 0, int64_t{1} << 40) != found) {
    model.metadata_.fail_key("split.tensors.count", concat(found, ", the tensors of all files"));
  }
  model.sort_tensors();
  return model;
}

std::optional<fs::path> GgufFile::find_in(const fs::path& folder) {
  std::set<std::string> models;  // whole files, and first files of split models
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(kExtension)) continue;
    const std::optional<SplitName> split = split_name(name);
    models.insert(split ? split->file(1) : name);
  }
  if (models.empty()) return std::nullopt;
  if (models.size() > 1) {
    fail(folder.string(), ": expected one GGUF model, found several: ", printable(*models.begin()), ", ",
         printable(*std::next(models.begin())), models.size() > 2 ? ", ..." : "", "; name the file");
  }
  return folder / *models.begin();
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(tensors_, name, {}, &GgufTensor::name);
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

int64_t GgufFile::total_bytes() const {
  int64_t total = 0;
  for (const auto& mapping : mappings_) total += static_cast<int64_t>(mapping->bytes().size());
  return total;
}

}  // namespace weir
