// Head products on tensor cores. A block of threads has some outputs of one head, whose weights it brings into shared
// memory once, and passes over the rows, a tile at a time. How outputs and rows are dealt out changes no bit.
#include <algorithm>

#include "ops/linear/dequant_cuda.cuh"
#include "ops/mla/mla_tile_cuda.cuh"

namespace weir {
namespace {

using cuda::launch;

constexpr int kLayOutThreads = 128;

// Warps: kRowWarps x 4. Each has kRowTiles tiles of sixteen rows and kOutputTiles of eight outputs.
template <int kRowWarps_, int kRowTiles_, int kOutputTiles_>
struct HeadTile {
  static constexpr int kRowWarps = kRowWarps_, kRowTiles = kRowTiles_, kOutputTiles = kOutputTiles_;
  static constexpr int kThreads = 128 * kRowWarps;
  static constexpr int kRows = 16 * kRowTiles * kRowWarps;
  static constexpr int kOutputs = 32 * kOutputTiles;
};

__device__ float element(const HeadProduct& p, int64_t head, int64_t o, int64_t i) {
  const int64_t first = head * p.head_rows + p.first_row;
  return p.transposed ? weight_value(p.weight, first + i, o) : weight_value(p.weight, first + o, i);
}

__global__ void lay_out_kernel(HeadProduct p, Planes planes, uint16_t* to) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kLayOutThreads + threadIdx.x;
  if (at >= planes.plane) return;
  const int64_t i = at % planes.padded, o = at / planes.padded % p.outputs, head = at / planes.padded / p.outputs;
  const float w = i < p.inner ? element(p, head, o, i) : 0.f;
  to[at] = static_cast<uint16_t>(cuda::pack_bf16(w, 0.f));
  if (planes.count == 2) to[planes.plane + at] = static_cast<uint16_t>(cuda::pack_bf16(w - cuda::round_bf16(w), 0.f));
}

template <class T>
__device__ __forceinline__ void load_weights(const HeadProduct& p, const Planes& w, int64_t head, int64_t first,
                                             uint32_t to) {
  const int chunks = static_cast<int>(w.padded / 8), row_bytes = chunks * 16;
  for (int i = threadIdx.x; i < w.count * T::kOutputs * chunks; i += T::kThreads) {
    const int row = w.row_of(2 * i), c = i - row * chunks;
    const int64_t o = first + row % T::kOutputs;
    const bool live = o < p.outputs;
    const uint16_t* from =
        w.data + row / T::kOutputs * w.plane + (head * p.outputs + (live ? o : first)) * w.padded + c * 8;
    cuda::ptx::copy_async16(to + chunk_offset(row, c, row_bytes), from, live);
  }
  cuda::ptx::commit_copies();
}

__device__ __forceinline__ float4 load_four(const float* x, int64_t count, bool vectors) {
  if (vectors) return count > 0 ? *reinterpret_cast<const float4*>(x) : float4{};
  return {count > 0 ? x[0] : 0.f, count > 1 ? x[1] : 0.f, count > 2 ? x[2] : 0.f, count > 3 ? x[3] : 0.f};
}

// Rows [first, first + T::kRows) of a head's x as BF16, zeros from `rows` and from the inner dimension on.
template <class T>
__device__ __forceinline__ void load_rows(const HeadProduct& p, const Planes& w, bool vectors, int64_t head,
                                          int64_t first, int64_t rows, std::byte* to) {
  constexpr int kBatch = 8;  // loads under way
  const int padded = static_cast<int>(w.padded), fours = padded / 4;
  const float* x = p.x + first * p.x_stride + head * (p.inner + p.extra);
  const int live_rows = static_cast<int>(rows - first < T::kRows ? rows - first : T::kRows);
  for (int begin = threadIdx.x; begin < T::kRows * fours; begin += kBatch * T::kThreads) {
    float4 v[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = begin + b * T::kThreads, row = w.row_of(i), k = (i - row * fours) * 4;
      v[b] = load_four(x + row * p.x_stride + k, row < live_rows ? p.inner - k : 0, vectors);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = begin + b * T::kThreads, row = w.row_of(i), four = i - row * fours;
      if (row >= T::kRows) break;
      *reinterpret_cast<uint2*>(to + chunk_offset(row, four / 2, padded * 2) + four % 2 * 8) = {
          cuda::pack_bf16(v[b].x, v[b].y), cuda::pack_bf16(v[b].z, v[b].w)};
    }
  }
}

// This warp's part of a tile of rows.
template <class T>
__device__ __forceinline__ void multiply(const Planes& w, uint32_t weights, uint32_t x,
                                         float (&sum)[T::kRowTiles][T::kOutputTiles][4]) {
  const int row_bytes = static_cast<int>(w.padded * 2), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_row = warp / 4 * 16 * T::kRowTiles, first_output = warp % 4 * 8 * T::kOutputTiles;
  for (int k = 0; k < w.padded / 16; k += 2) {
    uint32_t a[T::kRowTiles][2][4];
#pragma unroll
    for (int t = 0; t < T::kRowTiles; ++t) {
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        cuda::ptx::load_matrix_x4(a[t][s],
                                  x + chunk_offset(first_row + 16 * t + lane % 16, 2 * (k + s) + lane / 16, row_bytes));
      }
    }
#pragma unroll
    for (int n = 0; n < T::kOutputTiles; ++n) {
      const int row = first_output + 8 * n + lane % 8, chunk = 2 * k + lane / 8;
      uint32_t hi[4], lo[4];
      cuda::ptx::load_matrix_x4(hi, weights + chunk_offset(row, chunk, row_bytes));
      if (w.count == 2) cuda::ptx::load_matrix_x4(lo, weights + chunk_offset(T::kOutputs + row, chunk, row_bytes));
#pragma unroll
      for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int t = 0; t < T::kRowTiles; ++t) {
          cuda::ptx::mma_bf16(sum[t][n], a[t][s], hi[2 * s], hi[2 * s + 1]);
          if (w.count == 2) cuda::ptx::mma_bf16(sum[t][n], a[t][s], lo[2 * s], lo[2 * s + 1]);
        }
      }
    }
  }
}

