// linear for vector processors, in two regimes with the same bits: few rows multiply the weights as they lie in the
// file, many rows multiply panels of weights expanded to FP32.
#include <type_traits>

#include "formats/weight.h"
#include "ops/linear/linear_blocks.h"
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

// Accumulators of a tile: at least 8 chains to cover the latency of FMA on two ports, and with the operands no more
// than the registers: 24 of 32 (AVX-512), 12 of 16 (AVX2, two per accumulator).
#if defined(WEIR_ISA_avx512)
constexpr int kDirectRows = 8;  // above that, expanding a panel costs less than decoding per tile
constexpr int kTileOuts = 8;
constexpr int direct_outs(int rows) { return rows <= 3 ? 8 : rows == 4 ? 6 : rows <= 6 ? 4 : 3; }
#else
constexpr int kDirectRows = 3;
constexpr int kTileOuts = 2;
constexpr int direct_outs(int rows) { return rows == 1 ? 4 : 2; }
#endif
constexpr int kTileRows = 3;

template <class Row, int NR>
void direct(const Product& p) {
  constexpr int kOutputs = direct_outs(NR);
  for (int64_t o = p.out_begin; o < p.out_end; o += kOutputs) {
    multiply_tile<Row, kOutputs, NR>({p.weight.data + o * p.weight.row_bytes, p.weight.row_bytes}, p.x, p.x_stride,
                                     p.weight.in, {}, nullptr, p.y + o, p.y_stride, least(kOutputs, p.out_end - o));
  }
}

struct Mxfp4Row;

template <class Row, int NR>
requires std::is_same_v<Row, Mxfp4Row>
void direct(const Product& p) {
  constexpr int kOutputs = direct_outs(NR);
  for (int64_t o = p.out_begin; o < p.out_end; o += kOutputs) {
    multiply_mxfp4<kOutputs, NR>({p.weight.data + o * p.weight.row_bytes, p.weight.row_bytes},
                                 {p.weight.scales + o * p.weight.scale_row_bytes, p.weight.scale_row_bytes}, p.x,
                                 p.x_stride, p.weight.in, p.y + o, p.y_stride, least(kOutputs, p.out_end - o));
  }
}

// Elements [k, k + depth) of output o, then zeros to a multiple of 16.
template <class Row>
void expand(const WeightView& weight, int64_t o, int64_t k, int64_t depth, float* panel) {
  const std::byte* data = weight.data + o * weight.row_bytes;
  if constexpr (std::is_same_v<Row, Mxfp4Row>) {
    expand_mxfp4(data + k / 2, weight.scales + o * weight.scale_row_bytes + k / 32, depth, panel);
  } else {
    const Row row(data + k * Row::kBytes);
    int64_t i = 0;
    for (; i + 16 <= depth; i += 16) store16(panel + i, row.load(i));
    if (i < depth) store16(panel + i, row.load_first(i, depth - i));
  }
}

// All rows of a block times one panel.
template <int NR>
void multiply_panel(const float* panel, const float* x, int64_t x_stride, int64_t depth, Stage stage, float* sums,
                    int64_t sums_stride, float* y, int64_t y_stride, int64_t outs) {
  for (int64_t o = 0; o < outs; o += kTileOuts) {
    multiply_tile<F32Row, kTileOuts, NR>(
        {reinterpret_cast<const std::byte*>(panel + o * kPanelStride), kPanelStride * 4}, x, x_stride, depth, stage,
        sums + o * sums_stride, y + o, y_stride, least(kTileOuts, outs - o));
  }
}

template <class Row>
void panels(const Product& p, std::byte* scratch) {
  float* panel = reinterpret_cast<float*>(scratch);
  float* sums = reinterpret_cast<float*>(scratch + kPanelBytes);
  const int64_t in = p.weight.in;
  const int64_t depth_block = even_block(in, kDepth, 32);
  const int64_t row_block = even_block(p.rows, kRows, kTileRows);
  const int64_t sums_stride = kRows * 16;  // per output
  for (int64_t r0 = 0; r0 < p.rows; r0 += row_block) {
    const int64_t r1 = least(r0 + row_block, p.rows);
    for (int64_t o0 = p.out_begin; o0 < p.out_end; o0 += kOuts) {
      const int64_t o1 = least(o0 + kOuts, p.out_end);
      for (int64_t k = 0; k < in; k += depth_block) {
        const int64_t depth = least(depth_block, in - k);
        const Stage stage{k == 0, k + depth == in};
        for (int64_t o = o0; o < o1; o += kPanelOuts) {
          const int64_t outs = least(kPanelOuts, o1 - o);
          for (int64_t i = 0; i < outs; ++i) expand<Row>(p.weight, o + i, k, depth, panel + i * kPanelStride);
          for (int64_t r = r0; r < r1; r += kTileRows) {
            const float* x = p.x + r * p.x_stride + k;
            float* tile_sums = sums + (o - o0) * sums_stride + (r - r0) * kTileOuts * 16;
            float* y = p.y + r * p.y_stride + o;
            switch (r1 - r) {
              case 1:
                multiply_panel<1>(panel, x, p.x_stride, depth, stage, tile_sums, sums_stride, y, p.y_stride, outs);
                break;
              case 2:
                multiply_panel<2>(panel, x, p.x_stride, depth, stage, tile_sums, sums_stride, y, p.y_stride, outs);
                break;
              default:
                multiply_panel<3>(panel, x, p.x_stride, depth, stage, tile_sums, sums_stride, y, p.y_stride, outs);
            }
          }
        }
      }
    }
  }
}

template <class Row>
void product(const Product& p, std::byte* scratch) {
  switch (p.rows) {
    case 0:
      return;
    case 1:
      return direct<Row, 1>(p);
    case 2:
      return direct<Row, 2>(p);
    case 3:
      return direct<Row, 3>(p);
#if defined(WEIR_ISA_avx512)
    case 4:
      return direct<Row, 4>(p);
    case 5:
      return direct<Row, 5>(p);
    case 6:
      return direct<Row, 6>(p);
    case 7:
      return direct<Row, 7>(p);
    case 8:
      return direct<Row, 8>(p);
#endif
    default:
      return panels<Row>(p, scratch);
  }
}

}  // namespace

void linear(const WeightView& weight, int64_t out_begin, int64_t out_end, const float* x, int64_t x_stride,
            int64_t rows, float* y, int64_t y_stride, std::byte* scratch) {
  const Product p{weight, out_begin, out_end, x, x_stride, rows, y, y_stride};
  switch (weight.format) {
    case WeightFormat::kF32:
      return product<F32Row>(p, scratch);
    case WeightFormat::kF16:
      return product<F16Row>(p, scratch);
    case WeightFormat::kBf16:
      return product<Bf16Row>(p, scratch);
    case WeightFormat::kMxfp4:
      return product<Mxfp4Row>(p, scratch);
  }
}

}  // namespace weir::WEIR_ISA
