// What a config.json says about the storage of its weights. The tensors themselves decide how they are read; this
// refuses what they would not show.
#pragma once

#include "formats/checkpoint.h"
#include "formats/json.h"

namespace weir {

// Error names the field of a quantization_config that this engine cannot honour. Formats that it reads: E4M3 with
// scales per 128 x 128 ("fp8") or per output channel ("compressed-tensors"), and MXFP4.
void check_quantization(const JsonObject& config, const Checkpoint& checkpoint);

}  // namespace weir