template <class T>
__device__ __forceinline__ void store(const HeadProduct& p, bool vectors, int64_t head, int64_t first, int64_t rows,
                                      int64_t first_output, const float (&sum)[T::kRowTiles][T::kOutputTiles][4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  first += warp / 4 * 16 * T::kRowTiles + lane / 4;
  first_output += warp % 4 * 8 * T::kOutputTiles + lane % 4 * 2;
#pragma unroll
  for (int t = 0; t < T::kRowTiles; ++t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t row = first + 16 * t + 8 * h;
      if (row >= rows) continue;
      float* y = p.y + row * p.y_stride + head * (p.outputs + p.extra);
#pragma unroll
      for (int n = 0; n < T::kOutputTiles; ++n) {
        const int64_t o = first_output + 8 * n;
        store_pair(y, o, p.outputs, sum[t][n][2 * h], sum[t][n][2 * h + 1], vectors);
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads)
    product_kernel(const StepView* step, const __grid_constant__ HeadProduct p, const __grid_constant__ Planes w,
                   Vectors vectors) {
  WEIR_DYNAMIC_SHARED(std::byte, shared);
  const int64_t head = blockIdx.x, first_output = static_cast<int64_t>(blockIdx.y) * T::kOutputs;
  std::byte* const x = shared + w.count * T::kOutputs * w.padded * 2;
  const uint32_t weights = cuda::ptx::shared_address(shared);
  cuda::ptx::let_next_start();
  load_weights<T>(p, w, head, first_output, weights);
  cuda::ptx::wait_for_previous();
  const int64_t rows = step->rows;
  for (int64_t first = blockIdx.z * T::kRows; first < rows; first += gridDim.z * T::kRows) {
    load_rows<T>(p, w, vectors.x, head, first, rows, x);
    cuda::ptx::wait_copies<0>();
    __syncthreads();
    float sum[T::kRowTiles][T::kOutputTiles][4] = {};
    multiply<T>(w, weights, cuda::ptx::shared_address(x), sum);
    store<T>(p, vectors.y, head, first, rows, first_output, sum);
    copy_extra<T>(p, vectors, head, first, rows);
    __syncthreads();
  }
  cuda::ptx::wait_copies<0>();
}

struct Variant {
  void (*kernel)(const StepView*, HeadProduct, Planes, Vectors);
  int threads, rows, outputs;
};
template <int kRowWarps, int kRowTiles, int kOutputTiles>
Variant variant() {
  using T = HeadTile<kRowWarps, kRowTiles, kOutputTiles>;
  return {product_kernel<T>, T::kThreads, T::kRows, T::kOutputs};
}

class Bf16HeadProduct final : public CudaOp {
 public:
  Bf16HeadProduct(CudaDevice& device, std::string name, const HeadProduct& product)
      : CudaOp(device, std::move(name)), product_(product), cost_weight_(product.weight) {
    planes_.padded = (product.inner + 63) / 64 * 64;
    planes_.reciprocal = static_cast<uint32_t>(((int64_t{1} << 32) + planes_.padded / 4 - 1) / (planes_.padded / 4));
    planes_.plane = product.heads * product.outputs * planes_.padded;
    planes_.count = product.weight.format == WeightFormat::kBf16 ? 1 : 2;
    lay_out();
    product_.weight = {};
    const auto aligned = [](const float* p, int64_t stride, int64_t head, int64_t elements) {
      return (reinterpret_cast<uintptr_t>(p) | static_cast<uint64_t>(stride * 4) | static_cast<uint64_t>(head * 4)) %
                 static_cast<uint64_t>(elements * 4) ==
             0;
    };
    vectors_.x = aligned(product.x, product.x_stride, product.inner + product.extra, 4) && product.inner % 4 == 0;
    vectors_.y = aligned(product.y, product.y_stride, product.outputs + product.extra, 2);
    for (const Variant* v : {&few_, &few_narrow_, &some_, &many_}) {
      cuda::allow_shared(v->kernel, std::min(shared_bytes(*v), device.shared_limit()));
    }
  }

  void enqueue(const StepBounds& bounds) override {
    if (bounds.rows == 0) return;
    const Variant& v = choose(bounds.rows);
    const int64_t outputs = (product_.outputs + v.outputs - 1) / v.outputs;
    // Blocks of rows side by side only while there are too few of the others.
    const int64_t row_blocks = (bounds.rows + v.rows - 1) / v.rows;
    const int64_t wanted = 8 * device().sm_count() / (outputs * product_.heads) + 1;
    launch(device(),
           {.grid = {product_.heads, outputs, row_blocks < wanted ? row_blocks : wanted},
            .block = v.threads,
            .shared_bytes = shared_bytes(v),
            .overlap = true},
           v.kernel, device().step(), product_, planes_, vectors_);
  }

  Cost cost(int32_t rows, int64_t) const override {
    HeadProduct product = product_;
    product.weight = cost_weight_;
    return product.cost(rows);
  }

 private:
  int64_t shared_bytes(const Variant& v) const { return (planes_.count * v.outputs + v.rows) * planes_.padded * 2; }

  // Measured: few rows want blocks side by side, many want them to have more of a head.
  const Variant& choose(int32_t rows) const {
    const int64_t blocks = product_.heads * ((product_.outputs + 127) / 128), sms = device().sm_count();
    if (rows <= 16) return product_.inner > 256 || blocks > sms ? few_ : few_narrow_;
    const Variant& many = rows <= 64 && blocks <= sms ? some_ : many_;
    return (rows <= 64 && blocks < sms / 2) || shared_bytes(many) > device().shared_limit() ? few_ : many;
  }

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
    launch(device(), {.grid = (planes_.plane + kLayOutThreads - 1) / kLayOutThreads, .block = kLayOutThreads},
           lay_out_kernel, raw, planes_, to);
    device().release(data);
    if (scales != nullptr) device().release(scales);
  }

  HeadProduct product_;
  WeightView cost_weight_;
  Planes planes_{};
  Vectors vectors_{};
  const Variant few_ = variant<1, 1, 2>(), few_narrow_ = variant<2, 1, 1>(), some_ = variant<4, 1, 4>(),
                many_ = variant<2, 2, 4>();
};

}  // namespace

std::unique_ptr<CudaOp> make_head_product_bf16(CudaDevice& device, std::string name, const HeadProduct& product) {
  return std::make_unique<Bf16HeadProduct>(device, std::move(name), product);
}

}  // namespace weir
