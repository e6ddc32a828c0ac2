#include "ops/kda_layer/kda_layer.h"

#include <utility>

#include "base/error.h"
#include "ops/kda_layer/kda_layout.h"

namespace weir {
namespace {

void check_rows(const std::string& name, const char* what, const void* data, int64_t stride, int64_t width,
                int64_t multiple) {
  if (data == nullptr) fail(name, ": KDA layer: no buffer for ", what);
  if (stride < width || stride % multiple != 0) {
    fail(name, ": KDA layer: expected rows of ", what, " at least ", width, " numbers apart and a multiple of ",
         multiple, ", found ", stride);
  }
}

void check(const std::string& name, const KdaLayerArgs& args) {
  if (args.heads < 1) fail(name, ": KDA layer: expected at least one head, found ", args.heads);
  if (args.bounded && !(args.lower_bound >= -5 && args.lower_bound < 0)) {
    fail(name, ": KDA layer: expected a lower bound of the log decay in [-5, 0), found ", args.lower_bound);
  }
  const int64_t row_bytes = kda_layer_journal_row_bytes(args.heads), bytes = kda_layer_anchor_bytes(args.heads);
  if (args.journal.group < 0 || args.journal.group >= kMaxPageGroups || args.journal.row_bytes != row_bytes) {
    fail(name, ": KDA layer: expected journal rows of ", row_bytes, " bytes, found ", args.journal.row_bytes);
  }
  if (args.state.bytes < bytes) {
    fail(name, ": KDA layer: expected ", bytes, " bytes of state in an anchor, found ", args.state.bytes);
  }
  if (args.q_conv == nullptr || args.k_conv == nullptr || args.v_conv == nullptr || args.a == nullptr ||
      args.dt_bias == nullptr || args.norm_weight == nullptr) {
    fail(name, ": KDA layer: a weight is missing");
  }
  const int64_t width = args.heads * kKdaHeadDim;
  check_rows(name, "q", args.q.data, args.q.stride, width, 8);
  check_rows(name, "k", args.k.data, args.k.stride, width, 8);
  check_rows(name, "v", args.v.data, args.v.stride, width, 8);
  check_rows(name, "f", args.f.data, args.f.stride, width, 8);
  check_rows(name, "gate", args.gate.data, args.gate.stride, width, 8);
  check_rows(name, "out", args.out, args.out_stride, width, 8);
  check_rows(name, "beta_logit", args.beta_logit, args.beta_logit_stride, args.heads, 1);
}

}  // namespace

int64_t kda_layer_journal_row_bytes(int64_t heads) { return heads * kda::kPageHeadBytes / kPagePositions; }

int64_t kda_layer_anchor_bytes(int64_t heads) { return heads * kda::kAnchorHeadBytes; }

std::unique_ptr<BoundOp> bind_kda_layer(Device& device, std::string name, const KdaLayerArgs& args) {
  check(name, args);
  if (!device.is_cuda()) fail(name, ": KDA layer: only GPUs have it as one op");
  return bind_kda_layer_cuda(device.cuda(), std::move(name), args);
}

}  // namespace weir
