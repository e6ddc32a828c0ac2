#include "formats/checkpoint.h"

#include <algorithm>
#include <limits>
#include <set>

#include "base/error.h"
#include "formats/embedded_files.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kConfig = "config.json";
constexpr std::string_view kGenerationConfig = "generation_config.json";
constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
// Half a million tensors of the largest published model make an index of about 65 MB.
constexpr JsonLimits kIndexLimits{.max_bytes = int64_t{1} << 30, .max_depth = 8};

bool is_there(const fs::path& path) {
  if (is_embedded(path.string())) return path_exists(path.string());
  std::error_code error;
  // A link that leads nowhere is there: opening it then says what is wrong.
  return fs::symlink_status(path, error).type() != fs::file_type::not_found;
}

// A name that leads out of the folder could map any file of the user's.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

// The shards that an index names, each once, in order of name.
std::set<std::string> shard_names(const JsonObject& weight_map) {
  std::set<std::string, std::less<>> names;
  for (const auto& [tensor, shard] : weight_map.raw()) {
    if (!shard.is_string()) weight_map.fail_field(tensor, "the name of a file");
    const std::string_view name = shard.get_string();
    if (names.contains(name)) continue;
    if (!is_plain_file_name(name)) weight_map.fail_field(tensor, "the name of a file in the same folder");
    names.emplace(name);
  }
  return {names.begin(), names.end()};
}

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

Checkpoint Checkpoint::open(const fs::path& folder) {
  if (!path_exists(folder.string())) fail(folder.string(), ": no such folder; expected a model folder with ", kConfig);
  if (!is_folder(folder.string())) fail(folder.string(), ": expected a model folder, found a file");

  Checkpoint checkpoint(folder.string(), JsonObject::read(folder / kConfig));
  if (is_there(folder / kGenerationConfig)) {
    checkpoint.generation_config_ = JsonObject::read(folder / kGenerationConfig);
  }
  if (is_there(folder / kIndex)) {
    const JsonObject index = JsonObject::read(folder / kIndex, kIndexLimits);
    for (const std::string& shard : shard_names(index.object("weight_map"))) {
      if (!is_there(folder / shard)) fail((folder / shard).string(), ": no such file, but ", kIndex, " names it");
      checkpoint.add_file(folder / shard);
    }
    checkpoint.sort_tensors();
    checkpoint.check_index(index);
  } else if (is_there(folder / kSingle)) {
    checkpoint.add_file(folder / kSingle);
  } else {
    fail(folder.string(), ": no weights: looked for ", kIndex, " and ", kSingle);
  }
  return checkpoint;
}

Checkpoint Checkpoint::generated(const fs::path& config, std::shared_ptr<TensorMaker> maker) {
  Checkpoint checkpoint(config.parent_path().string(), JsonObject::read(config.string()));
  checkpoint.maker_ = std::move(maker);
  return checkpoint;
}

const Tensor* Checkpoint::find(std::string_view name) const {
  const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const Tensor& tensor, std::string_view n) { return tensor.name < n; });
  return at != tensors_.end() && at->name == name ? &*at : nullptr;
}

int64_t Checkpoint::total_bytes() const {
  if (maker_) return maker_->total_bytes();
  int64_t total = 0;
  for (const File& file : files_) total += file.bytes;
  return total;
}

void Checkpoint::add_file(const std::string& path) {
  mappings_.push_back(std::make_unique<const MappedFile>(MappedFile::open(path)));
  const MappedFile& mapping = *mappings_.back();
  SafetensorsContents contents = parse_safetensors(mapping.bytes(), mapping.path());
  files_.push_back({path, static_cast<int64_t>(mapping.bytes().size()), static_cast<int64_t>(contents.tensors.size())});
  tensors_.insert(tensors_.end(), std::make_move_iterator(contents.tensors.begin()),
                  std::make_move_iterator(contents.tensors.end()));
}

void Checkpoint::sort_tensors() {
  const auto by_name = [](const Tensor& a, const Tensor& b) { return a.name < b.name; };
  std::sort(tensors_.begin(), tensors_.end(), by_name);
  const auto same_name = [](const Tensor& a, const Tensor& b) { return a.name == b.name; };
  const auto twice = std::adjacent_find(tensors_.begin(), tensors_.end(), same_name);
  if (twice != tensors_.end()) {
    fail(*twice->file, ": tensor ", printable(twice->name, 200), " is also in ", file_name(*std::next(twice)->file));
  }
}

// Each tensor must be named once, in the shard that holds it; no names without a tensor.
void Checkpoint::check_index(const JsonObject& index) const {
  const JsonObject map = index.object("weight_map");
  const boost::json::object& weight_map = map.raw();
  for (const Tensor& tensor : tensors_) {
    const boost::json::value* shard = weight_map.if_contains(tensor.name);
    if (shard == nullptr) {
      fail(index.file(), ": weight_map lacks tensor ", printable(tensor.name, 200), ", which is in ",
           file_name(*tensor.file));
    }
    if (shard->get_string() != file_name(*tensor.file)) {
      fail(index.file(), ": weight_map has tensor ", printable(tensor.name, 200), " in ",
           printable(shard->get_string()), ", but it is in ", file_name(*tensor.file));
    }
  }
  if (weight_map.size() != tensors_.size()) {
    for (const auto& [name, shard] : weight_map) {
      if (find(name) == nullptr) {
        fail(index.file(), ": weight_map has tensor ", printable(name, 200), " in ", printable(shard.get_string()),
             ", which does not hold it");
      }
    }
  }
  // Published totals count tied tensors or parameters in ways of their own; only one that can't be there is an error.
  const std::optional<JsonObject> metadata = index.object_if("metadata");
  if (!metadata) return;
  const int64_t total = metadata->integer_or("total_size", 0, 0, std::numeric_limits<int64_t>::max());
  if (total > total_bytes()) {
    fail(index.file(), ": metadata.total_size is ", total, " bytes, but the shards have only ", total_bytes(),
         "; are all files complete?");
  }
}

}  // namespace weir
