// Rotary frequencies: from config.json in both generations of its fields (rope_parameters, or rope_theta +
// rope_scaling), and from GGUF metadata.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "formats/json.h"
#include "models/gguf_config.h"
#include "models/model_spec.h"

namespace weir {

struct RopeFamily {
  std::optional<double>
      theta;             // where a file does not say; without it rope_parameters must, and 10000 is the older one
  bool partial = false;  // `dims` has partial_rotary_factor in it; otherwise it must be 1
};

// `dims`: rotated dimensions of a head (even). Knows rope types default, linear, llama3 and yarn; Error names any
// other.
RopeSpec load_rope(const JsonObject& config, int64_t dims, const RopeFamily& family = {});

// One rotation of a model that has several, by type of layer: rope_parameters.TYPE, or older fields of its own.
struct LayerRope {
  std::string_view type;       // "full_attention"
  std::string_view theta_key;  // the older field of theta; empty: none
  double theta = 10000;        // where nothing is said
  bool scaled = false;         // an older rope_scaling is about this one
  double proportion = 0;       // without rope_parameters: "proportional" with this partial_rotary_factor; 0: default
};
// Also knows rope type proportional: of all pairs of the head, those beyond the proportion have frequency zero.
RopeSpec load_rope(const JsonObject& config, const LayerRope& which, int64_t dims);

// Without scaling.
RopeSpec load_rope(double theta, int64_t dims);

// Scaling none, linear or yarn; `factors`, if any, divide the frequencies one by one (rope_freqs.weight).
RopeSpec load_rope(const GgufConfig& config, int64_t dims, const FloatVector& factors);

}  // namespace weir
