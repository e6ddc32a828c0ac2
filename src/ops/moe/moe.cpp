#include "ops/moe/moe.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "ops/linear/linear.h"
#include "ops/linear/linear_tiles.h"
#include "ops/moe/moe_kernel.h"
#include "ops/moe/moe_plan.h"
#include "ops/op_sequence.h"
#include "ops/row_tiles.h"

namespace weir {
namespace {

using SumKernel = void (*)(const float* z, int64_t z_stride, const int32_t* places, const float* weights, int64_t top_k,
                           float* y, int64_t n);

SumKernel sum_kernel(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
      return reference::weighted_sum;
    case KernelSet::kAvx2:
      return avx2::weighted_sum;
    case KernelSet::kAvx512:
      return avx512::weighted_sum;
  }
  return nullptr;
}

// Of the matrix's own rows: another's may lie between them.
int64_t bytes_of(const WeightView& weight) {
  int64_t bytes = weight.bytes() - weight.out * (weight.row_bytes - weight_row_bytes(weight.format, weight.in));
  if (weight.format == WeightFormat::kMxfp4) bytes -= weight.out * (weight.scale_row_bytes - weight.in / 32);
  return bytes;
}

// Copying and adding rows: about 4 us of work, against 1 to 2 us for waking a thread.
constexpr int64_t kCopiesPerItem = 32768;
constexpr int64_t kCodesPerItem = 16384;
constexpr int64_t kSumsPerItem = 16384;  // times top_k products
// Results of a panel (rows * outputs) that scratch has room for: this many outputs when all rows go to one expert, the
// block of linear's kernels for many rows; more when rows are few.
constexpr int64_t kFullPanel = 64;
constexpr int64_t kLeastResults = 4096;

class MoeOp final : public BoundOp {
 public:
  MoeOp(CpuDevice& device, std::string name, MoeArgs args)
      : BoundOp(std::move(name)),
        device_(device),
        args_(std::move(args)),
        linear_(linear_kernel(device.kernels())),
        coded_linear_(coded_linear_kernel(device.kernels())),
        encode_(encode_row_kernel(device.kernels())),
        act_(elementwise_kernel(device.kernels())),
        sum_(sum_kernel(device.kernels())),
        plan_(static_cast<int64_t>(args_.experts.size()), args_.top_k, args_.max_rows) {
    cut_.first_item.resize(args_.experts.size() + 1);
    cut_.panel.resize(args_.experts.size());
    max_results_ = std::max(args_.max_rows * kFullPanel, kLeastResults);
    linear_bytes_ = (linear_scratch_bytes() + 63) / 64 * 64;
    device.reserve_scratch(linear_bytes_ + max_results_ * static_cast<int64_t>(sizeof(float)));
    if (args_.workspace == nullptr) args_.workspace = std::make_shared<MoeWorkspace>();
    reserve_workspace();
  }

  void run(const StepView& step) override {
    if (step.rows == 0) return;
    plan_.route(args_.ids, step.rows);
    std::byte* workspace = args_.workspace->data();
    gathered_ = reinterpret_cast<float*>(workspace);
    hidden_ = reinterpret_cast<float*>(workspace + hidden_offset_);
    inputs_.set_base(workspace);
    hiddens_.set_base(workspace);
    gather(step.rows);
    up();
    encode_hidden(step.rows * args_.top_k);
    down();
    sum(step.rows);
    for (const MoePlan::Active& a : plan_.active()) device_.counters().weight_bytes_read += expert_bytes(a.expert);
  }

  Cost cost(int32_t rows, int64_t) const override {
    const double count = static_cast<double>(args_.experts.size());
    const double read = 1 - std::pow(1 - static_cast<double>(args_.top_k) / count, rows);  // share of the experts
    double bytes = 0;
    for (size_t e = 0; e < args_.experts.size(); ++e)
      bytes += static_cast<double>(expert_bytes(static_cast<int32_t>(e)));
    const double products = static_cast<double>(args_.inter) * static_cast<double>(2 * args_.in + args_.out);
    return {.weight_bytes = static_cast<int64_t>(bytes * read),
            .flops = 2.0 * rows * static_cast<double>(args_.top_k) * products};
  }

