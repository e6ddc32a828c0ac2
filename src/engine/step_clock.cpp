#include <algorithm>

#include "engine/scheduler.h"

namespace weir {

void StepClock::measured(double ms, int32_t decode_rows, int32_t prompt_rows) {
  constexpr double kNew = 0.2;  // weight of the newest step
  const auto blend = [](double& value, double found) { value = value == 0 ? found : value + kNew * (found - value); };
  if (prompt_rows == 0) return blend(decode_ms_, ms);
  const double base = decode_rows > 0 ? decode_ms_ : 0;
  blend(per_row_ms_, std::max(1e-6, (ms - base) / prompt_rows));
}

int32_t StepClock::prompt_rows(double target_ms, int32_t decode_rows, int32_t most) const {
  constexpr int32_t kLeast = 16;  // prompts move on, however slow steps are
  if (most <= kLeast || decode_rows == 0) return most;
  if (per_row_ms_ == 0) return std::min(most, 64);  // nothing is known yet
  const double rows = std::max(0.0, target_ms - decode_ms_) / per_row_ms_;
  return rows >= most ? most : std::max(kLeast, static_cast<int32_t>(rows));
}

}  // namespace weir
