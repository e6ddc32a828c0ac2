// Few rows: memory-bound, the weights stream through once in the file's format. More rows than a register tile holds:
// the part of the weights in work is widened to FP32 scratch once, and all rows pass over it.
#include <type_traits>

#include "base/lanes.h"
#include "ops/attention/dot_tile.h"
#include "ops/linear/linear_e4m3.h"
#include "ops/linear/linear_expand.h"
#include "ops/mla/mla_kernel.h"

namespace weir::WEIR_ISA {
namespace {

constexpr int64_t kTileRows = 4;

// Weight rows prefetched ahead (16 KB of K3's) where the hardware's prefetchers do not keep up with the computation.
constexpr int64_t kAhead = 16;

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Weight rows, `stride` bytes apart.
struct WeightRows {
  const std::byte* data;
  int64_t stride;
};

// Rows x columns elements to FP32 with `width` floats a row; columns are padded to sixteen with zeros.
template <class Element>
void widen(const WeightRows& from, int64_t rows, int64_t columns, float* to, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    const std::byte* row = from.data + r * from.stride;
    for (int64_t i = 0; i < columns; i += 16) {
      const int64_t n = columns - i;
      store16(to + r * width + i, n >= 16 ? Element::load(row, i) : Element::load_first(row, i, n));
    }
  }
}

// --- absorb: y[l] = sum over d of q[d] * W[d][l], d ascending ------------------------------------------------------

struct Columns {
  const float* q;
  int64_t q_stride;
  float* y;
  int64_t y_stride;
  int64_t nope;
};

// R rows times D vectors of columns from `l`; Partial (D = 1): `lanes` columns.
template <class Element, int R, int D, bool Partial>
void absorb_tile(const Columns& c, int64_t row, const WeightRows& w, int64_t w_column, int64_t l, int64_t lanes) {
  V16 sum[R][D];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < D; ++v) sum[r][v] = zero16();
  }
  const float* q = c.q + row * c.q_stride;
  const std::byte* weights = w.data;
  for (int64_t d = 0; d < c.nope; ++d, weights += w.stride) {
    if constexpr (!Partial && D >= 4) {
      const char* ahead = reinterpret_cast<const char*>(weights + kAhead * w.stride + w_column * Element::kBytes);
#pragma GCC unroll 16
      for (int64_t i = 0; i < 16 * D * Element::kBytes; i += 64) _mm_prefetch(ahead + i, _MM_HINT_T0);
    }
    V16 factor[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) factor[r] = set16(q[r * c.q_stride + d]);
#pragma GCC unroll 16
    for (int v = 0; v < D; ++v) {
      const V16 weight =
          Partial ? Element::load_first(weights, w_column, lanes) : Element::load(weights, w_column + 16 * v);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[r][v] = fma(factor[r], weight, sum[r][v]);
    }
  }
  float* y = c.y + row * c.y_stride + l;
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < D; ++v) {
      if (Partial) {
        store16_first(y + r * c.y_stride, sum[r][v], lanes);
      } else {
        store16(y + r * c.y_stride + 16 * v, sum[r][v]);
      }
    }
  }
}

// Vectors of columns for R rows: as many chains as registers allow, beside R factors and a weight.
template <int R>
constexpr int absorb_vectors() {
#if defined(WEIR_ISA_avx512)
  return R == 1 ? 16 : R == 2 ? 8 : 4;
#else
  return R == 1 ? 4 : R == 2 ? 2 : 1;
#endif
}

template <class Element, int R>
void absorb_rows(const Columns& c, int64_t row, const WeightRows& w, int64_t w_column, int64_t first, int64_t end) {
  constexpr int64_t kWidth = 16 * absorb_vectors<R>();
  int64_t l = first;
  for (; l + kWidth <= end; l += kWidth) {
    absorb_tile<Element, R, absorb_vectors<R>(), false>(c, row, w, w_column + l - first, l, 16);
  }
  for (; l + 16 <= end; l += 16) absorb_tile<Element, R, 1, false>(c, row, w, w_column + l - first, l, 16);
  if (l < end) absorb_tile<Element, R, 1, true>(c, row, w, w_column + l - first, l, end - l);
}

