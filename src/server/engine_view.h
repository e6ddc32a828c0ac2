// What the engine does, as JSON for the page's live view. Nothing of what prompts and answers say.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>

#include "engine/engine_queue.h"

namespace weir {

// Counters, blocks and the newest steps after `since`.
boost::json::object engine_view(const EngineQueue& engine, int64_t since);

}  // namespace weir
