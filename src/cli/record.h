// The record of a server or a batch, from which `weir replay` repeats it.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/error.h"
#include "cli/output_file.h"
#include "engine/schedule_log.h"
#include "engine/scheduler.h"

namespace weir::cli {

class Record {
 public:
  explicit Record(const std::string& path) : file_(path), log_([this](std::string_view line) { write(line); }) {}

  // For SchedulerOptions::log: nullptr when no record is wanted.
  ScheduleLog* begin(Engine& engine, const SchedulerOptions& options) {
    if (!file_) return nullptr;
    const int64_t live = kAnchorsOfSequence * engine.options().max_sequences;
    log_.began(RecordedEngine::of(engine.options(), std::max<int64_t>(0, engine.pools().anchors().count() - live),
                                  options.cache.enabled));
    return &log_;
  }

 private:
  // On the engine's thread: a full disk ends the record, not the server.
  void write(std::string_view line) {
    if (!file_) return;
    try {
      file_.write(line);
    } catch (const Error& error) {
      std::fprintf(stderr, "weir: %s; the record ends here\n", error.what());
      file_.close();
    }
  }

  OutputFile file_;
  ScheduleLog log_;
};

}  // namespace weir::cli
