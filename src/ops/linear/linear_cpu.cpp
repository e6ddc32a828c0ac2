// linear for vector processors, in two regimes with the same bits: few rows multiply the weights as they lie in the
// file, many rows multiply panels of weights expanded to FP32.
#include <type_traits>

#include "formats/weight.h"
#include "ops/linear/linear_blocks.h"
#include "ops/linear/linear_e4m3_tile.h"
#include "ops/linear/linear_expand.h"
#include "ops/linear/linear_mxfp4.h"
#include "ops/linear/linear_tile.h"

namespace weir::WEIR_ISA {
namespace {

using namespace linear_blocks;

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }
// n in equal blocks of at most `limit`, rounded up to multiples of `unit` (which divides limit).
inline int64_t even_block(int64_t n, int64_t limit, int64_t unit) {
  return blocks(blocks(n, blocks(n, limit)), unit) * unit;
}

struct Product {
  const WeightView& weight;
  int64_t out_begin, out_end;
  const float* x;
  int64_t x_stride;
  int64_t rows;
  float* y;
  int64_t y_stride;
};

struct Mxfp4Format;
struct E4m3Format;

// Outputs of a tile by rows. At least 8 accumulators cover the latency of FMA on two ports; with the operands they must
// fit the registers: 32 (AVX-512), or 16 with two per accumulator (AVX2).
#if defined(WEIR_ISA_avx512)
constexpr int kDirectTileRows = 8;
constexpr int kPanelTileOuts = 8;
constexpr int64_t kDirectRows = 16;  // up to which decoding again for every tile costs less than expanding a panel
constexpr int64_t kDirectRowsMxfp4 = 8;
constexpr int64_t kDirectRowsE4m3 = 8;
constexpr int64_t kDepthBlock = kDepth;
constexpr int64_t kRowBlock = kRows;
constexpr int direct_outs(int rows) { return rows <= 3 ? 8 : rows == 4 ? 6 : rows <= 6 ? 4 : 3; }
constexpr int mxfp4_outs(int rows) { return rows <= 2 ? 8 : rows == 3 ? 6 : rows <= 5 ? 4 : rows <= 7 ? 3 : 2; }
#else
constexpr int kDirectTileRows = 3;
constexpr int kPanelTileOuts = 2;
constexpr int64_t kDirectRows = 24;
constexpr int64_t kDirectRowsMxfp4 = 6;
constexpr int64_t kDirectRowsE4m3 = 3;       // one tile: decoding costs more than reading
constexpr int64_t kDepthBlock = kDepth / 2;  // processors without AVX-512 have smaller caches
constexpr int64_t kRowBlock = kRows / 2;
constexpr int direct_outs(int rows) { return rows == 1 ? 4 : 2; }
constexpr int mxfp4_outs(int rows) { return rows <= 2 ? 2 : 1; }
#endif
constexpr int kPanelTileRows = 3;

template <class Format, int NO, int NR>
void direct_tile(const Product& p, int64_t o, int64_t outs, int64_t r) {
  const WeightView& weight = p.weight;
  const FileRows<NO> rows(weight.data + o * weight.row_bytes, weight.row_bytes, outs);
  const float* x = p.x + r * p.x_stride;
  float* y = p.y + r * p.y_stride + o;
  // The last tile looks at itself: what follows may be another thread's.
  const std::byte* next = rows.row[0] + (o + NO < p.out_end ? NO * weight.row_bytes : 0);
  if constexpr (std::is_same_v<Format, Mxfp4Format>) {
    const FileRows<NO> scales(weight.scales + o * weight.scale_row_bytes, weight.scale_row_bytes, outs);
    const int64_t scale_bytes = o + NO < p.out_end ? NO * weight.scale_row_bytes : 0;
    for (int64_t i = 0; i < scale_bytes; i += 64) __builtin_prefetch(scales.row[0] + scale_bytes + i, 0, 2);
    multiply_mxfp4<NO, NR>(rows, scales, x, p.x_stride, weight.in, y, p.y_stride, outs, next);
  } else if constexpr (std::is_same_v<Format, E4m3Format>) {
    multiply_e4m3<NO, NR>(weight, o, outs, x, p.x_stride, y, p.y_stride, next);
  } else {
    multiply_tile<Format, NO, NR>(rows, x, p.x_stride, weight.in, WholeDepth{}, nullptr, y, p.y_stride, outs, next);
  }
}

// Weights as they lie in the file, in tiles of NR rows or, for the last `shorter` tiles, NR - 1.
template <class Format, int NR>
void direct(const Product& p) {
  constexpr int kOuts = std::is_same_v<Format, Mxfp4Format> ? mxfp4_outs(NR) : direct_outs(NR);
  const int64_t shorter = blocks(p.rows, NR) * NR - p.rows;
  const int64_t full_rows = p.rows - shorter * (NR - 1);
  for (int64_t o = p.out_begin; o < p.out_end; o += kOuts) {
    const int64_t outs = least(kOuts, p.out_end - o);
    for (int64_t r = 0; r < full_rows; r += NR) direct_tile<Format, kOuts, NR>(p, o, outs, r);
    if constexpr (NR > 1) {
      for (int64_t r = full_rows; r < p.rows; r += NR - 1) direct_tile<Format, kOuts, NR - 1>(p, o, outs, r);
    }
  }
}

// Bytes of n elements, a multiple of the format's block.
template <class Format>
constexpr int64_t format_bytes(int64_t n) {
  if constexpr (std::is_same_v<Format, Mxfp4Format>) {
    return n / 2;
  } else if constexpr (std::is_same_v<Format, E4m3Format>) {
    return n;
  } else if constexpr (kInBlocks<Format>) {
    return n / Format::kBlock * Format::kBytes;
  } else {
    return n * static_cast<int64_t>(sizeof(typename Format::Element));
  }
}

// Elements [k, k + depth) of output o, then zeros to a multiple of 16.
template <class Format>
void expand(const WeightView& weight, int64_t o, int64_t k, int64_t depth, float* panel) {
  const std::byte* data = weight.data + o * weight.row_bytes;
  if constexpr (std::is_same_v<Format, Mxfp4Format>) {
    expand_mxfp4(data + k / 2, weight.scales + o * weight.scale_row_bytes + k / 32, depth, panel);
  } else if constexpr (std::is_same_v<Format, E4m3Format>) {
    expand_e4m3(weight, o, k, depth, panel);
  } else if constexpr (kInBlocks<Format>) {
    expand_blocks<Format>(data + format_bytes<Format>(k), depth, panel);
  } else {
    const auto* row = reinterpret_cast<const typename Format::Element*>(data) + k;
    int64_t i = 0;
    for (; i + 16 <= depth; i += kRegLanes) store_reg(panel + i, Format::load(row + i));
    if (i < depth) store16(panel + i, Format::load_first(row + i, depth - i));
  }
}

// NR rows times one panel.
template <int NR>
void multiply_panel(const float* panel, const float* x, int64_t x_stride, int64_t depth, Stage stage, float* sums,
                    int64_t sums_stride, float* y, int64_t y_stride, int64_t outs) {
  for (int64_t o = 0; o < outs; o += kPanelTileOuts) {
    multiply_tile<F32, kPanelTileOuts, NR>(PanelRows{panel + o * kPanelStride}, x, x_stride, depth, stage,
                                           sums + o * sums_stride, y + o, y_stride, least(kPanelTileOuts, outs - o),
                                           nullptr);
  }
}

// 4 rows are 2 + 2: a single row has too few accumulators to hide the latency of FMA.
inline int64_t panel_tile_rows(int64_t left) { return left == 4 ? 2 : least(left, kPanelTileRows); }

// What the next panel needs is fetched into L2 a few lines per tile of this one.
struct PanelAhead {
  const std::byte* first = nullptr;
  int64_t row_bytes = 0;
  int64_t lines_per_row = 0;
  int64_t lines = 0;
  int64_t lines_per_tile = 0;
  int64_t line = 0;

