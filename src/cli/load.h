// Loading a model for a command: with its words, and with a progress bar when it takes long.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/model_text.h"

namespace weir::cli {

struct LoadedModel {
  std::unique_ptr<Model> model;
  ModelText text;  // perhaps without tokenizer
};

enum class Words {
  kNeeded,    // broken files of words are an error
  kOptional,  // the model is loaded without words then
};

// Weights that lie on disk only are read at once, one after the other, if they fit into memory: much quicker than page
// by page in the order of use. On a terminal a bar shows it after one second.
LoadedModel load_with_text(const std::string& path, Words words);

// The weights as they lie in memory, in pieces of 1 MiB, `limit` bytes of them.
std::vector<std::span<const std::byte>> weight_pieces(const Model& model, int64_t limit);

// Error when an id is not one of the model's: its tokenizer is for another model.
void check_prompt(std::span<const int32_t> ids, const Model& model);

}  // namespace weir::cli
