// A task walks its positions tile by tile: scores of all queries, softmax, weighted values. With more than four queries
// a tile's K and V are widened to FP32 scratch once and shared; with up to four, one register tile covers all queries
// and reads the pages directly. Either way each page row is read from memory once, and the next tile's rows are
// prefetched while this one is computed: a head's part of a page row is too short a stream for the hardware's
// prefetchers.
#include "ops/attention/attention_kernel.h"
#include "ops/attention/dot_tile.h"
#include "ops/simd/lanes.h"

namespace weir::WEIR_ISA {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr int64_t kLine = 64;

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

#if defined(WEIR_ISA_avx512)
float first_lane(V16 a) { return _mm512_cvtss_f32(a.v); }
float max_lane(V16 a) { return _mm512_reduce_max_ps(a.v); }
#else
float first_lane(V16 a) { return _mm256_cvtss_f32(a.lo); }
float max_lane(V16 a) {
  const __m256 m8 = _mm256_max_ps(a.lo, a.hi);
  const __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
  const __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
  return _mm_cvtss_f32(_mm_max_ss(m2, _mm_shuffle_ps(m2, m2, 1)));
}
#endif
float exp1(float x) { return first_lane(math::exp(set16(x))); }

// The rows of a tile: position j of the tile at page[j / 16] + (j % 16) * stride.
struct TileRows {
  const std::byte* page[kAttentionTile / kPagePositions];
  int64_t stride;
  const std::byte* row(int64_t j) const { return page[j / kPagePositions] + j % kPagePositions * stride; }
};

TileRows paged_rows(const PoolView& pool, const PageId* pages, const PageField& field, int64_t element_bytes,
                    int64_t tile, int64_t end) {
  TileRows rows{{}, field.row_bytes};
  for (int64_t i = 0; tile + i * kPagePositions < end && i < kAttentionTile / kPagePositions; ++i) {
    rows.page[i] = pool.base + static_cast<int64_t>(pages[tile / kPagePositions + i]) * pool.block_bytes +
                   field.offset + element_bytes;
  }
  return rows;
}

TileRows scratch_rows(const float* base, int64_t width) {
  TileRows rows{{}, width * 4};
  for (int64_t i = 0; i < kAttentionTile / kPagePositions; ++i) {
    rows.page[i] = reinterpret_cast<const std::byte*>(base + i * kPagePositions * width);
  }
  return rows;
}

// Lines of the next tile that are still to be prefetched: all rows of K, then of V.
struct Ahead {
  TileRows rows[2];
  int64_t bytes[2] = {0, 0};
  int64_t count = 0;     // rows in the tile
  int64_t per_step = 0;  // lines
  int64_t field = 2;
  int64_t j = 0;
  int64_t at = 0;

  void step() {
    for (int64_t i = 0; i < per_step && field < 2; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(rows[field].row(j) + at), _MM_HINT_T1);
      at += kLine;
      if (at < bytes[field]) continue;
      at = 0;
      if (++j < count) continue;
      j = 0;
      do ++field;
      while (field < 2 && bytes[field] == 0);
    }
  }
};

struct Work {
  const AttentionTask& task;
  const AttentionArgs& args;
  AttentionScratch s;
  int64_t queries;         // rows * heads
  int64_t padded_queries;  // 1, 2 or a multiple of four: the last query repeated
  int64_t q_width, v_width;
  float* acc;  // of the piece in work
  float* m;
  float* l;
  Ahead ahead;
};

int64_t query_row(const Work& w, int64_t i) { return (i < w.queries ? i : w.queries - 1) / w.task.heads; }
int64_t query_head(const Work& w, int64_t i) { return (i < w.queries ? i : w.queries - 1) % w.task.heads; }

void pack_queries(const Work& w) {
  for (int64_t i = 0; i < w.padded_queries; ++i) {
    const float* from =
        w.args.q + (w.task.row + query_row(w, i)) * w.args.q_stride + (w.task.head + query_head(w, i)) * w.args.key_dim;
    for (int64_t k = 0; k < w.args.key_dim; k += 16) {
      store16(w.s.q + i * w.q_width + k, load16_first(from + k, smaller(16, w.args.key_dim - k)));
    }
  }
}

