#include "text/tokenizer_parts.h"

#include <algorithm>

#include "base/error.h"
#include "formats/json.h"

namespace weir {

void TokenizerParts::mark_special(int32_t id) {
  if (static_cast<size_t>(id) >= special.size()) special.resize(static_cast<size_t>(id) + 1);
  special[static_cast<size_t>(id)] = true;
}

std::optional<int32_t> TokenizerParts::id_of(std::string_view token) const {
  if (const auto added_id = added_ids.find(token); added_id != added_ids.end()) return added_id->second;
  const int32_t id = tokens.find(token);
  return id < 0 ? std::nullopt : std::optional(id);
}

void TokenizerParts::find_end_of_generation() {
  // Names that publishers use for "the turn is over", or the text. Only added and special tokens count.
  static constexpr std::string_view kNames[] = {
      "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",   "<|eom_id|>",
      "<EOT>",      "_<EOT>",     "[EOT]",   "[EOS]",         "<|end_of_text|>", "<end_of_utterance>",
      "<|return|>", "<|call|>",   "<eos>",   "<turn|>",       "<|end_of_msg|>",  "<｜end▁of▁sentence｜>",
  };
  std::vector<int32_t>& ids = end_of_generation;
  if (eos) ids.push_back(*eos);
  // In gpt-oss <|end|> ends a message inside a turn.
  const bool harmony = added_ids.contains("<|return|>") && added_ids.contains("<|call|>");
  for (std::string_view name : kNames) {
    if (harmony && name == "<|end|>") continue;
    if (const auto id = added_ids.find(name); id != added_ids.end()) ids.push_back(id->second);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

void TokenizerParts::read_config(const JsonObject& config) {
  const auto read = [&](std::string_view key, std::optional<int32_t>& id) {
    if (!config.has(key)) return;
    const std::string name =
        config.raw().at(key).is_object() ? config.object(key).string("content") : config.string(key);
    id = id_of(name);
    if (!id) config.fail_field(key, "a token of the vocabulary");
  };
  read("bos_token", bos);
  read("eos_token", eos);
}

}  // namespace weir
