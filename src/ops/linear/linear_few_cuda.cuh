// The few-rows kernel of linear_multiply.h.
#pragma once

#include "ops/linear/linear_kernels.h"
#include "ops/linear/linear_multiply.h"
#include "ops/linear/linear_multiply_cuda.cuh"
#include "ops/linear/linear_tile_cuda.cuh"

namespace weir {

inline constexpr int kMostWarps = 4;  // that multiply, of a block
inline constexpr int kRowTile = 64;   // rows of a block at most
// Of a multiprocessor, with one column: four where weights are narrow and decoding them takes instructions; wide ones
// come faster to few blocks with registers to spare (measured). With several columns the compiler's own choice has the
// fewest spills.
template <class Operand>
inline constexpr bool kNarrow = Operand::kBytes < 16 * 64;  // a tile: less than a byte a weight
template <class Operand, int kColumns>
inline constexpr int kLeastBlocks = kColumns > 1        ? 0
                                    : !kNarrow<Operand> ? 2
                                    : Operand::kMinima  ? 3
                                                        : 4;
template <class Operand>
inline constexpr int kMostBlocks = kNarrow<Operand> ? kLeastBlocks<Operand, 1> : 3;
inline constexpr int kXStages = 4;
inline constexpr int kMostResidentTiles = 64;  // of x, in shared memory

// Ring of x tiles, filled by one warp for all others of the block.
template <int kColumns>
struct StreamedX {
  static constexpr int kTileBytes = kColumns * kColumnTileBytes;
  static constexpr int kBytes = kXStages * kTileBytes + 128;

  std::byte* stages;
  int slot = 0;
  uint32_t phase = 0;

  __device__ uint64_t* full() const { return reinterpret_cast<uint64_t*>(stages + kXStages * kTileBytes) + slot; }
  __device__ uint64_t* empty() const { return full() + kXStages; }

  __device__ void init(int readers) {
    for (slot = 0; slot < kXStages; ++slot) {
      cuda::ptx::mbarrier_init(full(), 1);
      cuda::ptx::mbarrier_init(empty(), readers);
    }
    slot = 0;
    cuda::ptx::mbarrier_fence_init();
  }
  __device__ void begin_run(int) const {}  // runs pass in their order
  __device__ SharedX acquire() const {
    cuda::ptx::mbarrier_wait(full(), phase);
    return SharedX(stages + slot * kTileBytes);
  }
  __device__ void release() {
    __syncwarp();
    if (lane_index() == 0) cuda::ptx::mbarrier_arrive(empty());
    advance();
  }
  // By one lane of the filling warp; the first round finds all stages empty.
  __device__ void fill(const std::byte* from, int bytes) {
    cuda::ptx::mbarrier_wait(empty(), phase ^ 1);
    cuda::ptx::mbarrier_arrive_expect(full(), bytes);
    cuda::ptx::bulk_load(stages + slot * kTileBytes, from, bytes, full());
    advance();
  }
  __device__ void advance() {
    if (++slot == kXStages) {
      slot = 0;
      phase ^= 1;
    }
  }
};

// The strips that a warp takes, each with the block's segments.
struct WarpStrips {
  int first, step, end;
  int first_segment, segments;

  __device__ WarpStrips(const MultiplyArgs& args, int warp, int warps)
      : first(static_cast<int>(blockIdx.x) * warps + warp),
        step(static_cast<int>(gridDim.x) * warps),
        end(args.strips),
        first_segment(static_cast<int>(blockIdx.y) * args.block_segments),
        segments(args.block_segments) {}
};

template <class Operand>
struct StripRuns {
  const MultiplyArgs& args;
  WarpStrips strips;

  __device__ TileRun operator()(int run) const {
    const int strip = strips.first + run / strips.segments * strips.step;
    if (strip >= strips.end) return {};
    const LinearPart& part = part_of(args, strip);
    const int64_t first =
        static_cast<int64_t>(strip - part.first_strip) * args.segments + strips.first_segment + run % strips.segments;
    return {part.tiles + first * args.segment_tiles * Operand::kBytes, args.segment_tiles};
  }
};

template <int kColumns>
__device__ inline void store_outputs(const MultiplyArgs& args, int strip, int rows, const Sums<kColumns>& sums) {
  const LinearPart& part = part_of(args, strip);
  const int lane = lane_index();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int o = (strip - part.first_strip) * static_cast<int>(kTileOuts) + lane / 4 + 8 * half;
    if (o >= part.out) return;
    const float bias = part.bias != nullptr ? part.bias[o] : 0;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      for (int i = 0; i < 2; ++i) {
        const int row = static_cast<int>(blockIdx.z) * kRowTile + c * 8 + lane % 4 * 2 + i;
        if (row >= rows) continue;
        const float sum = sums.value[c][2 * half + i];
        store_output(part, row, o, part.bias != nullptr ? sum + bias : sum);
      }
    }
  }
}

