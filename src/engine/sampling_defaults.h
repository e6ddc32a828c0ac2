// How a model's makers mean it to be sampled.
#pragma once

#include "engine/engine.h"
#include "engine/sampler_options.h"

namespace weir {

// From generation_config.json (temperature, top_p, top_k, min_p, repetition_penalty, as transformers names them), or a
// GGUF file's general.sampling.* keys (llama.cpp's gguf-py/gguf/constants.py). Greedy where they name no temperature
// and don't say do_sample, or say do_sample false. Error naming file and field when a value is out of range.
SamplingOptions sampling_defaults(const Model& model);

}  // namespace weir
