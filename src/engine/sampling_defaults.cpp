#include "engine/sampling_defaults.h"

namespace weir {
namespace {

// The ranges that validate() accepts.
template <class Source>
SamplingOptions read(const Source& source, std::string_view prefix, std::string_view temperature,
                     std::string_view repetition) {
  const auto key = [&](std::string_view name) { return std::string(prefix) + std::string(name); };
  SamplingOptions out;
  out.temperature = static_cast<float>(source.number_or(key(temperature), 1, 0, 100));
  out.top_k = static_cast<int32_t>(source.integer_or(key("top_k"), 0, 0, INT32_MAX));
  out.top_p = static_cast<float>(source.number_or(key("top_p"), 1, 1e-6, 1));
  out.min_p = static_cast<float>(source.number_or(key("min_p"), 0, 0, 1));
  out.repetition_penalty = static_cast<float>(source.number_or(key(repetition), 1, 1e-3, 10));
  return out;
}

}  // namespace

SamplingOptions sampling_defaults(const Model& model) {
  if (model.checkpoint() != nullptr) {
    const JsonObject* config = model.checkpoint()->generation_config();
    if (config == nullptr || !config->boolean_or("do_sample", config->has("temperature"))) return {};
    return read(*config, "", "temperature", "repetition_penalty");
  }
  const GgufMetadata& metadata = model.gguf()->metadata();
  if (!metadata.has("general.sampling.temp")) return {};
  return read(metadata, "general.sampling.", "temp", "penalty_repeat");
}

}  // namespace weir