 private:
  // The rows of one side, one for each pair, in the codings that its matrices want.
  struct CodedPairs {
    struct Part {
      bool used = false;
      int64_t row_bytes = 0;
      int64_t offset = 0;                // in the workspace
      int64_t shared = 0;                // of x, before it is gathered: in the device's shared memory
      const std::byte* first = nullptr;  // of pair 0, in this step
    };
    Part blocks_32, blocks_256, rounded;
    bool plain = false;  // FP32 is wanted too

    void want(RowCoding coding) {
      if (coding == RowCoding::kNone) plain = true;
      if (coding == RowCoding::kBlocks32) blocks_32.used = true;
      if (coding == RowCoding::kBlocks256) blocks_256.used = true;
      if (coding == RowCoding::kRounded) rounded.used = true;
    }
    const Part& part(RowCoding coding) const {
      return coding == RowCoding::kBlocks32 ? blocks_32 : coding == RowCoding::kBlocks256 ? blocks_256 : rounded;
    }
    // body(coding, part) for those in use.
    template <class Body>
    void each(Body body) {
      if (blocks_32.used) body(RowCoding::kBlocks32, blocks_32);
      if (blocks_256.used) body(RowCoding::kBlocks256, blocks_256);
      if (rounded.used) body(RowCoding::kRounded, rounded);
    }
    void set_base(const std::byte* workspace) {
      blocks_32.first = workspace + blocks_32.offset;
      blocks_256.first = workspace + blocks_256.offset;
      rounded.first = workspace + rounded.offset;
    }
  };

  void reserve_workspace() {
    for (const ExpertWeights& w : args_.experts) {
      inputs_.want(row_coding(w.gate.format, args_.activations));
      inputs_.want(row_coding(w.up.format, args_.activations));
      hiddens_.want(row_coding(w.down.format, args_.activations));
    }
    const auto padded = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
    const int64_t pairs = args_.max_rows * args_.top_k;
    hidden_offset_ = padded(pairs * std::max(args_.in, args_.out) * static_cast<int64_t>(sizeof(float)));
    int64_t bytes = hidden_offset_ + padded(pairs * args_.inter * static_cast<int64_t>(sizeof(float)));
    int64_t shared = 0;
    inputs_.each([&](RowCoding coding, CodedPairs::Part& part) {
      part.row_bytes = coded_row_layout(coding, args_.in).bytes;
      part.offset = bytes;
      part.shared = shared;
      bytes += pairs * part.row_bytes;
      shared += args_.max_rows * part.row_bytes;
    });
    hiddens_.each([&](RowCoding coding, CodedPairs::Part& part) {
      part.row_bytes = coded_row_layout(coding, args_.inter).bytes;
      part.offset = bytes;
      bytes += pairs * part.row_bytes;
    });
    args_.workspace->reserve(bytes);
    device_.reserve_shared(shared);
  }

  const float* x(int64_t row) const { return static_cast<const float*>(args_.x) + row * args_.x_stride; }

  int64_t expert_bytes(int32_t expert) const {
    const ExpertWeights& w = args_.experts[static_cast<size_t>(expert)];
    return bytes_of(w.gate) + bytes_of(w.up) + bytes_of(w.down);
  }

  // Every expert's rows, one after the other. Experts whose rows are consecutive (all of them, when there is one row)
  // could use them where they lie; that is done when it holds for all.
  void gather(int64_t rows) {
    const std::span<const MoePlan::Active> active = plan_.active();
    in_place_ = std::all_of(active.begin(), active.end(), [&](const MoePlan::Active& a) {
      return plan_.row_of(a.first_pair + a.rows - 1) - plan_.row_of(a.first_pair) == a.rows - 1;
    });
    if (inputs_.plain && !in_place_) {
      gather_rows(rows, static_cast<const std::byte*>(args_.x), args_.x_stride * int64_t{sizeof(float)},
                  reinterpret_cast<std::byte*>(gathered_), args_.in * int64_t{sizeof(float)});
    }
    inputs_.each([&](RowCoding coding, CodedPairs::Part& part) {
      std::byte* coded = device_.shared() + part.shared;
      encode(coding, x(0), args_.x_stride, args_.in, rows, coded, part.row_bytes);
      if (in_place_) {
        part.first = coded;
      } else {
        gather_rows(rows, coded, part.row_bytes, args_.workspace->data() + part.offset, part.row_bytes);
      }
    });
  }

