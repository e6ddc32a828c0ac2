// The few-rows kernel's blocks, and their rows of x.
#pragma once

#include "ops/linear/linear_multiply.h"
#include "ops/linear/linear_multiply_cuda.cuh"
#include "ops/linear/linear_tile_cuda.cuh"

namespace weir {

// What a block computes: a share of the runs (a segment of a strip each; segments ascending) of its cluster's strips.
// There are as many blocks as multiprocessors, some without strips: where each kernel has one on each, none gets two.
struct FewShare {
  int first, strips;  // places, of the cluster
  int rank;           // of the block
  int begin, end;     // runs
  int first_segment, segments;

  __device__ explicit FewShare(const MultiplyArgs& args)
      : first(static_cast<int>(blockIdx.x) / args.cluster * args.block_strips),
        strips(first < args.places ? end_of_strips(args, first, args.block_strips) - first : 0),
        rank(static_cast<int>(blockIdx.x) % args.cluster),
        begin(strips * args.segments * rank / args.cluster),
        end(strips * args.segments * (rank + 1) / args.cluster),
        first_segment(args.segments * rank / args.cluster),
        segments((args.segments * (rank + 1) + args.cluster - 1) / args.cluster - first_segment) {}
};

// Rows of x as BF16 in shared memory, as many as the launch is for; nobody looks at the sums of those beyond the
// step's.
struct FewX {
  const MultiplyArgs& args;
  std::byte* rows;
  int first, eights, row_bytes;  // of a row: k, eights of k

  __device__ FewX(const MultiplyArgs& args_, const FewShare& share, std::byte* shared)
      : args(args_),
        rows(shared),
        first(share.first_segment * args.segment_tiles * static_cast<int>(kTileIns)),
        eights(share.segments * args.segment_tiles * static_cast<int>(kTileIns / 8)),
        row_bytes(eights * 16 + kRowGap) {}

  __device__ SharedX tile(int tile) const { return SharedX(rows + tile * 128, args.x_rows, row_bytes); }

  // By all threads, each for eights of one row; a barrier is due.
  __device__ void load(const LinearPart& part) const {
    const int row = static_cast<int>(threadIdx.x) % args.x_rows, begin = static_cast<int>(threadIdx.x) / args.x_rows;
    const int step = static_cast<int>(blockDim.x) / args.x_rows;
    const int whole = args.in - first < 8 * eights ? (args.in - first) / 8 : eights;
    if (begin >= step) return;
    if (args.x_type == RowType::kBf16) {
      copy(static_cast<const uint16_t*>(part.x) + row * part.x_stride + first, rows + row * row_bytes, begin, step,
           whole);
    } else {
      round(static_cast<const float*>(part.x) + row * part.x_stride + first,
            reinterpret_cast<uint4*>(rows + row * row_bytes), begin, step, whole);
    }
  }

 private:
  __device__ void copy(const uint16_t* x, std::byte* to, int begin, int step, int whole) const {
    for (int eight = begin; eight < eights; eight += step) {
      if (eight < whole) {
        cuda::ptx::copy_async16(cuda::ptx::shared_address(to + eight * 16), x + eight * 8);
      } else {
        *reinterpret_cast<uint4*>(to + eight * 16) = load_eight(x, eight * 8, args.in - first);
      }
    }
    cuda::ptx::commit_copies();
    cuda::ptx::wait_copies<0>();
  }
  // kBatch eights at a time, since every read is far.
  __device__ void round(const float* x, uint4* to, int begin, int step, int whole) const {
    constexpr int kBatch = 4;
    const int aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0 ? whole : 0;
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
        if (eight + i * step < aligned) to[eight + i * step] = pack_eight(low[i], high[i]);
      }
    }
    for (int eight = aligned + begin; eight < eights; eight += step) {
      to[eight] = round_eight(x, eight * 8, args.in - first);
    }
  }
};

// Shared memory that FewX takes, of a block with so many segments.
inline int64_t few_x_bytes(const MultiplyArgs& args, int segments, int32_t rows) {
  return (int64_t{segments} * args.segment_tiles * 128 + kRowGap) * rows;
}

}  // namespace weir
