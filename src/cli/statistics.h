// What a completion cost, for programs and for people.
#pragma once

#include <boost/json/object.hpp>
#include <string>

#include "engine/generate.h"

namespace weir::cli {

boost::json::object timings_json(const GenerateTimings& timings);

// GB/s at which this machine reads the model's weights, which bounds tokens per second; 0 when there is nothing to
// read.
double weight_read_bandwidth(Engine& engine);

// "prompt 37 tokens (12 cached), 310.2 tok/s; generated 42, 130.1 tok/s, 12.3 GB/s (39 % of 31.4); 2 threads,
// avx512; stop": the share of the rate at which this machine reads the weights when it does nothing else.
std::string statistics_line(Engine& engine, const Completion& completion, double roof_gb_per_second);

}  // namespace weir::cli
