// Options that every command which runs a model takes, and the small files they read.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace weir::cli {

struct ModelOptions {
  std::string model;
  std::string device = "auto";
  int threads = 0;             // 0: all processors
  int32_t max_batch_rows = 0;  // 0: 512, on a GPU 2,048
  std::string kv_dtype = "auto";
  std::string activations = "auto";
  std::string kernels = "auto";
  bool no_graphs = false;

  enum class Model { kNeeded, kBuiltinByDefault };
  void add_to(CLI::App& app, Model needed = Model::kNeeded);
  // All but MODEL and --threads.
  void add_engine_to(CLI::App& app);
  // Error naming the option. Fills what depends on the model's use in by hand: logit rows, tokens, sequences.
  EngineOptions engine_options() const;
};

// --device of commands that compute; --no-graphs beside it, when `no_graphs` is not null.
void add_device_option(CLI::App& app, std::string& device, bool* no_graphs = nullptr);
// The GPU that --device names, or -1 for the CPU. Error when it names a GPU and there is none to use.
int parse_device(const std::string& device);

// Checks of option values: an integer that fits 64 bits without sign; a finite number.
CLI::Validator unsigned_64();
CLI::Validator finite();

// The bytes of a file, a pipe or a device, "-" for standard input. Error naming it: unreadable, or more than `limit`.
std::string read_input(const std::string& path, int64_t limit);

// A JSON array of token ids, all in [0, vocab) and at most `max_tokens` of them, at least one. Error naming file and
// element. "-": standard input.
std::vector<int32_t> read_tokens(const std::string& path, int64_t vocab, int64_t max_tokens);

// 1536 -> "1.54 kB", for people; powers of 1000, as in GB/s.
std::string human_bytes(double bytes);
// "1 file", "2 files".
std::string counted(int64_t count, std::string_view noun);
// Fixed decimals.
std::string decimals(double value, int places);
// 0 when no time has passed.
double per_second(int64_t count, double ms);

}  // namespace weir::cli
