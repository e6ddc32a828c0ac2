// The few-rows kernel of linear_multiply.h.
#pragma once

#include "ops/linear/linear_kernels.h"
#include "ops/linear/linear_multiply.h"
#include "ops/linear/linear_multiply_cuda.cuh"
#include "ops/linear/linear_tile_cuda.cuh"

namespace weir {

#ifndef WEIR_WARPS
#define WEIR_WARPS 16
#endif
inline constexpr int kFewWarps = WEIR_WARPS;  // of a block at most

// The strips and segments of a block. Its warps take strips whole, or a segment of a strip at a time. There are as many
// blocks as multiprocessors, some without strips: where each kernel has one on each, none gets two.
struct FewBlock {
  int first, end;  // places
  int first_segment, segments;
  bool whole;

  __device__ explicit FewBlock(const MultiplyArgs& args)
      : first(static_cast<int>(blockIdx.x) / args.splits * args.block_strips),
        end(first < args.places ? end_of_strips(args, first, args.block_strips) : first),
        first_segment(static_cast<int>(blockIdx.x) % args.splits * args.block_segments),
        segments(args.segments - first_segment < args.block_segments ? args.segments - first_segment
                                                                     : args.block_segments),
        whole(args.whole_strips) {}
};

// A warp's run: a segment of a strip.
struct FewRun {
  int place, segment;  // of the block's segments
  bool there;
};

struct FewRuns {
  const MultiplyArgs& args;
  const FewBlock& block;
  int tile_bytes;

  __device__ FewRun at(int run) const {
    const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
    const int strip_run = block.whole ? run / block.segments : run;
    const int item = warp + strip_run * warps;
    const int place = block.first + (block.whole ? item : item / block.segments);
    const int segment = block.whole ? run - strip_run * block.segments : item % block.segments;
    return {place, segment, place < block.end};
  }
  __device__ TileRun operator()(int i) const {
    const FewRun run = at(i);
    if (!run.there) return {};
    const LinearPart& part = part_of(args, run.place);
    const int64_t segment =
        static_cast<int64_t>(run.place - part.first_place) * args.segments + block.first_segment + run.segment;
    return {part.tiles + segment * args.segment_tiles * tile_bytes, args.segment_tiles};
  }
};

__device__ inline void store_outputs(const MultiplyArgs& args, int place, int rows, const Sums<1>& sums) {
  const LinearPart& part = part_of(args, place);
  const int lane = lane_index();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int o = (place - part.first_place) * static_cast<int>(kTileOuts) + lane / 4 + 8 * half;
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

// Sums that segments have left, 32 to a segment, added in their order; kGlobal: by other blocks.
template <bool kGlobal>
__device__ inline void add_segments(const MultiplyArgs& args, const float4* parts, Sums<1>& sums) {
  constexpr int kBatch = 4;
  sums.clear();
  for (int first = 0; first < args.segments; first += kBatch) {
    float4 part[kBatch];
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
      if (first + s < args.segments) {
        const float4* from = parts + (first + s) * 32 + lane_index();
        part[s] = kGlobal ? __ldcg(from) : *from;
      }
    }
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
      if (first + s >= args.segments) break;
      const float values[4] = {part[s].x, part[s].y, part[s].z, part[s].w};
      for (int i = 0; i < 4; ++i) {
        sums.value[0][i] = first + s == 0 ? values[i] : sums.value[0][i] + values[i];
      }
    }
  }
}