template <class Element>
void widen_rows(const TileRows& from, int64_t count, int64_t dim, float* to, int64_t width) {
  for (int64_t j = 0; j < count; ++j, to += width) {
    const std::byte* row = from.row(j);
    int64_t k = 0;
    for (; k + 16 <= dim; k += 16) store16(to + k, Element::load(row, k));
    if (k < dim) store16(to + k, Element::load_first(row, k, dim - k));
  }
}

// scores[i][j] = dot(q_i, k_j) for every position that the query sees, and some beyond that are never looked at.
template <class Element, int Q>
void dot_scores(Work& w, const TileRows& keys, int64_t dim, int64_t count) {
  constexpr int64_t kKeys = kTileDots / Q;
  // Keys that stay in L1 (with four queries) while all queries pass.
  const int64_t block = w.padded_queries <= Q ? kAttentionTile : dim <= 256 ? 16 : 8;
  for (int64_t j0 = 0; j0 < count; j0 += block) {
    for (int64_t i = 0; i < w.padded_queries; i += Q) {
      const float* q[Q];
      for (int64_t n = 0; n < Q; ++n) q[n] = w.s.q + (i + n) * w.q_width;
      const int64_t end = smaller(j0 + block, w.s.present[i + Q - 1]);
      for (int64_t j = j0; j < end; j += kKeys) {
        w.ahead.step();
        dot_tile<Element, Q>(q, keys.row(j), keys.stride, dim, w.s.scores + i * kAttentionTile + j, kAttentionTile);
      }
    }
  }
}

void softmax(const Work& w, int64_t i, bool first) {
  alignas(64) static constexpr float kLane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const int64_t n = w.s.present[i];
  if (n <= 0) {
    w.s.scale[i] = 1;
    return;
  }
  float* scores = w.s.scores + i * kAttentionTile;
  const V16 factor = set16(w.args.scale);
  const V16 absent = set16(-kInfinity);
  V16 s[4];
  V16 top = set16(w.m[i]);
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    s[v] = select_less(load16(kLane), set16(static_cast<float>(n - 16 * v)), factor * load16(scores + 16 * v), absent);
    top = max(top, s[v]);
  }
  const float m = max_lane(top);
  V16 sum = zero16();
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    const V16 p = math::exp(s[v] - set16(m));  // absent: 0, or NaN where all is NaN
    store16(scores + 16 * v, p);
    sum = sum + p;
  }
  const float c = first ? 0.f : m == w.m[i] ? 1.f : exp1(w.m[i] - m);  // exp(0) is 1
  w.s.scale[i] = c;
  w.m[i] = m;
  w.l[i] = w.l[i] * c + fold16(sum);
}

