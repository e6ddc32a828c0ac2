// GLM-5: DeepSeek-V3's layers with sparse attention. An indexer in each layer, or in some with the others reusing its
// choice, keeps the index_topk positions that a row attends to.
#include <cmath>

#include "base/error.h"
#include "models/deepseek_parts.h"
#include "models/family.h"

namespace weir {
namespace {

constexpr int64_t kMaxHeads = 65536;
constexpr int64_t kMaxWidth = int64_t{1} << 24;
constexpr int64_t kMaxTopK = int64_t{1} << 24;

struct IndexerConfig {
  int64_t heads = 0, dim = 0, top_k = 0;
  std::vector<bool> shared;  // by layer
  RopePairing pairing = RopePairing::kInterleavedToHalf;
};

IndexerConfig indexer_config(const JsonObject& c, const DeepseekConfig& numbers) {
  if (numbers.mla.q_lora == 0) c.fail_field("q_lora_rank", "a positive integer (the indexer's queries start there)");
  IndexerConfig i{.heads = c.integer("index_n_heads", 1, kMaxHeads),
                  .dim = c.integer("index_head_dim", numbers.mla.extra, kMaxWidth),
                  .top_k = c.integer("index_topk", 1, kMaxTopK),
                  .shared = std::vector<bool>(static_cast<size_t>(numbers.layers), false)};
  if (!c.boolean_or("indexer_rope_interleave", true)) i.pairing = RopePairing::kHalfSplit;
  if (c.has("layer_types")) {
    for (const std::string& type : c.strings("layer_types")) {
      if (type != "indexed_attention") c.fail_field("layer_types", "entries 'indexed_attention'");
    }
  }
  if (!c.has("indexer_types")) {
    for (const char* key : {"index_topk_freq", "index_topk_pattern", "index_skip_topk_offset"}) {
      if (c.has(key)) c.fail_field(key, "no such field without indexer_types");
    }
    return i;
  }
  const std::vector<std::string> types = c.strings("indexer_types");
  if (types.size() != i.shared.size()) c.fail_field("indexer_types", concat(i.shared.size(), " entries"));
  for (size_t n = 0; n < types.size(); ++n) {
    if (types[n] != "full" && types[n] != "shared") c.fail_field("indexer_types", "entries 'full' or 'shared'");
    i.shared[n] = types[n] == "shared";
  }
  if (i.shared[0]) c.fail_field("indexer_types", "'full' for the first layer");
  return i;
}

IndexerConfig indexer_config(const GgufConfig& c, const DeepseekConfig& numbers) {
  constexpr int64_t kLongContext = 1048576;
  if (numbers.mla.q_lora == 0) c.fail_key("attention.q_lora_rank", "a positive integer");
  IndexerConfig i{.heads = c.integer("attention.indexer.head_count", 1, kMaxHeads),
                  .dim = c.integer("attention.indexer.key_length", numbers.mla.extra, kMaxWidth),
                  .top_k = c.integer("attention.indexer.top_k", 1, kMaxTopK),
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
      indexer.q = tensors.linear(p + "wq_b", index.heads * index.dim, c.mla.q_lora);
      indexer.k = tensors.linear(p + "wk", index.dim, c.mla.hidden);
      indexer.k_norm = tensors.floats(p + "k_norm.weight", {index.dim});
      indexer.k_norm_bias = tensors.floats(p + "k_norm.bias", {index.dim});
      indexer.weights = tensors.linear(p + "weights_proj", index.heads, c.mla.hidden);
    }
    std::get<MlaMixer>(spec.layers[n].mixer).indexer = std::move(indexer);
  }
}

}  // namespace

ModelSpec load_glm_moe_dsa(const Checkpoint& checkpoint) {
  const DeepseekConfig numbers(checkpoint.config());
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
