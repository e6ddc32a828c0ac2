#include "models/rope_config.h"

#include <cmath>
#include <numbers>
#include <optional>
#include <string>

namespace weir {
namespace {

// Low frequencies are divided by `factor`, high ones kept, those between interpolated (Llama 3.1's rope scaling). FP32,
// in the order of the reference implementation.
void scale_llama3(const JsonObject& scaling, FloatVector& inv_freq) {
  const auto factor = static_cast<float>(scaling.number("factor", 1, 1e6));
  const auto low = static_cast<float>(scaling.number("low_freq_factor", 1e-6, 1e6));
  const auto high = static_cast<float>(scaling.number("high_freq_factor", 1e-6, 1e6));
  const auto original = static_cast<float>(scaling.integer("original_max_position_embeddings", 1, int64_t{1} << 32));
  if (high <= low) scaling.fail_field("high_freq_factor", "more than low_freq_factor");
  for (float& frequency : inv_freq) {
    const float wavelength = 2.f * std::numbers::pi_v<float> / frequency;
    if (wavelength < original / high) continue;
    if (wavelength > original / low) {
      frequency /= factor;
      continue;
    }
    const float smooth = (original / wavelength - low) / (high - low);
    frequency = (1.f - smooth) * (frequency / factor) + smooth * frequency;
  }
}

}  // namespace

RopeSpec load_rope(const JsonObject& config, int64_t dims) {
  const std::optional<JsonObject> parameters = config.object_if("rope_parameters");
  const std::optional<JsonObject> scaling = parameters ? parameters : config.object_if("rope_scaling");
  const JsonObject& with_theta = parameters && parameters->has("rope_theta") ? *parameters : config;
  const double theta = with_theta.number_or("rope_theta", 10000, 1e-3, 1e12);

  RopeSpec rope;
  for (int64_t i = 0; i < dims / 2; ++i) {
    const auto exponent = static_cast<float>(2 * i) / static_cast<float>(dims);
    rope.inv_freq.push_back(1.f / static_cast<float>(std::pow(theta, static_cast<double>(exponent))));
  }
  if (!scaling) return rope;
  const std::string_view key = scaling->has("rope_type") ? "rope_type" : "type";
  const std::string type = scaling->string_or(key, "default");
  if (type == "llama3") {
    scale_llama3(*scaling, rope.inv_freq);
  } else if (type != "default") {
    scaling->fail_field(key, "'default' or 'llama3'");
  }
  return rope;
}

}  // namespace weir
