#include "models/rope_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <string>

#include "base/error.h"
#include "models/limits.h"

namespace weir {
namespace {

// 1 / theta^(2i / dims). FP32 where the reference implementation is.
float wavelength_scale(double theta, int64_t dims, int64_t i) {
  const auto exponent = static_cast<float>(2 * i) / static_cast<float>(dims);
  return static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
}

RopeSpec plain(double theta, int64_t dims) {
  RopeSpec rope;
  for (int64_t i = 0; i < dims / 2; ++i) rope.inv_freq.push_back(1.f / wavelength_scale(theta, dims, i));
  return rope;
}

// Low frequencies are divided by `factor`, high ones kept, those between interpolated (Llama 3.1's rope scaling). FP32,
// in the order of the reference implementation.
void scale_llama3(const JsonObject& scaling, FloatVector& inv_freq) {
  const auto factor = static_cast<float>(scaling.number("factor", 1, 1e6));
  const auto low = static_cast<float>(scaling.number("low_freq_factor", 1e-6, 1e6));
  const auto high = static_cast<float>(scaling.number("high_freq_factor", 1e-6, 1e6));
  const auto original = static_cast<float>(scaling.integer("original_max_position_embeddings", 1, kMaxContext));
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

// YaRN (arXiv:2309.00071): frequencies that turn more than beta_fast times within the original context are kept, those
// that turn less than beta_slow times are divided by `factor`, with a linear ramp over the dimensions between.
struct Yarn {
  double factor = 1;
  double original = 0;  // positions
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;  // the ramp begins and ends at whole dimensions
};

RopeSpec yarn_rope(double theta, int64_t dims, const Yarn& yarn) {
  const auto n = static_cast<double>(dims);
  const auto dimension_of = [&](double turns) {
    return n * std::log(yarn.original / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double low = dimension_of(yarn.beta_fast);
  double high = dimension_of(yarn.beta_slow);
  if (yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.);
  high = std::min(high, n - 1);
  if (low == high) high += 0.001;
  RopeSpec rope;
  for (int64_t i = 0; i < dims / 2; ++i) {
    const float scale = wavelength_scale(theta, dims, i);
    const float kept = 1.f / scale;
    const float stretched = 1.f / (static_cast<float>(yarn.factor) * scale);
    const float ramp = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float keep = 1.f - std::clamp(ramp, 0.f, 1.f);
    rope.inv_freq.push_back(stretched * (1.f - keep) + kept * keep);
  }
  return rope;
}

double yarn_mscale(double factor, double mscale = 1) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

// 0 is as good as absent, as in the reference implementation.
double number_or_default(const JsonObject& scaling, std::string_view key, double fallback) {
  const double value = scaling.number_or(key, fallback, 0, 1e6);
  return value == 0 ? fallback : value;
}

RopeSpec load_yarn(const JsonObject& config, const JsonObject& scaling, double theta, int64_t dims) {
  const double context = static_cast<double>(config.integer_or("max_position_embeddings", 2048, 1, kMaxContext));
  Yarn yarn;
  yarn.original = scaling.number_or("original_max_position_embeddings", context, 1, 1e12);
  yarn.factor = scaling.number_or("factor", context / yarn.original, 1e-6, 1e6);
  yarn.beta_fast = number_or_default(scaling, "beta_fast", 32);
  yarn.beta_slow = number_or_default(scaling, "beta_slow", 1);
  if (yarn.beta_fast < yarn.beta_slow) scaling.fail_field("beta_fast", concat("at least beta_slow = ", yarn.beta_slow));
  yarn.truncate = scaling.boolean_or("truncate", true);
  RopeSpec rope = yarn_rope(theta, dims, yarn);
  const double mscale = scaling.number_or("mscale", 0, 0, 1e3);
  const double all_dim = scaling.number_or("mscale_all_dim", 0, 0, 1e3);
  const double factor = mscale > 0 && all_dim > 0 ? yarn_mscale(yarn.factor, mscale) / yarn_mscale(yarn.factor, all_dim)
                                                  : yarn_mscale(yarn.factor);
  rope.attention_factor = static_cast<float>(scaling.number_or("attention_factor", factor, 1e-6, 1e6));
  if (all_dim > 0) rope.softmax_factor = std::pow(yarn_mscale(yarn.factor, all_dim), 2);
  return rope;
}

// All pairs of the head exist, those beyond the proportion do not turn.
RopeSpec proportional(double theta, int64_t dims, double proportion, double factor) {
  RopeSpec rope = plain(theta, dims);
  const auto turning = static_cast<size_t>(proportion * static_cast<double>(dims) / 2);
  for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
    rope.inv_freq[i] = i < turning ? rope.inv_freq[i] / static_cast<float>(factor) : 0.f;
  }
  return rope;
}

// "rope_type", or "type" in older files.
std::string_view type_key(const JsonObject& scaling) {
  if (!scaling.has("rope_type")) return "type";
  const std::string type = scaling.string("rope_type");
  if (scaling.string_or("type", type) != type) scaling.fail_field("type", concat("'", type, "', as rope_type"));
  return "rope_type";
}

void refuse_partial(const JsonObject& object) {
  if (object.number_or("partial_rotary_factor", 1, 0, 1) != 1) object.fail_field("partial_rotary_factor", "1");
}

RopeSpec scaled(const JsonObject& config, const JsonObject& scaling, double theta, int64_t dims) {
  RopeSpec rope = plain(theta, dims);
  const std::string_view key = type_key(scaling);
  const std::string type = scaling.string_or(key, "default");
  if (type == "llama3") {
    scale_llama3(scaling, rope.inv_freq);
  } else if (type == "linear") {
    const auto factor = static_cast<float>(scaling.number("factor", 1e-6, 1e6));
    for (float& frequency : rope.inv_freq) frequency /= factor;
  } else if (type == "yarn") {
    return load_yarn(config, scaling, theta, dims);
  } else if (type != "default") {
    scaling.fail_field(key, "'default', 'linear', 'llama3' or 'yarn'");
  }
  return rope;
}

}  // namespace

RopeSpec load_rope(const JsonObject& config, int64_t dims, const RopeFamily& family) {
  const std::optional<JsonObject> parameters = config.object_if("rope_parameters");
  const std::optional<JsonObject> scaling = parameters ? parameters : config.object_if("rope_scaling");
  if (!family.partial) {
    refuse_partial(config);
    if (scaling) refuse_partial(*scaling);
  }
  if (!family.theta && parameters && !parameters->has("rope_theta") && !config.has("rope_theta")) {
    parameters->fail_field("rope_theta", "a number");
  }
  const JsonObject& with_theta = parameters && parameters->has("rope_theta") ? *parameters : config;
  const double theta = with_theta.number_or("rope_theta", family.theta.value_or(10000), 1 + 1e-6, 1e12);

  return scaling ? scaled(config, *scaling, theta, dims) : plain(theta, dims);
}

RopeSpec load_rope(double theta, int64_t dims) { return plain(theta, dims); }

RopeSpec load_rope(const JsonObject& config, const LayerRope& which, int64_t dims) {
  constexpr double kMaxTheta = 1e12;
  const std::optional<JsonObject> all = config.object_if("rope_parameters");
  if (all && (all->has("rope_type") || all->has("rope_theta"))) {
    config.fail_field("rope_parameters", "an object for each type of layer, 'full_attention' and 'sliding_attention'");
  }
  double theta = which.theta;
  if (!which.theta_key.empty()) theta = config.number_or(which.theta_key, theta, 1 + 1e-6, kMaxTheta);
  std::optional<JsonObject> own = all ? all->object_if(which.type) : std::nullopt;
  if (own) theta = own->number_or("rope_theta", theta, 1 + 1e-6, kMaxTheta);
  if (!own && which.scaled) own = config.object_if("rope_scaling");
  if (!own) return which.proportion > 0 && !all ? proportional(theta, dims, which.proportion, 1) : plain(theta, dims);
  if (own->string_or(type_key(*own), "default") == "proportional") {
    return proportional(theta, dims, own->number_or("partial_rotary_factor", 1, 0, 1),
                        own->number_or("factor", 1, 1e-6, 1e6));
  }
  if (own->number_or("partial_rotary_factor", 1, 0, 1) != 1) {
    own->fail_field("partial_rotary_factor", "1, but for rope_type 'proportional'");
  }
  return scaled(config, *own, theta, dims);
}

RopeSpec load_rope(const GgufConfig& config, int64_t dims, const FloatVector& factors) {
  const double theta = config.number_or("rope.freq_base", 10000, 1 + 1e-6, 1e12);
  const std::string_view type = config.string_or("rope.scaling.type", "none");
  RopeSpec rope = plain(theta, dims);
  if (type == "yarn") {
    Yarn yarn;
    yarn.factor = config.number("rope.scaling.factor", 1e-6, 1e6);
    yarn.original = static_cast<double>(config.integer_or(
        "rope.scaling.original_context_length", config.integer("context_length", 1, kMaxContext), 1, kMaxContext));
    yarn.beta_fast = config.number_or("rope.scaling.yarn_beta_fast", 32, 1e-6, 1e6);
    yarn.beta_slow = config.number_or("rope.scaling.yarn_beta_slow", 1, 1e-6, 1e6);
    if (yarn.beta_fast < yarn.beta_slow) {
      config.fail_key("rope.scaling.yarn_beta_fast", concat("at least yarn_beta_slow = ", yarn.beta_slow));
    }
    rope = yarn_rope(theta, dims, yarn);
    rope.attention_factor = static_cast<float>(
        yarn_mscale(yarn.factor) * static_cast<double>(config.number_or("rope.scaling.attn_factor", 1, 1e-6, 1e6)));
    // 0.1 mscale_all_dim; files do not give mscale, which equals it in published models.
    const double log_multiplier = config.number_or("rope.scaling.yarn_log_multiplier", 0, 0, 1e3);
    if (log_multiplier > 0) {
      rope.softmax_factor = std::pow(yarn_mscale(yarn.factor, 10 * log_multiplier), 2);
      rope.attention_factor = static_cast<float>(config.number_or("rope.scaling.attn_factor", 1, 1e-6, 1e6));
    }
  } else if (type == "linear" || (type == "none" && config.has("rope.scale_linear"))) {
    // scale_linear: older files.
    const float factor = type == "linear" ? config.number("rope.scaling.factor", 1e-6, 1e6)
                                          : config.number("rope.scale_linear", 1e-6, 1e6);
    for (float& frequency : rope.inv_freq) frequency /= factor;
  } else if (type != "none") {
    config.fail_key("rope.scaling.type", "'none', 'linear' or 'yarn'");
  }
  constexpr std::string_view kFactor = "rope.scaling.attn_factor";
  if (type != "yarn" && config.number_or(kFactor, 1, -1e30, 1e30) != 1) config.fail_key(kFactor, "1 without yarn");
  // Experimental ones of YaRN, which no published model sets.
  constexpr std::string_view kYarnFactor = "rope.scaling.yarn_attn_factor",
                             kExtrapolation = "rope.scaling.yarn_ext_factor";
  if (config.number_or(kYarnFactor, 1, -1e30, 1e30) != 1) config.fail_key(kYarnFactor, "1");
  const float mix = config.number_or(kExtrapolation, -1, -1e30, 1e30);
  if (mix >= 0 && mix != (type == "yarn" ? 1.f : 0.f)) config.fail_key(kExtrapolation, "1 with yarn, 0 without, or -1");
  for (size_t i = 0; i < factors.size() && i < rope.inv_freq.size(); ++i) rope.inv_freq[i] /= factors[i];
  return rope;
}

}  // namespace weir
