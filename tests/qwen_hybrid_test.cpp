// Qwen's hybrids of Gated DeltaNet and attention: the same model in another layout of files gives the same bits, shapes
// that no fixture has agree with an FP64 evaluation of the published formulas, and what is wrong is refused by name.
#include <algorithm>
#include <cmath>
#include <functional>

#include "engine/engine.h"
#include "tests/support/fixtures.h"
#include "tests/support/gguf_files.h"
#include "tests/support/model_files.h"

namespace weir::test {
namespace {

std::vector<float> logits_of(const std::filesystem::path& folder, const std::vector<int32_t>& ids) {
  const std::unique_ptr<Model> model = Model::load(folder);
  Engine engine(*model, exact_options(32, static_cast<int64_t>(ids.size())));
  return all_logits(engine, ids);
}

std::vector<int32_t> prompt(const char* folder) {
  std::vector<int32_t> ids = Golden(fixture(folder) + "/golden.safetensors").ids("prompt_a.ids");
  ids.resize(70);
  return ids;
}

std::vector<float> logits_of(const ModelFiles& files, const std::vector<int32_t>& ids) {
  TemporaryFolder folder;
  files.write(folder.path());
  return logits_of(folder.path(), ids);
}

// Rows [begin, begin + count) of a matrix.
void append_rows(RawTensor& to, const RawTensor& from, int64_t begin, int64_t count) {
  const int64_t row = static_cast<int64_t>(from.data.size()) / from.shape[0];
  to.dtype = from.dtype;
  if (to.shape.empty()) {
    to.shape = from.shape;
    to.shape[0] = 0;
  }
  to.shape[0] += count;
  to.data.insert(to.data.end(), from.data.begin() + begin * row, from.data.begin() + (begin + count) * row);
}

TEST(QwenHybrid, SplitProjectionsAndStackedExpertsGiveTheBitsOfQwen3Next) {
  ModelFiles files = ModelFiles::read(fixture("hf/qwen3_next"));
  const std::vector<float> expected = logits_of(fixture("hf/qwen3_next"), prompt("hf/qwen3_next"));
  constexpr int64_t kKeyHeads = 2, kRatio = 2, kKey = 32, kValue = 32, kExperts = 8;
  std::map<std::string, RawTensor> out;
  int fused = 0;
  for (const auto& [name, t] : files.tensors) {
    const auto at = [&, &tensor_name = name](const char* part) {
      return tensor_name.substr(0, tensor_name.find("in_proj")) + part;
    };
    if (name.ends_with("in_proj_qkvz.weight")) {
      ++fused;
      RawTensor &qkv = out[at("in_proj_qkv.weight")], &z = out[at("in_proj_z.weight")];
      const int64_t group = 2 * kKey + 2 * kRatio * kValue;
      for (int64_t g = 0; g < kKeyHeads; ++g) append_rows(qkv, t, g * group, kKey);
      for (int64_t g = 0; g < kKeyHeads; ++g) append_rows(qkv, t, g * group + kKey, kKey);
      for (int64_t g = 0; g < kKeyHeads; ++g) append_rows(qkv, t, g * group + 2 * kKey, kRatio * kValue);
      for (int64_t g = 0; g < kKeyHeads; ++g)
        append_rows(z, t, g * group + 2 * kKey + kRatio * kValue, kRatio * kValue);
    } else if (name.ends_with("in_proj_ba.weight")) {
      RawTensor &b = out[at("in_proj_b.weight")], &a = out[at("in_proj_a.weight")];
      for (int64_t g = 0; g < kKeyHeads; ++g) {
        append_rows(b, t, g * 2 * kRatio, kRatio);
        append_rows(a, t, (g * 2 + 1) * kRatio, kRatio);
      }
    } else if (name.find(".experts.") == std::string::npos) {
      out[name] = t;
    }
  }
  EXPECT_EQ(fused, 3);
  for (int layer = 0; layer < 5; ++layer) {
    const std::string p = concat("model.layers.", layer, ".mlp.experts.");
    RawTensor &gate_up = out[p + "gate_up_proj"], &down = out[p + "down_proj"];
    for (int64_t e = 0; e < kExperts; ++e) {
      for (const char* part : {".gate_proj.weight", ".up_proj.weight"}) {
        const RawTensor& t = files.tensors.at(concat(p, e, part));
        append_rows(gate_up, t, 0, t.shape[0]);
      }
      const RawTensor& t = files.tensors.at(concat(p, e, ".down_proj.weight"));
      append_rows(down, t, 0, t.shape[0]);
    }
    for (RawTensor* t : {&gate_up, &down}) t->shape = {kExperts, t->shape[0] / kExperts, t->shape[1]};
  }
  files.tensors = std::move(out);
  for (const char* model_type : {"qwen3_next", "qwen3_5_moe_text"}) {
    files.config["model_type"] = model_type;
    EXPECT_TRUE(same_bits(logits_of(files, prompt("hf/qwen3_next")), expected)) << model_type;
  }
}

TEST(QwenHybrid, OneKeyHeadForEachValueHeadGivesTheBitsOfASharedOne) {
  ModelFiles files = ModelFiles::read(fixture("hf/qwen3_5"));
  const std::vector<float> expected = logits_of(fixture("hf/qwen3_5"), prompt("hf/qwen3_5"));
  constexpr int64_t kKeyHeads = 2, kRatio = 2, kKey = 32, kValues = 4 * 32;
  int widened = 0;
  for (auto& [name, t] : files.tensors) {
    if (!name.ends_with("in_proj_qkv.weight") && !name.ends_with("conv1d.weight")) continue;
    ++widened;
    RawTensor wide;
    for (int64_t head = 0; head < 2 * kKeyHeads; ++head) {  // of q, then of k
      for (int64_t copy = 0; copy < kRatio; ++copy) append_rows(wide, t, head * kKey, kKey);
    }
    append_rows(wide, t, 2 * kKeyHeads * kKey, kValues);
    t = wide;
  }
  EXPECT_EQ(widened, 6);
  files.config["linear_num_key_heads"] = 4;
  EXPECT_TRUE(same_bits(logits_of(files, prompt("hf/qwen3_5")), expected));
}

TEST(QwenHybrid, TextWrappedInAModelForImagesGivesItsBits) {
  for (const std::string name : {"hf/qwen3_5", "hf/qwen3_5_moe"}) {
    const std::unique_ptr<Model> wrapped = Model::load(fixture(name + "/vl"));
    EXPECT_EQ(wrapped->spec.skipped.front(), "model.visual.");
    Engine engine(*wrapped, exact_options(32, 70));
    const std::vector<int32_t> ids = prompt(name.c_str());
    EXPECT_TRUE(same_bits(all_logits(engine, ids), logits_of(fixture(name), ids))) << name;
  }
}

TEST(QwenHybrid, BothGenerationsOfConfigAndAnIntervalInsteadOfALayerListGiveTheSameBits) {
  for (const std::string name : {"hf/qwen3_next", "hf/qwen3_moe"}) {
    ModelFiles files = ModelFiles::read(fixture(name));
    files.config = read_json_file(fixture(name) + "/config.hub.json").as_object();
    const std::vector<int32_t> ids = prompt(name.c_str());
    EXPECT_TRUE(same_bits(logits_of(files, ids), logits_of(fixture(name), ids))) << name;
  }
  ModelFiles files = ModelFiles::read(fixture("hf/qwen3_5"));
  files.config.erase("layer_types");  // three linear, one full: the default interval, too
  const std::vector<int32_t> ids = prompt("hf/qwen3_5");
  const std::vector<float> expected = logits_of(fixture("hf/qwen3_5"), ids);
  EXPECT_TRUE(same_bits(logits_of(files, ids), expected));
  files.config["full_attention_interval"] = 4;
  EXPECT_TRUE(same_bits(logits_of(files, ids), expected));
}

// --- GGUF ---

using weir::testing::GgufBytes;

std::vector<float> logits_of(const GgufBytes& file, const std::vector<int32_t>& ids) {
  TemporaryFolder folder;
  write_gguf(file, folder.path() / "m.gguf");
  return logits_of(folder.path() / "m.gguf", ids);
}

TEST(QwenHybrid, GgufFilesOfOlderConvertersGiveTheSameBits) {
  const std::vector<int32_t> ids = prompt("hf/qwen3_next");
  const std::vector<float> expected = logits_of(fixture("gguf/qwen3_next-bf16.gguf"), ids);
  GgufBytes file = read_gguf(fixture("gguf/qwen3_next-bf16.gguf"));
  file.set("qwen3next.expert_gating_func", weir::testing::gguf_u32(1));
  file.set("qwen3next.expert_weights_norm", weir::testing::gguf_bool(true));
  // One tensor for q|k|v and z, rows as published; gate and up of the experts in one.
  constexpr size_t kKeyHeads = 2, kKey = 32, kValues = 64, kRow = 64 * 2, kExpert = 32 * kRow;
  for (const int layer : {0, 2, 3}) {
    const std::string p = concat("blk.", layer, ".");
    const std::string qkv = file.tensor(p + "attn_qkv.weight").data, z = file.tensor(p + "attn_gate.weight").data;
    std::string all;
    for (size_t g = 0; g < kKeyHeads; ++g) {
      all += qkv.substr(g * kKey * kRow, kKey * kRow);
      all += qkv.substr((kKeyHeads + g) * kKey * kRow, kKey * kRow);
      all += qkv.substr((2 * kKeyHeads * kKey + g * kValues) * kRow, kValues * kRow);
      all += z.substr(g * kValues * kRow, kValues * kRow);
    }
    file.erase_tensor(p + "attn_qkv.weight");
    file.erase_tensor(p + "attn_gate.weight");
    file.tensors.push_back({p + "ssm_in.weight", {64, 384}, 30, all, -1});
  }
  for (int layer = 0; layer < 5; ++layer) {
    const std::string p = concat("blk.", layer, ".");
    const std::string gate = file.tensor(p + "ffn_gate_exps.weight").data,
                      up = file.tensor(p + "ffn_up_exps.weight").data;
    std::string both;
    for (size_t e = 0; e < 8; ++e) both += gate.substr(e * kExpert, kExpert) + up.substr(e * kExpert, kExpert);
    file.erase_tensor(p + "ffn_gate_exps.weight");
    file.erase_tensor(p + "ffn_up_exps.weight");
    file.tensors.push_back({p + "ffn_gate_up_exps.weight", {64, 64, 8}, 30, both, -1});
  }
  EXPECT_TRUE(same_bits(logits_of(file, ids), expected));

  const std::vector<int32_t> other_ids = prompt("hf/qwen3_5");
  GgufBytes other = read_gguf(fixture("gguf/qwen3_5-bf16.gguf"));
  other.erase("qwen35.attention.recurrent_layers");  // leaves the interval
  EXPECT_TRUE(same_bits(logits_of(other, other_ids), logits_of(fixture("gguf/qwen3_5-bf16.gguf"), other_ids)));
}

TEST(QwenHybrid, GgufKeysChooseTheRouter) {
  const std::vector<int32_t> ids = prompt("hf/qwen3_moe");
  ModelFiles files = ModelFiles::read(fixture("hf/qwen3_moe"));
  files.config["norm_topk_prob"] = false;
  GgufBytes file = read_gguf(fixture("gguf/qwen3_moe-bf16.gguf"));
  file.set("qwen3moe.expert_weights_norm", weir::testing::gguf_bool(false));
  const std::vector<float> bare = logits_of(file, ids);
  EXPECT_TRUE(same_bits(bare, logits_of(files, ids)));
  EXPECT_FALSE(same_bits(bare, logits_of(fixture("hf/qwen3_moe"), ids)));
  file.set("qwen3moe.expert_gating_func", weir::testing::gguf_u32(2));
  EXPECT_FALSE(same_bits(logits_of(file, ids), bare));
  file.set("qwen3moe.expert_gating_func", weir::testing::gguf_u32(4));
  try {
    logits_of(file, ids);
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("qwen3moe.expert_gating_func"), std::string::npos) << error.what();
  }
}

TEST(QwenHybrid, PredictionHeadsAreSkipped) {
  const std::vector<int32_t> ids = prompt("hf/qwen3_next");
  const std::vector<float> expected = logits_of(fixture("hf/qwen3_next"), ids);
  EXPECT_TRUE(same_bits(logits_of(fixture("hf/qwen3_next_mtp"), ids), expected));
  // In GGUF their blocks follow the layers.
  GgufBytes file = read_gguf(fixture("gguf/qwen3_next-bf16.gguf"));
  file.set("qwen3next.block_count", weir::testing::gguf_u32(6));
  file.set("qwen3next.nextn_predict_layers", weir::testing::gguf_u32(1));
  GgufBytes::RawTensor norm = file.tensor("output_norm.weight");
  norm.name = "blk.5.nextn.enorm.weight";
  file.tensors.push_back(norm);
  EXPECT_TRUE(same_bits(logits_of(file, ids), expected));
}

// --- shapes that no fixture has ---

// The FNV-1a hash of a tensor's name seeds a SplitMix64 stream.
std::vector<float> generated(const std::string& name, const std::vector<int64_t>& shape) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  double a = 0, s = 1.5 / std::sqrt(static_cast<double>(shape.back()));
  if (name.ends_with("A_log") || name.ends_with("dt_bias") || name.ends_with("conv1d.weight")) s = 0.5;
  if (name.ends_with("norm.weight")) a = name.ends_with("linear_attn.norm.weight") ? 1 : 0, s = 0.1;
  if (name.ends_with("embed_tokens.weight")) s = 1;
  int64_t count = 1;
  for (int64_t d : shape) count *= d;
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    uint64_t z = hash + static_cast<uint64_t>(i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    values.push_back(static_cast<float>(a + s * (2 * (static_cast<double>(z >> 40) * 0x1p-24) - 1)));
  }
  return values;
}

