// One tile of 64 positions for the queries of one KV head: scores, softmax, weighted values. For attention_cpu.cpp
// only.
#pragma once

#include "base/lanes.h"
#include "ops/attention/attention_kernel.h"
#include "ops/attention/dot_tile.h"

namespace weir::WEIR_ISA {
namespace {

constexpr float kInfinity = __builtin_inff();

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
// first_visible of attention.h, which must not be emitted here.
inline int64_t first_seen(int64_t p, int64_t window) { return window > 0 && p >= window ? p - window + 1 : 0; }

#if defined(WEIR_ISA_avx512)
inline float first_lane(V16 a) { return _mm512_cvtss_f32(a.v); }
inline float max_lane(V16 a) { return _mm512_reduce_max_ps(a.v); }
#else
inline float first_lane(V16 a) { return _mm256_cvtss_f32(a.lo); }
inline float max_lane(V16 a) {
  const __m256 m8 = _mm256_max_ps(a.lo, a.hi);
  const __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
  const __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
  return _mm_cvtss_f32(_mm_max_ss(m2, _mm_shuffle_ps(m2, m2, 1)));
}
#endif

// The rows of a tile: position j of the tile at page[j / 16] + (j % 16) * stride.
struct TileRows {
  const std::byte* page[kAttentionTile / kPagePositions];
  int64_t stride;
  const std::byte* row(int64_t j) const { return page[j / kPagePositions] + j % kPagePositions * stride; }
};

// Prefetches rows that are needed soon, some lines per step, in the order of their addresses. All KV heads' parts of a
// row follow each other, so that the hardware's prefetchers join in: alone, the line buffers of L1 through which
// software prefetches pass carry only about two thirds of what the memory gives.
struct Ahead {
  TileRows rows;
  int64_t bytes = 0;     // of a row
  int64_t left = 0;      // rows
  int64_t per_step = 0;  // lines
  int64_t j = 0;
  const std::byte* at = nullptr;
  const std::byte* end = nullptr;

  // Rows [first, count).
  void start(const TileRows& from, int64_t row_bytes, int64_t first, int64_t count, int64_t steps) {
    rows = from;
    bytes = row_bytes;
    left = count - first;
    if (left <= 0) return;
    per_step = (left * ((row_bytes + 63) / 64) + steps - 1) / steps;
    j = first;
    at = rows.row(first);
    end = at + bytes;
  }
  void step() {
    for (int64_t lines = per_step; left > 0 && lines > 0;) {
      const int64_t in_row = (end - at + 63) / 64;
      const int64_t n = smaller(lines, in_row);
      for (int64_t i = 0; i < n; ++i) _mm_prefetch(reinterpret_cast<const char*>(at + 64 * i), _MM_HINT_T1);
      at += 64 * n;
      lines -= n;
      if (n < in_row) return;
      if (--left <= 0) return;
      at = rows.row(++j);
      end = at + bytes;
    }
  }
};

struct Work {
  const AttentionTask& task;
  const AttentionArgs& args;
  AttentionScratch s;
  int64_t queries;  // all, a multiple of per_kv
  int64_t q_width, v_width;
  float* acc;  // of the piece in work
  float* m;
  float* l;
  Ahead ahead;
};

// scores[i][j] = dot(q_i, k_j), i in [first, first + per_kv), for every position that query i sees, and some around
// those, in the same pages, that are never looked at.
template <class Element, int Q>
void dot_scores(Work& w, int64_t first, const TileRows& keys, int64_t dim, int64_t count) {
  constexpr int64_t kKeys = kTileDots / Q;
  const int64_t end = first + w.task.per_kv;
  // Keys that stay in L1, beside Q queries, while all queries pass.
  const int64_t block = w.task.per_kv <= Q ? kAttentionTile : dim <= 256 ? 16 : 8;
  for (int64_t j0 = w.s.from[first] / block * block; j0 < count; j0 += block) {
    for (int64_t i = first; i < end; i += Q) {
      const float* q[Q];
      for (int64_t n = 0; n < Q; ++n) q[n] = w.s.q + (i + n) * w.q_width;
      const int64_t last = smaller(j0 + block, w.s.present[i + Q - 1]);
      const int64_t seen = w.s.from[i] / kKeys * kKeys;
      for (int64_t j = j0 < seen ? seen : j0; j < last; j += kKeys) {
        w.ahead.step();
        dot_tile<Element, Q>(q, keys.row(j), keys.stride, dim, w.s.scores + i * kAttentionTile + j, kAttentionTile);
      }
    }
  }
}

// Turns scores into weights; leaves the new maximum and the sum of the weights in `next`.
inline void softmax_query(const Work& w, int64_t i) {
  alignas(64) static constexpr float kLane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const int64_t n = w.s.present[i];
  const int64_t from = w.s.from[i];
  if (n <= from) {
    w.s.next[i] = w.m[i];
    w.s.next[kAttentionQueries + i] = 0;
    return;
  }
  float* scores = w.s.scores + i * kAttentionTile;
  const V16 factor = set16(w.args.scale);
  V16 s[4];
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) s[v] = factor * load16(scores + 16 * v);
  if (n < kAttentionTile) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      s[v] = select_less(load16(kLane), set16(static_cast<float>(n - 16 * v)), s[v], set16(-kInfinity));
    }
  }
  if (from > 0) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      s[v] = select_less(load16(kLane), set16(static_cast<float>(from - 16 * v)), set16(-kInfinity), s[v]);
    }
  }
  const float m = max_lane(max(max(max(s[0], s[1]), max(s[2], s[3])), set16(w.m[i])));
  V16 sum = zero16();
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    const V16 p = math::exp(s[v] - set16(m));  // absent: 0, or NaN where all is NaN
    store16(scores + 16 * v, p);
    sum = sum + p;
  }
  w.s.next[i] = m;
  w.s.next[kAttentionQueries + i] = fold16(sum);
}

