// What `weir load` prints. Names of fields as in vLLM's benchmark where it has them.
#pragma once

#include <boost/json/object.hpp>
#include <string>

#include "cli/load_client.h"

namespace weir::cli {

// What was asked, so that a row stands by itself.
struct LoadSettings {
  LoadSchedule schedule;
  LoadRequestOptions request;
  std::string url, prompts, goodput;
  int64_t max_tokens = 0, warmup = 0;
};

// One flat object: settings, then counts, rates, times in milliseconds. `failures` maps kinds to counts.
boost::json::object load_report(const LoadSettings& settings, const LoadRun& run);

// The same for people, and for spreadsheets: a line of names, a line of values.
std::string load_table(const boost::json::object& report);
std::string load_csv(const boost::json::object& report);

// "37 of 100 requests, 8 in flight, 123.4 tok/s"
std::string load_state_line(const LoadTally& tally, int64_t in_flight, int64_t requests, double seconds);

}  // namespace weir::cli
