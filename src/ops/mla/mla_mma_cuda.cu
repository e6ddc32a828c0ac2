// Head products on tensor cores: how weights are laid out, and launches. How outputs and rows are dealt out changes no
// bit.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "ops/linear/dequant_cuda.cuh"
#include "ops/mla/mla_tile_cuda.cuh"

namespace weir {
namespace {

using cuda::launch;

constexpr int kLayOutThreads = 128;

__device__ float element(const HeadProduct& p, int64_t head, int64_t o, int64_t i) {
  if (o >= p.outputs || i >= p.inner) return 0;
  const int64_t first = head * p.head_rows + p.first_row;
  return p.transposed ? weight_value(p.weight, first + i, o) : weight_value(p.weight, first + o, i);
}

// A thread for an output and an inner element.
__global__ void lay_out_kernel(HeadProduct p, HeadTiles w, std::byte* to) {
  const int64_t inner = int64_t{w.slices} * kSliceIns, outputs = int64_t{w.tiles} * kTileOutputs;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kLayOutThreads + threadIdx.x;
  if (at >= p.heads * outputs * inner) return;
  const int64_t i = at % inner, o = at / inner % outputs, head = at / inner / outputs;
  const float value = element(p, head, o, i);
  const int64_t slice = ((head * w.tiles + o / kTileOutputs) * w.slices + i / kSliceIns) * w.planes;
  const auto place = static_cast<uint32_t>(o % kTileOutputs * kSliceIns + i % kSliceIns) * 2;
  auto* plane = reinterpret_cast<uint16_t*>(to + slice * kSliceBytes + cuda::ptx::swizzle128(place));
  *plane = static_cast<uint16_t>(cuda::pack_bf16(value, 0.f));
  if (w.planes == 2) {
    plane[kSliceBytes / 2] = static_cast<uint16_t>(cuda::pack_bf16(value - cuda::round_bf16(value), 0.f));
  }
}

struct Variant {
  void (*kernel)(const StepView*, HeadProduct, HeadTiles, HeadLaunch) = nullptr;
  int threads = 0, rows = 0, warpgroups = 0, stages = 0, stage_bytes = 0, staged_bytes = 0;
};
template <int kRows, int kWarpgroups, int kPlanes>
Variant variant() {
  using T = HeadBlock<kRows, kWarpgroups, kPlanes>;
  return {product_kernel<T>, T::kThreads, T::kRows, T::kWarpgroups, T::kStages, T::kStageBytes, T::kStagedBytes};
}

class Bf16HeadProduct final : public CudaOp {
 public:
  Bf16HeadProduct(CudaDevice& device, std::string name, const HeadProduct& product)
      : CudaOp(device, std::move(name)), product_(product), cost_weight_(product.weight) {
    tiles_.tiles = static_cast<int32_t>((product.outputs + kTileOutputs - 1) / kTileOutputs);
    tiles_.slices = static_cast<int32_t>((product.inner + kSliceIns - 1) / kSliceIns);
    tiles_.planes = product.weight.format == WeightFormat::kBf16 ? 1 : 2;
    lay_out();
    product_.weight = {};
    // Do `elements` elements, from each head's first on, lie at a multiple of their size?
    const auto aligned = [](const void* p, RowType type, int64_t stride, int64_t head, int64_t first,
                            int64_t elements) {
      const int64_t size = type == RowType::kBf16 ? 2 : 4;
      const int64_t bits = reinterpret_cast<intptr_t>(p) | stride * size | head * size | first * size;
      return bits % std::min<int64_t>(elements * size, 16) == 0;
    };
    const int64_t x_head = product.inner + product.extra, y_head = product.outputs + product.extra;
    launch_.x_vectors = aligned(product.x, product.x_type, product.x_stride, x_head, 0, 8) && product.inner % 8 == 0;
    launch_.y_vectors = aligned(product.y, product.y_type, product.y_stride, y_head, 0, 8) && product.outputs % 8 == 0;
    launch_.extra_vectors = aligned(product.x, product.x_type, product.x_stride, x_head, product.inner, 4) &&
                            aligned(product.y, product.y_type, product.y_stride, y_head, product.outputs, 4) &&
                            product.extra % 4 == 0;
    variants_ = tiles_.planes == 1 ? variants<1>() : variants<2>();
    for (const Variant& v : variants_) cuda::allow_shared(v.kernel, most_shared());
    if (shape(variants_[kMany], kMostRows).shared_bytes > most_shared()) {
      fail(this->name(), ": an inner dimension of ", product.inner, " does not fit into this GPU's shared memory");
    }
  }

