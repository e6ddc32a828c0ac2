#include "ops/attention/attention_inputs.h"

#include <utility>

#include "base/error.h"

namespace weir {
namespace {

void check_rows(const std::string& name, const char* what, const void* data, int64_t stride, int64_t width) {
  if (data == nullptr) fail(name, ": attention inputs: no buffer for ", what);
  if (stride < width) {
    fail(name, ": attention inputs: expected rows of ", what, " at least ", width, " numbers apart, found ", stride);
  }
}

void check_field(const std::string& name, const char* what, const PageField& field, int64_t bytes) {
  if (field.group < 0 || field.group >= kMaxPageGroups || field.row_bytes < bytes) {
    fail(name, ": attention inputs: expected page rows of ", what, " of at least ", bytes, " bytes, found ",
         field.row_bytes);
  }
}

void check(const std::string& name, const AttentionInputsArgs& args) {
  if (args.heads < 1 || args.kv_heads < 0 || args.head_dim < 1 || args.head_dim > kLongestInputHead) {
    fail(name, ": attention inputs: expected heads of 1 to ", kLongestInputHead, " elements, found ", args.heads,
         " and ", args.kv_heads, " of ", args.head_dim);
  }
  if (args.pairs < 0 || 2 * args.pairs > args.head_dim || (args.pairs > 0 && !(args.cos && args.sin))) {
    fail(name, ": attention inputs: expected at most ", args.head_dim / 2, " rotated pairs and their angles, found ",
         args.pairs);
  }
  const int64_t q_width = args.heads * args.head_dim, kv_width = args.kv_heads * args.head_dim;
  check_rows(name, "q", args.q, args.q_stride, q_width);
  check_rows(name, "projected q", args.q_from, args.q_from_stride, args.gate != nullptr ? 2 * q_width : q_width);
  if (args.gate != nullptr) {
    check_rows(name, "gate", args.gate, args.gate_stride, q_width);
    if (args.q_from == args.q) fail(name, ": attention inputs: q can't be taken apart in place");
  }
  if (args.kv_heads == 0) return;
  check_rows(name, "k", args.k, args.k_stride, kv_width);
  check_rows(name, "v", args.v, args.v_stride, kv_width);
  check_field(name, "K", args.key, kv_width * state_dtype_bytes(args.dtype));
  check_field(name, "V", args.value, kv_width * state_dtype_bytes(args.dtype));
}

}  // namespace

std::unique_ptr<BoundOp> bind_attention_inputs(Device& device, std::string name, const AttentionInputsArgs& args) {
  check(name, args);
  if (!device.is_cuda()) fail(name, ": attention inputs: only GPUs have them as one op");
  return bind_attention_inputs_cuda(device.cuda(), std::move(name), args);
}

}  // namespace weir
