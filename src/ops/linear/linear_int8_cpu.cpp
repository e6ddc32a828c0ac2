// Products of integer formats with rows in 8-bit codes (linear.h). Every dword of a vector belongs to one output, so
// that a block's sum needs no reduction across a vector; the eight FP32 sums of an output wait in scratch.
#include "ops/linear/int_panel.h"
#include "ops/linear/linear_blocks.h"
#include "ops/linear/row_codes.h"

namespace weir::WEIR_ISA {
namespace {

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Sums: [row][lane of 8][kVectors][kVecOuts] floats.
constexpr int64_t kSumsPerRow = 8 * kPanelOuts;
constexpr int64_t kRowBlock = 96;  // rows whose sums stay in L2 beside their codes

#if defined(WEIR_ISA_avx512)
constexpr int kTileRows = 6;  // 2 x 6 integer sums (twice in superblocks), operands: at most 29 of 32 registers
#else
constexpr int kTileRows = 4;
#endif

// NR coded rows from the chunk's first element on.
template <int NR>
struct Rows {
  const int8_t* q[NR];
  const float* scale[NR];
  const std::byte* sums[NR];    // kBlocks32: int32; else int16 of groups of the format
  const float* float_sums[NR];  // kBlocks32
};

// Adds the dot products of kQuads * 4 elements to s.
template <class F, int kQuads, int NR>
[[gnu::always_inline]] inline void dot_group(IV (&s)[kVectors][NR], const std::byte* codes, int64_t vector_bytes,
                                             const Rows<NR>& x, int64_t k) {
  const auto dword = [&](int r, int t) {
    int32_t v;
    __builtin_memcpy(&v, x.q[r] + k + 4 * t, 4);
    return set32(v);
  };
#if defined(WEIR_ISA_avx512)
#pragma GCC unroll 8
  for (int t = 0; t < kQuads; ++t) {
    IV w[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) w[v] = load_int(codes + v * vector_bytes + t * kVecBytes);
#pragma GCC unroll 8
    for (int r = 0; r < NR; ++r) {
      const IV four = dword(r, t);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) s[v][r] = _mm512_dpbusd_epi32(s[v][r], w[v], four);
    }
  }
#else
  static_cast<void>(vector_bytes);
  const IV ones = _mm256_set1_epi16(1);
  if constexpr (kSignedCodes<F>) {
#pragma GCC unroll 8
    for (int t = 0; t < kQuads; ++t) {
      const IV w = load_int(codes + t * kVecBytes);
      const IV magnitude = _mm256_abs_epi8(w);  // 128 * 127 * 2 fits in 16 bits
#pragma GCC unroll 4
      for (int r = 0; r < NR; ++r) {
        const IV pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(dword(r, t), w));
        s[0][r] = add_pairs(s[0][r], pairs, ones);
      }
    }
  } else {
    constexpr int kFit = 32767 / (2 * F::kMost * 127);  // quads whose sums fit in 16 bits
    constexpr int kStep = kFit < kQuads ? kFit : kQuads;
#pragma GCC unroll 8
    for (int t = 0; t < kQuads; t += kStep) {
      IV sum[NR];
#pragma GCC unroll 8
      for (int i = 0; i < kStep; ++i) {
        const IV w = load_int(codes + (t + i) * kVecBytes);
#pragma GCC unroll 4
        for (int r = 0; r < NR; ++r) {
          const IV pairs = _mm256_maddubs_epi16(w, dword(r, t + i));
          sum[r] = i == 0 ? pairs : _mm256_add_epi16(sum[r], pairs);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < NR; ++r) s[0][r] = add_pairs(s[0][r], sum[r], ones);
    }
  }
#endif
}

// start[i] = -kOffset * sum of group i: what unsigned codes are too large by.
inline void starts_of_32(const std::byte* sums, int bias, int32_t* start) {
  for (int i = 0; i < kMostBlocks; i += 8) {
    const __m256i scaled = _mm256_slli_epi32(load32(sums + 4 * i), __builtin_ctz(static_cast<unsigned>(bias)));
    _mm256_store_si256(reinterpret_cast<__m256i*>(start + i), _mm256_sub_epi32(_mm256_setzero_si256(), scaled));
  }
}
inline void starts_of_256(const std::byte* sums, int groups, int bias, int32_t* start) {
  for (int i = 0; i < groups; i += 8) {
    const __m256i wide = _mm256_cvtepi16_epi32(load16_bytes(sums + 2 * i));
    const __m256i scaled = _mm256_slli_epi32(wide, __builtin_ctz(static_cast<unsigned>(bias)));
    _mm256_store_si256(reinterpret_cast<__m256i*>(start + i), _mm256_sub_epi32(_mm256_setzero_si256(), scaled));
  }
}

// What each block of 32 contributes: S scaled, and in formats with minima the row's sum times the minimum.
template <class F, int NR>
[[gnu::always_inline]] inline void add_block(const IV (&s)[NR], const std::byte* panel, const Rows<NR>& x, int64_t b,
                                             float* lane) {
  using P = PanelBlock<F>;
  const FV d = load_float(panel + P::kD);
#pragma GCC unroll 8
  for (int r = 0; r < NR; ++r) {
    const FV row_d = set_float(x.scale[r][b]);
    FV total = fma(to_float(s[r]), mul(d, row_d), load_float(lane + r * kSumsPerRow));
    if constexpr (F::kMinima) {
      total = fma(set_float(x.float_sums[r][b]), mul(load_float(panel + P::kDmin), row_d), total);
    }
    store_float(lane + r * kSumsPerRow, total);
  }
}

template <class F, int NR>
void tile_of_32(const std::byte* panel, int64_t vector_bytes, int64_t first, int64_t count, const Rows<NR>& x,
                float* sums) {
  alignas(32) int32_t start[NR][kMostBlocks];
  if constexpr (kBias<F> != 0) {
#pragma GCC unroll 8
    for (int r = 0; r < NR; ++r) starts_of_32(x.sums[r], kBias<F>, start[r]);
  }
  for (int64_t b = 0; b < count; ++b, panel += PanelBlock<F>::kBytes) {
    IV s[kVectors][NR];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 8
      for (int r = 0; r < NR; ++r) s[v][r] = kBias<F> != 0 ? set32(start[r][b]) : zero_int();
    }
    dot_group<F, 8, NR>(s, panel, vector_bytes, x, b * 32);
    float* lane = sums + (first + b) % 8 * kPanelOuts;
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      add_block<F, NR>(s[v], panel + v * vector_bytes, x, b, lane + v * kVecOuts);
    }
  }
}

