// Four heads at a time over a page of keys, in register tiles; then all heads' products of sixteen positions are
// weighed.
#include "ops/attention/dot_tile.h"
#include "ops/indexer/indexer_kernel.h"

namespace weir::WEIR_ISA {
namespace {

constexpr int kHeads = 4;  // of a register tile

template <class Element>
void dots(const IndexerTask& t, int64_t first, int64_t count) {
  const IndexerArgs& a = *t.args;
  constexpr int64_t kKeys = kTileDots / kHeads;
  for (int64_t page = 0; page * kPagePositions < count; ++page) {
    const std::byte* keys = t.pool.block(t.pages[first / kPagePositions + page]) + a.key.offset;
    const int64_t in_page = count - page * kPagePositions < kPagePositions ? count - page * kPagePositions : 16;
    for (int64_t h = 0; h < a.heads; h += kHeads) {
      const float* q[kHeads];
      for (int64_t i = 0; i < kHeads; ++i) q[i] = t.q + (h + i < a.heads ? h + i : a.heads - 1) * a.dim;
      float* out = t.dots + h * kIndexerTile + page * kPagePositions;
      for (int64_t j = 0; j < in_page; j += kKeys) {
        dot_tile<Element, kHeads>(q, keys + j * a.key.row_bytes, a.key.row_bytes, a.dim, out + j, kIndexerTile);
      }
    }
  }
}

}  // namespace

void indexer_scores(const IndexerTask& t, int64_t first, int64_t count) {
  const IndexerArgs& a = *t.args;
  if (a.dtype == StateDtype::kF32) {
    dots<F32>(t, first, count);
  } else {
    dots<F16>(t, first, count);
  }
  const V16 scale = set16(a.scale);
  for (int64_t j = 0; j < count; j += 16) {
    V16 score = zero16();
    for (int64_t h = 0; h < a.heads; ++h) {
      const V16 s = scale * load16(t.dots + h * kIndexerTile + j);
      score = fma(set16(t.weights[h]), max(s, zero16()), score);  // max(NaN, 0) is 0
    }
    store16(t.scores + j, score);
  }
}

}  // namespace weir::WEIR_ISA
