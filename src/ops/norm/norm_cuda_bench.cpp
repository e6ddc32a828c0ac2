// Norms, sums with norms, attention residuals and elementwise ops on a GPU: one row, a batch of decoding sequences and
// a prompt, each against the time that its bytes take.
#include <memory>
#include <utility>
#include <vector>

#include "bench/cuda_timing.h"
#include "ops/attn_residual/residual_norm.h"
#include "ops/cuda_op.h"
#include "ops/norm/add_norm.h"

namespace weir {
namespace {

// Memory of one set: buffers of rows.
class Rows {
 public:
  static constexpr int kMostBuffers = 12;

  Rows(CudaDevice& device, int64_t elements)
      : device_(device),
        elements_(elements),
        memory_(device.allocate_array<float>(kMostBuffers * elements)),
        next_(memory_) {
    device.fill(memory_, 0x3c, kMostBuffers * elements * 4);  // 0.0115
  }
  ~Rows() { device_.release(reinterpret_cast<std::byte*>(memory_)); }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  float* next() { return std::exchange(next_, next_ + elements_); }

 private:
  CudaDevice& device_;
  int64_t elements_;
  float* memory_;
  float* next_;
};

class Bench {
 public:
  explicit Bench(CudaDevice& device) : device_(device), report_(device) {}

  // bind(rows) makes the op of one set; it moves `buffers` times the rows.
  template <class Bind>
  void line(const std::string& what, int64_t rows, int64_t size, double buffers, Bind bind) {
    const auto bytes = static_cast<int64_t>(buffers * static_cast<double>(rows * size * 4));
    const int sets = bench::rotation(device_, bytes, 16);  // single rows come from the L2 cache, as in a model
    std::vector<std::unique_ptr<Rows>> memory;
    std::vector<std::unique_ptr<BoundOp>> ops;
    for (int set = 0; set < sets; ++set) {
      memory.push_back(std::make_unique<Rows>(device_, rows * size));
      ops.push_back(bind(*memory.back()));
    }
    StepView step;
    step.rows = static_cast<int32_t>(rows);
    device_.stage(step);
    StepBounds bounds;
    bounds.rows = step.rows;
    const auto time = bench::time_calls(device_, {.sets = sets, .budget_us = 40e3}, [&](int set) {
      dynamic_cast<CudaOp&>(*ops[static_cast<size_t>(set)]).enqueue(bounds);
    });
    report_.add({.what = what,
                 .shape = concat(rows, " x ", size),
                 .us = time.us,
                 .bytes = bytes,
                 .bar_us = 1.2 * report_.floor_us(bytes)});
  }

  void all(int64_t rows, int64_t size) {
    const std::vector<float>& weight = weights_.emplace_back(static_cast<size_t>(size), 1.f);
    const auto norm = [&](const float* x, float* y) {
      return NormArgs{
          .size = size, .eps = 1e-5f, .weight = weight.data(), .x = x, .x_stride = size, .y = y, .y_stride = size};
    };
    const auto elementwise = [&](ElementwiseKind kind, const float* g, const float* u, float* y) {
      return ElementwiseArgs{.kind = kind,
                             .beta = 4,
                             .linear_beta = 25,
                             .size = size,
                             .g = g,
                             .g_stride = size,
                             .u = u,
                             .u_stride = size,
                             .y = y,
                             .y_stride = size};
    };
    line("RMS norm", rows, size, 2, [&](Rows& r) { return bind_norm(device_, "norm", norm(r.next(), r.next())); });
    line("sum with RMS norm", rows, size, 4, [&](Rows& r) {
      float* stream = r.next();
      return bind_add_norm(device_, "both", elementwise(ElementwiseKind::kAdd, stream, r.next(), stream),
                           norm(stream, r.next()));
    });
    line("norm of heads of 128, gated", rows, size, 3, [&](Rows& r) {
      NormArgs args = norm(r.next(), r.next());
      args.kind = NormKind::kRmsSiluGated;
      args.groups = size / 128;
      args.size = 128;
      args.gate = r.next();
      args.gate_stride = size;
      return bind_norm(device_, "norm", args);
    });
    line("sum", rows, size, 3, [&](Rows& r) {
      return bind_elementwise(device_, "sum", elementwise(ElementwiseKind::kAdd, r.next(), r.next(), r.next()));
    });
    line("SwiGLU", rows, size, 3, [&](Rows& r) {
      return bind_elementwise(device_, "glu", elementwise(ElementwiseKind::kSwiGlu, r.next(), r.next(), r.next()));
    });
    line("SiTU-GLU", rows, size, 3, [&](Rows& r) {
      return bind_elementwise(device_, "glu", elementwise(ElementwiseKind::kSitu, r.next(), r.next(), r.next()));
    });
    const auto residual = [&](Rows& r, int candidates) {
      AttnResidualArgs args{.stride = size, .size = size, .weight = weight.data(), .y = r.next(), .y_stride = size};
      for (int i = 0; i < candidates; ++i) args.candidates.push_back(r.next());
      return args;
    };
    line("residual of 8", rows, size, 9,
         [&](Rows& r) { return bind_attn_residual(device_, "residual", residual(r, 8)); });
    line("sum, residual of 8, RMS norm", rows, size, 12, [&](Rows& r) {
      ResidualNormArgs args{.add = {}, .residual = residual(r, 7), .norm = {}};
      float* stream = r.next();
      args.residual.candidates.push_back(stream);
      args.add = elementwise(ElementwiseKind::kAdd, stream, r.next(), stream);
      args.norm = norm(args.residual.y, r.next());
      return bind_residual_norm(device_, "all", args);
    });
  }

 private:
  CudaDevice& device_;
  bench::CudaReport report_;
  std::vector<std::vector<float>> weights_;
};

}  // namespace
}  // namespace weir

int main() {
  using namespace weir;
  if (const std::string why = why_no_cuda(); !why.empty()) {
    std::printf("no GPU: %s\n", why.c_str());
    return 0;
  }
  const auto device = open_cuda();
  Bench bench(*device);
  for (const int64_t size : {2304, 7168}) {
    for (const int64_t rows : {1, 64, 2048}) bench.all(rows, size);
  }
}