  void fetch() {
    const int64_t end = least(line + lines_per_tile, lines);
    int64_t row = lines == 0 ? 0 : line / lines_per_row;
    int64_t column = line - row * lines_per_row;
    for (; line < end; ++line) {
      __builtin_prefetch(first + row * row_bytes + column * 64, 0, 2);
      if (++column == lines_per_row) column = 0, ++row;
    }
  }
};

// A part of the product whose x stays in L2: rows [r0, r1), outputs [o0, o1), elements [k, k + depth).
struct Block {
  int64_t r0, r1, o0, o1, k, depth;
};

// The panel after that of outputs [o, o + kPanelOuts): the next outputs, or the next elements of the block's first
// ones.
template <class Format>
PanelAhead panel_after(const Product& p, const Block& b, int64_t o) {
  const bool same_depth = o + kPanelOuts < b.o1;
  const int64_t next = same_depth ? o + kPanelOuts : b.o0;
  const int64_t k = same_depth ? b.k : b.k + b.depth;
  if (k >= p.weight.in) return {};
  const int64_t depth = least(b.depth, p.weight.in - k);
  PanelAhead ahead;
  ahead.first = p.weight.data + next * p.weight.row_bytes + format_bytes<Format>(k);
  ahead.row_bytes = p.weight.row_bytes;
  ahead.lines_per_row = blocks(format_bytes<Format>(depth), 64);
  ahead.lines = ahead.lines_per_row * least(kPanelOuts, b.o1 - next);
  ahead.lines_per_tile = blocks(ahead.lines, blocks(b.r1 - b.r0, kPanelTileRows));
  return ahead;
}

template <class Format>
void multiply_block(const Product& p, const Block& b, float* panel, float* sums) {
  const int64_t sums_stride = kRowBlock * 16;  // per output
  const Stage stage{b.k == 0, b.k + b.depth == p.weight.in};
  for (int64_t o = b.o0; o < b.o1; o += kPanelOuts) {
    const int64_t outs = least(kPanelOuts, b.o1 - o);
    for (int64_t i = 0; i < outs; ++i) expand<Format>(p.weight, o + i, b.k, b.depth, panel + i * kPanelStride);
    PanelAhead ahead = panel_after<Format>(p, b, o);
    for (int64_t r = b.r0, tile = 0; r < b.r1; r += tile) {
      tile = panel_tile_rows(b.r1 - r);
      ahead.fetch();
      const float* x = p.x + r * p.x_stride + b.k;
      float* saved = sums + (o - b.o0) * sums_stride + (r - b.r0) * kPanelTileOuts * 16;
      float* y = p.y + r * p.y_stride + o;
      switch (tile) {
        case 1:
          multiply_panel<1>(panel, x, p.x_stride, b.depth, stage, saved, sums_stride, y, p.y_stride, outs);
          break;
        case 2:
          multiply_panel<2>(panel, x, p.x_stride, b.depth, stage, saved, sums_stride, y, p.y_stride, outs);
          break;
        default:
          multiply_panel<3>(panel, x, p.x_stride, b.depth, stage, saved, sums_stride, y, p.y_stride, outs);
      }
    }
  }
}

template <class Format>
void panels(const Product& p, std::byte* scratch) {
  float* panel = reinterpret_cast<float*>(scratch);
  float* sums = reinterpret_cast<float*>(scratch + kPanelBytes);
  const int64_t in = p.weight.in;
  constexpr int64_t kUnit = [] {
    if constexpr (kInBlocks<Format>) return int64_t{Format::kBlock};
    return int64_t{32};
  }();
  const int64_t depth = even_block(in, kDepthBlock, kUnit);
  const int64_t rows = even_block(p.rows, kRowBlock, kPanelTileRows);
  for (int64_t r = 0; r < p.rows; r += rows) {
    for (int64_t o = p.out_begin; o < p.out_end; o += kOuts) {
      for (int64_t k = 0; k < in; k += depth) {
        const Block block{r, least(r + rows, p.rows), o, least(o + kOuts, p.out_end), k, least(depth, in - k)};
        multiply_block<Format>(p, block, panel, sums);
      }
    }
  }
}

// Rows in the fewest tiles, equal but for one row.
template <class Format>
void direct_rows(const Product& p) {
  switch (blocks(p.rows, blocks(p.rows, kDirectTileRows))) {
    case 1:
      return direct<Format, 1>(p);
    case 2:
      return direct<Format, 2>(p);
    case 3:
      return direct<Format, 3>(p);
#if defined(WEIR_ISA_avx512)
    case 4:
      return direct<Format, 4>(p);
    case 5:
      return direct<Format, 5>(p);
    case 6:
      return direct<Format, 6>(p);
    case 7:
      return direct<Format, 7>(p);
    case 8:
      return direct<Format, 8>(p);
#endif
  }
}

template <class Format>
void product(const Product& p, std::byte* scratch) {
  // Blocks of GGUF are expanded for any number of rows: this is the exact mode, `auto` has kernels of its own.
  const int64_t direct = kInBlocks<Format>                     ? 0
                         : std::is_same_v<Format, Mxfp4Format> ? kDirectRowsMxfp4
                         : std::is_same_v<Format, E4m3Format>  ? kDirectRowsE4m3
                                                               : kDirectRows;
  if (p.rows > direct) return panels<Format>(p, scratch);
  if constexpr (kInBlocks<Format>) {
  } else if constexpr (!std::is_same_v<Format, Mxfp4Format>) {
    direct_rows<Format>(p);
  } else {
    const int64_t stride = p.weight.in + 16;  // one cache line more, as kPanelStride
    if (p.rows * stride * 4 > kScratchBytes) return panels<Format>(p, scratch);
    Product arranged = p;
    float* x = reinterpret_cast<float*>(scratch);
    for (int64_t r = 0; r < p.rows; ++r) arrange_x(p.x + r * p.x_stride, p.weight.in, x + r * stride);
    arranged.x = x;
    arranged.x_stride = stride;
    direct_rows<Format>(arranged);
  }
}

}  // namespace

void linear(const WeightView& weight, int64_t out_begin, int64_t out_end, const float* x, int64_t x_stride,
            int64_t rows, float* y, int64_t y_stride, std::byte* scratch) {
  if (rows == 0) return;
  const Product p{weight, out_begin, out_end, x, x_stride, rows, y, y_stride};
  switch (weight.format) {
    case WeightFormat::kF32:
      return product<F32>(p, scratch);
    case WeightFormat::kF16:
      return product<F16>(p, scratch);
    case WeightFormat::kBf16:
      return product<Bf16>(p, scratch);
    case WeightFormat::kMxfp4:
      return product<Mxfp4Format>(p, scratch);
    case WeightFormat::kE4m3:
      return product<E4m3Format>(p, scratch);
    case WeightFormat::kMxfp4Block:
      return product<Mxfp4Gguf>(p, scratch);
    default:
      return with_format(weight.format, [&](auto format) { product<decltype(format)>(p, scratch); });
  }
}

}  // namespace weir::WEIR_ISA