// acc[i][d .. d + 16 D) = acc * c, then += p_ij * v_j[d ..] for j in [from, to), ascending. Partial (D = 1): only the
// first `lanes` elements of the vector exist.
template <class Element, int Q, int D, bool Partial>
void add_values(const Work& w, int64_t i, const TileRows& values, int64_t d, int64_t lanes, int64_t from, int64_t to,
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

// Q queries together as far as all see the positions, then each by itself: rows of a block see one position more each.
template <class Element, int Q, int D, bool Partial = false>
void add_group(Work& w, const TileRows& values, int64_t d, int64_t lanes = 16) {
  for (int64_t i = 0; i < w.padded_queries; i += Q) {
    w.ahead.step();
    const int64_t common = w.s.present[i] > 0 ? w.s.present[i] : 0;
    add_values<Element, Q, D, Partial>(w, i, values, d, lanes, 0, common, true);
    for (int64_t q = 1; q < Q; ++q) {
      const int64_t own = w.s.present[i + q];
      if (own > common) add_values<Element, 1, D, Partial>(w, i + q, values, d, lanes, common, own, false);
    }
  }
}

// Sixteen-element vectors a register tile covers: Q x D chains, at least FMA latency x ports, and the registers.
template <int Q>
constexpr int vectors_of() {
#if defined(WEIR_ISA_avx512)
  return Q == 4 ? 4 : 8;
#else
  return 4 / Q;
#endif
}

template <class Element, int Q>
void weigh_values(Work& w, const TileRows& values, int64_t dim) {
  constexpr int64_t kWidth = 16 * vectors_of<Q>();
  int64_t d = 0;
  for (; d + kWidth <= dim; d += kWidth) add_group<Element, Q, vectors_of<Q>()>(w, values, d);
  for (; d + 16 <= dim; d += 16) add_group<Element, Q, 1>(w, values, d);
  if (d < dim) add_group<Element, Q, 1, true>(w, values, d, dim - d);
}

template <class Element, int Q>
void add_tile(Work& w, const TileRows& keys, const TileRows& values, int64_t key_dim, int64_t value_dim, int64_t count,
              bool first) {
  const int64_t groups = w.padded_queries / Q;
  const int64_t steps = groups * ((count * Q + kTileDots - 1) / kTileDots + w.v_width / (16 * vectors_of<Q>()));
  const int64_t lines =
      w.ahead.count * ((w.ahead.bytes[0] + kLine - 1) / kLine + (w.ahead.bytes[1] + kLine - 1) / kLine);
  w.ahead.per_step = (lines + steps - 1) / (steps > 0 ? steps : 1);
  dot_scores<Element, Q>(w, keys, key_dim, count);
  for (int64_t i = 0; i < w.padded_queries; ++i) softmax(w, i, first);
  weigh_values<Element, Q>(w, values, value_dim);
}

template <class Element>
void run_tile(Work& w, int64_t tile, int64_t count, int64_t next_count, bool first) {
  const AttentionTask& t = w.task;
  const AttentionArgs& a = w.args;
  const int64_t kv_head = t.head / (a.heads / a.kv_heads);
  const int64_t key_at = kv_head * a.key_dim * Element::kBytes;
  const int64_t value_at = kv_head * a.value_head_stride * Element::kBytes;
  const TileRows keys = paged_rows(t.key_pool, t.key_pages, a.key, key_at, tile, tile + count);
  const TileRows values = paged_rows(t.value_pool, t.value_pages, a.value, value_at, tile, tile + count);
  w.ahead = Ahead{};
  if (next_count > 0) {
    const int64_t next = tile + kAttentionTile;
    w.ahead.rows[0] = paged_rows(t.key_pool, t.key_pages, a.key, key_at, next, next + next_count);
    w.ahead.rows[1] = paged_rows(t.value_pool, t.value_pages, a.value, value_at, next, next + next_count);
    w.ahead.bytes[0] = a.key_dim * Element::kBytes;
    w.ahead.bytes[1] = t.shared ? 0 : a.value_dim * Element::kBytes;
    w.ahead.count = next_count;
    w.ahead.field = 0;
  }
  switch (w.padded_queries) {
    case 1:
      return add_tile<Element, 1>(w, keys, values, a.key_dim, a.value_dim, count, first);
    case 2:
      return add_tile<Element, 2>(w, keys, values, a.key_dim, a.value_dim, count, first);
    case 4:
      return add_tile<Element, 4>(w, keys, values, a.key_dim, a.value_dim, count, first);
  }
  widen_rows<Element>(keys, count, a.key_dim, w.s.keys, w.q_width);
  if (!t.shared) widen_rows<Element>(values, count, a.value_dim, w.s.values, w.v_width);
  const TileRows wide_values = t.shared ? scratch_rows(w.s.keys, w.q_width) : scratch_rows(w.s.values, w.v_width);
  add_tile<F32, 4>(w, scratch_rows(w.s.keys, w.q_width), wide_values, w.q_width, w.v_width, count, first);
}

struct Merged {
  float* m;
  float* l;
  float* acc;
};

void merge_into(Merged to, float m2, float l2, const float* acc2, int64_t width) {
  const float m = *to.m > m2 ? *to.m : m2;
  const V16 a = math::exp(set16(*to.m - m));
  const V16 b = math::exp(set16(m2 - m));
  *to.m = m;
  *to.l = first_lane(fma(set16(*to.l), a, set16(l2) * b));
  for (int64_t d = 0; d < width; d += 16) store16(to.acc + d, fma(load16(to.acc + d), a, load16(acc2 + d) * b));
}

void write_out(const AttentionTask& t, int64_t query, const float* acc, float l) {
  const AttentionArgs& a = *t.args;
  float* out = a.out + (t.row + query / t.heads) * a.out_stride + (t.head + query % t.heads) * a.value_dim;
  for (int64_t d = 0; d < a.value_dim; d += 16) {
    store16_first(out + d, load16(acc + d) / set16(l), smaller(16, a.value_dim - d));
  }
}

// Pieces that the row of a query has.
int64_t pieces_of(const AttentionTask& t, int64_t query) { return (t.position + query / t.heads) / t.piece + 1; }

void run_piece(Work& w, int64_t piece) {
  const AttentionTask& t = w.task;
  for (int64_t i = 0; i < w.padded_queries; ++i) {
    w.m[i] = -kInfinity;
    w.l[i] = 0;
  }
  for (int64_t d = 0; d < w.padded_queries * w.v_width; d += 16) store16(w.acc + d, zero16());
  const int64_t begin = piece * t.piece;
  const int64_t end = smaller(begin + t.piece, t.position + t.rows);
  const int64_t task_end = smaller(t.end_piece * t.piece, t.position + t.rows);
  for (int64_t tile = begin; tile < end; tile += kAttentionTile) {
    const int64_t count = smaller(end - tile, kAttentionTile);
    for (int64_t i = 0; i < w.padded_queries; ++i)
      w.s.present[i] = smaller(count, t.position + query_row(w, i) + 1 - tile);
    const int64_t next = task_end - tile - kAttentionTile;
    const int64_t next_count = next < 0 ? 0 : smaller(next, kAttentionTile);
    if (w.args.dtype == StateDtype::kF32) {
      run_tile<F32>(w, tile, count, next_count, tile == begin);
    } else {
      run_tile<F16>(w, tile, count, next_count, tile == begin);
    }
  }
}

}  // namespace