// What each superblock contributes: the sum of its groups scaled, and in formats with minima that of the minima.
template <class F, int NR>
[[gnu::always_inline]] inline void add_superblock(const IV (&total)[NR], const std::byte* panel, const Rows<NR>& x,
                                                  int64_t b, float* lane) {
  using P = PanelBlock<F>;
  const FV d = load_float(panel + P::kD);
#pragma GCC unroll 8
  for (int r = 0; r < NR; ++r) {
    const FV row_d = set_float(x.scale[r][b]);
    FV sum = fma(to_float(total[r]), mul(d, row_d), load_float(lane + r * kSumsPerRow));
    if constexpr (F::kMinima) {
      IV minimum = zero_int();
#pragma GCC unroll 8
      for (int g = 0; g < P::kGroups; g += 2) {
        const IV pair = set32(static_cast<int32_t>(read32(x.sums[r] + (b * P::kGroups + g) * 2)));
        minimum = add_pairs(minimum, load_int(panel + P::kMinima + g / 2 * kVecBytes), pair);
      }
      sum = fma(to_float(minimum), mul(load_float(panel + P::kDmin), row_d), sum);
    }
    store_float(lane + r * kSumsPerRow, sum);
  }
}

template <class F, int NR>
void tile_of_256(const std::byte* panel, int64_t vector_bytes, int64_t first, int64_t count, const Rows<NR>& x,
                 float* sums) {
  using P = PanelBlock<F>;
  for (int64_t b = 0; b < count; ++b, panel += P::kBytes) {
    alignas(32) int32_t start[NR][P::kGroups];
    if constexpr (kBias<F> != 0) {
#pragma GCC unroll 8
      for (int r = 0; r < NR; ++r) starts_of_256(x.sums[r] + b * P::kGroups * 2, P::kGroups, kBias<F>, start[r]);
    }
    IV total[kVectors][NR];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 8
      for (int r = 0; r < NR; ++r) total[v][r] = zero_int();
    }
    for (int g = 0; g < P::kGroups; ++g) {
      IV s[kVectors][NR];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 8
        for (int r = 0; r < NR; ++r) s[v][r] = kBias<F> != 0 ? set32(start[r][g]) : zero_int();
      }
      dot_group<F, F::kGroup / 4, NR>(s, panel + g * (F::kGroup / 4) * kVecBytes, vector_bytes, x,
                                      b * 256 + g * F::kGroup);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        const IV scale = load_int(panel + v * vector_bytes + P::kScales + g * kVecBytes);
#pragma GCC unroll 8
        for (int r = 0; r < NR; ++r) total[v][r] = add32(total[v][r], mul32(s[v][r], scale));
      }
    }
    float* lane = sums + (first + b) % 8 * kPanelOuts;
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      add_superblock<F, NR>(total[v], panel + v * vector_bytes, x, b, lane + v * kVecOuts);
    }
  }
}