struct Micro {
  int64_t hidden, vocab;
  std::string layers;  // l: linear, f: full attention
  int64_t key_heads, value_heads, key_dim, value_dim, taps;
  int64_t heads, kv_heads, head_dim;
  double rotary;
  double theta;
  std::vector<int64_t> dense;
  int64_t sparse_step, experts, top_k, expert_inter, shared_inter;
  bool renormalize, tied;
};

ModelFiles files_of(const Micro& m) {
  constexpr int64_t kInter = 28;
  ModelFiles files;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    const std::vector<float> values = generated(name, shape);
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    files.tensors[name] = {"F32", std::move(shape), {bytes, bytes + values.size() * 4}};
  };
  const auto ffn = [&](const std::string& p, int64_t inter) {
    add(p + ".gate_proj.weight", {inter, m.hidden});
    add(p + ".up_proj.weight", {inter, m.hidden});
    add(p + ".down_proj.weight", {m.hidden, inter});
  };
  add("model.embed_tokens.weight", {m.vocab, m.hidden});
  if (!m.tied) add("lm_head.weight", {m.vocab, m.hidden});
  add("model.norm.weight", {m.hidden});
  boost::json::array types;
  for (size_t i = 0; i < m.layers.size(); ++i) {
    const std::string p = concat("model.layers.", i, ".");
    add(p + "input_layernorm.weight", {m.hidden});
    add(p + "post_attention_layernorm.weight", {m.hidden});
    const int64_t keys = m.key_heads * m.key_dim, values = m.value_heads * m.value_dim;
    if (m.layers[i] == 'l') {
      types.push_back("linear_attention");
      add(p + "linear_attn.in_proj_qkvz.weight", {2 * keys + 2 * values, m.hidden});
      add(p + "linear_attn.in_proj_ba.weight", {2 * m.value_heads, m.hidden});
      add(p + "linear_attn.conv1d.weight", {2 * keys + values, 1, m.taps});
      add(p + "linear_attn.A_log", {m.value_heads});
      add(p + "linear_attn.dt_bias", {m.value_heads});
      add(p + "linear_attn.norm.weight", {m.value_dim});
      add(p + "linear_attn.out_proj.weight", {m.hidden, values});
    } else {
      types.push_back("full_attention");
      add(p + "self_attn.q_proj.weight", {2 * m.heads * m.head_dim, m.hidden});
      add(p + "self_attn.k_proj.weight", {m.kv_heads * m.head_dim, m.hidden});
      add(p + "self_attn.v_proj.weight", {m.kv_heads * m.head_dim, m.hidden});
      add(p + "self_attn.o_proj.weight", {m.hidden, m.heads * m.head_dim});
      add(p + "self_attn.q_norm.weight", {m.head_dim});
      add(p + "self_attn.k_norm.weight", {m.head_dim});
    }
    const auto layer = static_cast<int64_t>(i);
    if (std::ranges::find(m.dense, layer) != m.dense.end() || (layer + 1) % m.sparse_step != 0) {
      ffn(p + "mlp", kInter);
      continue;
    }
    add(p + "mlp.gate.weight", {m.experts, m.hidden});
    add(p + "mlp.shared_expert_gate.weight", {1, m.hidden});
    ffn(p + "mlp.shared_expert", m.shared_inter);
    for (int64_t e = 0; e < m.experts; ++e) ffn(concat(p, "mlp.experts.", e), m.expert_inter);
  }
  files.config = {{"model_type", "qwen3_next"},
                  {"hidden_size", m.hidden},
                  {"vocab_size", m.vocab},
                  {"num_hidden_layers", m.layers.size()},
                  {"layer_types", types},
                  {"linear_num_key_heads", m.key_heads},
                  {"linear_num_value_heads", m.value_heads},
                  {"linear_key_head_dim", m.key_dim},
                  {"linear_value_head_dim", m.value_dim},
                  {"linear_conv_kernel_dim", m.taps},
                  {"num_attention_heads", m.heads},
                  {"num_key_value_heads", m.kv_heads},
                  {"head_dim", m.head_dim},
                  {"partial_rotary_factor", m.rotary},
                  {"rope_theta", m.theta},
                  {"mlp_only_layers", boost::json::array(m.dense.begin(), m.dense.end())},
                  {"decoder_sparse_step", m.sparse_step},
                  {"intermediate_size", kInter},
                  {"num_experts", m.experts},
                  {"num_experts_per_tok", m.top_k},
                  {"moe_intermediate_size", m.expert_inter},
                  {"shared_expert_intermediate_size", m.shared_inter},
                  {"norm_topk_prob", m.renormalize},
                  {"tie_word_embeddings", m.tied},
                  {"rms_norm_eps", 1e-6},
                  {"max_position_embeddings", 1024}};
  return files;
}