inline void softmax(const Work& w, bool first) {
  for (int64_t i = 0; i < w.queries; ++i) softmax_query(w, i);
  // The factors of sixteen queries at a time. A query that sees nothing of this tile gets exp(0) = 1; one that saw
  // nothing before either NaN, which nobody reads if it never will in this piece. With a window it may: its sums then
  // start anew.
  for (int64_t i = 0; i < w.queries; i += 16) {
    const V16 m = load16(w.s.next + i);
    const V16 c = first ? zero16() : math::exp(load16(w.m + i) - m);
    store16(w.s.scale + i, c);
    store16(w.l + i, load16(w.l + i) * c + load16(w.s.next + kAttentionQueries + i));
    store16(w.m + i, m);
  }
  if (w.args.window == 0) return;
  for (int64_t i = 0; i < w.queries; ++i) {
    if (w.s.present[i] > w.s.from[i] || w.m[i] != -kInfinity) continue;
    w.s.scale[i] = 0;
    w.l[i] = 0;
  }
}

// acc[i][d .. d + 16 D) = acc * c, then += p_ij * v_j[d ..] for j in [from, to), ascending, for Q queries from i.
// Partial (D = 1): only the first `lanes` elements of the vector exist.
template <class Element, int Q, int D, bool Partial>
void add_values(Work& w, int64_t i, const TileRows& values, int64_t d, int64_t lanes, int64_t from, int64_t to,
                bool scaled) {
  V16 acc[Q][D];
  float* at = w.acc + i * w.v_width + d;
#pragma GCC unroll 4
  for (int q = 0; q < Q; ++q) {
    const V16 c = set16(scaled ? w.s.scale[i + q] : 1.f);
#pragma GCC unroll 8
    for (int v = 0; v < D; ++v) acc[q][v] = load16(at + q * w.v_width + 16 * v) * c;
  }
  const float* p = w.s.scores + i * kAttentionTile;
  const int64_t stride = values.stride;
  for (int64_t j = from; j < to;) {
    const int64_t end = smaller(to, (j / kPagePositions + 1) * kPagePositions);
    const std::byte* row = values.row(j);
    w.ahead.step();
    for (; j < end; ++j, row += stride) {
      V16 value[D];
#pragma GCC unroll 8
      for (int v = 0; v < D; ++v) {
        value[v] = Partial ? Element::load_first(row, d, lanes) : Element::load(row, d + 16 * v);
      }
#pragma GCC unroll 4
      for (int q = 0; q < Q; ++q) {
        const V16 weight = set16(p[q * kAttentionTile + j]);
#pragma GCC unroll 8
        for (int v = 0; v < D; ++v) acc[q][v] = fma(weight, value[v], acc[q][v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int q = 0; q < Q; ++q) {
#pragma GCC unroll 8
    for (int v = 0; v < D; ++v) store16(at + q * w.v_width + 16 * v, acc[q][v]);
  }
}

// Q queries together where all see the positions, each by itself before and after: later rows of a block see more at
// the end, and with a window less at the beginning.
template <class Element, int Q, int D, bool Partial = false>
void add_group(Work& w, int64_t first, const TileRows& values, int64_t d, int64_t lanes = 16) {
  for (int64_t i = first; i < first + w.task.per_kv; i += Q) {
    const int64_t from = w.s.from[i + Q - 1];
    const bool staggered = from > w.s.from[i];  // a window begins in this tile: later rows of a block begin later
    const int64_t common = w.s.present[i] > from ? w.s.present[i] : from;
    if (staggered) {
      for (int64_t q = 0; q < Q; ++q) {
        const int64_t own = smaller(from, w.s.present[i + q]);
        add_values<Element, 1, D, Partial>(w, i + q, values, d, lanes, w.s.from[i + q], own, true);
      }
    }
    if (!staggered || common > from)
      add_values<Element, Q, D, Partial>(w, i, values, d, lanes, from, common, !staggered);
    for (int64_t q = 1; q < Q; ++q) {
      const int64_t own = w.s.present[i + q];
      if (own > common) add_values<Element, 1, D, Partial>(w, i + q, values, d, lanes, common, own, false);
    }
  }
}

// Vectors that a register tile of Q queries covers: at least as many chains as FMA latency x ports, and the registers.
template <int Q>
constexpr int vectors_of() {
#if defined(WEIR_ISA_avx512)
  return Q == 4 ? 4 : 8;
#else
  return 4 / Q;
#endif
}

template <class Element, int Q>
void weigh_values(Work& w, int64_t first, const TileRows& values, int64_t dim) {
  constexpr int64_t kWidth = 16 * vectors_of<Q>();
  int64_t d = 0;
  for (; d + kWidth <= dim; d += kWidth) add_group<Element, Q, vectors_of<Q>()>(w, first, values, d);
  for (; d + 16 <= dim; d += 16) add_group<Element, Q, 1>(w, first, values, d);
  if (d < dim) add_group<Element, Q, 1, true>(w, first, values, d, dim - d);
}

// Calls of Ahead::step while a tile's scores, or values, are computed.
template <int Q>
int64_t steps_in_scores(const Work& w, int64_t count) {
  return w.queries / Q * ((count * Q + kTileDots - 1) / kTileDots);
}
template <int Q>
int64_t steps_in_values(const Work& w, int64_t count) {
  constexpr int64_t kWidth = 16 * vectors_of<Q>();
  return w.queries / Q * ((count + kPagePositions - 1) / kPagePositions) * ((w.v_width + kWidth - 1) / kWidth);
}

}  // namespace
}  // namespace weir::WEIR_ISA
