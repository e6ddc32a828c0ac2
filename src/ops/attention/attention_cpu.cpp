// A task walks its positions tile by tile. A KV head with more than four queries has its part of a tile widened to FP32
// scratch once, for all of them; with up to four, one register tile covers all queries and reads the pages directly.
#include "base/lanes.h"
#include "ops/attention/attention_kernel.h"
#include "ops/attention/attention_tile.h"

namespace weir::WEIR_ISA {
namespace {

int64_t padded16(int64_t n) { return (n + 15) / 16 * 16; }

// Rows [from, count) of a tile; other pages have no place.
TileRows paged_rows(const PoolView& pool, const PageId* pages, const PageField& field, int64_t first_byte, int64_t tile,
                    int64_t from, int64_t count) {
  TileRows rows{{}, field.row_bytes};
  for (int64_t i = from / kPagePositions; i * kPagePositions < count; ++i) {
    const auto page = static_cast<int64_t>(pages[tile / kPagePositions + i]);
    rows.page[i] = pool.base + page * pool.block_bytes + field.offset + first_byte;
  }
  return rows;
}

// The same rows, `bytes` further.
TileRows moved(TileRows rows, int64_t bytes) {
  for (const std::byte*& page : rows.page) page = page ? page + bytes : page;
  return rows;
}

template <class Element>
TileRows widened(const TileRows& rows, int64_t from, int64_t count, int64_t dim, float* to, int64_t width) {
  for (int64_t j = from; j < count; ++j) {
    const std::byte* row = rows.row(j);
    float* at = to + j * width;
    int64_t k = 0;
    for (; k + 16 <= dim; k += 16) store16(at + k, Element::load(row, k));
    if (k < dim) store16(at + k, Element::load_first(row, k, dim - k));
  }
  return {{reinterpret_cast<const std::byte*>(to), reinterpret_cast<const std::byte*>(to + 16 * width),
           reinterpret_cast<const std::byte*>(to + 32 * width), reinterpret_cast<const std::byte*>(to + 48 * width)},
          width * 4};
}

// The heads of query i; false for a repeated one.
struct Query {
  bool real;
  int64_t row;   // of the task
  int64_t head;  // of the model
};

Query query_at(const AttentionTask& t, int64_t i) {
  const int64_t kv = i / t.per_kv;
  const int64_t own = i % t.per_kv;
  const int64_t last = t.rows * t.heads - 1;
  const int64_t in_kv = own < last ? own : last;
  const int64_t q_per_kv = t.args->heads / t.args->kv_heads;
  return {own <= last, in_kv / t.heads, t.head + kv * q_per_kv + in_kv % t.heads};
}

void pack_queries(const Work& w) {
  for (int64_t i = 0; i < w.queries; ++i) {
    const Query query = query_at(w.task, i);
    const float* from = w.args.q + (w.task.row + query.row) * w.args.q_stride + query.head * w.args.key_dim;
    float* to = w.s.q + i * w.q_width;
    for (int64_t k = 0; k < w.args.key_dim; k += 16) {
      store16(to + k, load16_first(from + k, smaller(16, w.args.key_dim - k)));
    }
    w.s.position[i] = w.task.position + query.row;
  }
}

// Rows of the task's KV heads.
template <class Element>
TileRows key_rows(const AttentionTask& t, int64_t tile, int64_t from, int64_t count) {
  const int64_t first = t.kv_head * t.args->key_dim * Element::kBytes;
  return paged_rows(t.key_pool, t.key_pages, t.args->key, first, tile, from, count);
}
template <class Element>
TileRows value_rows(const AttentionTask& t, int64_t tile, int64_t from, int64_t count) {
  const int64_t first = t.kv_head * t.args->value_head_stride * Element::kBytes;
  return paged_rows(t.value_pool, t.value_pages, t.args->value, first, tile, from, count);
}

// Positions [from, count) of a tile, `from` the beginning of a page; the next tile's begin at its first.
// Q: queries of a register tile. Wide: K and V pass through FP32 scratch. This tile's values are prefetched while its
// scores are computed, the next tile's keys while values are: a tile's K and V must fit L2, not two tiles'.
template <class Element, int Q, bool Wide>
void run_tile(Work& w, int64_t tile, int64_t from, int64_t count, int64_t next_count, bool first) {
  const AttentionTask& t = w.task;
  const AttentionArgs& a = w.args;
  const TileRows keys = key_rows<Element>(t, tile, from, count);
  const TileRows values = value_rows<Element>(t, tile, from, count);
  const TileRows next_keys = key_rows<Element>(t, tile + kAttentionTile, 0, next_count);
  const int64_t keys_bytes = t.kv_heads * a.key_dim * Element::kBytes;
  const int64_t values_bytes = ((t.kv_heads - 1) * a.value_head_stride + a.value_dim) * Element::kBytes;
  if (t.shared) {
    w.ahead.start(next_keys, keys_bytes, 0, next_count, steps_in_scores<Q>(w, count) + steps_in_values<Q>(w, count));
  } else {
    w.ahead.start(values, values_bytes, from, count, steps_in_scores<Q>(w, count));
  }
  TileRows wide_rows;
  for (int64_t kv = 0; kv < t.kv_heads; ++kv) {
    const TileRows rows = moved(keys, kv * a.key_dim * Element::kBytes);
    if constexpr (Wide) {
      wide_rows = widened<Element>(rows, from, count, a.key_dim, w.s.wide, w.q_width);
      dot_scores<F32, Q>(w, kv * t.per_kv, wide_rows, w.q_width, count);
    } else {
      dot_scores<Element, Q>(w, kv * t.per_kv, rows, a.key_dim, count);
    }
  }
  softmax(w, first);
  if (!t.shared) w.ahead.start(next_keys, keys_bytes, 0, next_count, steps_in_values<Q>(w, count));
  for (int64_t kv = 0; kv < t.kv_heads; ++kv) {
    const TileRows rows = moved(values, kv * a.value_head_stride * Element::kBytes);
    if constexpr (Wide) {
      if (!t.shared) wide_rows = widened<Element>(rows, from, count, a.value_dim, w.s.wide, w.v_width);
      weigh_values<F32, Q>(w, kv * t.per_kv, wide_rows, w.v_width);
    } else {
      weigh_values<Element, Q>(w, kv * t.per_kv, rows, a.value_dim);
    }
  }
}

template <class Element>
void run_piece(Work& w, int64_t piece) {
  const AttentionTask& t = w.task;
  for (int64_t i = 0; i < w.queries; i += 16) {
    store16(w.m + i, set16(-kInfinity));
    store16(w.l + i, zero16());
  }
  for (int64_t d = 0; d < w.queries * w.v_width; d += 16) store16(w.acc + d, zero16());
  const int64_t begin = piece * t.piece;
  const int64_t end = smaller(begin + t.piece, t.position + t.rows);
  const int64_t task_end = smaller(t.end_piece * t.piece, t.position + t.rows);
  const int64_t visible = t.visible / kAttentionTile * kAttentionTile;
  const int64_t first_tile = visible > begin ? visible : begin;
  for (int64_t tile = first_tile; tile < end; tile += kAttentionTile) {
    const int64_t count = smaller(end - tile, kAttentionTile);
    const int64_t next = smaller(task_end - tile - kAttentionTile, kAttentionTile);
    const int64_t from = t.visible > tile ? (t.visible - tile) / kPagePositions * kPagePositions : 0;
    const bool first = tile == first_tile;
    for (int64_t i = 0; i < w.queries; ++i) {
      const int64_t own = first_seen(w.s.position[i], w.args.window) - tile;
      w.s.from[i] = own < 0 ? 0 : smaller(own, kAttentionTile);
      w.s.present[i] = smaller(count, w.s.position[i] + 1 - tile);
    }
    switch (t.per_kv) {
      case 1:
        run_tile<Element, 1, false>(w, tile, from, count, next, first);
        break;
      case 2:
        run_tile<Element, 2, false>(w, tile, from, count, next, first);
        break;
      case 4:
        run_tile<Element, 4, false>(w, tile, from, count, next, first);
        break;
      default:
        run_tile<Element, 4, true>(w, tile, from, count, next, first);
    }
  }
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

void copy_into(Merged to, float m2, float l2, const float* acc2, int64_t width) {
  *to.m = m2;
  *to.l = l2;
  for (int64_t d = 0; d < width; d += 16) store16(to.acc + d, load16(acc2 + d));
}

void write_out(const AttentionTask& t, const Query& query, const float* acc, float m, float l) {
  const AttentionArgs& a = *t.args;
  float* out = a.out + (t.row + query.row) * a.out_stride + query.head * a.value_dim;
  if (a.sinks) {
    const float sink = a.sinks[query.head];
    const float top = m > sink ? m : sink;
    const V16 factor = math::exp(set16(m - top));
    const V16 sum = fma(set16(l), factor, math::exp(set16(sink - top)));
    for (int64_t d = 0; d < a.value_dim; d += 16) {
      store16_first(out + d, (load16(acc + d) * factor) / sum, smaller(16, a.value_dim - d));
    }
    return;
  }
  for (int64_t d = 0; d < a.value_dim; d += 16) {
    store16_first(out + d, load16(acc + d) / set16(l), smaller(16, a.value_dim - d));
  }
}

// The pieces that a row of the task has: [first, end).
int64_t first_piece_of(const AttentionTask& t, int64_t row) {
  return first_seen(t.position + row, t.args->window) / t.piece;
}
int64_t end_piece_of(const AttentionTask& t, int64_t row) { return (t.position + row) / t.piece + 1; }

}  // namespace

void attention_pieces(const AttentionTask& t) {
  const AttentionArgs& a = *t.args;
  Work w{.task = t, .args = a, .s = t.scratch, .queries = t.kv_heads * t.per_kv, .ahead = {}};
  w.q_width = padded16(a.key_dim);
  w.v_width = padded16(a.value_dim);
  pack_queries(w);
  float* m = t.scratch.max_sum;
  float* l = m + kAttentionQueries;
  for (int64_t piece = t.first_piece; piece < t.end_piece; ++piece) {
    const bool later = piece > t.first_piece;
    w.acc = t.scratch.acc + (later ? kAttentionQueries * w.v_width : 0);
    w.m = m + (later ? 2 * kAttentionQueries : 0);
    w.l = l + (later ? 2 * kAttentionQueries : 0);
    if (a.dtype == StateDtype::kF32) {
      run_piece<F32>(w, piece);
    } else {
      run_piece<F16>(w, piece);
    }
    if (!later) continue;
    for (int64_t i = 0; i < w.queries; ++i) {
      const Query query = query_at(t, i);
      const int64_t first = first_piece_of(t, query.row);
      if (!query.real || piece < first || piece >= end_piece_of(t, query.row)) continue;
      const Merged all{m + i, l + i, t.scratch.acc + i * w.v_width};
      if (piece == first) {
        copy_into(all, w.m[i], w.l[i], w.acc + i * w.v_width, w.v_width);
      } else {
        merge_into(all, w.m[i], w.l[i], w.acc + i * w.v_width, w.v_width);
      }
    }
  }
  for (int64_t i = 0; i < w.queries; ++i) {
    const float* acc = t.scratch.acc + i * w.v_width;
    const Query query = query_at(t, i);
    if (!query.real) continue;
    if (!t.partial) {
      write_out(t, query, acc, m[i], l[i]);
      continue;
    }
    float* to = t.partial + i * (w.v_width + 16);
    for (int64_t d = 0; d < w.v_width; d += 16) store16(to + d, load16(acc + d));
    to[w.v_width] = m[i];
    to[w.v_width + 1] = l[i];
  }
}

void attention_merge(const AttentionTask& t, float* partials, int64_t piece_stride, int64_t first, int64_t end) {
  const int64_t width = padded16(t.args->value_dim);
  for (int64_t i = first; i < end; ++i) {
    const Query query = query_at(t, i);
    if (!query.real) continue;
    const int64_t first_piece = first_piece_of(t, query.row);
    float* sum = partials + (first_piece - t.first_piece) * piece_stride + i * (width + 16);
    for (int64_t piece = 1; piece < end_piece_of(t, query.row) - first_piece; ++piece) {
      const float* next = sum + piece * piece_stride;
      merge_into({sum + width, sum + width + 1, sum}, next[width], next[width + 1], next, width);
    }
    write_out(t, query, sum, sum[width], sum[width + 1]);
  }
}

}  // namespace weir::WEIR_ISA
