// Model families: config.json's model_type, or GGUF's general.architecture, to the function that reads such a
// checkpoint. One file per family.
#pragma once

#include <span>
#include <string_view>

#include "formats/checkpoint.h"
#include "formats/gguf.h"
#include "models/model_spec.h"

namespace weir {

struct Family {
  std::string_view model_type;
  std::string_view architecture;  // in GGUF
  ModelSpec (*load)(const Checkpoint& checkpoint);
  ModelSpec (*load_gguf)(const GgufFile& file);
  ChatFormat chat_format = ChatFormat::kTemplate;
};

std::span<const Family> families();
const Family* find_family(std::string_view model_type);         // nullptr when it is unknown
const Family* find_gguf_family(std::string_view architecture);  // nullptr when it is unknown

// Reads a checkpoint with the family that its config names. The views of the result point into the checkpoint's mapped
// files. Throws Error naming file and field or tensor.
ModelSpec load_model(const Checkpoint& checkpoint);
ModelSpec load_model(const GgufFile& file);

}  // namespace weir
