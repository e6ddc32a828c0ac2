#include "cli/statistics.h"

#include "base/error.h"
#include "cli/load.h"
#include "cli/options.h"
#include "device/roof.h"

namespace weir::cli {

boost::json::object timings_json(const GenerateTimings& t) {
  boost::json::object out;
  out["prompt_n"] = t.prompt_n;
  out["prompt_ms"] = t.prompt_ms;
  out["prompt_per_second"] = per_second(t.prompt_n, t.prompt_ms);
  out["cached_n"] = t.cached_n;
  out["cache_reason"] = t.cached_n > 0 ? "prefix" : "disabled";
  out["predicted_n"] = t.predicted_n;
  out["predicted_ms"] = t.predicted_ms;
  out["predicted_per_second"] = per_second(t.predicted_steps, t.predicted_ms);
  out["predicted_gb_per_second"] = per_second(t.predicted_weight_bytes, t.predicted_ms) * 1e-9;
  out["draft_n"] = 0;
  out["draft_accepted_n"] = 0;
  return out;
}

double weight_read_bandwidth(Engine& engine) {
  if (engine.gpu() != nullptr) return 0;  // `weir bench` measures it
  const auto pieces = weight_pieces(engine.model(), int64_t{256} << 20);
  return pieces.empty() ? 0 : measure_read_bandwidth(engine.host(), pieces);
}

std::string statistics_line(Engine& engine, const Completion& completion, double roof_gb_per_second) {
  const GenerateTimings& t = completion.timings;
  std::string out =
      concat("prompt ", t.prompt_n + t.cached_n, " tokens (", t.cached_n, " cached), ",
             decimals(per_second(t.prompt_n, t.prompt_ms), 1), " tok/s; generated ", completion.tokens.size());
  if (t.predicted_steps > 0) {
    const double gb = per_second(t.predicted_weight_bytes + t.predicted_state_bytes, t.predicted_ms) * 1e-9;
    out +=
        concat(", ", decimals(per_second(t.predicted_steps, t.predicted_ms), 1), " tok/s, ", decimals(gb, 2), " GB/s");
    if (roof_gb_per_second > 0) {
      out += concat(" (", decimals(100 * gb / roof_gb_per_second, 0), " % of ", decimals(roof_gb_per_second, 1), ")");
    }
  }
  if (engine.gpu() != nullptr) {
    out += concat("; ", engine.gpu()->info().name);
  } else {
    out += concat("; ", engine.host().threads(), " threads, ", kernel_set_name(engine.host().kernels()));
  }
  out += concat("; ", finish_reason_name(completion.finish_reason));
  return out;
}

}  // namespace weir::cli
