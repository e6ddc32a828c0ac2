#include <limits>

#include "base/math.h"
#include "engine/sampler_kernels.h"
#include "engine/sampler_noise.h"

namespace weir::reference {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float score(float logit, float largest, float temperature) { return (logit - largest) / temperature; }

}  // namespace

bool sample_block_maxima(const LogitRow& row, float* maxima) {
  bool finite = true;
  for (int64_t b = 0; b < row.blocks; ++b) {
    float largest = -kInfinity;
    for (int64_t i = 0; i < kSampleBlock; ++i) {
      const float logit = row.block(b)[i];
      finite = finite && logit < kInfinity;
      largest = math::max(largest, logit);
    }
    maxima[b] = largest;
  }
  return finite;
}

uint64_t sample_total_weight(const LogitRow& row, const float*, float largest, float temperature, float least) {
  uint64_t total = 0;
  for (int64_t b = 0; b < row.blocks; ++b) {
    for (int64_t i = 0; i < kSampleBlock; ++i) {
      const float logit = row.block(b)[i];
      if (logit >= least) total += static_cast<uint64_t>(math::exp(score(logit, largest, temperature)) * kWeightUnit);
    }
  }
  return total;
}

void sample_weights(const float* logits, int64_t n, float largest, float temperature, float* weights) {
  for (int64_t i = 0; i < n; ++i) weights[i] = math::exp(score(logits[i], largest, temperature));
}

int32_t sample_draw(const NoiseArgs& args) {
  float best = -kInfinity;
  int32_t chosen = -1;
  for (int64_t b = 0; b < args.row.blocks; ++b) {
    for (int64_t i = 0; i < kSampleBlock; ++i) {
      const float logit = args.row.block(b)[i];
      const auto id = static_cast<int32_t>(b * kSampleBlock + i);
      if (!(logit >= (id <= args.cut.id ? args.cut.value : args.cut.above))) continue;
      const float s = score(logit, args.largest, args.temperature);
      if (s + kMaxGumbel < best) continue;  // no noise could lift it above the best
      const float noisy = s + gumbel_noise(args.seed, args.position, id);
      if (noisy > best) {
        best = noisy;
        chosen = id;
      }
    }
  }
  return chosen;
}

}  // namespace weir::reference
