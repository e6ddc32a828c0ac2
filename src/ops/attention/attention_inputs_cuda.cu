#include "device/cuda/ptx.h"
#include "ops/attention/attention_inputs.h"
#include "ops/attention/paged_rows_cuda.cuh"
#include "ops/cuda_op.h"
#include "ops/norm/unit_cuda.cuh"

namespace weir {
namespace {

using namespace cuda;

constexpr int kHeadsPerBlock = 4, kThreads = 32 * kHeadsPerBlock;

// A warp's head, in shared memory on its way from the projections.
struct Head {
  float* x;
  int size;

  template <bool kAligned>
  __device__ void norm(const float* from, const float* weight, float eps) const {
    using U = Unit<UnitShape<32, 4, kAligned>>;
    U unit;
    unit.load(from, size);
    const float r = 1.f / math::sqrt(unit.sum_of_squares(nullptr) / static_cast<float>(size) + eps);
    U::each_quad(size, [&](int q, int k) {
      const float v[4] = {unit.quad[q].x, unit.quad[q].y, unit.quad[q].z, unit.quad[q].w};
      for (int i = 0; i < 4 && k + i < size; ++i) x[k + i] = weight != nullptr ? v[i] * r * weight[k + i] : v[i] * r;
    });
  }
  __device__ void copy(const float* from) const {
    for (int i = static_cast<int>(threadIdx.x) % 32; i < size; i += 32) x[i] = from[i];
  }
  // Element i after the rotation.
  __device__ float rotated(const AttentionInputsArgs& a, int row, int i) const {
    const int pairs = static_cast<int>(a.pairs);
    if (i >= 2 * pairs) return x[i];
    const bool interleaved = a.pairing == RopePairing::kInterleaved;
    const int pair = interleaved ? i / 2 : i % pairs;
    const bool second = interleaved ? i % 2 == 1 : i >= pairs;
    const bool neighbours = a.pairing != RopePairing::kHalfSplit;
    const float first = neighbours ? x[2 * pair] : x[pair], other = neighbours ? x[2 * pair + 1] : x[pair + pairs];
    const float cos = a.cos[row * a.pairs + pair], sin = a.sin[row * a.pairs + pair];
    return second ? fmaf(other, cos, first * sin) : fmaf(first, cos, -(other * sin));
  }
};

__device__ inline void store_element(StateDtype dtype, std::byte* row, int64_t i, float value) {
  if (dtype == StateDtype::kF32) {
    reinterpret_cast<float*>(row)[i] = value;
  } else {
    const uint32_t bits = dtype == StateDtype::kF16 ? pack_f16(value, 0.f) : pack_bf16(value, 0.f);
    reinterpret_cast<uint16_t*>(row)[i] = static_cast<uint16_t>(bits);
  }
}

__device__ inline std::byte* page_row(const StepView& step, int row, const PageField& field) {
  const auto r = static_cast<size_t>(row);
  const SpanView& span = step.spans[static_cast<size_t>(step.row_spans[r])];
  return const_cast<std::byte*>(paged_rows(step, span, field).row(step.positions[r]));
}

template <bool kAligned>
__global__ void __launch_bounds__(kThreads)
    attention_inputs_kernel(const StepView* step, const __grid_constant__ AttentionInputsArgs a) {
  __shared__ float memory[kHeadsPerBlock][kLongestInputHead];
  ptx::wait_for_previous();
  ptx::let_next_start();
  const int row = static_cast<int>(blockIdx.x), warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int head = static_cast<int>(blockIdx.y) * kHeadsPerBlock + warp;
  if (row >= step->rows) return;
  const Head h{memory[warp], static_cast<int>(a.head_dim)};
  const int64_t from_head = a.gate != nullptr ? 2 * a.head_dim : a.head_dim;
  const auto take = [&](const float* from, bool normed, const float* weight) {
    if (normed) {
      h.template norm<kAligned>(from, weight, a.eps);
    } else {
      h.copy(from);
    }
    __syncwarp();
  };
  if (head < a.heads) {
    const float* from = a.q_from + row * a.q_from_stride + head * from_head;
    take(from, a.q_norm != nullptr, a.q_norm);
    float* q = a.q + row * a.q_stride + head * a.head_dim;
    for (int i = lane; i < h.size; i += 32) q[i] = h.rotated(a, row, i);
    if (a.gate == nullptr) return;
    float* gate = a.gate + row * a.gate_stride + head * a.head_dim;
    for (int i = lane; i < h.size; i += 32) gate[i] = from[a.head_dim + i];
    return;
  }
  head -= static_cast<int>(a.heads);
  if (head >= 2 * a.kv_heads) return;
  const bool value = head >= a.kv_heads;
  if (value) head -= static_cast<int>(a.kv_heads);
  const int64_t first = head * a.head_dim;
  if (value) {
    take(a.v + row * a.v_stride + first, a.v_norm, nullptr);
  } else {
    take(a.k + row * a.k_stride + first, a.k_norm != nullptr, a.k_norm);
  }
  std::byte* to = page_row(*step, row, value ? a.value : a.key);
  for (int i = lane; i < h.size; i += 32) {
    store_element(a.dtype, to, first + i, value ? h.x[i] : h.rotated(a, row, i));
  }
}

class CudaAttentionInputs final : public CudaOp {
 public:
  CudaAttentionInputs(CudaDevice& device, std::string name, const AttentionInputsArgs& args)
      : CudaOp(device, std::move(name)), args_(args) {
    args_.q_norm = device.upload(args.q_norm, args.head_dim);
    args_.k_norm = device.upload(args.k_norm, args.head_dim);
    aligned_ =
        whole_quads({args.q_from, args.k, args.v}, {args.head_dim, args.q_from_stride, args.k_stride, args.v_stride});
  }

  void enqueue(const StepBounds& bounds) override {
    if (bounds.rows == 0) return;
    const int64_t heads = args_.heads + 2 * args_.kv_heads;
    launch(device(),
           {.grid = {bounds.rows, (heads + kHeadsPerBlock - 1) / kHeadsPerBlock}, .block = kThreads, .overlap = true},
           aligned_ ? attention_inputs_kernel<true> : attention_inputs_kernel<false>, device().step(), args_);
  }

  Cost cost(int32_t rows, int64_t) const override {
    const double elements = static_cast<double>(rows * args_.head_dim);
    const auto normed = static_cast<double>((args_.q_norm ? args_.heads : 0) + (args_.k_norm ? args_.kv_heads : 0) +
                                            (args_.v_norm ? args_.kv_heads : 0));
    const auto rotated = static_cast<double>((args_.heads + args_.kv_heads) * args_.pairs);
    return {.state_bytes = 2 * rows * args_.kv_heads * args_.head_dim * state_dtype_bytes(args_.dtype),
            .flops = 4. * normed * elements + 6. * static_cast<double>(rows) * rotated};
  }

 private:
  AttentionInputsArgs args_;
  bool aligned_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_attention_inputs_cuda(CudaDevice& device, std::string name,
                                                    const AttentionInputsArgs& args) {
  return std::make_unique<CudaAttentionInputs>(device, std::move(name), args);
}

}  // namespace weir