  // One row for each pair.
  void gather_rows(int64_t rows, const std::byte* from, int64_t from_stride, std::byte* to, int64_t row_bytes) {
    const RowTiles tiles(rows * args_.top_k, row_bytes, kCopiesPerItem * int64_t{sizeof(float)}, 64);
    device_.pool().parallel_for(tiles.items(), [&](int64_t item, int) {
      tiles.each(item, [&](int64_t pair, int64_t begin, int64_t end) {
        std::memcpy(to + pair * row_bytes + begin, from + plan_.row_of(pair) * from_stride + begin,
                    static_cast<size_t>(end - begin));
      });
    });
  }

  void encode(RowCoding coding, const float* x, int64_t x_stride, int64_t elements, int64_t rows, std::byte* coded,
              int64_t row_bytes) {
    const int64_t per_item = std::max<int64_t>(kCodesPerItem / elements, 1);
    device_.pool().parallel_for((rows + per_item - 1) / per_item, [&](int64_t item, int) {
      for (int64_t r = item * per_item; r < std::min((item + 1) * per_item, rows); ++r) {
        encode_(coding, x + r * x_stride, elements, coded + r * row_bytes);
      }
    });
  }

  void encode_hidden(int64_t pairs) {
    hiddens_.each([&](RowCoding coding, CodedPairs::Part& part) {
      encode(coding, hidden_, args_.inter, args_.inter, pairs, args_.workspace->data() + part.offset, part.row_bytes);
    });
  }

  // Outputs [begin, begin + count) of a matrix for an expert's rows. x: those rows in FP32; first_row: the first of
  // them among `coded`.
  void multiply(const WeightView& matrix, int64_t begin, int64_t count, int64_t rows, const float* x, int64_t x_stride,
                const CodedPairs& coded, int64_t first_row, float* y, int64_t y_stride, std::byte* scratch) const {
    const WeightView part = matrix.rows(begin, count);
    const RowCoding coding = row_coding(matrix.format, args_.activations);
    if (coding == RowCoding::kNone) return linear_(part, 0, count, x, x_stride, rows, y, y_stride, scratch);
    const CodedPairs::Part& source = coded.part(coding);
    const CodedRows codes{source.first + first_row * source.row_bytes, source.row_bytes};
    if (coding == RowCoding::kRounded) {
      const float* rounded = reinterpret_cast<const float*>(codes.data);
      return linear_(part, 0, count, rounded, codes.row_bytes / 4, rows, y, y_stride, scratch);
    }
    coded_linear_(part, 0, count, codes, rows, y, y_stride, scratch);
  }

  // Adds `count` elements from `first` to each row of y; nothing without biases.
  void add_bias(const float* bias, int64_t first, int64_t count, int64_t rows, float* y, int64_t y_stride) const {
    for (int64_t r = 0; bias != nullptr && r < rows; ++r) {
      act_(ElementwiseKind::kAdd, 1, 0, y + r * y_stride, bias + first, y + r * y_stride, count);
    }
  }

  // body(active expert, first output, outputs, thread) for every panel of `out` outputs of every expert with rows.
  template <class Body>
  void each_panel(int64_t out, Body body) {
    plan_.cut(out, device_.threads(), max_results_, cut_);
    const std::span<const MoePlan::Active> active = plan_.active();
    device_.pool().parallel_for(cut_.items, [&](int64_t item, int thread) {
      const size_t i = static_cast<size_t>(cut_.active_of(item, static_cast<int64_t>(active.size())));
      const int64_t begin = (item - cut_.first_item[i]) * cut_.panel[i];
      body(active[i], begin, std::min(cut_.panel[i], out - begin), thread);
    });
  }

