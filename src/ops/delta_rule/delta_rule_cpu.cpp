// The delta rule of one head over one span, a chunk at a time. Per chunk: decays and scaled keys, the dots with the
// chunk's earlier rows, one pass over S (in blocks of keys that stay in the first-level cache, made from the old S
// first where a boundary was crossed), then u and the outputs by forward substitution.
#include "ops/delta_rule/delta_rule_kernel.h"
#include "ops/delta_rule/delta_rule_tiles.h"

namespace weir::WEIR_ISA {
namespace {

// Keys per block of S: 8 KiB at 128 columns beside 16 KiB of P and O in a small first-level cache. The wide tiles load
// each S four times less often, and gain more from loading and storing their sums less often.
#if defined(WEIR_ISA_avx512)
constexpr int64_t kBlockKeys = 64;
#else
constexpr int64_t kBlockKeys = 16;
#endif

// Rows [first, first + n) of the current chunk, and where they lie in the batch.
struct ChunkRows {
  int64_t first;
  int64_t n;
  int64_t batch_row;
  JournalRow journal;  // of row `first`; later rows follow at journal_stride
  int64_t journal_stride;
};

[[gnu::noinline]] void load_rows(const DeltaRuleArgs& args, const StepView& step, const SpanView& span, int64_t head,
                                 const DeltaRuleScratch& s) {
  for (int64_t p = span.anchor_position; p < span.first_position; ++p) {
    const JournalRow row = journal_row(args, step, span, head, p);
    const int64_t i = p - span.anchor_position;
    for (int64_t c = 0; c < args.key_dim; c += 16) {
      store16(s.k + i * s.key_pad + c, load_some(row.k + c, args.key_dim - c));
    }
    // With the bounded gate k' carries the decay: only the newest G is read again.
    if (args.decay == DecayKind::kScalar) {
      s.decay[i] = *row.decay;
    } else if (args.decay == DecayKind::kUnbounded || p + 1 == span.first_position) {
      for (int64_t c = 0; c < args.key_dim; c += 16) {
        store16(s.decay + i * s.key_pad + c, load_some(row.decay + c, args.key_dim - c));
      }
    }
    for (int64_t v = 0; v < args.value_dim; v += 16) {
      store16(s.u + i * s.value_pad + v, load_some(row.u + v, args.value_dim - v));
    }
  }
}

// keep and carry of a full chunk.
[[gnu::noinline]] void commit_weights(const DeltaRuleArgs& args, const DeltaRuleScratch& s) {
  for (int64_t c = 0; c < s.key_pad; c += 16) {
    const V16 last = load16(s.decay + 15 * s.key_pad + c);
    const V16 e = math::exp(last);
    store16(s.keep + c, e);
    for (int64_t j = 0; j < 16; ++j) {
      const int64_t at = j * s.key_pad + c;
      const V16 k = load16(s.k + at);
      store16(s.carry + at, k * (args.decay == DecayKind::kBounded ? e : math::exp(last - load16(s.decay + at))));
    }
  }
}

// The same with one decay for all channels.
[[gnu::noinline]] void commit_weights_scalar(const DeltaRuleScratch& s) {
  const V16 last = set16(s.decay[15]);
  float w[16];
  store16(w, math::exp(last - load16(s.decay)));
  const V16 e = math::exp(last);
  for (int64_t c = 0; c < s.key_pad; c += 16) store16(s.keep + c, e);
  for (int64_t j = 0; j < 16; ++j) {
    const V16 wj = set16(w[j]);
    for (int64_t c = 0; c < s.key_pad; c += 16) {
      store16(s.carry + j * s.key_pad + c, load16(s.k + j * s.key_pad + c) * wj);
    }
  }
}

// G, e^G, k and q of the new rows; k and G into the journal.
[[gnu::noinline]] void prepare_rows_scalar(const DeltaRuleArgs& args, int64_t head, const ChunkRows& rows,
                                           const DeltaRuleScratch& s) {
  const int64_t key = key_head(args, head) * args.key_dim;
  const bool journal = rows.journal.k != nullptr;
  const bool journal_key = journal && stores_key(args, head);
  for (int64_t r = 0; r < rows.n; ++r) {
    const int64_t i = rows.first + r;
    const float g = args.g[(rows.batch_row + r) * args.g_stride + head];
    s.decay[i] = i == 0 ? g : s.decay[i - 1] + g;
    if (journal) rows.journal.decay[r * rows.journal_stride] = s.decay[i];
    const float* q = args.q + (rows.batch_row + r) * args.q_stride + key;
    const float* k = args.k + (rows.batch_row + r) * args.k_stride + key;
    for (int64_t c = 0; c < args.key_dim; c += 16) {
      const int64_t left = args.key_dim - c;
      const V16 kc = load_some(k + c, left);
      store16(s.k + i * s.key_pad + c, kc);
      store16(s.kq + r * s.key_pad + c, kc);
      store16(s.kq + (rows.n + r) * s.key_pad + c, load_some(q + c, left));
      if (journal_key) store_some(rows.journal.k + r * rows.journal_stride + c, kc, left);
    }
  }
  store16(s.factor, math::exp(load16(s.decay)));
}

// G, k', kd and qd of the new rows; k' and G into the journal.
[[gnu::noinline]] void prepare_rows(const DeltaRuleArgs& args, int64_t head, const ChunkRows& rows,
                                    const DeltaRuleScratch& s) {
  for (int64_t r = 0; r < rows.n; ++r) {
    const int64_t i = rows.first + r;
    const float* q = args.q + (rows.batch_row + r) * args.q_stride + head * args.key_dim;
    const float* k = args.k + (rows.batch_row + r) * args.k_stride + head * args.key_dim;
    const float* g = args.g + (rows.batch_row + r) * args.g_stride + head * args.key_dim;
    for (int64_t c = 0; c < args.key_dim; c += 16) {
      const int64_t left = args.key_dim - c;
      const int64_t at = i * s.key_pad + c;
      V16 decay = load_some(g + c, left);
      if (i != 0) decay = load16(s.decay + at - s.key_pad) + decay;
      const V16 e = math::exp(decay);
      const V16 key = load_some(k + c, left);
      const V16 kept = args.decay == DecayKind::kBounded ? key * math::exp(-decay) : key;
      store16(s.decay + at, decay);
      store16(s.k + at, kept);
      store16(s.kq + r * s.key_pad + c, key * e);
      store16(s.kq + (rows.n + r) * s.key_pad + c, load_some(q + c, left) * e);
      if (rows.journal.k != nullptr) {
        store_some(rows.journal.k + r * rows.journal_stride + c, kept, left);
        store_some(rows.journal.decay + r * rows.journal_stride + c, decay, left);
      }
    }
  }
}

// L and A by dots of kq, eight journal rows at a time; rows beyond the triangle are computed and never read.
[[gnu::noinline]] void pairs_by_dots(const ChunkRows& rows, const DeltaRuleScratch& s) {
  for (int64_t r = 0; r < 2 * rows.n; r += 2) {
    const int64_t later = r + 1 < rows.n ? r + 1 : (r < rows.n ? rows.n - 1 : r + 1 - rows.n);
    for (int64_t j = 0; j <= rows.first + later; j += 8) {
      dot_tile(s.kq + r * s.key_pad, s.kq + (r + 1) * s.key_pad, s.k + j * s.key_pad, s.key_pad, s.key_pad,
               s.pair + r * 16 + j, s.pair + (r + 1) * 16 + j);
    }
  }
}

// The decay between rows, into the dots.
[[gnu::noinline]] void decay_pairs(const ChunkRows& rows, const DeltaRuleScratch& s) {
  const V16 decay = load16(s.decay);
  for (int64_t r = 0; r < rows.n; ++r) {
    const V16 f = math::exp(set16(s.decay[rows.first + r]) - decay);
    for (float* pair : {s.pair + r * 16, s.pair + (rows.n + r) * 16}) store16(pair, f * load16(pair));
  }
}

// L and A pairwise, four journal rows at a time; rows beyond the triangle are computed and never read.
[[gnu::noinline]] void pairs_unbounded(const DeltaRuleArgs& args, int64_t head, const ChunkRows& rows,
                                       const DeltaRuleScratch& s) {
  for (int64_t r = 0; r < rows.n; ++r) {
    const int64_t i = rows.first + r;
    const float* q = args.q + (rows.batch_row + r) * args.q_stride + head * args.key_dim;
    const float* k = args.k + (rows.batch_row + r) * args.k_stride + head * args.key_dim;
    for (int64_t j = 0; j <= i; j += 4) {
      V16 sum[8];  // L of the four rows, then A
      for (V16& lanes : sum) lanes = zero16();
      for (int64_t c = 0; c < args.key_dim; c += 16) {
        const V16 decay = load16(s.decay + i * s.key_pad + c);
        const V16 kc = load_some(k + c, args.key_dim - c), qc = load_some(q + c, args.key_dim - c);
#pragma GCC unroll 4
        for (int t = 0; t < 4; ++t) {
          const int64_t at = (j + t) * s.key_pad + c;
          const V16 f = math::exp(decay - load16(s.decay + at));
          const V16 other = load16(s.k + at);
          sum[t] = fma(kc * f, other, sum[t]);
          sum[4 + t] = fma(qc * f, other, sum[4 + t]);
        }
      }
      float folded[8];
      fold_eight(sum, folded);
      for (int t = 0; t < 4; ++t) {
        s.pair[r * 16 + j + t] = folded[t];
        s.pair[(rows.n + r) * 16 + j + t] = folded[4 + t];
      }
    }
  }
}

// P and O of the new rows from S [keys, value_dim], keys [c, c + keys) of it.
[[gnu::noinline]] void products(const DeltaRuleArgs& args, const ChunkRows& rows, const float* state, int64_t c,
                                int64_t keys, int64_t ahead, const DeltaRuleScratch& s) {
  const bool fresh = c == 0;
  if (rows.n == 1) {
    for_columns<kStreamVectors>(args.value_dim, [&]<int kVectors, bool kTail>(int64_t v, int64_t columns) {
      product_tile<2, kVectors, kTail>(s.kq + c, s.key_pad, state + v, args.value_dim, keys, s.product + v, s.value_pad,
                                       columns, fresh, ahead);
    });
  } else {
    for_columns<kTileVectors>(args.value_dim, [&]<int kVectors, bool kTail>(int64_t v, int64_t columns) {
      product_rows<kVectors, kTail>(2 * rows.n, s.kq + c, s.key_pad, state + v, args.value_dim, keys, s.product + v,
                                    s.value_pad, columns, fresh);
    });
  }
}

// Keys [c, c + keys) of the next anchor.
[[gnu::noinline]] void commit_keys(const DeltaRuleArgs& args, const float* state, float* target, bool stream, int64_t c,
                                   int64_t keys, const DeltaRuleScratch& s) {
  for (int64_t k = c; k < c + keys;) {
    const int64_t at = k * args.value_dim;
    const int step = c + keys - k >= kTileRows ? kTileRows : 1;
    for_columns<kTileVectors>(args.value_dim, [&]<int kVectors, bool kTail>(int64_t v, int64_t columns) {
      const float* from = state == nullptr ? nullptr : state + at + v;
      float* copy = target == nullptr ? nullptr : target + at + v;
      if (step == kTileRows) {
        commit_tile<kTileRows, kVectors, kTail>(s.keep + k, s.carry + k, s.key_pad, s.u + v, s.value_pad, from,
                                                s.state + at + v, copy, stream, args.value_dim, columns);
      } else {
        commit_tile<1, kVectors, kTail>(s.keep + k, s.carry + k, s.key_pad, s.u + v, s.value_pad, from,
                                        s.state + at + v, copy, stream, args.value_dim, columns);
      }
    });
    k += step;
  }
}

// u and the outputs of the new rows, in row order.
template <bool kScalar>
[[gnu::noinline]] void substitute(const DeltaRuleArgs& args, int64_t head, const ChunkRows& rows,
                                  const DeltaRuleScratch& s) {
  for_columns<kTileVectors>(args.value_dim, [&]<int kVectors, bool kTail>(int64_t v, int64_t columns) {
    for (int64_t r = 0; r < rows.n; ++r) {
      const int64_t i = rows.first + r;
      const float* values = args.v + (rows.batch_row + r) * args.v_stride + head * args.value_dim + v;
      float* out = args.out + (rows.batch_row + r) * args.out_stride + head * args.value_dim + v;
      const float* l = s.pair + r * 16;
      const float* a = s.pair + (rows.n + r) * 16;
      V16 rest[kVectors], sum[kVectors];
#pragma GCC unroll 4
      for (int t = 0; t < kVectors; ++t) {
        V16 p = load16(s.product + r * s.value_pad + v + 16 * t);
        sum[t] = load16(s.product + (rows.n + r) * s.value_pad + v + 16 * t);
        if (kScalar) {
          p = set16(s.factor[i]) * p;
          sum[t] = set16(s.factor[i]) * sum[t];
        }
        rest[t] = load_column<kTail>(values + 16 * t, columns) - p;
      }
      for (int64_t j = 0; j < i; ++j) {
        const V16 lj = -set16(l[j]), aj = set16(a[j]);
#pragma GCC unroll 4
        for (int t = 0; t < kVectors; ++t) {
          const V16 uj = load16(s.u + j * s.value_pad + v + 16 * t);
          rest[t] = fma(lj, uj, rest[t]);
          sum[t] = fma(aj, uj, sum[t]);
        }
      }
      const V16 beta = set16(args.beta[(rows.batch_row + r) * args.beta_stride + head]);
      const V16 ai = set16(a[i]);
#pragma GCC unroll 4
      for (int t = 0; t < kVectors; ++t) {
        const V16 u = beta * rest[t];
        store16(s.u + i * s.value_pad + v + 16 * t, u);
        store_column<kTail>(out + 16 * t, fma(ai, u, sum[t]), columns);
        if (rows.journal.u != nullptr) {
          store_column<kTail>(rows.journal.u + r * rows.journal_stride + v + 16 * t, u, columns);
        }
      }
    }
  });
}

bool on_line(const float* p) { return reinterpret_cast<uintptr_t>(p) % 64 == 0; }

}  // namespace

void delta_rule_head(const DeltaRuleArgs& args, const StepView& step, const SpanView& span, int64_t head,
                     float* memory) {
  const DeltaRuleScratch s = delta_rule_scratch(args, memory);
  const float* state = span.anchor == kZeroAnchor ? nullptr : anchor_state(args, step, span.anchor, head);
  load_rows(args, step, span, head, s);
  const bool scalar = args.decay == DecayKind::kScalar;
  bool streamed = false;
  for (int64_t row = 0; row < span.rows;) {
    const int64_t position = span.first_position + row;
    const int64_t first = position % kPagePositions;
    const int64_t room = kPagePositions - first;
    const int64_t n = span.rows - row < room ? span.rows - row : room;
    const ChunkRows rows{first, n, span.first_row + row, journal_row(args, step, span, head, position),
                         args.journal.row_bytes / static_cast<int64_t>(sizeof(float))};
    const bool commit = first == 0 && position > span.anchor_position;
    if (scalar) {
      if (commit) commit_weights_scalar(s);
      prepare_rows_scalar(args, head, rows, s);
    } else {
      if (commit) commit_weights(args, s);
      prepare_rows(args, head, rows, s);
    }
    if (args.decay != DecayKind::kUnbounded) {
      pairs_by_dots(rows, s);
      if (scalar) decay_pairs(rows, s);
    } else {
      pairs_unbounded(args, head, rows, s);
    }
    if (commit) {
      float* target = anchor_target(args, step, span, head, position);
      const bool stream = on_line(target) && args.value_dim % 16 == 0;
      for (int64_t c = 0; c < args.key_dim; c += kBlockKeys) {
        const int64_t keys = args.key_dim - c < kBlockKeys ? args.key_dim - c : kBlockKeys;
        commit_keys(args, state, target, stream, c, keys, s);
        products(args, rows, s.state + c * args.value_dim, c, keys, 0, s);
      }
      streamed = streamed || (stream && target != nullptr);
      state = s.state;
    } else if (state != nullptr) {
      for (int64_t c = 0; c < args.key_dim; c += kBlockKeys) {
        const int64_t keys = args.key_dim - c < kBlockKeys ? args.key_dim - c : kBlockKeys;
        products(args, rows, state + c * args.value_dim, c, keys, kAhead, s);
      }
    } else {
      for (int64_t i = 0; i < 2 * n * s.value_pad; i += 16) store16(s.product + i, zero16());
    }
    if (scalar) {
      substitute<true>(args, head, rows, s);
    } else {
      substitute<false>(args, head, rows, s);
    }
    row += n;
  }
  if (streamed) _mm_sfence();  // before other threads learn that this loop is done
}

}  // namespace weir::WEIR_ISA