#if defined(WEIR_ISA_avx512)

// Few rows: codes are multiplied as they are read; of the panel only scales pass through memory.
template <class F, int NR>
[[gnu::noinline]] void direct(FileRows rows, int64_t first, int64_t count, const Rows<NR>& x, std::byte* panel,
                              float* sums, Ahead& ahead) {
  using P = PanelBlock<F>;
  constexpr int kQuads = F::kGroup / 4;
  Ahead next = ahead;
  build_halves<F>(rows, count, panel, next);
  alignas(32) int32_t start[NR][kMostBlocks];
  if constexpr (kBias<F> != 0 && F::kBlock == 32) {
#pragma GCC unroll 4
    for (int r = 0; r < NR; ++r) starts_of_32(x.sums[r], kBias<F>, start[r]);
  }
  for (int64_t b = 0; b < count; ++b, rows.advance(F::kBytes), panel += P::kBytes) {
    if constexpr (F::kBlock == 256) build_scales<F>(rows, panel);
    if constexpr (kBias<F> != 0 && F::kBlock == 256) {
#pragma GCC unroll 4
      for (int r = 0; r < NR; ++r) starts_of_256(x.sums[r] + b * P::kGroups * 2, P::kGroups, kBias<F>, start[r]);
    }
    // Two sums a row, so that the chain of products is half as long: what is in flight covers its latency.
    IV s[NR][2], total[NR];
#pragma GCC unroll 4
    for (int r = 0; r < NR; ++r) total[r] = zero_int();
    each_code<F>(
        rows, [&](int q, IV code) __attribute__((always_inline)) {
          const int g = q / kQuads, i = q % kQuads;
#pragma GCC unroll 4
          for (int r = 0; r < NR; ++r) {
            if (i == 0) s[r][0] = kBias<F> == 0 ? zero_int() : set32(start[r][F::kBlock == 32 ? b : g]);
            if (i == 1) s[r][1] = zero_int();
            int32_t four;
            __builtin_memcpy(&four, x.q[r] + b * F::kBlock + 4 * q, 4);
            s[r][i % 2] = _mm512_dpbusd_epi32(s[r][i % 2], code, set32(four));
            if (i < kQuads - 1) continue;
            const IV sum = add32(s[r][0], s[r][1]);
            if constexpr (F::kBlock == 32) {
              total[r] = sum;
            } else {
              total[r] = add32(total[r], mul32(sum, load_int(panel + P::kScales + g * kVecBytes)));
            }
          }
        });
    float* lane = sums + (first + b) % 8 * kPanelOuts;
    if constexpr (F::kBlock == 32) {
      add_block<F, NR>(total, panel, x, b, lane);
    } else {
      add_superblock<F, NR>(total, panel, x, b, lane);
    }
    next.fetch_far(kVecOuts * F::kBytes - kVecOuts * F::kBytes / 4);
    next.fetch_near();
  }
  ahead = next;
}

#endif

struct Product {
  const WeightView& weight;
  int64_t out_begin, out_end;
  const CodedRows& x;
  CodedRowLayout layout;
  float* y;
  int64_t y_stride;
};

