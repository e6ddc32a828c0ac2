// The end of the serial kernels of KDA and GDN layers: norm, gate and store of a chunk's outputs, by a warpgroup of
// their own while two others work on the next chunk.
#pragma once

#include "ops/kda_layer/kda_cuda.cuh"

namespace weir::kda {

constexpr int kSpanWarps = 8, kSpanThreads = kSpanWarps * 32;  // that compute
constexpr int kOutputWarps = 4, kOutputThreads = kOutputWarps * 32;
constexpr int kOutputPitch = 132, kValuePitch = 272;  // of o's and v's rows, without bank conflicts

// o of two chunks in turn.
struct Outputs {
  alignas(16) float values[2][kChunk][kOutputPitch];
  alignas(16) float norm_weight[kDim];
  uint64_t made[2], taken[2];

  __device__ void init() {
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrier_init(&made[i], kSpanWarps);
      ptx::mbarrier_init(&taken[i], kOutputWarps);
    }
  }
  // By a warp that computes: o of row 8 x + 2 c + e is o[4 x + e] in column g of the warp's 16, o[4 x + 2 + e] in
  // column g + 8. use: how many chunks the block has worked on before.
  __device__ void put(const float* o, int use, int warp, int lane) {
    const int buffer = use % 2, g = lane / 4, c = lane % 4;
    // racecheck outputs: a buffer is written when the chunk before in it has been `taken`, and read when it is `made`.
    ptx::mbarrier_wait(&taken[buffer], (use / 2 + 1) % 2);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[buffer][i / 4 * 8 + 2 * c + i % 2][warp * 16 + g + i % 4 / 2 * 8] = o[i];
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(&made[buffer]);
  }
};

// Where the outputs of a head's span are. Rows count from the first of chunk 0; the span has [first_row, end_row).
struct OutputPlace {
  const uint16_t* gate;
  uint16_t* out;
  int64_t gate_stride, out_stride;
  int first_row, end_row;
  float eps;
};

// A thread of the warpgroup has a row of each chunk, 16 columns of it. kSilu: the gate is SiLU, not the sigmoid.
template <bool kSilu>
class OutputRows {
 public:
  __device__ OutputRows(const OutputPlace& place, int warp, int lane)
      : row_(warp * 4 + lane % 4), column_(lane / 4 * 16), place_(place) {
    place_.gate += row_ * place.gate_stride + column_;
    place_.out += row_ * place.out_stride + column_;
  }

  // Before chunk `first` of those before `end`.
  __device__ void begin(int first, int end) { gates_ = load_gates(first, end); }

  // Chunk i; then the gates of the next are on their way.
  __device__ void put_away(Outputs& outputs, int use, int i, int end) {
    const int buffer = use % 2, lane = static_cast<int>(threadIdx.x) % 32;
    ptx::mbarrier_wait(&outputs.made[buffer], use / 2 % 2);
    __syncwarp();
    float o[16];
#pragma unroll
    for (int x = 0; x < 16; x += 4) {
      const float4 v = *reinterpret_cast<const float4*>(&outputs.values[buffer][row_][column_ + x]);
      o[x] = v.x, o[x + 1] = v.y, o[x + 2] = v.z, o[x + 3] = v.w;
    }
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(&outputs.taken[buffer]);
    const float factor = norm_factor(o, lane);
    uint32_t y[8];
#pragma unroll
    for (int x = 0; x < 8; ++x) {
      const uint4& gates = gates_.x[x / 4];
      const uint32_t gate = x % 4 == 0 ? gates.x : x % 4 == 1 ? gates.y : x % 4 == 2 ? gates.z : gates.w;
      const float2 w = *reinterpret_cast<const float2*>(&outputs.norm_weight[column_ + 2 * x]);
      y[x] = pack_bf16(o[2 * x] * factor * w.x * gated(low_bf16(gate)),
                       o[2 * x + 1] * factor * w.y * gated(high_bf16(gate)));
    }
    uint4* to = reinterpret_cast<uint4*>(place_.out + i * kChunk * place_.out_stride);
    if (live(i)) {
      ptx::store_stream(to, uint4{y[0], y[1], y[2], y[3]});
      ptx::store_stream(to + 1, uint4{y[4], y[5], y[6], y[7]});
    }
    gates_ = load_gates(i + 1, end);
    if (const int later = i + kPrefetched; later < end && live(later)) {
      ptx::prefetch(place_.gate + later * kChunk * place_.gate_stride);
    }
  }

 private:
  static constexpr int kPrefetched = 4;  // chunks from which gates are asked for as far as the L2 cache

  struct Gates {
    uint4 x[2] = {};
  };
  __device__ bool live(int i) const {
    const int row = i * kChunk + row_;
    return row >= place_.first_row && row < place_.end_row;
  }
  __device__ Gates load_gates(int i, int end) const {
    Gates gates;
    if (i >= end || !live(i)) return gates;
    const uint4* from = reinterpret_cast<const uint4*>(place_.gate + i * kChunk * place_.gate_stride);
    gates.x[0] = ptx::load_stream(from);
    gates.x[1] = ptx::load_stream(from + 1);
    return gates;
  }
  static __device__ float gated(float x) { return kSilu ? x * fast_sigmoid(x) : fast_sigmoid(x); }
  // Of the row; the order of sums is kda_layer.h's.
  __device__ float norm_factor(const float* o, int lane) const {
    float squares[8];
#pragma unroll
    for (int x = 0; x < 8; ++x) squares[x] = fmaf(o[x + 8], o[x + 8], o[x] * o[x]);
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2) {
#pragma unroll
      for (int x = 0; x < 8; x += 2 * distance) squares[x] += squares[x + distance];
    }
    float sum = __shfl_sync(kAllLanes, squares[0], lane % 4);
#pragma unroll
    for (int group = 1; group < 8; ++group) sum += __shfl_sync(kAllLanes, squares[0], group * 4 + lane % 4);
    return ptx::inverse_root_approx(fmaf(sum, 1.f / kDim, place_.eps));
  }

  int row_, column_;
  OutputPlace place_;  // of this thread's row and columns in chunk 0
  Gates gates_;
};

}  // namespace weir::kda
