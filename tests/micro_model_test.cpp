// Micro models with generated weights: expected values computed by the official modeling classes and by an independent
// FP64 implementation, which agree to 1.1e-5. Weights: the FNV-1a hash of a tensor's name seeds a SplitMix64 stream.
#include <cmath>
#include <map>

#include "engine/generate.h"
#include "tests/support/fixtures.h"
#include "tests/support/model_files.h"

namespace weir::test {
namespace {

constexpr float kTolerance = 3e-5f;  // three times the disagreement of the two oracles

bool ends(const std::string& name, std::string_view suffix) { return name.ends_with(suffix); }

std::vector<float> generated(const std::string& name, const std::vector<int64_t>& shape) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  double a = 0, s = 1.5 / std::sqrt(static_cast<double>(shape.back()));
  if (ends(name, "A_log") || ends(name, "dt_bias")) s = 0.5;
  if (ends(name, "e_score_correction_bias")) s = 0.05;
  if (ends(name, "norm.weight")) a = 1, s = 0.1;
  if (ends(name, "embed_tokens.weight")) s = 1;
  if (ends(name, "conv1d.weight") || ends(name, "res_proj.weight")) s = 0.5;
  int64_t count = 1;
  for (int64_t d : shape) count *= d;
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    uint64_t z = hash + static_cast<uint64_t>(i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    const double r = 2 * (static_cast<double>(z >> 40) * 0x1p-24) - 1;
    values.push_back(static_cast<float>(a + s * r));
  }
  return values;
}

class MicroModel {
 public:
  explicit MicroModel(std::string prefix) : prefix_(std::move(prefix)) {}
  void add(const std::string& name, std::vector<int64_t> shape) {
    const std::vector<float> values = generated(name, shape);
    RawTensor tensor{"F32", std::move(shape), {}};
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    tensor.data.assign(bytes, bytes + values.size() * 4);
    files.tensors[prefix_ + name] = std::move(tensor);
  }
  void layer_norms(const std::string& p, bool residuals) {
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) add(p + norm + ".weight", {32});
    if (!residuals) return;
    for (const char* read : {"self_attention_res", "mlp_res"}) {
      add(p + read + "_norm.weight", {32});
      add(p + read + "_proj.weight", {1, 32});
    }
  }
  void kda(const std::string& p, bool full_rank_gate) {
    for (const char* c : {"q", "k", "v"}) {
      add(p + c + "_proj.weight", {16, 32});
      add(p + c + "_conv1d.weight", {16, 1, 4});
    }
    add(p + "f_a_proj.weight", {8, 32});
    add(p + "f_b_proj.weight", {16, 8});
    add(p + "A_log", {2});
    add(p + "dt_bias", {16});
    add(p + "b_proj.weight", {2, 32});
    if (full_rank_gate) {
      add(p + "g_proj.weight", {16, 32});
    } else {
      add(p + "g_a_proj.weight", {8, 32});
      add(p + "g_b_proj.weight", {16, 8});
    }
    add(p + "o_norm.weight", {8});
    add(p + "o_proj.weight", {32, 16});
  }
  void mla(const std::string& p, bool k3) {
    if (k3) {
      add(p + "q_a_proj.weight", {12, 32});
      add(p + "q_a_layernorm.weight", {12});
      add(p + "q_b_proj.weight", {24, 12});
      add(p + "g_proj.weight", {16, 32});
    } else {
      add(p + "q_proj.weight", {24, 32});
    }
    add(p + "kv_a_proj_with_mqa.weight", {12, 32});
    add(p + "kv_a_layernorm.weight", {8});
    add(p + "kv_b_proj.weight", {32, 8});
    add(p + "o_proj.weight", {32, 16});
  }
  void ffn(const std::string& p, const std::string& block, int64_t inter) {
    add(p + block + "gate_proj.weight", {inter, 32});
    add(p + block + "up_proj.weight", {inter, 32});
    add(p + block + "down_proj.weight", {32, inter});
  }
  void moe(const std::string& p, int64_t expert_width, int64_t shared) {
    add(p + "gate.weight", {8, 32});
    add(p + "gate.e_score_correction_bias", {8});
    for (int e = 0; e < 8; ++e) {
      add(concat(p, "experts.", e, ".w1.weight"), {12, expert_width});
      add(concat(p, "experts.", e, ".w3.weight"), {12, expert_width});
      add(concat(p, "experts.", e, ".w2.weight"), {expert_width, 12});
    }
    ffn(p, "shared_experts.", shared);
  }
  void ends_of_stack() {
    add("model.embed_tokens.weight", {64, 32});
    add("lm_head.weight", {64, 32});
    add("model.norm.weight", {32});
  }
  ModelFiles files;

