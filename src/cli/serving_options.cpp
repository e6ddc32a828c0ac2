#include "cli/serving_options.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "device/memory.h"
#include "formats/embedded_files.h"

namespace weir::cli {
namespace {

std::string fingerprint(const StoreKey& identity) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(identity.high));
  return concat("weir-" WEIR_VERSION "-", text);
}

// The last part of a path, "a/b/" included; of the built-in model, "tiny-k3".
std::string name_of(const std::filesystem::path& path) {
  if (is_embedded(path.string())) return path.string().substr(path.string().find(':') + 1);
  const std::filesystem::path clean = path.has_filename() ? path : path.parent_path();
  return clean.filename().string();
}

}  // namespace

void ServingOptions::add_to(CLI::App& app, ModelOptions::Model needed) {
  model.add_to(app, needed);
  app.add_option("--max-sequences", max_sequences, "requests that run at the same time")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  CLI::Option* tokens =
      app.add_option("--max-tokens", max_tokens, "tokens that there are pages for, of all requests together")
          ->check(CLI::Range(int64_t{16}, int64_t{1} << 32));
  if (max_tokens > 0) {
    tokens->capture_default_str();
  } else {
    tokens->default_str("by memory");
  }
  app.add_option("--target-step-ms", target_step_ms, "time of a step while requests are decoding")
      ->check(finite())
      ->check(CLI::Range(0.0, 1e6))
      ->default_str("100");
  app.add_option("--cache-dir", cache_dir, "keep computed prompts in files here, for later runs");
  app.add_option("--cache-disk-bytes", cache_disk_bytes, "that the files may have")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 60))
      ->capture_default_str();
  app.add_option("--cache-host-bytes", cache_host_bytes, "memory for what leaves the pages")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 60))
      ->capture_default_str();
  app.add_flag("--no-prefix-cache", no_prefix_cache, "compute every prompt from its beginning");
  app.add_option("--record", record, "write all requests, with their prompts, and steps here, for `weir replay`");
  app.add_option("--temperature", temperature, "of requests that have none; 0: greedy")
      ->check(finite())
      ->check(CLI::Range(0.0, 100.0))
      ->default_str(default_temperature);
  app.add_option("--seed", seed, "of requests that have none")->check(unsigned_64())->default_str(default_seed);
}

EngineOptions ServingOptions::engine_options() const {
  EngineOptions out = model.engine_options();
  if (out.max_batch_rows < max_sequences) {
    fail("--max-batch-rows: expected at least the ", max_sequences, " of --max-sequences, found ", out.max_batch_rows);
  }
  out.max_sequences = max_sequences;
  out.max_logit_rows = static_cast<int32_t>(max_sequences);
  out.max_tokens = max_tokens;
  out.all_blocks = true;
  if (!no_prefix_cache) out.cached_anchor_memory = available_memory() / 8;
  return out;
}

Service::Options ServingOptions::service_options(const StoreKey& identity) const {
  Service::Options out;
  if (target_step_ms > 0) out.scheduler.target_step_ms = target_step_ms;
  out.scheduler.cache.enabled = !no_prefix_cache;
  out.scheduler.cache.identity = identity;
  return out;
}

std::unique_ptr<BlockStore> ServingOptions::store(const StoreKey& identity) const {
  if (no_prefix_cache || (cache_dir.empty() && cache_host_bytes == 0)) return nullptr;
  BlockStore::Options out;
  out.host_bytes = cache_host_bytes;
  out.directory = cache_dir;
  out.disk_bytes = cache_dir.empty() ? 0 : cache_disk_bytes;
  out.identity = identity;
  return std::make_unique<BlockStore>(out);
}

openai::Served ServingOptions::served(const LoadedModel& loaded, const Engine& engine, const StoreKey& identity) const {
  const ModelSpec& spec = loaded.model->spec;
  return {.text = &loaded.text,
          .name = name_of(model.model),
          .fingerprint = fingerprint(identity),
          .vocab = spec.vocab,
          .context = spec.max_positions,
          .tokens = engine.options().max_tokens,
          .stop_tokens = spec.stop_tokens};
}

}  // namespace weir::cli
