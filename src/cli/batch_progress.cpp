#include "cli/batch_progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "cli/options.h"
#include "cli/terminal.h"

namespace weir::cli {
namespace {

constexpr std::chrono::seconds kEvery{10};          // lines
constexpr std::chrono::milliseconds kRedrawn{100};  // the bar

std::string asides(const BatchCounts& counts) {
  std::string out;
  if (counts.refused > 0) out += concat(counts.refused, " refused");
  if (counts.skipped > 0) out += concat(out.empty() ? "" : ", ", counts.skipped, " from before");
  return out.empty() ? out : concat(" (", out, ")");
}

}  // namespace

std::string batch_state_line(const BatchCounts& counts, int64_t running, double seconds) {
  std::string out = concat(counts.done());
  if (counts.total >= 0) out += concat(" of ", counts.total);
  out += concat(" requests", asides(counts), ", ", running, " running, ",
                decimals(per_second(counts.generated_tokens, seconds * 1e3), 1), " tok/s");
  if (counts.prompt_tokens > 0) {
    out += concat(", ", counts.cached_tokens * 100 / counts.prompt_tokens, " % of the prompt tokens cached");
  }
  return out;
}

std::string batch_summary(const BatchCounts& counts, int64_t preemptions, double seconds) {
  return concat(counts.done(), " requests: ", counts.answered, " answered, ", counts.refused, " refused, ",
                counts.skipped, " from before; prompt ", counts.prompt_tokens, " tokens (", counts.cached_tokens,
                " cached), generated ", counts.generated_tokens, ", ",
                decimals(per_second(counts.generated_tokens, seconds * 1e3), 1), " tok/s in ", decimals(seconds, 1),
                " s; ", preemptions, " preemptions");
}

BatchProgress::BatchProgress() : terminal_(is_terminal(STDERR_FILENO)) {}

BatchProgress::~BatchProgress() {
  if (drawn_) std::fprintf(stderr, "\r\x1b[K");
}

double BatchProgress::seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

void BatchProgress::show(const BatchCounts& counts, const Service& service) {
  const Clock::time_point now = Clock::now();
  if (now - last_ < (terminal_ ? Clock::duration(kRedrawn) : Clock::duration(kEvery))) return;
  last_ = now;
  std::string line = batch_state_line(counts, service.snapshot().running, seconds());
  if (!terminal_) {
    std::fprintf(stderr, "%s\n", line.c_str());
    return;
  }
  drawn_ = true;
  const int columns = terminal_size(STDERR_FILENO).columns;
  const int width = std::clamp(columns - static_cast<int>(line.size()) - 4, 0, 30);
  if (counts.total > 0 && width >= 5) {
    const auto full = static_cast<size_t>(counts.done() * width / counts.total);
    std::string bar(full, '=');
    bar.resize(static_cast<size_t>(width), ' ');
    line = concat("[", bar, "] ", line);
  }
  line.resize(std::min(line.size(), static_cast<size_t>(std::max(columns - 1, 0))));
  std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
  std::fflush(stderr);
}

}  // namespace weir::cli
