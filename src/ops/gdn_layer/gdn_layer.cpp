#include "ops/gdn_layer/gdn_layer.h"

#include <utility>

#include "base/error.h"
#include "ops/gdn_layer/gdn_layout.h"

namespace weir {
namespace {

void check_rows(const std::string& name, const char* what, const void* data, int64_t stride, int64_t width,
                int64_t multiple) {
  if (data == nullptr) fail(name, ": GDN layer: no buffer for ", what);
  if (stride < width || stride % multiple != 0) {
    fail(name, ": GDN layer: expected rows of ", what, " at least ", width, " numbers apart and a multiple of ",
         multiple, ", found ", stride);
  }
}

void check(const std::string& name, const GdnLayerArgs& args) {
  if (args.heads < 1 || args.key_heads < 1 || args.heads % args.key_heads != 0) {
    fail(name, ": GDN layer: expected key heads that divide the heads, found ", args.key_heads, " for ", args.heads);
  }
  const int64_t row_bytes = gdn_layer_journal_row_bytes(args.heads, args.key_heads);
  if (args.journal.group < 0 || args.journal.group >= kMaxPageGroups || args.journal.row_bytes != row_bytes) {
    fail(name, ": GDN layer: expected journal rows of ", row_bytes, " bytes, found ", args.journal.row_bytes);
  }
  const int64_t bytes = gdn_layer_anchor_bytes(args.heads, args.key_heads);
  if (args.state.bytes < bytes) {
    fail(name, ": GDN layer: expected ", bytes, " bytes of state in an anchor, found ", args.state.bytes);
  }
  if (args.conv == nullptr || args.a == nullptr || args.dt_bias == nullptr || args.norm_weight == nullptr) {
    fail(name, ": GDN layer: a weight is missing");
  }
  const int64_t values = args.heads * kGdnHeadDim, channels = 2 * args.key_heads * kGdnHeadDim + values;
  check_rows(name, "qkv", args.qkv, args.qkv_stride, channels, 8);
  check_rows(name, "gate", args.gate, args.gate_stride, values, 8);
  check_rows(name, "out", args.out, args.out_stride, values, 8);
  check_rows(name, "a_logit", args.a_logit, args.a_logit_stride, args.heads, 1);
  check_rows(name, "beta_logit", args.beta_logit, args.beta_logit_stride, args.heads, 1);
}

}  // namespace

int64_t gdn_layer_journal_row_bytes(int64_t heads, int64_t key_heads) {
  return (key_heads * gdn::kKeyPageBytes + heads * gdn::kValuePageBytes) / kPagePositions;
}

int64_t gdn_layer_anchor_bytes(int64_t heads, int64_t key_heads) {
  return heads * gdn::kValueAnchorBytes + key_heads * gdn::kKeyAnchorBytes;
}

std::unique_ptr<BoundOp> bind_gdn_layer(Device& device, std::string name, const GdnLayerArgs& args) {
  check(name, args);
  if (!device.is_cuda()) fail(name, ": GDN layer: only GPUs have it as one op");
  return bind_gdn_layer_cuda(device.cuda(), std::move(name), args);
}

}  // namespace weir