  void enqueue(const StepBounds& bounds) override {
    if (bounds.rows == 0) return;
    const Variant& v = choose(bounds.rows);
    const Shape s = shape(v, bounds.rows);
    HeadLaunch how = launch_;
    how.one_tile = s.one_tile;
    launch(device(),
           {.grid = {product_.heads, s.blocks, s.row_blocks},
            .block = v.threads,
            .shared_bytes = s.shared_bytes,
            .overlap = true},
           v.kernel, device().step(), product_, tiles_, how);
  }

  Cost cost(int32_t rows, int64_t) const override {
    HeadProduct product = product_;
    product.weight = cost_weight_;
    return product.cost(rows);
  }

 private:
  static constexpr int kFew = 0, kFewPairs = 1, kMany = 2, kManyPairs = 3;  // rows; pairs of warpgroups
  static constexpr int32_t kMostRows = 1 << 20;

  template <int kPlanes>
  static std::array<Variant, 4> variants() {
    return {variant<16, 1, kPlanes>(), variant<16, 2, kPlanes>(), variant<64, 1, kPlanes>(), variant<64, 2, kPlanes>()};
  }

  struct Shape {
    int64_t blocks = 0, row_blocks = 0;  // of a head's outputs, of the rows
    int64_t shared_bytes = 0;
    bool one_tile = false;
  };
  Shape shape(const Variant& v, int32_t rows) const {
    Shape s{.blocks = (tiles_.tiles + v.warpgroups - 1) / v.warpgroups};
    // Blocks of rows side by side only while there are too few of the others.
    const int64_t row_tiles = (rows + v.rows - 1) / v.rows;
    s.row_blocks = std::min(row_tiles, 8 * device().sm_count() / (s.blocks * product_.heads) + 1);
    s.one_tile = s.row_blocks == row_tiles;
    const int64_t stages = (row_tiles + s.row_blocks - 1) / s.row_blocks * ((tiles_.slices + 1) / 2);
    s.shared_bytes = v.warpgroups * (int64_t{tiles_.tile_bytes()} + (s.one_tile ? 0 : v.staged_bytes)) +
                     std::min<int64_t>(v.stages, stages) * v.stage_bytes;
    // Side by side on a multiprocessor, blocks take longer: no two are where every one can have its own.
    if (v.rows == 64 && s.blocks * product_.heads * s.row_blocks <= device().sm_count()) {
      s.shared_bytes = std::max(s.shared_bytes, most_shared() / 2 + 1024);
    }
    return s;
  }
  int64_t most_shared() const { return device().shared_limit() - 1024; }  // the rest is the kernel's own

  // Measured: few rows want many blocks side by side, unless there are very many; many rows want blocks to have more
  // of a head.
  const Variant& choose(int32_t rows) const {
    const int64_t tiles = product_.heads * tiles_.tiles, sms = device().sm_count();
    const bool few = rows <= 16;
    const Variant& pairs = variants_[few ? kFewPairs : kManyPairs];
    const bool wanted = few ? tiles > 4 * sms : rows > 64 || tiles >= sms;
    return wanted && shape(pairs, rows).shared_bytes <= most_shared() ? pairs : variants_[few ? kFew : kMany];
  }

  // The weights come to the device as they are, for a moment.
  void lay_out() {
    std::byte* to = device().allocate(product_.heads * tiles_.tiles * tiles_.tile_bytes());
    tiles_.data = to;
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
    const int64_t elements = product_.heads * tiles_.tiles * kTileOutputs * tiles_.slices * kSliceIns;
    launch(device(), {.grid = (elements + kLayOutThreads - 1) / kLayOutThreads, .block = kLayOutThreads},
           lay_out_kernel, raw, tiles_, to);
    device().release(data);
    if (scales != nullptr) device().release(scales);
  }

  HeadProduct product_;
  WeightView cost_weight_;
  HeadTiles tiles_{};
  HeadLaunch launch_{};
  std::array<Variant, 4> variants_;
};

}  // namespace

std::unique_ptr<CudaOp> make_head_product_bf16(CudaDevice& device, std::string name, const HeadProduct& product) {
  return std::make_unique<Bf16HeadProduct>(device, std::move(name), product);
}

}  // namespace weir
