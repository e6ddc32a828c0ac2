#include "models/quantization_config.h"

#include <optional>
#include <string>
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
}

void check_compressed_tensors(const JsonObject& q) {
  const std::string format = q.string_or("format", "mxfp4-pack-quantized");
  if (format == "mxfp4-pack-quantized") return;  // wholly described by its tensors
  if (format != "float-quantized") q.fail_field("format", "'float-quantized' or 'mxfp4-pack-quantized'");
  expect(q, "quantization_status", "compressed");
  const JsonObject groups = q.object("config_groups");
  for (const auto& group : groups.raw()) {
    const std::optional<JsonObject> weights = groups.object(group.key()).object_if("weights");
    if (weights) check_channels(*weights);
  }
}

}  // namespace

void check_quantization(const JsonObject& config) {
  const std::optional<JsonObject> q = config.object_if("quantization_config");
  if (!q) return;
  const std::string method = q->string("quant_method");
  if (method == "fp8") {
    check_fp8(*q);
  } else if (method == "compressed-tensors") {
    check_compressed_tensors(*q);
  } else if (method != "mxfp4") {
    q->fail_field("quant_method", "'fp8', 'compressed-tensors' or 'mxfp4'");
  }
}

}  // namespace weir
