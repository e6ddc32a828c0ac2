#include "base/math.h"
#include "base/number.h"
#include "ops/indexer/indexer_kernel.h"
#include "ops/simd/lanes_ref.h"

namespace weir::reference {

void indexer_scores(const IndexerTask& t, int64_t first, int64_t count) {
  const IndexerArgs& a = *t.args;
  for (int64_t j = first; j < first + count; ++j) {
    const std::byte* row =
        t.pool.block(t.pages[j / kPagePositions]) + a.key.offset + j % kPagePositions * a.key.row_bytes;
    const auto key = [&](int64_t k) {
      return a.dtype == StateDtype::kF32 ? reinterpret_cast<const float*>(row)[k]
                                         : f16_to_f32(reinterpret_cast<const uint16_t*>(row)[k]);
    };
    float score = 0;
    for (int64_t h = 0; h < a.heads; ++h) {
      const float s = a.scale * dot_lanes(
                                    a.dim, [&](int64_t k) { return t.q[h * a.dim + k]; }, key);
      score = math::fma(t.weights[h], s > 0 ? s : 0.f, score);
    }
    t.scores[j - first] = score;
  }
}

}  // namespace weir::reference