// Leaves a segment's sums; the last warp to do so for a strip takes them all, segments ascending.
template <int kColumns>
__device__ inline void combine_segments(const MultiplyArgs& args, int strip, int segment, int rows,
                                        Sums<kColumns>& sums) {
  const int lane = lane_index();
  const int64_t item = static_cast<int64_t>(blockIdx.z) * args.strips + strip;
  float4* partials = reinterpret_cast<float4*>(args.partials) + item * args.segments * kColumns * 32 + lane;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const float* v = sums.value[c];
    partials[(segment * kColumns + c) * 32] = {v[0], v[1], v[2], v[3]};
  }
  if (!last_to_arrive(args.counters + item, args.segments)) return;
  for (int s = 0; s < args.segments; ++s) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float4 v = __ldcg(partials + (s * kColumns + c) * 32);
      const float values[4] = {v.x, v.y, v.z, v.w};
      for (int i = 0; i < 4; ++i) sums.value[c][i] = s == 0 ? values[i] : sums.value[c][i] + values[i];
    }
  }
  store_outputs(args, strip, rows, sums);
}

// Rows of x, at most eight, to their places in shared memory; a thread takes eights of one row, kBatch of them at a
// time, since every read is far. Columns of rows that there are not keep what was there: nobody looks at their sums.
__device__ inline void round_to_shared(const MultiplyArgs& args, int first_segment, int rows, std::byte* to) {
  constexpr int kBatch = 8;
  const int64_t first = static_cast<int64_t>(first_segment) * args.segment_tiles * kTileIns;
  const int eights = args.block_segments * args.segment_tiles * static_cast<int>(kTileIns / 8);
  const int places = matrix_rows(rows), bytes = places * 16;
  const int row = static_cast<int>(threadIdx.x) % places;
  const int begin = static_cast<int>(threadIdx.x) / places, step = static_cast<int>(blockDim.x) / places;
  if (row >= rows) return;
  to += row * 16;
  if (args.x_type == RowType::kBf16) {
    const auto* x = static_cast<const uint16_t*>(args.x) + row * args.x_stride + first;
#pragma unroll kBatch
    for (int eight = begin; eight < eights; eight += step) {
      *reinterpret_cast<uint4*>(to + eight * bytes) = load_eight(x, eight * 8, args.in - first);
    }
    return;
  }
  const float* x = static_cast<const float*>(args.x) + row * args.x_stride + first;
  // Eights that are two aligned reads each; the others, at the end of a row, one by one.
  const int64_t inside = reinterpret_cast<uintptr_t>(x) % 16 == 0 && first < args.in ? (args.in - first) / 8 : 0;
  const int aligned = inside < eights ? static_cast<int>(inside) : eights;
  for (int eight = begin; eight < aligned; eight += kBatch * step) {
    float4 low[kBatch], high[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (eight + i * step >= aligned) continue;
      const auto* from = reinterpret_cast<const float4*>(x + (eight + i * step) * 8);
      low[i] = from[0];
      high[i] = from[1];
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (eight + i * step >= aligned) continue;
      *reinterpret_cast<uint4*>(to + (eight + i * step) * bytes) = pack_eight(low[i], high[i]);
    }
  }
  for (int eight = aligned + begin; eight < eights; eight += step) {
    *reinterpret_cast<uint4*>(to + eight * bytes) = round_eight(x, eight * 8, args.in - first);
  }
}

template <class Operand, int kColumns, class Ring, class X>
__device__ inline void multiply_strips(const MultiplyArgs& args, const WarpStrips& strips, int rows, Ring& ring, X& x) {
  for (int strip = strips.first; strip < strips.end; strip += strips.step) {
    Sums<kColumns> total;
    for (int s = 0; s < strips.segments; ++s) {
      Sums<kColumns> sums;
      sums.clear();
      x.begin_run(s * args.segment_tiles);
      multiply_run<Operand, kColumns>(ring, args.segment_tiles, x, sums);
      if (s == 0) {
        total = sums;
      } else {
        total.add(sums);
      }
    }
    if (args.block_segments < args.segments) {
      combine_segments(args, strip, strips.first_segment, rows, total);
    } else {
      store_outputs(args, strip, rows, total);
    }
  }
}

