// Head products on tensor cores. A block of threads has 32 outputs of one head, whose weights it brings into shared
// memory once, and passes over the rows, 64 at a time; each warp has eight outputs.
#include "device/cuda/ptx.h"
#include "ops/linear/dequant_cuda.cuh"
#include "ops/mla/mla_cuda.h"

namespace weir {
namespace {

using cuda::launch;

constexpr int kThreads = 128;
constexpr int kOutputs = 32;
constexpr int kMostRowTiles = 4;  // of sixteen rows

// Weights as BF16, [planes, heads, outputs, inner padded to 64]: one plane, or hi and lo.
struct Planes {
  const uint16_t* data;
  int64_t padded;  // inner
  int64_t plane;   // elements
  int count;
};

__device__ float element(const HeadProduct& p, int64_t head, int64_t o, int64_t i) {
  const int64_t first = head * p.head_rows + p.first_row;
  return p.transposed ? weight_value(p.weight, first + i, o) : weight_value(p.weight, first + o, i);
}

__global__ void lay_out_kernel(HeadProduct p, Planes planes, uint16_t* to) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= planes.plane) return;
  const int64_t i = at % planes.padded, o = at / planes.padded % p.outputs, head = at / planes.padded / p.outputs;
  const float w = i < p.inner ? element(p, head, o, i) : 0.f;
  to[at] = static_cast<uint16_t>(cuda::pack_bf16(w, 0.f));
  if (planes.count == 2) to[planes.plane + at] = static_cast<uint16_t>(cuda::pack_bf16(w - cuda::round_bf16(w), 0.f));
}

// Rows of 16-byte chunks, swizzled against bank conflicts.
__device__ uint32_t chunk_offset(int row, int chunk, int row_bytes) {
  return static_cast<uint32_t>(row * row_bytes + ((chunk ^ (row & 7)) << 4));
}

__device__ void load_weights(const HeadProduct& p, const Planes& w, int64_t head, int64_t first, uint32_t to) {
  const int chunks = static_cast<int>(w.padded / 8), row_bytes = chunks * 16;
  for (int i = threadIdx.x; i < w.count * kOutputs * chunks; i += kThreads) {
    const int row = i / chunks, c = i % chunks;
    const int64_t o = first + row % kOutputs;
    const bool live = o < p.outputs;
    const uint16_t* from =
        w.data + row / kOutputs * w.plane + (head * p.outputs + (live ? o : first)) * w.padded + c * 8;
    cuda::ptx::copy_async16(to + chunk_offset(row, c, row_bytes), from, live);
  }
  cuda::ptx::commit_copies();
}

__device__ void load_rows(const HeadProduct& p, int64_t padded, int64_t head, int64_t first, int64_t rows, int tiles,
                          std::byte* to) {
  const int chunks = static_cast<int>(padded / 8), row_bytes = chunks * 16;
  for (int i = threadIdx.x; i < 16 * tiles * chunks; i += kThreads) {
    const int row = i / chunks, c = i % chunks;
    const float* x = p.x + (first + row) * p.x_stride + head * (p.inner + p.extra) + c * 8;
    float v[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) v[e] = first + row < rows && c * 8 + e < p.inner ? x[e] : 0.f;
    *reinterpret_cast<uint4*>(to + chunk_offset(row, c, row_bytes)) = {
        cuda::pack_bf16(v[0], v[1]), cuda::pack_bf16(v[2], v[3]), cuda::pack_bf16(v[4], v[5]),
        cuda::pack_bf16(v[6], v[7])};
  }
}

