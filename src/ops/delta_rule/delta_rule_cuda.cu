// The delta rule on a GPU, in FP32 with the bits of the CPU: the specification of delta_rule.h by its own order of
// operations. A block computes all rows of a span for one head, chunk by chunk; a thread holds one column of values, so
// no thread waits for another's part of S or u.
#include "device/cuda/kernel.h"
#include "ops/cuda_op.h"
#include "ops/delta_rule/delta_rule_kernel.h"

namespace weir {
namespace {

using namespace weir::cuda;

constexpr int kChunk = static_cast<int>(kPagePositions);
constexpr int kPairs = 2 * kChunk;  // kd of a chunk's rows, then qd

// Shared memory of a block, in floats. Rows of keys are padded with zeros to multiples of 16.
struct Layout {
  int64_t key_pad, decay_stride, value_dim;

  WEIR_HD explicit Layout(const DeltaRuleArgs& args)
      : key_pad(delta_rule_pad(args.key_dim)),
        decay_stride(args.decay == DecayKind::kScalar ? 1 : key_pad),
        value_dim(args.value_dim) {}
  WEIR_HD int64_t keys() const { return 0; }                                      // k' [16, key_pad]
  WEIR_HD int64_t kq() const { return kChunk * key_pad; }                         // [key_pad, 32] kd | qd; w | e
  WEIR_HD int64_t decays() const { return kq() + kPairs * key_pad; }              // G [16, decay_stride]
  WEIR_HD int64_t couplings() const { return decays() + kChunk * decay_stride; }  // L [16, 16], A [16, 16]
  WEIR_HD int64_t updates() const { return couplings() + 2 * kChunk * kChunk; }   // u [16, value_dim]
  WEIR_HD int64_t floats() const { return updates() + kChunk * value_dim; }
};

template <DecayKind kDecay>
struct Head {
  static constexpr bool kScalar = kDecay == DecayKind::kScalar;

  const DeltaRuleArgs& args;
  const StepView& step;
  const SpanView& span;
  int64_t head;
  Layout at;
  float *keys, *kq, *decays, *couplings, *updates;
  const float* state;  // S0 [key_dim, value_dim]; null: zeros

  __device__ Head(const DeltaRuleArgs& args_, const StepView& step_, const SpanView& span_, int64_t head_,
                  float* shared)
      : args(args_),
        step(step_),
        span(span_),
        head(head_),
        at(args_),
        keys(shared + at.keys()),
        kq(shared + at.kq()),
        decays(shared + at.decays()),
        couplings(shared + at.couplings()),
        updates(shared + at.updates()),
        state(span_.anchor == kZeroAnchor ? nullptr : anchor_state(args_, step_, span_.anchor, head_)) {
    for (int64_t i = threadIdx.x; i < kChunk * at.key_pad; i += blockDim.x) keys[i] = 0.f;
    __syncthreads();
  }

  // Rows of the open chunk before the span.
  __device__ void load_rows() {
    for (int64_t p = span.anchor_position; p < span.first_position; ++p) {
      const JournalRow row = journal_row(args, step, span, head, p);
      const int64_t i = p - span.anchor_position;
      for (int64_t c = threadIdx.x; c < args.key_dim; c += blockDim.x) keys[i * at.key_pad + c] = row.k[c];
      for (int64_t c = threadIdx.x; c < decay_dim(args); c += blockDim.x) {
        decays[i * at.decay_stride + c] = row.decay[c];
      }
      for (int64_t v = threadIdx.x; v < args.value_dim; v += blockDim.x) updates[i * at.value_dim + v] = row.u[v];
    }
    __syncthreads();
  }

  // The anchor at `position`, into the slot of the next one that is wanted: that one is among the span's own writes,
  // and what comes before it may lie there until then.
  __device__ void commit(int64_t position) {
    const float* last = decays + (kChunk - 1) * at.decay_stride;
    for (int64_t c = threadIdx.x; c < args.key_dim; c += blockDim.x) {
      const int64_t d = kScalar ? 0 : c;
      const float e = math::exp(last[d]);
      kq[c * kPairs + kChunk] = e;
      for (int j = 0; j < kChunk; ++j) {
        const float k = keys[j * at.key_pad + c];
        const bool bounded = kDecay == DecayKind::kBounded;
        kq[c * kPairs + j] = k * (bounded ? e : math::exp(last[d] - decays[j * at.decay_stride + d]));
      }
    }
    __syncthreads();
    size_t write = 0;
    while (span.anchor_writes[write].position < position) ++write;
    float* target = anchor_state(args, step, span.anchor_writes[write].slot, head);
    for (int64_t v = threadIdx.x; v < args.value_dim; v += blockDim.x) {
      float u[kChunk];
      for (int j = 0; j < kChunk; ++j) u[j] = updates[j * at.value_dim + v];
      for (int64_t c = 0; c < args.key_dim; ++c) {
        const float* w = kq + c * kPairs;
        float a = w[kChunk] * (state == nullptr ? 0.f : state[c * args.value_dim + v]);
        for (int j = 0; j < kChunk; ++j) a = math::fma(w[j], u[j], a);
        target[c * args.value_dim + v] = a;
      }
    }
    state = target;
    __syncthreads();
  }

