// Rotary frequencies: from config.json in both generations of its fields (rope_parameters, or rope_theta +
// rope_scaling), and from GGUF metadata.
#pragma once

#include <cstdint>

#include "formats/json.h"
#include "models/gguf_config.h"
#include "models/model_spec.h"

namespace weir {

// `dims`: rotated dimensions of a head (even). Knows rope types default, linear, llama3 and yarn; Error names any
// other.
RopeSpec load_rope(const JsonObject& config, int64_t dims);

// Scaling none, linear or yarn; `factors`, if any, divide the frequencies one by one (rope_freqs.weight).
RopeSpec load_rope(const GgufConfig& config, int64_t dims, const FloatVector& factors);

}  // namespace weir