struct Expected {
  std::vector<float> last;  // the first logits of the last row
  double sum_of_squares;    // of all logits
  std::vector<int32_t> argmax;
};

// Expected values: NumPy in FP64, from the formulas of transformers 5.24's modeling_qwen3_next.
void check(const Micro& micro, const Expected& expected) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 37; ++i) ids.push_back((i * i * 7 + 3 * i + 5) % 61);
  TemporaryFolder folder;
  files_of(micro).write(folder.path());
  const std::unique_ptr<Model> model = Model::load(folder.path());
  std::vector<float> first;
  for (KernelSet set : kernel_sets()) {
    for (int32_t rows : {37, 5, 1}) {
      EngineOptions options = exact_options(rows, 37);
      options.kernels = set;
      Engine engine(*model, options);
      const std::vector<float> logits = all_logits(engine, ids);
      if (first.empty()) first = logits;
      EXPECT_TRUE(same_bits(logits, first)) << kernel_set_name(set) << ", " << rows << " rows";
    }
  }
  const auto vocab = static_cast<size_t>(micro.vocab);
  EXPECT_LE(max_difference(std::span(first).subspan(36 * vocab, 8), expected.last), 1e-4);
  double squares = 0;
  for (const float x : first) squares += double{x} * x;
  EXPECT_NEAR(squares, expected.sum_of_squares, 1e-5 * expected.sum_of_squares);
  for (size_t row = 0; row < 37; ++row) {
    const std::span<const float> logits = std::span(first).subspan(row * vocab, vocab);
    EXPECT_EQ(std::ranges::max_element(logits) - logits.begin(), expected.argmax[row]) << row;
  }
}