  // G, k' and the operands of rows i to i + n - 1 of the chunk, the first of them `row` of the batch.
  __device__ void operands(int i, int n, int64_t row) {
    if (kScalar && threadIdx.x == 0) {
      for (int r = 0; r < n; ++r) add_decay(i + r, 0, args.g[(row + r) * args.g_stride + head]);
    }
    const int64_t first_key = key_head(args, head) * args.key_dim;
    for (int64_t c = threadIdx.x; c < args.key_dim; c += blockDim.x) {
      for (int r = 0; r < n; ++r) {
        const float k = args.k[(row + r) * args.k_stride + first_key + c];
        const float q = args.q[(row + r) * args.q_stride + first_key + c];
        float e = 1.f, stored = k;
        if constexpr (!kScalar) {
          const float decay = add_decay(i + r, c, args.g[(row + r) * args.g_stride + head * args.key_dim + c]);
          e = math::exp(decay);
          if (kDecay == DecayKind::kBounded) stored = k * math::exp(-decay);
        }
        keys[(i + r) * at.key_pad + c] = stored;
        kq[c * kPairs + r] = k * e;
        kq[c * kPairs + kChunk + r] = q * e;
      }
    }
    __syncthreads();
  }

  __device__ float add_decay(int i, int64_t c, float g) {
    float* decay = decays + i * at.decay_stride + c;
    *decay = i == 0 ? g : decay[-at.decay_stride] + g;
    return *decay;
  }

  // L and A of those rows: a half warp for each pair, its lanes are those of the sums.
  __device__ void pairs(int i, int n, int64_t row) {
    const int lane = static_cast<int>(threadIdx.x) % kChunk;
    const float* q = args.q + row * args.q_stride + key_head(args, head) * args.key_dim;
    for (int pair = static_cast<int>(threadIdx.x) / kChunk; pair < n * kChunk;
         pair += static_cast<int>(blockDim.x) / kChunk) {
      const int r = pair / kChunk, j = pair % kChunk;
      const bool live = j <= i + r;  // no branch around the shuffles
      float l = 0.f, a = 0.f;
      for (int64_t c = lane; live && c < at.key_pad; c += kChunk) {
        const float key = keys[j * at.key_pad + c];
        const bool padding = c >= args.key_dim;
        float x = padding ? 0.f : kq[c * kPairs + r], y = padding ? 0.f : kq[c * kPairs + kChunk + r];
        if (kDecay == DecayKind::kUnbounded && !padding) {
          const float f = math::exp(decays[(i + r) * at.decay_stride + c] - decays[j * at.decay_stride + c]);
          x = keys[(i + r) * at.key_pad + c] * f;
          y = q[r * args.q_stride + c] * f;
        }
        l = math::fma(x, key, l);
        a = math::fma(y, key, a);
      }
      l = warp_sum<kChunk>(l);
      a = warp_sum<kChunk>(a);
      if (lane != 0 || !live) continue;
      const float f = kScalar ? math::exp(decays[i + r] - decays[j]) : 1.f;
      couplings[r * kChunk + j] = kScalar ? f * l : l;
      couplings[(kChunk + r) * kChunk + j] = kScalar ? f * a : a;
    }
    __syncthreads();
  }