template <class F, int NR>
inline Rows<NR> coded_rows(const Product& p, int64_t row, int64_t first) {
  Rows<NR> x;
  for (int r = 0; r < NR; ++r) {
    const std::byte* coded = p.x.data + (row + r) * p.x.row_bytes;
    x.q[r] = reinterpret_cast<const int8_t*>(coded) + first * F::kBlock;
    x.scale[r] = reinterpret_cast<const float*>(coded + p.layout.scales) + first;
    if constexpr (F::kBlock == 32) {
      x.sums[r] = coded + p.layout.sums + first * 4;
      x.float_sums[r] = reinterpret_cast<const float*>(coded + p.layout.other_sums) + first;
    } else {
      x.sums[r] = coded + (F::kGroup == 16 ? p.layout.sums : p.layout.other_sums) + first * (256 / F::kGroup) * 2;
    }
  }
  return x;
}

template <class F, int NR>
void tile(const Product& p, const std::byte* panel, int64_t row, int64_t first, int64_t count, float* sums) {
  const Rows<NR> x = coded_rows<F, NR>(p, row, first);
  constexpr int64_t kVectorBytes = kChunk / F::kBlock * PanelBlock<F>::kBytes;
  if constexpr (F::kBlock == 32) {
    tile_of_32<F, NR>(panel, kVectorBytes, first, count, x, sums);
  } else {
    tile_of_256<F, NR>(panel, kVectorBytes, first, count, x, sums);
  }
}

template <class F>
void tiles(const Product& p, const std::byte* panel, int64_t row, int64_t rows, int64_t first, int64_t count,
           float* sums) {
  while (rows > 0) {
    // 7 and 8 are 4 + 3 and 4 + 4: a tile of one or two rows has less to share.
    const int64_t n = rows <= kTileRows ? rows : rows < kTileRows + 3 ? (rows + 1) / 2 : kTileRows;
    switch (n) {
      case 1:
        tile<F, 1>(p, panel, row, first, count, sums);
        break;
      case 2:
        tile<F, 2>(p, panel, row, first, count, sums);
        break;
      case 3:
        tile<F, 3>(p, panel, row, first, count, sums);
        break;
      case 4:
        tile<F, 4>(p, panel, row, first, count, sums);
        break;
#if defined(WEIR_ISA_avx512)
      case 5:
        tile<F, 5>(p, panel, row, first, count, sums);
        break;
      case 6:
        tile<F, 6>(p, panel, row, first, count, sums);
        break;
#endif
    }
    row += n;
    rows -= n;
    sums += n * kSumsPerRow;
  }
}

#if defined(WEIR_ISA_avx512)
constexpr int64_t kDirectRows = 3;  // beyond, a panel's tiles share broadcasts of x between two vectors of outputs

template <class F>
inline void direct_rows(const Product& p, const FileRows& file, int64_t row, int64_t rows, int64_t first, int64_t count,
                        std::byte* panel, float* sums, Ahead& ahead) {
  switch (rows) {
    case 1:
      return direct<F, 1>(file, first, count, coded_rows<F, 1>(p, row, first), panel, sums, ahead);
    case 2:
      return direct<F, 2>(file, first, count, coded_rows<F, 2>(p, row, first), panel, sums, ahead);
    case 3:
      return direct<F, 3>(file, first, count, coded_rows<F, 3>(p, row, first), panel, sums, ahead);
  }
}
#else
constexpr int64_t kDirectRows = 0;

template <class F>
inline void direct_rows(const Product&, const FileRows&, int64_t, int64_t, int64_t, int64_t, std::byte*, float*,
                        Ahead&) {}
#endif

// y = lanes folded 8 -> 4 -> 2 -> 1
inline void fold(const float* sums, int64_t rows, float* y, int64_t y_stride, int64_t outs) {
  for (int64_t r = 0; r < rows; ++r, sums += kSumsPerRow, y += y_stride) {
    for (int v = 0; v < kVectors && v * kVecOuts < outs; ++v) {
      FV lane[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) lane[i] = load_float(sums + i * kPanelOuts + v * kVecOuts);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) lane[i] = add(lane[i], lane[i + 4]);
      const FV even = add(lane[0], lane[2]), odd = add(lane[1], lane[3]);
      store_first(y + v * kVecOuts, add(even, odd), outs - v * kVecOuts);
    }
  }
}