void attention_pieces(const AttentionTask& t) {
  const AttentionArgs& a = *t.args;
  Work w{.task = t, .args = a, .s = t.scratch, .queries = t.rows * t.heads, .ahead = {}};
  w.padded_queries = w.queries <= 2 ? w.queries : (w.queries + 3) / 4 * 4;
  w.q_width = padded16(a.key_dim);
  w.v_width = padded16(a.value_dim);
  pack_queries(w);
  for (int64_t piece = t.first_piece; piece < t.end_piece; ++piece) {
    const int64_t half = piece > t.first_piece ? 1 : 0;
    w.acc = t.scratch.acc + half * w.padded_queries * w.v_width;
    w.m = t.scratch.max_sum + half * 2 * w.padded_queries;
    w.l = w.m + w.padded_queries;
    run_piece(w, piece);
    if (half == 0) continue;
    float* m = t.scratch.max_sum;
    for (int64_t i = 0; i < w.queries; ++i) {
      if (piece >= pieces_of(t, i)) continue;
      merge_into({m + i, m + w.padded_queries + i, t.scratch.acc + i * w.v_width}, w.m[i], w.l[i],
                 w.acc + i * w.v_width, w.v_width);
    }
  }
  const float* m = t.scratch.max_sum;
  for (int64_t i = 0; i < w.queries; ++i) {
    const float* acc = t.scratch.acc + i * w.v_width;
    const float l = m[w.padded_queries + i];
    if (!t.partial) {
      write_out(t, i, acc, l);
      continue;
    }
    float* to = t.partial + i * (w.v_width + 16);
    for (int64_t d = 0; d < w.v_width; d += 16) store16(to + d, load16(acc + d));
    to[w.v_width] = m[i];
    to[w.v_width + 1] = l;
  }
}

void attention_merge(const AttentionTask& t, float* partials, int64_t piece_stride, int64_t first, int64_t end) {
  const int64_t width = padded16(t.args->value_dim);
  for (int64_t i = first; i < end; ++i) {
    float* sum = partials + i * (width + 16);
    for (int64_t piece = 1; piece < pieces_of(t, i); ++piece) {
      const float* next = sum + piece * piece_stride;
      merge_into({sum + width, sum + width + 1, sum}, next[width], next[width + 1], next, width);
    }
    write_out(t, i, sum, sum[width + 1]);
  }
}

}  // namespace weir::WEIR_ISA
