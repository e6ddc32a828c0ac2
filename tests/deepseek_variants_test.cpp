// DeepSeek-V3 and GLM-5 with other options than the golden models have: the same thing said in another way gives the
// same bits, and what cannot be honoured is refused by name.
#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/number.h"
#include "tests/support/fixtures.h"
#include "tests/support/gguf_files.h"
#include "tests/support/model_files.h"
#include "tests/support/refusals.h"

namespace weir::test {
namespace {

using weir::testing::GgufBytes;

constexpr const char* kDeepseek = "hf/deepseek_v3";
constexpr const char* kGlm = "hf/glm_moe_dsa";

std::vector<int32_t> prompt(const char* folder) {
  return Golden(fixture(folder) + "/golden.safetensors").ids("prompt_a.ids");
}

std::vector<float> logits_of(const std::filesystem::path& path, const std::vector<int32_t>& ids, int32_t rows = 97) {
  const std::unique_ptr<Model> model = Model::load(path);
  Engine engine(*model, exact_options(rows, 100, 2));
  return all_logits(engine, ids);
}

std::vector<float> logits_of(const ModelFiles& files, const std::vector<int32_t>& ids, int32_t rows = 97) {
  TemporaryFolder folder;
  files.write(folder.path());
  return logits_of(folder.path(), ids, rows);
}

RawTensor f32_tensor(const std::vector<float>& values, std::vector<int64_t> shape) {
  RawTensor t{"F32", std::move(shape), std::vector<std::byte>(values.size() * 4)};
  std::memcpy(t.data.data(), values.data(), t.data.size());
  return t;
}

void expect_refusal(const char* source, const std::function<void(ModelFiles&)>& change, const std::string& word) {
  expect_refused(source, change, {word});
}

TEST(DeepseekVariants, BothGenerationsOfTheConfigurationGiveTheSameBits) {
  for (const char* name : {kDeepseek, kGlm}) {
    ModelFiles files = ModelFiles::read(fixture(name));
    std::ifstream hub(fixture(name) + "/config.hub.json");
    ASSERT_TRUE(hub.good());
    files.config = boost::json::parse(std::string{std::istreambuf_iterator<char>(hub), {}}).as_object();
    EXPECT_TRUE(same_bits(logits_of(files, prompt(name)), logits_of(fixture(name), prompt(name)))) << name;
  }
}

// A second shared expert whose matrices are zero changes nothing: its products are appended to the sums of `down`.
TEST(DeepseekVariants, SeveralSharedExpertsAreOneWiderBlock) {
  ModelFiles files = ModelFiles::read(fixture(kDeepseek));
  files.config["n_shared_experts"] = 2;
  int widened = 0;
  for (auto& [name, t] : files.tensors) {
    if (name.find("shared_experts") == std::string::npos) continue;
    ++widened;
    const auto row = static_cast<size_t>(t.shape[1]) * 2;  // BF16
    if (name.find("down_proj") == std::string::npos) {
      t.data.resize(t.data.size() * 2);
      t.shape[0] *= 2;
      continue;
    }
    std::vector<std::byte> wide;
    for (size_t at = 0; at < t.data.size(); at += row) {
      wide.insert(wide.end(), t.data.begin() + static_cast<ptrdiff_t>(at),
                  t.data.begin() + static_cast<ptrdiff_t>(at + row));
      wide.resize(wide.size() + row);
    }
    t.data = std::move(wide);
    t.shape[1] *= 2;
  }
  EXPECT_EQ(widened, 9);
  EXPECT_TRUE(same_bits(logits_of(files, prompt(kDeepseek)), logits_of(fixture(kDeepseek), prompt(kDeepseek))));
}

// With unit norms, q_a as the identity is no projection at all (up to the eps of its norm).
TEST(DeepseekVariants, QueriesWithoutALowRank) {
  ModelFiles low = ModelFiles::read(fixture(kDeepseek));
  low.config["q_lora_rank"] = 64;
  low.config["rms_norm_eps"] = 1e-12;
  std::vector<float> identity(64 * 64);
  for (size_t i = 0; i < 64; ++i) identity[i * 65] = 1;
  ModelFiles direct = low;
  direct.config["q_lora_rank"] = nullptr;
  for (int layer = 0; layer < 4; ++layer) {
    const std::string p = concat("model.layers.", layer, ".");
    std::vector<float> q(192 * 64);
    for (size_t i = 0; i < q.size(); ++i)
      q[i] = 0.1f * std::sin(static_cast<float>(i * i % 1009) + static_cast<float>(layer));
    for (ModelFiles* files : {&low, &direct}) {
      files->tensors[p + "input_layernorm.weight"] = f32_tensor(std::vector<float>(64, 1.f), {64});
      for (const char* name : {"q_a_proj.weight", "q_a_layernorm.weight", "q_b_proj.weight"}) {
        files->tensors.erase(p + "self_attn." + name);
      }
    }
    low.tensors[p + "self_attn.q_a_proj.weight"] = f32_tensor(identity, {64, 64});
    low.tensors[p + "self_attn.q_a_layernorm.weight"] = f32_tensor(std::vector<float>(64, 1.f), {64});
    low.tensors[p + "self_attn.q_b_proj.weight"] = f32_tensor(q, {192, 64});
    direct.tensors[p + "self_attn.q_proj.weight"] = f32_tensor(q, {192, 64});
  }
  EXPECT_LE(max_difference(logits_of(low, prompt(kDeepseek)), logits_of(direct, prompt(kDeepseek))), 1e-3f);
}

TEST(DeepseekVariants, OtherRoutingsAreTakenAndPure) {
  const std::vector<int32_t> ids = prompt(kDeepseek);
  std::vector<std::vector<float>> seen{logits_of(fixture(kDeepseek), ids)};
  using Change = std::function<void(boost::json::object&)>;
  const Change changes[] = {
      [](auto& c) { c["num_experts_per_tok"] = 1; },          [](auto& c) { c["num_experts_per_tok"] = 4; },
      [](auto& c) { c["norm_topk_prob"] = false; },           [](auto& c) { c["topk_group"] = 1; },
      [](auto& c) { c["n_group"] = 2, c["topk_group"] = 1; }, [](auto& c) { c["routed_scaling_factor"] = 1.0; }};
  for (const Change& change : changes) {
    ModelFiles files = ModelFiles::read(fixture(kDeepseek));
    change(files.config);
    const std::vector<float> logits = logits_of(files, ids);
    for (const auto& other : seen) EXPECT_FALSE(same_bits(logits, other)) << "the option must matter";
    EXPECT_TRUE(same_bits(logits, logits_of(files, ids, 7)));
    seen.push_back(logits);
  }
}

TEST(DeepseekVariants, LayersOfMultiTokenPredictionAreSkippedWhenTheConfigurationNamesThem) {
  ModelFiles files = ModelFiles::read(fixture(kDeepseek));
  files.tensors["model.layers.4.eh_proj.weight"] = f32_tensor({1, 2}, {1, 2});
  files.config["num_nextn_predict_layers"] = 1;
  EXPECT_TRUE(same_bits(logits_of(files, prompt(kDeepseek)), logits_of(fixture(kDeepseek), prompt(kDeepseek))));
  expect_refusal(
      kDeepseek,
      [](ModelFiles& f) {
        f.tensors["model.layers.4.eh_proj.weight"] = f32_tensor({1, 2}, {1, 2});
      },
      "model.layers.4.eh_proj.weight");
}

TEST(DeepseekVariants, OlderGgufFilesWithOneMatrixGiveTheFoldersValues) {
  GgufBytes file = read_gguf(fixture("gguf/deepseek_v3-bf16.gguf"));
  const ModelFiles folder = ModelFiles::read(fixture(kDeepseek));
  for (int i = 0; i < 4; ++i) {
    const RawTensor& kv_b = folder.tensors.at(concat("model.layers.", i, ".self_attn.kv_b_proj.weight"));
    GgufBytes::RawTensor t = file.tensor(concat("blk.", i, ".attn_kv_a_mqa.weight"));
    t.name = concat("blk.", i, ".attn_kv_b.weight");
    t.ne = {kv_b.shape[1], kv_b.shape[0]};
    t.data.assign(reinterpret_cast<const char*>(kv_b.data.data()), kv_b.data.size());
    file.erase_tensor(concat("blk.", i, ".attn_k_b.weight"));
    file.erase_tensor(concat("blk.", i, ".attn_v_b.weight"));
    file.tensors.push_back(t);
  }
  file.erase("deepseek2.attention.key_length_mla");
  file.erase("deepseek2.attention.value_length_mla");
  file.set("deepseek2.attention.head_count_kv", weir::testing::gguf_u32(4));
  TemporaryFolder out;
  write_gguf(file, out.path() / "m.gguf");
  EXPECT_LE(max_difference(logits_of(out.path() / "m.gguf", prompt(kDeepseek)),
                           logits_of(fixture(kDeepseek), prompt(kDeepseek))),
            8.3e-4f);
}

TEST(DeepseekVariants, RefusesWhatItCannotHonourByName) {
  const auto with = [](const char* key, const boost::json::value& value) {
    return [=](ModelFiles& f) { f.config[key] = value; };
  };
  expect_refusal(kDeepseek, with("scoring_func", "softmax"), "scoring_func");
  expect_refusal(kDeepseek, with("topk_method", "greedy"), "topk_method");
  expect_refusal(kDeepseek, with("hidden_act", "gelu"), "hidden_act");
  expect_refusal(kDeepseek, with("mlp_bias", true), "mlp_bias");
  expect_refusal(kDeepseek, with("num_key_value_heads", 2), "num_key_value_heads");
  expect_refusal(kDeepseek, with("n_group", 3), "n_group");
  expect_refusal(kDeepseek, with("num_experts_per_tok", 5), "num_experts_per_tok");
  expect_refusal(kDeepseek, with("qk_rope_head_dim", 15), "qk_rope_head_dim");
  expect_refusal(kGlm, with("q_lora_rank", nullptr), "q_lora_rank");
  expect_refusal(kGlm, with("index_topk", 0), "index_topk");
  expect_refusal(kGlm, with("indexer_types", {"full", "full", "sparse", "full"}), "indexer_types");
  expect_refusal(kGlm, with("indexer_types", {"shared", "full", "full", "full"}), "indexer_types");
  expect_refusal(kGlm, with("indexer_types", {"full", "full"}), "indexer_types");
  expect_refusal(kGlm, with("layer_types", {"full_attention"}), "layer_types");
  expect_refusal(kGlm, with("layer_types", {"indexed_attention"}), "4 entries");
  expect_refusal(kGlm, with("layer_types", {"indexed_attention", "full_attention", "indexed_attention", "x"}),
                 "layer_types[1]");
  expect_refusal(kDeepseek, with("n_group", nullptr), "n_group");
  expect_refusal(kDeepseek, with("topk_group", 5), "topk_group");
  for (const char* key : {"routed_scaling_factor", "n_group", "topk_group", "n_shared_experts"}) {
    expect_refusal(
        kGlm, [=](ModelFiles& f) { f.config.erase(key); }, key);
  }
  const auto pattern = [](const char* key, const boost::json::value& value) {
    return [=](ModelFiles& f) {
      f.config.erase("indexer_types");
      f.config["index_topk_freq"] = 3;
      f.config[key] = value;
    };
  };
  expect_refusal(kGlm, pattern("index_topk_pattern", "FSF"), "index_topk_pattern");
  expect_refusal(kGlm, pattern("index_topk_pattern", "FXFF"), "index_topk_pattern");
  expect_refusal(kGlm, pattern("index_topk_pattern", "SFFF"), "index_topk_pattern");
  expect_refusal(kGlm, pattern("index_skip_topk_offset", 0), "index_skip_topk_offset");
}

TEST(DeepseekVariants, FieldsThatAreAbsentHaveTheFamilysDefaults) {
  const std::vector<int32_t> ids = prompt(kDeepseek);
  ModelFiles files = ModelFiles::read(fixture(kDeepseek));
  files.config.erase("routed_scaling_factor");
  files.config.erase("n_shared_experts");
  EXPECT_TRUE(same_bits(logits_of(files, ids), logits_of(fixture(kDeepseek), ids)));
  files.config.erase("n_group");
  files.config.erase("topk_group");
  TemporaryFolder folder;
  files.write(folder.path());
  const std::unique_ptr<Model> model = Model::load(folder.path());
  const MoeFfn& moe = std::get<MoeFfn>(model->spec.layers.back().ffn);
  EXPECT_EQ(moe.groups, 8);
  EXPECT_EQ(moe.topk_group, 4);
  EXPECT_EQ(moe.scaling_factor, 2.5f);
  files = ModelFiles::read(fixture(kGlm));
  files.config.erase("rms_norm_eps");
  EXPECT_TRUE(same_bits(logits_of(files, ids), logits_of(fixture(kGlm), ids)));
}

// What is selected after an op of a layer.
class SelectionTap : public StepObserver {
 public:
  explicit SelectionTap(const Circuit& circuit) : circuit_(circuit) {}
  void after(const BoundOp& op, Buffer) override {
    if (!op.name().ends_with("mla.core")) return;
    const int32_t* selected = circuit_.find_int_buffer("indexer.selected");
    selections.emplace_back(selected + 40 * 32, selected + 97 * 32);  // rows that have more than 32 positions
  }
  std::vector<std::vector<int32_t>> selections;  // by layer