// One lane brings x for all strips that warp 0 takes; other warps take as many or one less.
template <int kColumns>
__device__ inline void stream_x(const MultiplyArgs& args, const WarpStrips& strips_of_first, StreamedX<kColumns> x) {
  const int first_column = static_cast<int>(blockIdx.z) * (kRowTile / 8);
  const int columns = args.columns - first_column < kColumns ? args.columns - first_column : kColumns;
  const int tiles = strips_of_first.segments * args.segment_tiles;
  const int first_tile = strips_of_first.first_segment * args.segment_tiles;
  for (int strip = strips_of_first.first; strip < strips_of_first.end; strip += strips_of_first.step) {
    for (int t = first_tile; t < first_tile + tiles; ++t) {
      const int64_t column = static_cast<int64_t>(t) * args.columns + first_column;
      x.fill(args.rounded + column * kColumnTileBytes, columns * kColumnTileBytes);
    }
  }
}

// Lets go of the x of a last strip that warp 0 has and this warp has not.
template <int kColumns>
__device__ inline void skip_missing_strip(const MultiplyArgs& args, const WarpStrips& strips,
                                          const WarpStrips& strips_of_first, StreamedX<kColumns>& x) {
  const auto count = [](const WarpStrips& of) {
    return of.first < of.end ? (of.end - of.first + of.step - 1) / of.step : 0;
  };
  if (count(strips) == count(strips_of_first)) return;
  for (int t = 0; t < strips.segments * args.segment_tiles; ++t) {
    x.acquire();
    x.release();
  }
}

template <TileFormat kFormat, int kColumns>
__global__ void __launch_bounds__(32 * (kMostWarps + (kColumns > 1 ? 1 : 0)),
                                  (kLeastBlocks<typename OperandOf<kFormat>::Type, kColumns>))
    linear_few_rows(const __grid_constant__ MultiplyArgs args) {
  using Operand = typename OperandOf<kFormat>::Type;
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32 - (kColumns > 1 ? 1 : 0);
  const WarpStrips strips(args, warp, warps);
  std::byte* ring_memory = shared + warp * kRingBytes<Operand>;
  std::byte* x_memory = shared + warps * kRingBytes<Operand>;

  if constexpr (kColumns == 1) {
    TileRing<Operand, StripRuns<Operand>> ring(ring_memory, {args, strips});
    cuda::ptx::wait_for_previous();
    cuda::ptx::let_next_start();
    const int rows = step_rows(args);
    round_to_shared(args, strips.first_segment, rows, x_memory);
    __syncthreads();
    ResidentX x{x_memory, matrix_rows(rows)};
    multiply_strips<Operand, kColumns>(args, strips, rows, ring, x);
  } else {
    StreamedX<kColumns> x{x_memory};
    if (threadIdx.x == 0) x.init(warps);
    __syncthreads();
    if (warp == warps) {
      cuda::ptx::wait_for_previous();
      if (lane_index() == 0) stream_x(args, WarpStrips(args, 0, warps), x);
      return;
    }
    TileRing<Operand, StripRuns<Operand>> ring(ring_memory, {args, strips});
    cuda::ptx::wait_for_previous();
    cuda::ptx::let_next_start();
    multiply_strips<Operand, kColumns>(args, strips, step_rows(args), ring, x);
    skip_missing_strip(args, strips, WarpStrips(args, 0, warps), x);
  }
}

template <TileFormat kFormat>
FewRowsKernel few_rows_instance(int columns) {
  using Operand = typename OperandOf<kFormat>::Type;
  constexpr int64_t kRing = kRingBytes<Operand>;
  switch (columns) {
    case 1:
      return {linear_few_rows<kFormat, 1>, kRing, kMostBlocks<Operand>};
    case 2:
      return {linear_few_rows<kFormat, 2>, kRing};
    case 4:
      return {linear_few_rows<kFormat, 4>, kRing};
    default:
      return {linear_few_rows<kFormat, 8>, kRing};
  }
}

}  // namespace weir