 private:
  std::string prefix_;
};

boost::json::object shared_config() {
  return {{"model_type", "kimi_linear"},
          {"hidden_size", 32},
          {"vocab_size", 64},
          {"num_attention_heads", 2},
          {"kv_lora_rank", 8},
          {"qk_nope_head_dim", 8},
          {"qk_rope_head_dim", 4},
          {"v_head_dim", 8},
          {"intermediate_size", 40},
          {"first_k_dense_replace", 1},
          {"num_experts", 8},
          {"num_experts_per_token", 2},
          {"moe_intermediate_size", 12},
          {"moe_renormalize", true},
          {"rms_norm_eps", 1e-5},
          {"mla_use_nope", true},
          {"max_position_embeddings", 1024}};
}

boost::json::array list(std::initializer_list<int> values) { return boost::json::array(values.begin(), values.end()); }

ModelFiles k3_micro() {
  MicroModel m("language_model.");
  m.ends_of_stack();
  m.add("model.output_attn_res_norm.weight", {32});
  m.add("model.output_attn_res_proj.weight", {1, 32});
  for (int l = 0; l < 9; ++l) {
    const std::string p = concat("model.layers.", l, ".");
    m.layer_norms(p, true);
    if (l == 3 || l >= 7) {
      m.mla(p + "self_attn.", true);
    } else {
      m.kda(p + "self_attn.", true);
    }
    if (l == 0) {
      m.ffn(p, "mlp.", 40);
      continue;
    }
    const std::string sparse = p + "block_sparse_moe.";
    m.moe(sparse, 16, 24);
    m.add(sparse + "routed_expert_down_proj.weight", {16, 32});
    m.add(sparse + "routed_expert_norm.weight", {16});
    m.add(sparse + "routed_expert_up_proj.weight", {32, 16});
  }
  boost::json::object text = shared_config();
  text["num_hidden_layers"] = 9;
  text["q_lora_rank"] = 12;
  text["mla_use_output_gate"] = true;
  text["num_shared_experts"] = 2;
  text["routed_expert_hidden_size"] = 16;
  text["latent_moe_use_norm"] = true;
  text["routed_scaling_factor"] = 1.0;
  text["hidden_act"] = "situ";
  text["activation_situ_beta"] = 4.0;
  text["activation_situ_linear_beta"] = 25.0;
  text["attn_res_block_size"] = 4;
  text["linear_attn_config"] = {{"num_heads", 2},
                                {"head_dim", 8},
                                {"short_conv_kernel_size", 4},
                                {"use_full_rank_gate", true},
                                {"gate_lower_bound", -5.0},
                                {"full_attn_layers", list({4, 8, 9})},
                                {"kda_layers", list({1, 2, 3, 5, 6, 7})}};
  m.files.config = {{"model_type", "kimi_k3"}, {"text_config", text}};
  return m.files;
}

ModelFiles linear_micro() {
  MicroModel m("");
  m.ends_of_stack();
  for (int l = 0; l < 7; ++l) {
    const std::string p = concat("model.layers.", l, ".");
    m.layer_norms(p, false);
    if (l == 3 || l == 6) {
      m.mla(p + "self_attn.", false);
    } else {
      m.kda(p + "self_attn.", false);
    }
    if (l == 0) {
      m.ffn(p, "mlp.", 40);
    } else {
      m.moe(p + "block_sparse_moe.", 32, 12);
    }
  }
  m.files.config = shared_config();
  m.files.config["num_hidden_layers"] = 7;
  m.files.config["num_shared_experts"] = 1;
  m.files.config["routed_scaling_factor"] = 2.446;
  m.files.config["hidden_act"] = "silu";
  m.files.config["linear_attn_config"] = {{"num_heads", 2},
                                          {"head_dim", 8},
                                          {"short_conv_kernel_size", 4},
                                          {"full_attn_layers", list({4, 7})},
                                          {"kda_layers", list({1, 2, 3, 5, 6})}};
  return m.files;
}

struct Expected {
  std::vector<float> logits;
  double sum_of_squares;
  std::vector<int32_t> argmax, greedy;
  std::vector<std::vector<float>> stream;  // after each layer, last token, three components
  std::vector<float> mla_row;              // layer 3, last token
};

class StreamTap : public StepObserver {
 public:
  void after(const BoundOp& op, Buffer output) override {
    const float* last = output.data + 11 * output.cols;
    if (op.name().ends_with(".ffn.add")) stream.push_back({last, last + 3});
    if (op.name() == "layers.3.mla.kv_a_norm") mla_row = {last, last + 4};
  }
  std::vector<std::vector<float>> stream;
  std::vector<float> mla_row;
};

