// Scores of all positions as numbers that sort like them, then the top_k-th of a row digit by digit. Rows go in waves,
// as many as the workspace has room for.
#include "ops/attention/paged_rows_cuda.cuh"
#include "ops/cuda_op.h"
#include "ops/indexer/indexer.h"

namespace weir {
namespace {

using cuda::launch;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTile = 64;  // positions of a block
constexpr int64_t kScoreBytes = int64_t{64} << 20;

// Larger for the better score; -0 as +0, NaN below every number.
__device__ uint32_t rank_of(float score) {
  if (score != score) return 0;
  const uint32_t bits = __float_as_uint(score + 0.f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

struct Wave {
  uint32_t* ranks;  // [rows, stride]
  int64_t stride;
  int64_t first_row;
};

__global__ void __launch_bounds__(kThreads) scores_kernel(const StepView* step, IndexerArgs args, Wave wave) {
  WEIR_DYNAMIC_SHARED(float, q);  // [heads, dim], then [heads]
  const int64_t row = wave.first_row + blockIdx.y, tile = static_cast<int64_t>(blockIdx.x) * kTile;
  if (row >= step->rows) return;
  const auto r = static_cast<size_t>(row);
  const int64_t p = step->positions[r];
  if (p < args.top_k || tile > p) return;
  float* const weights = q + args.heads * args.dim;
  for (int64_t i = threadIdx.x; i < args.heads * args.dim; i += kThreads) q[i] = args.q[row * args.q_stride + i];
  for (int64_t h = threadIdx.x; h < args.heads; h += kThreads) {
    weights[h] = args.weights[row * args.weights_stride + h] * args.weight_scale;
  }
  __syncthreads();
  const PagedRows keys = paged_rows(*step, step->spans[static_cast<size_t>(step->row_spans[r])], args.key);
  for (int64_t i = threadIdx.x / 16; i < kTile; i += kThreads / 16) {
    const int64_t j = tile + i;
    const std::byte* key = keys.row(j <= p ? j : p);
    float score = 0;
    for (int64_t h = 0; h < args.heads; ++h) {
      const float s = args.scale * dot_sixteen(
                                       args.dim, [&](int64_t k) { return q[h * args.dim + k]; },
                                       [&](int64_t k) { return stored_element(args.dtype, key, k); });
      score = fmaf(weights[h], s > 0 ? s : 0.f, score);
    }
    if (threadIdx.x % 16 == 0 && j <= p) wave.ranks[blockIdx.y * wave.stride + j] = rank_of(score);
  }
}

// The rank of the best `keep`-th of n, and how many of that rank belong to the best.
struct Threshold {
  uint32_t rank;
  int64_t keep;
};

__device__ Threshold find_threshold(const uint32_t* ranks, int64_t n, int64_t keep) {
  __shared__ int histogram[256];
  __shared__ int digit, above;
  uint32_t prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    histogram[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t j = threadIdx.x; j < n; j += kThreads) {
      if (shift == 24 || ranks[j] >> (shift + 8) == prefix) atomicAdd(&histogram[ranks[j] >> shift & 255], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int64_t seen = 0;
      int d = 255;
      while (seen + histogram[d] < keep) seen += histogram[d--];
      digit = d, above = static_cast<int>(seen);
    }
    __syncthreads();
    prefix = prefix << 8 | static_cast<uint32_t>(digit);
    keep -= above;
  }
  return {prefix, keep};
}

// How many threads before this one have the flag, and how many have it in all.
struct Count {
  int before, all;
};
__device__ Count count_flags(bool flag, int* warp_counts) {
  const int warp = threadIdx.x / 32;
  const uint32_t lanes = __ballot_sync(cuda::kAllLanes, flag);
  __syncthreads();  // the counts of the call before have been read
  if (threadIdx.x % 32 == 0) warp_counts[warp] = __popc(lanes);
  __syncthreads();
  Count count{__popc(lanes & ((1u << threadIdx.x % 32) - 1)), 0};
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) count.before += warp_counts[w];
    count.all += warp_counts[w];
  }
  return count;
}

__global__ void __launch_bounds__(kThreads) choose_kernel(const StepView* step, IndexerArgs args, Wave wave) {
  __shared__ int warp_counts[kWarps];
  const int64_t row = wave.first_row + blockIdx.x;
  if (row >= step->rows) return;
  const int64_t p = step->positions[static_cast<size_t>(row)];
  int32_t* selected = args.selected + row * args.top_k;
  const bool all = p < args.top_k;
  if (threadIdx.x == 0) args.count[row] = static_cast<int32_t>(all ? p + 1 : args.top_k);
  if (all) {
    for (int64_t j = threadIdx.x; j <= p; j += kThreads) selected[j] = static_cast<int32_t>(j);
    return;
  }
  const uint32_t* ranks = wave.ranks + blockIdx.x * wave.stride;
  const Threshold threshold = find_threshold(ranks, p + 1, args.top_k);
  int64_t chosen = 0, equal = 0;
  for (int64_t first = 0; first <= p; first += kThreads) {
    const int64_t j = first + threadIdx.x;
    const bool same = j <= p && ranks[j] == threshold.rank;
    const Count of_same = count_flags(same, warp_counts);
    const bool take = j <= p && (ranks[j] > threshold.rank || (same && equal + of_same.before < threshold.keep));
    const Count of_taken = count_flags(take, warp_counts);
    if (take) selected[chosen + of_taken.before] = static_cast<int32_t>(j);
    chosen += of_taken.all;
    equal += of_same.all;
  }
}

class CudaIndexer final : public CudaOp {
 public:
  CudaIndexer(CudaDevice& device, std::string name, const IndexerArgs& args)
      : CudaOp(device, std::move(name)), args_(args), shared_bytes_((args.heads * args.dim + args.heads) * 4) {
    device.reserve_workspace(kScoreBytes);
    cuda::allow_shared(scores_kernel, shared_bytes_);
  }

  void enqueue(const StepBounds& bounds) override {
    const int64_t tiles = (bounds.longest_context + kTile - 1) / kTile;
    const int64_t stride = tiles * kTile;
    const int64_t rows = stride * 4 < kScoreBytes ? kScoreBytes / (stride * 4) : 1;
    for (int64_t first = 0; first < bounds.rows; first += rows) {
      const int64_t count = first + rows < bounds.rows ? rows : bounds.rows - first;
      const Wave wave{reinterpret_cast<uint32_t*>(device().workspace()), stride, first};
      if (bounds.longest_context > args_.top_k) {
        launch(device(), {.grid = {tiles, count}, .block = kThreads, .shared_bytes = shared_bytes_}, scores_kernel,
               device().step(), args_, wave);
      }
      launch(device(), {.grid = count, .block = kThreads}, choose_kernel, device().step(), args_, wave);
    }
  }

  Cost cost(int32_t rows, int64_t position) const override {
    if (position < args_.top_k) return {};
    return {.state_bytes = (position + 1) * args_.dim * state_dtype_bytes(args_.dtype),
            .flops = 2. * rows * static_cast<double>(args_.heads * args_.dim) * static_cast<double>(position + 1)};
  }

 private:
  IndexerArgs args_;
  int64_t shared_bytes_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_indexer_cuda(CudaDevice& device, std::string name, const IndexerArgs& args) {
  return std::make_unique<CudaIndexer>(device, std::move(name), args);
}

}  // namespace weir