TEST(QwenHybrid, ThreeValueHeadsAKeyHeadThreeTapsTopOneAndTiedEmbeddings) {
  check({36, 61, "flfll", 2, 6, 8, 12, 3, 6, 2, 12, 0.5, 10000, {1}, 2, 5, 1, 20, 12, false, true},
        {{3.376751f, -4.67857f, 4.980981f, 0.140149f, -0.033208f, 5.678894f, -4.527345f, 4.558602f},
         31179.30154862148,
         {5,  14, 42, 16, 7,  12, 31, 8,  50, 9,  3,  31, 12, 7,  42, 59, 15, 5, 31,
          27, 18, 10, 14, 56, 24, 2,  34, 4,  26, 30, 51, 54, 10, 41, 25, 23, 23}});
}

TEST(QwenHybrid, FourValueHeadsAKeyHeadNoAttentionAtAllAndFourExperts) {
  check({32, 67, "ll", 1, 4, 20, 8, 4, 2, 1, 16, 0.25, 1e6, {}, 1, 6, 4, 12, 20, true, false},
        {{-0.895145f, -1.189419f, 0.313735f, 1.517346f, -0.08606f, -1.181381f, 0.457209f, -2.272286f},
         1905.2670076303698,
         {60, 7,  48, 59, 42, 25, 5, 48, 39, 15, 57, 11, 1, 4, 46, 41, 60, 58, 51,
          19, 46, 11, 46, 16, 52, 5, 33, 32, 3,  30, 36, 6, 7, 18, 44, 20, 31}});
}

