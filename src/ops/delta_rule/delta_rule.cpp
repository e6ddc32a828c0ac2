#include "ops/delta_rule/delta_rule.h"

#include <utility>

#include "base/error.h"
#include "ops/delta_rule/delta_rule_kernel.h"

namespace weir {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kMaxDim = 256;

DeltaRuleHead head_kernel(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
      return reference::delta_rule_head;
    case KernelSet::kAvx2:
      return avx2::delta_rule_head;
    case KernelSet::kAvx512:
      return avx512::delta_rule_head;
  }
  return reference::delta_rule_head;
}

void check(const std::string& name, const DeltaRuleArgs& args) {
  if (args.heads < 1 || args.key_dim < 1 || args.key_dim > kMaxDim || args.value_dim < 1 || args.value_dim > kMaxDim) {
    fail(name, ": delta rule: expected at least one head and dimensions from 1 to ", kMaxDim, ", found heads ",
         args.heads, ", key_dim ", args.key_dim, ", value_dim ", args.value_dim);
  }
  const bool scalar = args.decay == DecayKind::kScalar;
  if (scalar ? args.key_heads < 1 || args.heads % args.key_heads != 0
             : args.key_heads != 0 && args.key_heads != args.heads) {
    fail(name, ": delta rule: expected ", scalar ? "key heads that divide " : "as many key heads as ", args.heads,
         " heads, found ", args.key_heads);
  }
  const int64_t row_bytes = delta_rule_journal_row_bytes(args);
  if (args.journal.group < 0 || args.journal.group >= kMaxPageGroups || args.journal.row_bytes < row_bytes) {
    fail(name, ": delta rule: expected journal rows of ", row_bytes, " bytes, found ", args.journal.row_bytes);
  }
  const int64_t anchor_bytes = delta_rule_anchor_bytes(args);
  if (args.state.bytes < anchor_bytes) {
    fail(name, ": delta rule: expected ", anchor_bytes, " bytes of state in an anchor, found ", args.state.bytes);
  }
  if (args.q == nullptr || args.k == nullptr || args.v == nullptr || args.g == nullptr || args.beta == nullptr ||
      args.out == nullptr) {
    fail(name, ": delta rule: a buffer is missing");
  }
  const int64_t keys = key_heads(args) * args.key_dim, values = args.heads * args.value_dim;
  if (args.q_stride < keys || args.k_stride < keys || args.g_stride < args.heads * decay_dim(args) ||
      args.v_stride < values || args.out_stride < values || args.beta_stride < args.heads) {
    fail(name, ": delta rule: a row stride is shorter than its row");
  }
}

class DeltaRule final : public BoundOp {
 public:
  DeltaRule(CpuDevice& device, std::string name, const DeltaRuleArgs& args)
      : BoundOp(std::move(name)), device_(device), args_(args), head_(head_kernel(device.kernels())) {
    device.reserve_scratch(delta_rule_scratch_floats(args.key_dim, args.value_dim) * kFloat);
  }

  void run(const StepView& step) override {
    const int64_t items = static_cast<int64_t>(step.spans.size()) * args_.heads;
    device_.pool().parallel_for(items, [&](int64_t item, int thread) {
      head_(args_, step, step.spans[static_cast<size_t>(item / args_.heads)], item % args_.heads,
            reinterpret_cast<float*>(device_.scratch(thread)));
    });
    for (const SpanView& span : step.spans) count_bytes(step, span);
  }

  Cost cost(int32_t rows, int64_t position) const override { return delta_rule_cost(args_, rows, position); }

 private:
  int64_t row_bytes() const { return delta_rule_journal_row_bytes(args_); }
  int64_t anchor_bytes() const { return delta_rule_anchor_bytes(args_); }

  void count_bytes(const StepView& step, const SpanView& span) const {
    StepCounters& counters = device_.counters();
    if (span.anchor != kZeroAnchor) counters.state_bytes_read += anchor_bytes();
    counters.state_bytes_read += (span.first_position - span.anchor_position) * row_bytes();
    counters.state_bytes_written += static_cast<int64_t>(span.anchor_writes.size()) * anchor_bytes();
    for (int64_t p = span.first_position; p <= span.last_position(); ++p) {
      if (journal_row(args_, step, span, 0, p).k != nullptr) counters.state_bytes_written += row_bytes();
    }
  }

  CpuDevice& device_;
  DeltaRuleArgs args_;
  DeltaRuleHead head_;
};

}  // namespace

int64_t delta_rule_journal_row_bytes(const DeltaRuleArgs& args) {
  return (key_heads(args) * args.key_dim + args.heads * (decay_dim(args) + args.value_dim)) * kFloat;
}

int64_t delta_rule_anchor_bytes(const DeltaRuleArgs& args) {
  return args.heads * args.key_dim * args.value_dim * kFloat;
}

Cost delta_rule_cost(const DeltaRuleArgs& args, int32_t rows, int64_t position) {
  const int64_t first = position - rows + 1;
  const double kv = static_cast<double>(args.heads * args.key_dim * args.value_dim);
  Cost cost;
  // A span that starts on a boundary still has the old anchor and a full page before it.
  const int64_t start = first == 0 ? 0 : (first - 1) / kPagePositions * kPagePositions;
  const int64_t commits = position / kPagePositions - start / kPagePositions;
  if (start > 0) cost.state_bytes += delta_rule_anchor_bytes(args);
  if (commits > 0) cost.state_bytes += delta_rule_anchor_bytes(args);
  cost.state_bytes += (first - start + rows) * delta_rule_journal_row_bytes(args);
  cost.flops = 33 * kv * static_cast<double>(commits);
  for (int64_t p = first; p <= position; ++p) {
    const double earlier = static_cast<double>(p % kPagePositions) + 0.5;
    cost.flops += (p < kPagePositions ? 0 : 4 * kv) +
                  4 * earlier * static_cast<double>(args.heads * (args.key_dim + args.value_dim));
  }
  return cost;
}

std::unique_ptr<BoundOp> bind_delta_rule(Device& device, std::string name, const DeltaRuleArgs& args) {
  check(name, args);
  if (device.is_cuda()) return bind_delta_rule_cuda(device.cuda(), std::move(name), args);
  return std::make_unique<DeltaRule>(device.cpu(), std::move(name), args);
}

}  // namespace weir