// The parts of the scratch, in bytes.
constexpr int64_t kSumsAt = kVectors * kPanelBytes;
constexpr int64_t kCopyAt = kSumsAt + kRowBlock * kSumsPerRow * 4;
constexpr int64_t kMostBlockBytes = 34;  // per 32 elements
static_assert(kCopyAt + kPanelOuts * kMostBlocks * kMostBlockBytes <= linear_blocks::kIntScratchBytes);

// `bytes` of each of the last `outs` rows, and the last one again until there are kPanelOuts.
inline void fill_up(const std::byte* first, int64_t row_bytes, int64_t outs, int64_t bytes, std::byte* copy) {
  for (int64_t o = 0; o < kPanelOuts; ++o) {
    __builtin_memcpy(copy + o * bytes, first + least(o, outs - 1) * row_bytes, static_cast<size_t>(bytes));
  }
}

template <class F>
void product(const Product& p, int64_t row, int64_t rows, std::byte* scratch) {
  std::byte* panel = scratch;
  float* sums = reinterpret_cast<float*>(scratch + kSumsAt);
  constexpr int64_t kBlocks = kChunk / F::kBlock;
  const WeightView& weight = p.weight;
  const int64_t chunks = (p.layout.blocks + kBlocks - 1) / kBlocks;
  const int64_t blocks = (p.layout.blocks + chunks - 1) / chunks;  // of a chunk: even chunks fetch evenly
  for (int64_t o = p.out_begin; o < p.out_end; o += kPanelOuts) {
    const int64_t outs = least(kPanelOuts, p.out_end - o);
    // Not beyond the last whole panel: what follows may be another thread's.
    Ahead ahead{o + 2 * kPanelOuts <= p.out_end ? weight.data + (o + kPanelOuts) * weight.row_bytes : nullptr};
    for (int64_t i = 0; i < rows * kSumsPerRow; i += kVecOuts) store_float(sums + i, set_float(0));
    for (int64_t first = 0; first < p.layout.blocks; first += blocks) {
      const int64_t count = least(blocks, p.layout.blocks - first);
      const std::byte* file = weight.data + o * weight.row_bytes + first * F::kBytes;
      const std::byte* next = first + blocks < p.layout.blocks ? file + count * F::kBytes
                                                               : weight.data + (o + kPanelOuts) * weight.row_bytes;
      int64_t row_bytes = weight.row_bytes;
      if (outs < kPanelOuts) {
        fill_up(file, row_bytes, outs, count * F::kBytes, scratch + kCopyAt);
        file = scratch + kCopyAt;
        row_bytes = count * F::kBytes;
      }
#pragma GCC unroll 1
      for (int v = 0; v < kVectors; ++v, file += kVecOuts * row_bytes) {
        ahead.set_near(v + 1 < kVectors ? file + kVecOuts * row_bytes : next, weight.row_bytes, count * F::kBytes,
                       count);
        std::byte* part = panel + v * kBlocks * PanelBlock<F>::kBytes;
        if (rows > kDirectRows) {
          build_panel<F>({file, row_bytes}, count, part, ahead);
        } else {
          direct_rows<F>(p, {file, row_bytes}, row, rows, first, count, part, sums + v * kVecOuts, ahead);
        }
      }
      if (rows > kDirectRows) tiles<F>(p, panel, row, rows, first, count, sums);
    }
    fold(sums, rows, p.y + row * p.y_stride + o, p.y_stride, outs);
  }
}

}  // namespace

void linear_int(const WeightView& weight, int64_t out_begin, int64_t out_end, const CodedRows& x, int64_t rows,
                float* y, int64_t y_stride, std::byte* scratch) {
  with_format(weight.format, [&](auto format) {
    using F = decltype(format);
    constexpr RowCoding kCoding = F::kBlock == 32 ? RowCoding::kBlocks32 : RowCoding::kBlocks256;
    const Product p{weight, out_begin, out_end, x, coded_row_layout(kCoding, weight.in), y, y_stride};
    for (int64_t r = 0; r < rows; r += kRowBlock) product<F>(p, r, least(kRowBlock, rows - r), scratch);
  });
}

}  // namespace weir::WEIR_ISA
