#include "models/gguf_names.h"

#include "base/error.h"

namespace weir {

std::vector<std::string> gguf_names(std::span<const GgufName> table, std::string_view published) {
  constexpr std::string_view kLayers = "model.layers.";
  std::string prefix;
  std::string_view rest = published;
  if (rest.starts_with(kLayers)) {
    rest.remove_prefix(kLayers.size());
    const size_t dot = rest.find('.');
    prefix = concat("blk.", rest.substr(0, dot), ".");
    rest.remove_prefix(dot == rest.npos ? rest.size() : dot + 1);
  }
  std::string_view stem = rest;
  for (std::string_view suffix : {".weight", ".bias"}) {
    if (rest.ends_with(suffix)) stem.remove_suffix(suffix.size());
  }
  std::vector<std::string> names;
  for (const GgufName& name : table) {
    if (name.published == rest) {
      names.push_back(concat(prefix, name.gguf));
    } else if (name.published == stem) {
      names.push_back(concat(prefix, name.gguf, rest.substr(stem.size())));
    }
  }
  return names;
}

}  // namespace weir