 private:
  const Circuit& circuit_;
};

TEST(GlmVariants, SharedLayersReuseTheLastSelection) {
  ModelFiles files = ModelFiles::read(fixture(kGlm));
  files.config["indexer_types"] = {"full", "shared", "full", "shared"};
  std::erase_if(files.tensors, [](const auto& entry) {
    return entry.first.starts_with("model.layers.1.self_attn.indexer.") ||
           entry.first.starts_with("model.layers.3.self_attn.indexer.");
  });
  TemporaryFolder folder;
  files.write(folder.path());
  const std::unique_ptr<Model> model = Model::load(folder.path());
  Engine engine(*model, exact_options(97, 97));
  SelectionTap tap(engine.circuit());
  const std::vector<int32_t> ids = prompt(kGlm);
  const std::unique_ptr<Sequence> sequence = engine.new_sequence();
  const SpanRequest request{sequence.get(), ids, LogitsWanted::kAll};
  ASSERT_EQ(engine.step({&request, 1}, &tap), StepStatus::kDone);
  ASSERT_EQ(tap.selections.size(), 4u);
  EXPECT_EQ(tap.selections[0], tap.selections[1]);
  EXPECT_EQ(tap.selections[2], tap.selections[3]);
  EXPECT_NE(tap.selections[1], tap.selections[2]);
  EXPECT_TRUE(same_bits(logits_of(files, ids), logits_of(files, ids, 5)));
  EXPECT_FALSE(same_bits(logits_of(files, ids), logits_of(fixture(kGlm), ids)));
}

std::vector<bool> shared_layers(const std::function<void(ModelFiles&)>& change, const std::vector<int>& without) {
  ModelFiles files = ModelFiles::read(fixture(kGlm));
  files.config.erase("indexer_types");
  change(files);
  for (const int layer : without) {
    const std::string p = concat("model.layers.", layer, ".self_attn.indexer.");
    EXPECT_EQ(std::erase_if(files.tensors, [&](const auto& t) { return t.first.starts_with(p); }), 5u);
  }
  TemporaryFolder folder;
  files.write(folder.path());
  const std::unique_ptr<Model> model = Model::load(folder.path());
  std::vector<bool> shared;
  for (const LayerSpec& layer : model->spec.layers) shared.push_back(std::get<MlaMixer>(layer.mixer).indexer->shared);
  return shared;
}

TEST(GlmVariants, APatternOrAPeriodSaysWhichLayersShare) {
  using Layers = std::vector<bool>;
  EXPECT_EQ(shared_layers([](ModelFiles& f) { f.config["index_topk_pattern"] = "FSSF"; }, {1, 2}),
            (Layers{false, true, true, false}));
  EXPECT_EQ(shared_layers([](ModelFiles& f) { f.config["index_topk_freq"] = 2; }, {2}),
            (Layers{false, false, true, false}));
  const auto offset = [](ModelFiles& f) {
    f.config["index_topk_freq"] = 2;
    f.config["index_skip_topk_offset"] = 1;
  };
  EXPECT_EQ(shared_layers(offset, {1, 3}), (Layers{false, true, false, true}));
  const auto one = [](ModelFiles& f) {
    f.config["index_topk_freq"] = 0;
    f.config["layer_types"] = boost::json::array(4, "deepseek_sparse_attention");
  };
  EXPECT_EQ(shared_layers(one, {}), (Layers(4, false)));
}

TEST(GlmVariants, MoreThanAllPositionsAreAllPositions) {
  const auto top_k = [](const std::filesystem::path& path) {
    const std::unique_ptr<Model> model = Model::load(path);
    EXPECT_GT(model->spec.max_positions, 32);
    return std::get<MlaMixer>(model->spec.layers[0].mixer).indexer->top_k - model->spec.max_positions;
  };
  ModelFiles files = ModelFiles::read(fixture(kGlm));
  files.config["index_topk"] = 1 << 24;
  TemporaryFolder folder;
  files.write(folder.path());
  EXPECT_EQ(top_k(folder.path()), 0);
  GgufBytes file = read_gguf(fixture("gguf/glm_moe_dsa-bf16.gguf"));
  file.set("glm-dsa.attention.indexer.top_k", weir::testing::gguf_u32(1 << 24));
  write_gguf(file, folder.path() / "m.gguf");
  EXPECT_EQ(top_k(folder.path() / "m.gguf"), 0);
}

TEST(GlmVariants, StepsThatWouldSelectTooMuchAreRefused) {
  ModelFiles files = ModelFiles::read(fixture(kGlm));
  files.config["index_topk"] = 1 << 24;
  files.config["max_position_embeddings"] = 1 << 24;
  TemporaryFolder folder;
  files.write(folder.path());
  const std::unique_ptr<Model> model = Model::load(folder.path());
  try {
    Engine engine(*model, exact_options(97, 97));
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("index_topk"), std::string::npos) << e.what();
  }
}

TEST(GlmVariants, IndexersThatAreNotFiniteAreRefused) {
  for (const char* name : {"wq_b.weight", "wk.weight", "weights_proj.weight"}) {
    for (const auto& [high, word] : {std::pair{0x7f, "NaN"}, std::pair{0xff, "infinity"}}) {
      const auto spoil = [&](ModelFiles& f) {
        std::vector<std::byte>& data = f.tensors.at(concat("model.layers.1.self_attn.indexer.", name)).data;
        data[data.size() - 1] = static_cast<std::byte>(high);  // BF16
        data[data.size() - 2] = static_cast<std::byte>(high == 0x7f ? 0xc0 : 0x80);
      };
      expect_refusal(kGlm, spoil, concat("layers.1.self_attn.indexer.", name));
      expect_refusal(kGlm, spoil, word);
    }
  }
}

// With room for all positions the model is one without an indexer.
TEST(GlmVariants, ASelectionOfAllPositionsIsFullAttention) {
  ModelFiles files = ModelFiles::read(fixture(kGlm));
  files.config["index_topk"] = 97;
  const std::vector<int32_t> ids = prompt(kGlm);
  const std::vector<float> all = logits_of(files, ids);
  EXPECT_FALSE(same_bits(all, logits_of(fixture(kGlm), ids)));
  std::erase_if(files.tensors, [](const auto& entry) { return entry.first.find(".indexer.") != std::string::npos; });
  files.config["model_type"] = "deepseek_v3";
  EXPECT_TRUE(same_bits(all, logits_of(files, ids)));
}

}  // namespace
}  // namespace weir::test