template <class Element>
void absorb_range(const Columns& c, int64_t rows, const WeightRows& w, int64_t w_column, int64_t first, int64_t end) {
  int64_t row = 0;
  for (; row + kTileRows <= rows; row += kTileRows) absorb_rows<Element, kTileRows>(c, row, w, w_column, first, end);
  if (rows - row >= 2) {
    absorb_rows<Element, 2>(c, row, w, w_column, first, end);
    row += 2;
  }
  if (row < rows) absorb_rows<Element, 1>(c, row, w, w_column, first, end);
}

struct E4m3 {
  static constexpr int64_t kBytes = 1;
};
template <class Element>
constexpr bool kExpanded = kInBlocks<Element> || std::is_same_v<Element, E4m3>;

// Elements [first, first + count) of a row of kv_b in FP32.
template <class Element>
void expand_row(const WeightView& weight, int64_t row, int64_t first, int64_t count, float* to) {
  if constexpr (std::is_same_v<Element, E4m3>) {
    expand_e4m3(weight, row, first, count, to);
  } else {
    const std::byte* data = weight.data + row * weight.row_bytes + first / Element::kBlock * Element::kBytes;
    expand_blocks<Element>(data, count, to);
  }
}

// Element: how the weights lie in the file, element by element (F32, F16, Bf16) or in blocks (block_formats.h).
template <class Element>
void absorb(const MlaTask& t) {
  const MlaProjectArgs& a = *t.args;
  const Columns c{a.x + t.head * (a.nope + a.extra), a.x_stride, a.y + t.head * (a.latent + a.extra), a.y_stride,
                  a.nope};
  const WeightRows w{a.kv_b.data + t.head * (a.nope + a.value) * a.kv_b.row_bytes, a.kv_b.row_bytes};
  if constexpr (kExpanded<Element>) {
    for (int64_t d = 0; d < a.nope; ++d) {
      expand_row<Element>(a.kv_b, t.head * (a.nope + a.value) + d, t.first, t.end - t.first,
                          t.scratch + d * kMlaAbsorbRange);
    }
    const WeightRows wide{reinterpret_cast<const std::byte*>(t.scratch), kMlaAbsorbRange * 4};
    absorb_range<F32>(c, t.rows, wide, 0, t.first, t.end);
  } else if (t.rows <= kTileRows) {
    absorb_range<Element>(c, t.rows, w, t.first, t.first, t.end);
  } else {
    for (int64_t l = t.first; l < t.end; l += 64) {  // nope x 64 floats stay in L1 or close to it
      const int64_t end = smaller(l + 64, t.end);
      widen<Element>({w.data + l * Element::kBytes, w.stride}, a.nope, end - l, t.scratch, 64);
      absorb_range<F32>(c, t.rows, {reinterpret_cast<const std::byte*>(t.scratch), 64 * 4}, 0, l, end);
    }
  }
  if (t.first != 0) return;
  for (int64_t r = 0; r < t.rows; ++r) {
    const float* from = c.q + r * c.q_stride + a.nope;
    float* to = c.y + r * c.y_stride + a.latent;
    for (int64_t e = 0; e < a.extra; e += 16) {
      const int64_t n = smaller(16, a.extra - e);
      store16_first(to + e, load16_first(from + e, n), n);
    }
  }
}

// --- expand: y[v] = dot(W[v], x) ------------------------------------------------------------------------------------

template <class Element, int R>
void expand_rows(const float* const* x, const WeightRows& w, int64_t latent, float* y, int64_t y_stride,
                 int64_t count) {
  constexpr int64_t kKeys = kTileDots / R;
  int64_t v = 0;
  for (; v + kKeys <= count; v += kKeys) {
    const std::byte* rows = w.data + v * w.stride;
    if constexpr (R > 1 && Element::kBytes == 2) {  // one row alone is a plain stream
      const char* ahead = reinterpret_cast<const char*>(rows + kAhead * w.stride);
      for (int64_t i = 0; i < kKeys * w.stride; i += 64) _mm_prefetch(ahead + i, _MM_HINT_T1);
    }
    dot_tile<Element, R>(x, rows, w.stride, latent, y + v, y_stride);
  }
  for (; v < count; ++v) {  // one weight row for all places of a tile
    float dots[kTileDots];
    dot_tile<Element, R>(x, w.data + v * w.stride, 0, latent, dots, kKeys);
    for (int64_t r = 0; r < R; ++r) y[r * y_stride + v] = dots[r * kKeys];
  }
}

