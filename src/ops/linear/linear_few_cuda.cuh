// The few-rows kernel of linear_multiply.h.
#pragma once

#include "ops/linear/linear_kernels.h"
#include "ops/linear/linear_multiply.h"
#include "ops/linear/linear_multiply_cuda.cuh"
#include "ops/linear/linear_tile_cuda.cuh"

namespace weir {

inline constexpr int kMostWarps = 4;  // of a block
// Of a multiprocessor: four where weights are narrow and decoding them takes instructions; wide ones come faster to few
// blocks with registers to spare (measured).
template <class Operand>
inline constexpr bool kNarrow = Operand::kBytes < 16 * 64;  // a tile: less than a byte a weight
template <class Operand>
inline constexpr int kLeastBlocks = !kNarrow<Operand>  ? 2
                                    : Operand::kMinima ? 3
                                                       : 4;
template <class Operand>
inline constexpr int kMostBlocks = kNarrow<Operand> ? kLeastBlocks<Operand> : 3;
inline constexpr int kMostResidentTiles = 64;  // of x, in shared memory

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

__device__ inline void store_outputs(const MultiplyArgs& args, int strip, int rows, const Sums<1>& sums) {
  const LinearPart& part = part_of(args, strip);
  const int lane = lane_index();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int o = (strip - part.first_strip) * static_cast<int>(kTileOuts) + lane / 4 + 8 * half;
    if (o >= part.out) return;
    const float bias = part.bias != nullptr ? part.bias[o] : 0;
    for (int i = 0; i < 2; ++i) {
      const int row = lane % 4 * 2 + i;
      if (row >= rows) continue;
      const float sum = sums.value[0][2 * half + i];
      store_output(part, row, o, part.bias != nullptr ? sum + bias : sum);
    }
  }
}

// Leaves a segment's sums; the last warp to do so for a strip takes them all, segments ascending.
__device__ inline void combine_segments(const MultiplyArgs& args, int strip, int segment, int rows, Sums<1>& sums) {
  float4* partials =
      reinterpret_cast<float4*>(args.partials) + static_cast<int64_t>(strip) * args.segments * 32 + lane_index();
  const float* v = sums.value[0];
  partials[segment * 32] = {v[0], v[1], v[2], v[3]};
  if (!last_to_arrive(args.counters + strip, args.segments)) return;
  for (int s = 0; s < args.segments; ++s) {
    const float4 part = __ldcg(partials + s * 32);
    const float values[4] = {part.x, part.y, part.z, part.w};
    for (int i = 0; i < 4; ++i) sums.value[0][i] = s == 0 ? values[i] : sums.value[0][i] + values[i];
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

template <TileFormat kFormat>
__global__ void __launch_bounds__(32 * kMostWarps, (kLeastBlocks<typename OperandOf<kFormat>::Type>))
    linear_few_rows(const __grid_constant__ MultiplyArgs args) {
  using Operand = typename OperandOf<kFormat>::Type;
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  cuda::ptx::let_next_start();
  const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
  const WarpStrips strips(args, warp, warps);
  TileRing<Operand, StripRuns<Operand>> ring(shared + warp * kRingBytes<Operand>, {args, strips});
  std::byte* x_memory = shared + warps * kRingBytes<Operand>;
  cuda::ptx::wait_for_previous();
  const int rows = step_rows(args);
  round_to_shared(args, strips.first_segment, rows, x_memory);
  __syncthreads();
  ResidentX x{x_memory, matrix_rows(rows)};
  for (int strip = strips.first; strip < strips.end; strip += strips.step) {
    Sums<1> total;
    for (int s = 0; s < strips.segments; ++s) {
      Sums<1> sums;
      sums.clear();
      x.begin_run(s * args.segment_tiles);
      multiply_run<Operand, 1>(ring, args.segment_tiles, x, sums);
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

template <TileFormat kFormat>
FewRowsKernel few_rows_instance() {
  using Operand = typename OperandOf<kFormat>::Type;
  return {linear_few_rows<kFormat>, kRingBytes<Operand>, kMostBlocks<Operand>};
}

}  // namespace weir