  void up() {
    each_panel(args_.inter, [&](const MoePlan::Active& a, int64_t begin, int64_t count, int thread) {
      const ExpertWeights& w = args_.experts[static_cast<size_t>(a.expert)];
      const int64_t first_row = in_place_ ? plan_.row_of(a.first_pair) : a.first_pair;
      const float* from = in_place_ ? x(first_row) : gathered_ + first_row * args_.in;
      const int64_t stride = in_place_ ? args_.x_stride : args_.in;
      std::byte* scratch = device_.scratch(thread);
      float* up = reinterpret_cast<float*>(scratch + linear_bytes_);  // [rows, count]
      float* hidden = hidden_ + a.first_pair * args_.inter + begin;
      multiply(w.gate, begin, count, a.rows, from, stride, inputs_, first_row, hidden, args_.inter, scratch);
      multiply(w.up, begin, count, a.rows, from, stride, inputs_, first_row, up, count, scratch);
      const int64_t first_bias = a.expert * args_.inter + begin;
      add_bias(args_.gate_bias, first_bias, count, a.rows, hidden, args_.inter);
      add_bias(args_.up_bias, first_bias, count, a.rows, up, count);
      for (int64_t r = 0; r < a.rows; ++r) {
        float* h = hidden + r * args_.inter;
        act_(args_.act.kind, args_.act.beta, args_.act.linear_beta, h, up + r * count, h, count);
      }
    });
  }

  void down() {
    float* z = gathered_;  // the inputs are not needed any more
    each_panel(args_.out, [&](const MoePlan::Active& a, int64_t begin, int64_t count, int thread) {
      const ExpertWeights& w = args_.experts[static_cast<size_t>(a.expert)];
      multiply(w.down, begin, count, a.rows, hidden_ + a.first_pair * args_.inter, args_.inter, hiddens_, a.first_pair,
               z + a.first_pair * args_.out + begin, args_.out, device_.scratch(thread));
      add_bias(args_.down_bias, a.expert * args_.out + begin, count, a.rows, z + a.first_pair * args_.out + begin,
               args_.out);
    });
  }

  void sum(int64_t rows) {
    const RowTiles tiles(rows, args_.out, std::max<int64_t>(kSumsPerItem / args_.top_k, 64), 64);
    device_.pool().parallel_for(tiles.items(), [&](int64_t item, int) {
      tiles.each(item, [&](int64_t row, int64_t begin, int64_t end) {
        float* y = args_.y + row * args_.y_stride + begin;
        sum_(gathered_ + begin, args_.out, plan_.places(row), args_.weights + row * args_.top_k, args_.top_k, y,
             end - begin);
        if (args_.addend == nullptr) return;
        act_(ElementwiseKind::kAdd, 1, 0, y, args_.addend + row * args_.addend_stride + begin, y, end - begin);
      });
    });
  }

