// Rotary frequencies from config.json, in both generations of its fields: rope_parameters, or rope_theta +
// rope_scaling.
#pragma once

#include <cstdint>

#include "formats/json.h"
#include "models/model_spec.h"

namespace weir {

// `dims`: rotated dimensions of a head (even). Knows rope types "default" and "llama3"; Error names any other.
RopeSpec load_rope(const JsonObject& config, int64_t dims);

}  // namespace weir
