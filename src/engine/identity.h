// What the bits of a model's state depend on, as a key for caches that outlive the process.
#pragma once

#include "engine/engine.h"
#include "state/block_store.h"

namespace weir {

// A hash of the numerics version, the layout of pages and anchors, the settings that change bits (stored types,
// activations) and the model's files: name, size, time of change, first and last 64 KiB of each, so that terabytes need
// not be read. Error when a file cannot be read.
StoreKey engine_identity(const Engine& engine);

}  // namespace weir
