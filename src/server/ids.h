// Names of answers and their parts that nobody else gives.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weir {

// PREFIX and 24 letters and digits from the system's source of randomness: 142 bits, so such a name is also hard to
// guess. Thread-safe.
std::string random_id(std::string_view prefix);

// Of 32 bits, so that every client's numbers hold it. Thread-safe.
uint64_t random_seed();

}  // namespace weir