// Rows of x, at most eight, to their places in shared memory; a thread takes eights of one row, kBatch of them at a
// time, since every read is far. Columns of rows that there are not keep what was there: nobody looks at their sums.
__device__ inline void round_to_shared(const MultiplyArgs& args, const FewBlock& block, int rows, std::byte* to) {
  constexpr int kBatch = 4;
  const int64_t first = static_cast<int64_t>(block.first_segment) * args.segment_tiles * kTileIns;
  const LinearPart& part = part_of(args, block.first);
  const int eights = block.segments * args.segment_tiles * static_cast<int>(kTileIns / 8);
  const int places = matrix_rows(rows), bytes = places * 16;
  const int row = static_cast<int>(threadIdx.x) % places;
  const int begin = static_cast<int>(threadIdx.x) / places, step = static_cast<int>(blockDim.x) / places;
  if (row >= rows) return;
  to += row * 16;
  if (args.x_type == RowType::kBf16) {
    const auto* x = static_cast<const uint16_t*>(part.x) + row * part.x_stride + first;
    const int whole = static_cast<int>(args.in - first < 8 * eights ? (args.in - first) / 8 : eights);
    for (int eight = begin; eight < eights; eight += step) {
      if (eight < whole) {
        cuda::ptx::copy_async16(cuda::ptx::shared_address(to + eight * bytes), x + eight * 8);
      } else {
        *reinterpret_cast<uint4*>(to + eight * bytes) = load_eight(x, eight * 8, args.in - first);
      }
    }
    cuda::ptx::commit_copies();
    cuda::ptx::wait_copies<0>();
    return;
  }
  const float* x = static_cast<const float*>(part.x) + row * part.x_stride + first;
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

// A segment's sums where all of a strip's meet: with blocks of some segments, the last warp to leave some adds them up.
__device__ inline void leave_segment(const MultiplyArgs& args, const FewBlock& block, const FewRun& run, int rows,
                                     float4* shared_sums, Sums<1>& sums) {
  const float* v = sums.value[0];
  const float4 four = {v[0], v[1], v[2], v[3]};
  if (block.segments == args.segments) {
    shared_sums[((run.place - block.first) * args.segments + run.segment) * 32 + lane_index()] = four;
    return;
  }
  const LinearPart& part = part_of(args, run.place);
  const int strip = part.first_strip + run.place - part.first_place;
  float4* parts = reinterpret_cast<float4*>(args.partials) + static_cast<int64_t>(strip) * args.segments * 32;
  parts[(block.first_segment + run.segment) * 32 + lane_index()] = four;
  if (!last_to_arrive(args.counters + strip, args.segments)) return;
  add_segments<true>(args, parts, sums);
  store_outputs(args, run.place, rows, sums);
}

template <TileFormat kFormat>
__global__ void __launch_bounds__(32 * kFewWarps, 2) linear_few_rows(const __grid_constant__ MultiplyArgs args) {
  using Operand = typename OperandOf<kFormat>::Type;
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  cuda::ptx::let_next_start();
  const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
  const FewBlock block(args);
  const FewRuns runs{args, block, Operand::kBytes};
  const int ring_bytes = args.ring_stages * (kStageBytes<Operand> + 16);
  TileRing<Operand, FewRuns> ring(shared + warp * ring_bytes, runs, args.ring_stages);
  auto* shared_sums = reinterpret_cast<float4*>(shared + warps * ring_bytes);
  const bool split = args.segments > 1 && !block.whole, meet = split && block.segments == args.segments;
  std::byte* x_memory = shared + warps * ring_bytes + (meet ? args.block_strips * args.segments * 512 : 0);
  cuda::ptx::wait_for_previous();
  if (block.first >= block.end) return;
  const int rows = step_rows(args);
  round_to_shared(args, block, rows, x_memory);
  __syncthreads();
  ResidentX x{x_memory, matrix_rows(rows)};
  Sums<1> total;
  FewRun run = runs.at(0);
  for (int i = 1; run.there; ++i) {
    Sums<1> sums;
    sums.clear();
    x.begin_run(run.segment * args.segment_tiles);
    multiply_run<Operand, 1>(ring, args.segment_tiles, x, sums);
    if (split) {
      leave_segment(args, block, run, rows, shared_sums, sums);
    } else {
      if (run.segment == 0) {
        total = sums;
      } else {
        total.add(sums);
      }
      if (run.segment == args.segments - 1) store_outputs(args, run.place, rows, total);
    }
    run = runs.at(i);
  }
  if (!meet) return;
  __syncthreads();
  for (int place = block.first + warp; place < block.end; place += warps) {
    add_segments<false>(args, shared_sums + (place - block.first) * args.segments * 32, total);
    store_outputs(args, place, rows, total);
  }
}

template <TileFormat kFormat>
FewRowsKernel few_rows_instance() {
  using Operand = typename OperandOf<kFormat>::Type;
  return {linear_few_rows<kFormat>, kStageBytes<Operand>, kStageTiles<Operand>};
}

}  // namespace weir