// All rows over `count` weight rows, output y[row][0 .. count).
template <class Element>
void expand_range(const float* x, int64_t x_stride, int64_t rows, const WeightRows& w, int64_t latent, float* y,
                  int64_t y_stride, int64_t count) {
  for (int64_t r = 0; r < rows;) {
    const float* in[kTileRows];
    for (int64_t i = 0; i < kTileRows; ++i) in[i] = x + smaller(r + i, rows - 1) * x_stride;
    float* out = y + r * y_stride;
    if (rows - r >= 4) {
      expand_rows<Element, 4>(in, w, latent, out, y_stride, count);
      r += 4;
    } else if (rows - r >= 2) {
      expand_rows<Element, 2>(in, w, latent, out, y_stride, count);
      r += 2;
    } else {
      expand_rows<Element, 1>(in, w, latent, out, y_stride, count);
      r += 1;
    }
  }
}

template <class Element>
void expand(const MlaTask& t) {
  const MlaProjectArgs& a = *t.args;
  const float* x = a.x + t.head * a.latent;
  float* y = a.y + t.head * a.value + t.first;
  const int64_t count = t.end - t.first;
  const WeightRows w{a.kv_b.data + (t.head * (a.nope + a.value) + a.nope + t.first) * a.kv_b.row_bytes,
                     a.kv_b.row_bytes};
  const int64_t width = (a.latent + 15) / 16 * 16;
  if constexpr (kExpanded<Element>) {
    const int64_t first = t.head * (a.nope + a.value) + a.nope + t.first;
    for (int64_t v = 0; v < count; ++v) expand_row<Element>(a.kv_b, first + v, 0, a.latent, t.scratch + v * width);
  } else {
    if (t.rows <= kTileRows) return expand_range<Element>(x, a.x_stride, t.rows, w, a.latent, y, a.y_stride, count);
    widen<Element>(w, count, a.latent, t.scratch, width);
  }
  constexpr int64_t kRows = 64;   // x of so many rows stays in L2 ...
  constexpr int64_t kValues = 8;  // ... while these weight rows, in L1, pass over it
  for (int64_t r = 0; r < t.rows; r += kRows) {
    for (int64_t v = 0; v < count; v += kValues) {
      const WeightRows wide{reinterpret_cast<const std::byte*>(t.scratch + v * width), width * 4};
      expand_range<F32>(x + r * a.x_stride, a.x_stride, smaller(kRows, t.rows - r), wide, a.latent,
                        y + r * a.y_stride + v, a.y_stride, smaller(kValues, count - v));
    }
  }
}

}  // namespace

void mla_absorb(const MlaTask& task) {
  switch (task.args->kv_b.format) {
    case WeightFormat::kF16:
      return absorb<F16>(task);
    case WeightFormat::kBf16:
      return absorb<Bf16>(task);
    case WeightFormat::kF32:
      return absorb<F32>(task);
    case WeightFormat::kE4m3:
      return absorb<E4m3>(task);
    case WeightFormat::kMxfp4Block:
      return absorb<Mxfp4Gguf>(task);
    default:
      return with_format(task.args->kv_b.format, [&](auto format) { absorb<decltype(format)>(task); });
  }
}

void mla_expand(const MlaTask& task) {
  switch (task.args->kv_b.format) {
    case WeightFormat::kF16:
      return expand<F16>(task);
    case WeightFormat::kBf16:
      return expand<Bf16>(task);
    case WeightFormat::kF32:
      return expand<F32>(task);
    case WeightFormat::kE4m3:
      return expand<E4m3>(task);
    case WeightFormat::kMxfp4Block:
      return expand<Mxfp4Gguf>(task);
    default:
      return with_format(task.args->kv_b.format, [&](auto format) { expand<decltype(format)>(task); });
  }
}

}  // namespace weir::WEIR_ISA
