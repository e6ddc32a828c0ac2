// Options and parts of the commands that answer many requests together: batch and serve.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cli/load.h"
#include "cli/options.h"
#include "engine/service.h"
#include "server/openai.h"

namespace weir::cli {

struct ServingOptions {
  ModelOptions model;
  int64_t max_sequences = 16;
  int64_t max_tokens = 0;     // 0: what half of the memory beside the weights has pages for
  double target_step_ms = 0;  // 0: the scheduler's own
  std::string cache_dir, record;
  int64_t cache_disk_bytes = int64_t{16} << 30, cache_host_bytes = 0;
  bool no_prefix_cache = false;
  std::optional<double> temperature;
  std::optional<uint64_t> seed;

  std::string default_temperature = "0", default_seed = "0";  // as help says it

  void add_to(CLI::App& app, ModelOptions::Model needed =
                                 ModelOptions::Model::kNeeded);  // after the defaults are as the command wants them

  // Error naming the option. Without tokens: those depend on the model.
  EngineOptions engine_options() const;
  // Of requests that say nothing; greedy, and the same noise each time, where nothing is said here either.
  SamplingOptions sampling() const { return {static_cast<float>(temperature.value_or(0)), seed.value_or(0)}; }
  Service::Options service_options(const StoreKey& identity) const;
  std::unique_ptr<BlockStore> store(const StoreKey& identity) const;  // null: none is wanted
  openai::Served served(const LoadedModel& loaded, const Engine& engine, const StoreKey& identity) const;
};

}  // namespace weir::cli
