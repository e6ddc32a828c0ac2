// Gemma 3, text: windowed layers between full ones, norms around every sublayer, q and k normed per head.
#include <cmath>

#include "base/error.h"
#include "models/family.h"
#include "models/gemma_parts.h"
#include "models/rope_config.h"

namespace weir {
namespace {

constexpr double kFullTheta = 1e6;
constexpr double kSlidingTheta = 1e4;
constexpr int64_t kLayersOf27B = 62;

}  // namespace

ModelSpec load_gemma3(const Checkpoint& checkpoint) {
  const JsonObject& config = checkpoint.config();
  GemmaConfig numbers(config);
  const int64_t dims = numbers.layers.front().head_dim;
  numbers.zero_centred = true;
  numbers.scale = static_cast<float>(1 / std::sqrt(config.number_or("query_pre_attn_scalar", 256, 1e-6, 1e9)));
  numbers.sliding_rope = load_rope(
      config, {.type = "sliding_attention", .theta_key = "rope_local_base_freq", .theta = kSlidingTheta}, dims);
  numbers.full_rope = load_rope(
      config, {.type = "full_attention", .theta_key = "rope_theta", .theta = kFullTheta, .scaled = true}, dims);
  TensorBinder tensors(checkpoint, "");
  ModelSpec spec = load_gemma_stack(tensors, numbers);
  spec.family = "gemma3_text";
  tensors.finish(spec.skipped);
  return spec;
}

ModelSpec load_gemma3_gguf(const GgufFile& file) {
  const GgufConfig config(file);
  GemmaConfig numbers(config);
  const int64_t dims = numbers.layers.front().head_dim;
  // query_pre_attn_scalar is not in the file. It is the head's size, but in the 27B model.
  const bool is_27b = numbers.layers.size() == kLayersOf27B;
  if (is_27b && numbers.hidden % numbers.heads != 0) {
    config.fail_key("attention.head_count", concat("a divisor of embedding_length = ", numbers.hidden));
  }
  const int64_t scalar = is_27b ? numbers.hidden / numbers.heads : dims;
  numbers.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(scalar)));
  check_gemma_scale(config, numbers);
  if (config.integer_or("rope.dimension_count", dims, 1, dims) != dims) {
    config.fail_key("rope.dimension_count", concat(dims, ", the size of a head"));
  }
  numbers.full_rope = load_rope(config, dims, {});
  numbers.sliding_rope = load_rope(config.number_or("rope.freq_base_swa", kSlidingTheta, 1 + 1e-6, 1e12), dims);
  TensorBinder tensors(file, gemma_gguf_names());
  ModelSpec spec = load_gemma_stack(tensors, numbers);
  spec.family = "gemma3_text";
  tensors.finish(spec.skipped);
  return spec;
}

}  // namespace weir