TEST(QwenHybrid, OneValueHeadAKeyHeadTwoTapsAndWholeHeadsRotated) {
  check({32, 61, "lff", 3, 3, 16, 16, 2, 4, 4, 8, 1, 1e6, {}, 1, 4, 2, 12, 20, true, false},
        {{-1.100681f, 0.752396f, -0.049085f, 0.08893f, -0.281337f, 0.068675f, -0.420245f, -1.560985f},
         1719.2819769413613,
         {39, 60, 3,  55, 4,  52, 5,  57, 30, 22, 57, 30, 25, 19, 46, 9, 60, 42, 37,
          19, 6,  15, 59, 22, 53, 25, 33, 41, 32, 8,  48, 25, 29, 58, 7, 20, 57}});
}

// --- refusals ---

TEST(QwenHybrid, WhatIsWrongIsRefusedByName) {
  struct Case {
    const char* model;
    std::function<void(ModelFiles&)> spoil;
    std::vector<std::string> message_has;
  };
  const auto set = [](const char* key, boost::json::value value) {
    return [key, value](ModelFiles& f) { f.config[key] = value; };
  };
  static const char *kNext = "hf/qwen3_next", *k35 = "hf/qwen3_5", *kMoe = "hf/qwen3_moe";
  const std::vector<Case> cases = {
      {kNext, set("linear_num_value_heads", 3), {"config.json", "linear_num_value_heads", "linear_num_key_heads = 2"}},
      {kNext, set("linear_key_head_dim", 300), {"linear_key_head_dim", "300"}},
      {kNext, set("linear_conv_kernel_dim", 1), {"linear_conv_kernel_dim"}},
      {kNext, set("layer_types", boost::json::array{"full_attention"}), {"layer_types", "5 entries"}},
      {kNext,
       [](ModelFiles& f) { f.config["layer_types"].as_array()[2] = "sliding_attention"; },
       {"layer_types", "'linear_attention' or 'full_attention'"}},
      {kNext, set("num_experts_per_tok", 9), {"num_experts_per_tok", "9"}},
      {kNext, set("hidden_act", "gelu"), {"hidden_act", "'silu'"}},
      {kNext, set("attn_output_gate", false), {"attn_output_gate"}},
      {kNext,
       [](ModelFiles& f) { f.config["rope_parameters"].as_object()["partial_rotary_factor"] = 0.3; },
       {"rope_parameters.partial_rotary_factor", "even"}},
      {kNext,
       [](ModelFiles& f) {
         f.config.erase("intermediate_size");
         f.config["mlp_only_layers"] = boost::json::array{0};
       },
       {"intermediate_size"}},
      {kNext,
       [](ModelFiles& f) { f.tensors.erase("model.layers.0.linear_attn.dt_bias"); },
       {"model.layers.0.linear_attn.dt_bias", "found in no file"}},
      {kNext,
       [](ModelFiles& f) { f.tensors["model.layers.0.linear_attn.extra"] = f.tensors.at("model.norm.weight"); },
       {"model.layers.0.linear_attn.extra", "no such tensor"}},
      {k35, set("intermediate_size", nullptr), {"intermediate_size"}},
      {k35, set("linear_num_key_heads", 4), {"in_proj_qkv"}},
      {kMoe, set("decoder_sparse_step", 0), {"decoder_sparse_step"}},
  };
  for (const Case& bad : cases) {
    ModelFiles files = ModelFiles::read(fixture(bad.model));
    bad.spoil(files);
    TemporaryFolder folder;
    files.write(folder.path());
    try {
      Model::load(folder.path());
      ADD_FAILURE() << "not refused: " << bad.message_has.front();
    } catch (const Error& error) {
      for (const std::string& part : bad.message_has) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what() << "\nlacks " << part;
      }
    }
  }
}

}  // namespace
}  // namespace weir::test
