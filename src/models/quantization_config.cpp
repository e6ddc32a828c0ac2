#include "models/quantization_config.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace weir {
namespace {

void expect(const JsonObject& object, std::string_view key, const std::string& value) {
  if (object.string_or(key, value) != value) object.fail_field(key, concat("'", value, "'"));
}

// DeepSeek's and Qwen's files. Activations stay in this engine's precision: activation_scheme names what other engines
// do at run time, but "static" comes with tensors of its own.
void check_fp8(const JsonObject& q) {
  expect(q, "fmt", "e4m3");
  expect(q, "activation_scheme", "dynamic");
  if (!q.has("weight_block_size") || q.integers("weight_block_size", 1, 1 << 20) != std::vector<int64_t>{128, 128}) {
    q.fail_field("weight_block_size", "[128, 128]");
  }
}

void check_channels(const JsonObject& weights) {
  if (weights.integer("num_bits", 1, 64) != 8) weights.fail_field("num_bits", "8");
  expect(weights, "type", "float");
  expect(weights, "strategy", "channel");
  if (!weights.boolean_or("symmetric", true)) weights.fail_field("symmetric", "true");
  if (weights.boolean_or("dynamic", false)) weights.fail_field("dynamic", "false");
  if (weights.has("group_size")) weights.fail_field("group_size", "null with strategy 'channel'");
}

// Rotated weights, pruned weights, a quantised cache.
void refuse_transformed(const JsonObject& q) {
  const std::optional<JsonObject> transform = q.object_if("transform_config");
  if (transform && !transform->raw().empty()) q.fail_field("transform_config", "null or an empty object");
  if (const std::optional<JsonObject> sparsity = q.object_if("sparsity_config")) expect(*sparsity, "format", "dense");
  if (q.has("kv_cache_scheme")) q.fail_field("kv_cache_scheme", "null");
}

void check_compressed_tensors(const JsonObject& q, const Checkpoint& checkpoint) {
  constexpr std::string_view kMxfp4 = "mxfp4-pack-quantized";
  refuse_transformed(q);
  const auto any = [&](const auto& is) { return std::ranges::any_of(checkpoint.tensors(), is); };
  const bool packed = checkpoint.maker() != nullptr ||
                      any([](const Tensor& t) { return std::string_view(t.name).ends_with("_packed"); });
  const std::string format = q.string_or("format", packed ? std::string(kMxfp4) : "float-quantized");
  if (format == kMxfp4) return;  // wholly described by its tensors
  if (format != "float-quantized") q.fail_field("format", "'float-quantized' or 'mxfp4-pack-quantized'");
  expect(q, "quantization_status", "compressed");
  const JsonObject groups = q.object("config_groups");
  int64_t described = 0;
  for (const auto& group : groups.raw()) {
    const std::optional<JsonObject> weights = groups.object(group.key()).object_if("weights");
    if (!weights) continue;
    check_channels(*weights);
    ++described;
  }
  if (described == 0 && any([](const Tensor& t) { return dtype_name(t.dtype) == "F8_E4M3"; })) {
    q.fail_field("config_groups", "a group with weights, as there are tensors in E4M3");
  }
}

}  // namespace

void check_quantization(const JsonObject& config, const Checkpoint& checkpoint) {
  const std::optional<JsonObject> q = config.object_if("quantization_config");
  if (!q) return;
  const std::string method = q->string("quant_method");
  if (method == "fp8") {
    check_fp8(*q);
  } else if (method == "compressed-tensors") {
    check_compressed_tensors(*q, checkpoint);
  } else if (method != "mxfp4") {
    q->fail_field("quant_method", "'fp8', 'compressed-tensors' or 'mxfp4'");
  }
}

}  // namespace weir