void check(const ModelFiles& files, const Expected& expected) {
  TemporaryFolder folder;
  files.write(folder.path());
  const std::unique_ptr<Model> model = Model::load(folder.path());
  const std::vector<int32_t> prompt = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
  for (KernelSet set : kernel_sets()) {
    EngineOptions options = exact_options(12, 64);
    options.kernels = set;
    Engine engine(*model, options);
    const std::unique_ptr<Sequence> sequence = engine.new_sequence();
    StreamTap tap;
    const SpanRequest request{sequence.get(), prompt, LogitsWanted::kAll};
    ASSERT_EQ(engine.step({&request, 1}, &tap), StepStatus::kDone);
    const std::span<const float> last = engine.logits(11);
    EXPECT_LE(max_difference(last.first(8), expected.logits), kTolerance);
    double squares = 0;
    for (float x : last) squares += static_cast<double>(x) * x;
    EXPECT_NEAR(squares, expected.sum_of_squares, 1e-3);
    for (int64_t i = 0; i < 12; ++i) {
      const std::span<const float> row = engine.logits(i);
      EXPECT_EQ(std::max_element(row.begin(), row.end()) - row.begin(), expected.argmax[static_cast<size_t>(i)]) << i;
    }
    ASSERT_EQ(tap.stream.size(), expected.stream.size());
    for (size_t l = 0; l < expected.stream.size(); ++l) {
      EXPECT_LE(max_difference(tap.stream[l], expected.stream[l]), kTolerance) << "layer " << l;
    }
    EXPECT_LE(max_difference(tap.mla_row, expected.mla_row), kTolerance);
    GenerateOptions greedy;
    greedy.max_tokens = 12;
    EXPECT_EQ(generate(engine, prompt, greedy).tokens, expected.greedy);
  }
}

TEST(MicroModels, WeightGeneratorMatchesItsCheckValues) {
  const std::vector<float> q = generated("model.layers.0.self_attn.q_proj.weight", {16, 32});
  EXPECT_NEAR(q[0], -0.0427969f, 1e-7f);
  EXPECT_NEAR(q[3], -0.0279210f, 1e-7f);
  EXPECT_NEAR(generated("model.embed_tokens.weight", {64, 32})[3 * 32], 0.8520271f, 1e-7f);
}

TEST(MicroModels, KimiK3) {
  check(k3_micro(),
        {.logits = {0.533362f, -1.080113f, -0.714225f, 2.149787f, 0.624298f, -1.463127f, -1.521366f, -0.641769f},
         .sum_of_squares = 49.174976,
         .argmax = {36, 52, 35, 31, 43, 19, 5, 36, 43, 60, 45, 3},
         .greedy = {3, 0, 8, 3, 5, 15, 36, 24, 60, 52, 9, 12},
         .stream = {{0.007092f, 0.138412f, -0.439692f},
                    {-0.685104f, 1.598180f, -1.418512f},
                    {-0.359546f, 2.497040f, -1.875607f},
                    {-1.585865f, 2.074221f, -2.969105f},
                    {-0.891224f, 0.912417f, 0.258028f},
                    {-1.606782f, 1.348591f, 0.411011f},
                    {-3.648551f, 2.338322f, 0.335730f},
                    {-3.178281f, 2.222364f, 0.941065f},
                    {1.203475f, -0.878651f, -0.322591f}},
         .mla_row = {1.671085f, -0.219518f, -0.541091f, 1.000975f}});
}

TEST(MicroModels, KimiLinear) {
  check(linear_micro(),
        {.logits = {-0.127068f, 1.030859f, 0.961523f, -0.198465f, -1.055383f, -0.645513f, 1.225477f, -1.621906f},
         .sum_of_squares = 61.668622,
         .argmax = {3, 21, 32, 30, 0, 5, 3, 4, 35, 44, 22, 38},
         .greedy = {38, 3, 54, 24, 60, 38, 39, 20, 60, 20, 27, 41},
         .stream = {{0.369863f, -0.582259f, 0.368065f},
                    {-0.109680f, -1.497470f, -0.124272f},
                    {-2.833932f, -3.086790f, -4.899570f},
                    {-3.354741f, -3.092523f, -6.494735f},
                    {-3.643991f, -4.835442f, -4.337481f},
                    {-3.585618f, -2.216743f, -3.279786f},
                    {-4.122802f, -0.496550f, -3.094165f}},
         .mla_row = {1.474270f, 1.557924f, 0.970611f, 0.209502f}});
}

}  // namespace
}  // namespace weir::test