__global__ void __launch_bounds__(kThreads)
    product_kernel(const StepView* step, HeadProduct p, Planes w, int row_tiles) {
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  const int64_t head = blockIdx.x, first_output = static_cast<int64_t>(blockIdx.y) * kOutputs;
  const int row_bytes = static_cast<int>(w.padded * 2);
  std::byte* const x = shared + w.count * kOutputs * row_bytes;
  const uint32_t weights = cuda::ptx::shared_address(shared), rows_address = cuda::ptx::shared_address(x);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t block_rows = 16 * row_tiles;
  if (blockIdx.z * block_rows >= step->rows) return;
  load_weights(p, w, head, first_output, weights);
  for (int64_t first = blockIdx.z * block_rows; first < step->rows; first += gridDim.z * block_rows) {
    load_rows(p, w.padded, head, first, step->rows, row_tiles, x);
    cuda::ptx::wait_copies<0>();
    __syncthreads();
    float sum[kMostRowTiles][4] = {};
    for (int k = 0; k < w.padded / 16; k += 2) {
      uint32_t hi[4], lo[4];
      cuda::ptx::load_matrix_x4(hi, weights + chunk_offset(warp * 8 + lane % 8, 2 * k + lane / 8, row_bytes));
      if (w.count == 2) {
        cuda::ptx::load_matrix_x4(lo,
                                  weights + chunk_offset(kOutputs + warp * 8 + lane % 8, 2 * k + lane / 8, row_bytes));
      }
#pragma unroll
      for (int t = 0; t < kMostRowTiles; ++t) {
        if (t >= row_tiles) break;
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          uint32_t a[4];
          cuda::ptx::load_matrix_x4(
              a, rows_address + chunk_offset(16 * t + lane % 16, 2 * (k + s) + lane / 16, row_bytes));
          cuda::ptx::mma_bf16(sum[t], a, hi[2 * s], hi[2 * s + 1]);
          if (w.count == 2) cuda::ptx::mma_bf16(sum[t], a, lo[2 * s], lo[2 * s + 1]);
        }
      }
    }
    const int64_t o = first_output + warp * 8 + lane % 4 * 2;
    for (int t = 0; t < row_tiles; ++t) {
      for (int i = 0; i < 4; ++i) {
        const int64_t row = first + 16 * t + lane / 4 + i / 2 * 8;
        if (row < step->rows && o + i % 2 < p.outputs) {
          float value = sum[0][i];
#pragma unroll
          for (int s = 1; s < kMostRowTiles; ++s) value = t == s ? sum[s][i] : value;
          p.y[row * p.y_stride + head * (p.outputs + p.extra) + o + i % 2] = value;
        }
      }
    }
    if (blockIdx.y == 0) {
      for (int64_t i = threadIdx.x; i < block_rows * p.extra; i += kThreads) {
        const int64_t row = first + i / p.extra, e = i % p.extra;
        if (row < step->rows) {
          p.y[row * p.y_stride + head * (p.outputs + p.extra) + p.outputs + e] =
              p.x[row * p.x_stride + head * (p.inner + p.extra) + p.inner + e];
        }
      }
    }
    __syncthreads();
  }
}

class Bf16HeadProduct final : public CudaOp {
 public:
  Bf16HeadProduct(CudaDevice& device, std::string name, const HeadProduct& product)
      : CudaOp(device, std::move(name)), product_(product), cost_weight_(product.weight) {
    planes_.padded = (product.inner + 63) / 64 * 64;
    planes_.plane = product.heads * product.outputs * planes_.padded;
    planes_.count = product.weight.format == WeightFormat::kBf16 ? 1 : 2;
    lay_out();
    product_.weight = {};
    cuda::allow_shared(product_kernel, shared_bytes(kMostRowTiles));
  }

  void enqueue(const StepBounds& bounds) override {
    if (bounds.rows == 0) return;
    const int row_tiles = bounds.rows >= 16 * kMostRowTiles ? kMostRowTiles : (bounds.rows + 15) / 16;
    const int64_t outputs = (product_.outputs + kOutputs - 1) / kOutputs;
    // Blocks of rows side by side only while there are too few of the others.
    const int64_t row_blocks = (bounds.rows + 16 * row_tiles - 1) / (16 * row_tiles);
    const int64_t wanted = 4 * device().sm_count() / (outputs * product_.heads) + 1;
    launch(device(),
           {.grid = {product_.heads, outputs, row_blocks < wanted ? row_blocks : wanted},
            .block = kThreads,
            .shared_bytes = shared_bytes(row_tiles)},
           product_kernel, device().step(), product_, planes_, row_tiles);
  }

  Cost cost(int32_t rows, int64_t) const override {
    HeadProduct product = product_;
    product.weight = cost_weight_;
    return product.cost(rows);
  }

 private:
  int64_t shared_bytes(int row_tiles) const { return (planes_.count * kOutputs + 16 * row_tiles) * planes_.padded * 2; }

  // The weights come to the device as they are, for a moment.
  void lay_out() {
    uint16_t* to = device().allocate_array<uint16_t>(planes_.count * planes_.plane);
    planes_.data = to;
    const WeightView& host = product_.weight;
    HeadProduct raw = product_;
    raw.weight.row_bytes = weight_row_bytes(host.format, host.in);
    std::byte* data = device().allocate(host.out * raw.weight.row_bytes);
    device().copy_rows(data, host.data, host.out, raw.weight.row_bytes, host.row_bytes);
    raw.weight.data = data;
    std::byte* scales = nullptr;
    if (host.scales != nullptr) {
      const int64_t rows = (host.scale_first + host.out - 1) / host.scale_rows + 1;
      scales = device().allocate(rows * host.scale_row_bytes);
      device().copy_rows(scales, host.scales, rows, host.scale_row_bytes, host.scale_row_bytes);
      raw.weight.scales = scales;
    }
    launch(device(), {.grid = (planes_.plane + kThreads - 1) / kThreads, .block = kThreads}, lay_out_kernel, raw,
           planes_, to);
    device().release(data);
    if (scales != nullptr) device().release(scales);
  }

  HeadProduct product_;
  WeightView cost_weight_;
  Planes planes_{};
};

}  // namespace

std::unique_ptr<CudaOp> make_head_product_bf16(CudaDevice& device, std::string name, const HeadProduct& product) {
  return std::make_unique<Bf16HeadProduct>(device, std::move(name), product);
}

}  // namespace weir