  CpuDevice& device_;
  MoeArgs args_;
  LinearKernel linear_;
  CodedLinearKernel coded_linear_;
  EncodeRowKernel encode_;
  ElementwiseKernel act_;
  SumKernel sum_;
  MoePlan plan_;
  PanelCut cut_;
  int64_t max_results_ = 0;   // floats of a panel of `up`
  int64_t linear_bytes_ = 0;  // of the scratch, before the panel of `up`
  CodedPairs inputs_, hiddens_;
  int64_t hidden_offset_ = 0;  // bytes, in the workspace
  bool in_place_ = false;      // this step's rows of x are used where they lie
  float* gathered_ = nullptr;  // [pairs, in], later [pairs, out]
  float* hidden_ = nullptr;    // [pairs, inter]
};

void check_matrix(const std::string& name, size_t expert, const char* part, const WeightView& w, int64_t out,
                  int64_t in, KernelSet set) {
  const std::string matrix = concat(name, ": expert ", expert, ": ", part);
  if (w.empty()) fail(matrix, ": missing");
  if (w.out != out || w.in != in) {
    fail(matrix, ": expected shape [", out, ", ", in, "], found [", w.out, ", ", w.in, "]");
  }
  check_weight(matrix, w, set);
}

void check(const Device& device, const std::string& name, const MoeArgs& args, KernelSet set) {
  if (args.in < 1 || args.inter < 1 || args.out < 1 || args.max_rows < 1) {
    fail(name, ": MoE of in ", args.in, ", inter ", args.inter, ", out ", args.out, ", rows ", args.max_rows,
         "; all must be positive");
  }
  if (args.top_k < 1 || args.top_k > static_cast<int64_t>(args.experts.size())) {
    fail(name, ": top ", args.top_k, " of ", args.experts.size(), " experts");
  }
  if (!is_glu(args.act.kind)) {
    fail(name, ": the activation of an expert must be a gated one: SwiGLU, SiTU-GLU, GeGLU or clamped SwiGLU");
  }
  if (args.act.kind == ElementwiseKind::kSitu && !(args.act.beta > 0 && args.act.linear_beta >= 0)) {
    fail(name, ": SiTU needs beta > 0 and linear beta >= 0, found ", args.act.beta, " and ", args.act.linear_beta);
  }
  if (args.act.kind == ElementwiseKind::kClampedSwiGlu && !(args.act.linear_beta > 0)) {
    fail(name, ": a clamped SwiGLU needs a limit (linear beta) > 0, found ", args.act.linear_beta);
  }
  if ((args.gate_bias == nullptr) != (args.up_bias == nullptr) ||
      (args.gate_bias == nullptr) != (args.down_bias == nullptr)) {
    fail(name, ": expected biases of gate, up and down, or none");
  }
  if (args.x == nullptr || args.ids == nullptr || args.weights == nullptr || args.y == nullptr) {
    fail(name, ": MoE without input, routing or output");
  }
  if (args.follows && (args.follows->add.u != args.y || args.follows->add.u_stride != args.y_stride ||
                       args.follows->add.size != args.out || args.follows->add.rows != RowSet::kAll)) {
    fail(name, ": expected the sum that follows to be of the mixture's output");
  }
  if (args.x_stride < args.in || args.y_stride < args.out) {
    fail(name, ": MoE of rows of ", args.in, " to ", args.out, " elements, but strides are ", args.x_stride, " and ",
         args.y_stride);
  }
  if (args.x_type == RowType::kBf16 && (!moe_takes_bf16(device, args.experts, args.activations) ||
                                        args.x_stride != args.in || reinterpret_cast<uintptr_t>(args.x) % 16 != 0)) {
    fail(name, ": these experts multiply FP32 rows");
  }
  if (args.addend != nullptr && args.addend_stride < args.out) {
    fail(name, ": MoE of rows of ", args.out, " elements, but what is added has a stride of ", args.addend_stride);
  }
  for (size_t e = 0; e < args.experts.size(); ++e) {
    check_matrix(name, e, "gate", args.experts[e].gate, args.inter, args.in, set);
    check_matrix(name, e, "up", args.experts[e].up, args.inter, args.in, set);
    check_matrix(name, e, "down", args.experts[e].down, args.out, args.inter, set);
  }
}

}  // namespace

bool uniform_experts(const std::vector<ExpertWeights>& experts) {
  const auto alike = [](const WeightView& a, const WeightView& b) {
    return a.format == b.format && a.scale_format == b.scale_format && a.scale_cols == b.scale_cols;
  };
  const ExpertWeights& first = experts.front();
  return std::all_of(experts.begin(), experts.end(), [&](const ExpertWeights& w) {
    return alike(w.gate, first.gate) && alike(w.up, first.gate) && alike(w.down, first.down);
  });
}

bool moe_takes_bf16(const Device& device, const std::vector<ExpertWeights>& experts, Activations activations) {
  if (!device.is_cuda() || activations == Activations::kF32 || !uniform_experts(experts)) return false;
  const int64_t in = experts.front().gate.in;
  return in % (segment_count(in, kExpertSegmentIns) * kTileIns) == 0;
}

std::unique_ptr<BoundOp> bind_moe(Device& device, std::string name, MoeArgs args) {
  check(device, name, args, kernel_set(device));
  if (device.is_cuda()) return bind_moe_cuda(device.cuda(), std::move(name), std::move(args));
  if (!args.follows) return std::make_unique<MoeOp>(device.cpu(), std::move(name), std::move(args));
  std::vector<std::unique_ptr<BoundOp>> ops(2);
  ops[1] = bind_add_norm(device, name, args.follows->add, args.follows->norm);
  ops[0] = std::make_unique<MoeOp>(device.cpu(), name, std::move(args));
  return std::make_unique<OpSequence>(std::move(name), std::move(ops));
}

}  // namespace weir