  // The anchor's part, u and the output of those rows. kRows: 1 or 16, at least n.
  template <int kRows>
  __device__ void columns(int i, int n, int64_t row) {
    for (int64_t v = threadIdx.x; v < args.value_dim; v += blockDim.x) {
      float p[kRows] = {}, o[kRows] = {};
      for (int64_t c = 0; state != nullptr && c < args.key_dim; ++c) {
        const float s = state[c * args.value_dim + v];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if (r >= n) continue;
          p[r] = math::fma(kq[c * kPairs + r], s, p[r]);
          o[r] = math::fma(kq[c * kPairs + kChunk + r], s, o[r]);
        }
      }
      float* u = updates + v;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r >= n) continue;
        const float* l = couplings + r * kChunk;
        const float* a = l + kChunk * kChunk;
        float read = p[r], out = o[r];
        if constexpr (kScalar) {
          const float e = math::exp(decays[i + r]);
          read = e * read;
          out = e * out;
        }
        float rest = args.v[(row + r) * args.v_stride + head * args.value_dim + v] - read;
        for (int j = 0; j < i + r; ++j) rest = math::fma(-l[j], u[j * at.value_dim], rest);
        u[(i + r) * at.value_dim] = args.beta[(row + r) * args.beta_stride + head] * rest;
        for (int j = 0; j <= i + r; ++j) out = math::fma(a[j], u[j * at.value_dim], out);
        args.out[(row + r) * args.out_stride + head * args.value_dim + v] = out;
      }
    }
    __syncthreads();
  }

  __device__ void store_rows(int i, int n, int64_t position) const {
    for (int r = 0; r < n; ++r) {
      const JournalRow row = journal_row(args, step, span, head, position + r);
      if (row.k == nullptr) return;
      if (stores_key(args, head)) {
        for (int64_t c = threadIdx.x; c < args.key_dim; c += blockDim.x) row.k[c] = keys[(i + r) * at.key_pad + c];
      }
      for (int64_t c = threadIdx.x; c < decay_dim(args); c += blockDim.x) {
        row.decay[c] = decays[(i + r) * at.decay_stride + c];
      }
      for (int64_t v = threadIdx.x; v < args.value_dim; v += blockDim.x) row.u[v] = updates[(i + r) * at.value_dim + v];
    }
  }
};

template <DecayKind kDecay>
__global__ void __launch_bounds__(256) delta_rule(DeltaRuleArgs args, const StepView* step) {
  WEIR_DYNAMIC_SHARED(float, shared);
  const int64_t item = blockIdx.x;
  if (item / args.heads >= static_cast<int64_t>(step->spans.size())) return;
  const SpanView& span = step->spans[static_cast<size_t>(item / args.heads)];
  Head<kDecay> head(args, *step, span, item % args.heads, shared);
  head.load_rows();
  for (int64_t done = 0; done < span.rows;) {
    const int64_t position = span.first_position + done, row = span.first_row + done;
    const int i = static_cast<int>(position % kChunk);
    const int n = span.rows - done < kChunk - i ? static_cast<int>(span.rows - done) : kChunk - i;
    if (i == 0 && position > span.anchor_position) head.commit(position);
    head.operands(i, n, row);
    head.pairs(i, n, row);
    if (n == 1) {
      head.template columns<1>(i, n, row);
    } else {
      head.template columns<kChunk>(i, n, row);
    }
    head.store_rows(i, n, position);
    done += n;
  }
}

using Kernel = void (*)(DeltaRuleArgs, const StepView*);

Kernel kernel_of(DecayKind decay) {
  switch (decay) {
    case DecayKind::kBounded:
      return delta_rule<DecayKind::kBounded>;
    case DecayKind::kUnbounded:
      return delta_rule<DecayKind::kUnbounded>;
    case DecayKind::kScalar:
      return delta_rule<DecayKind::kScalar>;
  }
  return delta_rule<DecayKind::kBounded>;
}

class CudaDeltaRule final : public CudaOp {
 public:
  CudaDeltaRule(CudaDevice& device, std::string name, const DeltaRuleArgs& args)
      : CudaOp(device, std::move(name)), args_(args), kernel_(kernel_of(args.decay)) {
    device.launched(allow_shared(kernel_, shared_bytes()));
  }

  void enqueue(const StepBounds& bounds) override {
    const int64_t threads = args_.value_dim <= 128 ? 128 : 256;
    launch(device(), {.grid = bounds.spans * args_.heads, .block = threads, .shared_bytes = shared_bytes()}, kernel_,
           args_, device().step());
  }

  Cost cost(int32_t rows, int64_t position) const override { return delta_rule_cost(args_, rows, position); }

 private:
  int64_t shared_bytes() const { return Layout(args_).floats() * static_cast<int64_t>(sizeof(float)); }

  DeltaRuleArgs args_;
  Kernel kernel_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_delta_rule_cuda(CudaDevice& device, std::string name, const DeltaRuleArgs& args) {
  return std::make_unique<CudaDeltaRule>(device, std::move(name), args);
}

}  // namespace weir
