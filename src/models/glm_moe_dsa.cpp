// GLM-5: DeepSeek-V3's layers with sparse attention. An indexer in each layer, or in some with the others reusing its
// choice, keeps the index_topk positions that a row attends to.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/deepseek_parts.h"
#include "models/family.h"
#include "models/limits.h"

namespace weir {
namespace {

constexpr int64_t kMaxTopK = int64_t{1} << 24;

struct IndexerConfig {
  int64_t heads = 0, dim = 0;
  int64_t top_k = 0;         // at most all positions
  std::vector<bool> shared;  // by layer
  RopePairing pairing = RopePairing::kInterleavedToHalf;
};

// Layers that reuse the choice of one before them, where indexer_types does not say: by letters, or every so many.
void read_pattern(const JsonObject& c, std::vector<bool>& shared) {
  constexpr std::string_view kPattern = "index_topk_pattern";
  if (c.has(kPattern)) {
    const std::string letters = c.string(kPattern);
    if (letters.size() != shared.size() || letters.find_first_not_of("FS") != std::string::npos) {
      c.fail_field(kPattern, concat(shared.size(), " letters F (full) or S (shared)"));
    }
    for (size_t i = 0; i < shared.size(); ++i) shared[i] = letters[i] == 'S';
    if (shared[0]) c.fail_field(kPattern, "F for the first layer");
    return;
  }
  const int64_t period = std::max<int64_t>(c.integer_or("index_topk_freq", 1, 0, kMaxWidth), 1);
  const int64_t offset = c.integer_or("index_skip_topk_offset", 2, 0, kMaxWidth);
  for (size_t i = 0; i < shared.size(); ++i) {
    shared[i] = std::max<int64_t>(static_cast<int64_t>(i) - offset + 1, 0) % period != 0;
  }
  if (shared[0]) c.fail_field("index_skip_topk_offset", "a positive integer, so that the first layer has an indexer");
}

IndexerConfig indexer_config(const JsonObject& c, const DeepseekConfig& numbers) {
  if (numbers.mla.q_lora == 0) c.fail_field("q_lora_rank", "a positive integer (the indexer's queries start there)");
  IndexerConfig i{.heads = c.integer("index_n_heads", 1, kMaxHeads),
                  .dim = c.integer("index_head_dim", numbers.mla.extra, kMaxWidth),
                  .top_k = std::min(c.integer("index_topk", 1, kMaxTopK), numbers.max_positions),
                  .shared = std::vector<bool>(static_cast<size_t>(numbers.layers), false)};
  if (!c.boolean_or("indexer_rope_interleave", true)) i.pairing = RopePairing::kHalfSplit;
  if (c.has("layer_types")) {
    c.words("layer_types", numbers.layers, {"indexed_attention", "deepseek_sparse_attention"});
  }
  if (!c.has("indexer_types")) {
    read_pattern(c, i.shared);
    return i;
  }
  const std::vector<std::string> types = c.words("indexer_types", numbers.layers, {"full", "shared"});
  for (size_t n = 0; n < types.size(); ++n) i.shared[n] = types[n] == "shared";
  if (i.shared[0]) c.fail_field("indexer_types", "'full' for the first layer");
  return i;
}

IndexerConfig indexer_config(const GgufConfig& c, const DeepseekConfig& numbers) {
  constexpr int64_t kLongContext = 1048576;
  if (numbers.mla.q_lora == 0) c.fail_key("attention.q_lora_rank", "a positive integer");
  IndexerConfig i{.heads = c.integer("attention.indexer.head_count", 1, kMaxHeads),
                  .dim = c.integer("attention.indexer.key_length", numbers.mla.extra, kMaxWidth),
                  .top_k = std::min(c.integer("attention.indexer.top_k", 1, kMaxTopK), numbers.max_positions),
                  .shared = std::vector<bool>(static_cast<size_t>(numbers.layers), false)};
  if (c.has("attention.indexer.types")) {
    const std::vector<int64_t> own = c.file().metadata().integers("glm-dsa.attention.indexer.types", 0, 1);
    if (own.size() < i.shared.size()) c.fail_key("attention.indexer.types", concat(i.shared.size(), " entries"));
    for (size_t n = 0; n < i.shared.size(); ++n) i.shared[n] = own[n] == 0;
    if (i.shared[0]) c.fail_key("attention.indexer.types", "true for the first layer");
  } else if (numbers.max_positions >= kLongContext) {
    // The pattern of the published long-context files, which lack the key: T T, then T F F F repeated.
    for (size_t n = 2; n < i.shared.size(); ++n) i.shared[n] = (n - 2) % 4 != 0;
  }
  return i;
}

void load_indexers(TensorBinder& tensors, const DeepseekConfig& c, const IndexerConfig& index, ModelSpec& spec) {
  RopeSpec rope = c.rope;
  rope.pairing = index.pairing;
  spec.ropes.push_back(rope);
  for (size_t n = 0; n < spec.layers.size(); ++n) {
    Indexer indexer{.heads = index.heads, .dim = index.dim, .top_k = index.top_k, .shared = index.shared[n]};
    if (!indexer.shared) {
      const std::string p = concat("model.layers.", n, ".self_attn.indexer.");
      indexer.rope = 1;
      indexer.scale = 1.f / std::sqrt(static_cast<float>(index.dim));
      indexer.weight_scale = 1.f / std::sqrt(static_cast<float>(index.heads));
      indexer.q = tensors.finite_linear(p + "wq_b", index.heads * index.dim, c.mla.q_lora);
      indexer.k = tensors.finite_linear(p + "wk", index.dim, c.mla.hidden);
      indexer.k_norm = tensors.floats(p + "k_norm.weight", {index.dim});
      indexer.k_norm_bias = tensors.floats(p + "k_norm.bias", {index.dim});
      indexer.weights = tensors.finite_linear(p + "weights_proj", index.heads, c.mla.hidden);
    }
    std::get<MlaMixer>(spec.layers[n].mixer).indexer = std::move(indexer);
  }
}

}  // namespace

ModelSpec load_glm_moe_dsa(const Checkpoint& checkpoint) {
  const DeepseekConfig numbers(checkpoint.config(), {.eps = 1e-5});
  const IndexerConfig index = indexer_config(checkpoint.config(), numbers);
  TensorBinder tensors(checkpoint, "");
  ModelSpec spec = load_deepseek_stack(tensors, numbers);
  load_indexers(tensors, numbers, index, spec);
  spec.family = "glm_moe_dsa";
  tensors.finish(spec.skipped);
  return spec;
}

ModelSpec load_glm_moe_dsa_gguf(const GgufFile& file) {
  const GgufConfig config(file);
  const DeepseekConfig numbers(config);
  const IndexerConfig index = indexer_config(config, numbers);
  TensorBinder tensors(file, deepseek_gguf_names());
  ModelSpec spec = load_deepseek_stack(tensors, numbers);
  load_indexers(tensors, numbers, index, spec);
  spec.family = "glm_moe_dsa";
  tensors.finish(spec.skipped);
  return spec;
}

}  // namespace weir
