// FP8 (E4M3) checkpoints: the goldens of their dequantised weights, bits equal to a checkpoint that holds those weights
// in FP32, and refusals.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/number.h"
#include "engine/generate.h"
#include "formats/quant.h"
#include "tests/support/fixtures.h"
#include "tests/support/model_files.h"
#include "tests/support/refusals.h"

namespace weir::test {
namespace {

struct Fp8Model {
  const char* folder;
  double tolerance;  // the fixture's
  int matrices;      // in FP8
};

constexpr Fp8Model kModels[] = {
    {"hf/deepseek_v3_fp8_block", 4.7e-4, 104}, {"hf/deepseek_v3_fp8_channel", 4.1e-4, 104},
    {"hf/qwen3_ragged_fp8_block", 2.3e-4, 14}, {"hf/qwen3_moe_fp8_block", 1.5e-4, 112},
    {"hf/qwen3_moe_fp8_channel", 1.5e-4, 112},
};

float scale_at(const RawTensor& scales, int64_t i) {
  uint32_t bits = 0;
  const auto size = static_cast<int64_t>(scales.data.size()) / (scales.shape[0] * scales.shape[1]);
  std::memcpy(&bits, scales.data.data() + i * size, static_cast<size_t>(size));
  if (scales.dtype == "F32") return std::bit_cast<float>(bits);
  const auto half = static_cast<uint16_t>(bits);
  return scales.dtype == "BF16" ? bf16_to_f32(half) : f16_to_f32(half);
}

// Replaces every FP8 matrix by its values in FP32; returns how many there were.
int dequantise(ModelFiles& files) {
  int matrices = 0;
  files.config.erase("quantization_config");
  std::map<std::string, RawTensor> tensors;
  for (const auto& [name, t] : files.tensors) {
    if (name.ends_with("_scale_inv") || name.ends_with("_scale")) continue;
    if (t.dtype != "F8_E4M3") {
      tensors[name] = t;
      continue;
    }
    ++matrices;
    const bool blocks = files.tensors.contains(name + "_scale_inv");
    const RawTensor& scales = files.tensors.at(name + (blocks ? "_scale_inv" : "_scale"));
    RawTensor wide{"F32", t.shape, std::vector<std::byte>(t.data.size() * 4)};
    const int64_t in = t.shape[1];
    for (int64_t i = 0; i < static_cast<int64_t>(t.data.size()); ++i) {
      const int64_t at = blocks ? i / in / 128 * scales.shape[1] + i % in / 128 : i / in;
      const float value = e4m3_to_f32(static_cast<uint8_t>(t.data[static_cast<size_t>(i)])) * scale_at(scales, at);
      std::memcpy(wide.data.data() + i * 4, &value, 4);
    }
    tensors[name] = std::move(wide);
  }
  files.tensors = std::move(tensors);
  return matrices;
}

std::vector<float> logits_of(const std::filesystem::path& folder, KernelSet set, const std::vector<int32_t>& ids,
                             int32_t rows) {
  const std::unique_ptr<Model> model = Model::load(folder);
  EngineOptions options = exact_options(rows, 100, 2);
  options.kernels = set;
  Engine engine(*model, options);
  return all_logits(engine, ids);
}

class Fp8Golden : public testing::TestWithParam<Fp8Model> {
 protected:
  Fp8Golden() : golden_(fixture(GetParam().folder) + "/golden.safetensors") {}
  Golden golden_;
};

TEST_P(Fp8Golden, LogitsAtEveryPosition) {
  const std::vector<int32_t> ids = golden_.ids("prompt_a.ids");
  for (KernelSet set : kernel_sets()) {
    const float difference =
        max_difference(logits_of(fixture(GetParam().folder), set, ids, 97), golden_.floats("prompt_a.logits"));
    EXPECT_LE(difference, GetParam().tolerance) << kernel_set_name(set);
    std::printf("%s, %s: largest logit difference %.2e\n", GetParam().folder, std::string(kernel_set_name(set)).c_str(),
                difference);
  }
}

TEST_P(Fp8Golden, GreedyTokens) {
  const std::unique_ptr<Model> model = Model::load(fixture(GetParam().folder));
  Engine engine(*model, exact_options(64, 200));
  GenerateOptions options;
  options.max_tokens = 16;
  options.ignore_eos = true;
  EXPECT_EQ(generate(engine, golden_.ids("prompt_a.ids"), options).tokens, golden_.ids("greedy.ids"));
}

TEST_P(Fp8Golden, GivesTheBitsOfItsValuesInFp32) {
  std::vector<int32_t> ids = golden_.ids("prompt_a.ids");
  ModelFiles files = ModelFiles::read(fixture(GetParam().folder));
  EXPECT_EQ(dequantise(files), GetParam().matrices);
  TemporaryFolder twin;
  files.write(twin.path());
  for (KernelSet set : kernel_sets()) {
    for (int32_t rows : {1, 97}) {
      if (set == KernelSet::kReference && rows == 1) continue;
      EXPECT_TRUE(
          same_bits(logits_of(fixture(GetParam().folder), set, ids, rows), logits_of(twin.path(), set, ids, rows)))
          << kernel_set_name(set) << ", " << rows << " rows";
    }
  }
}

TEST_P(Fp8Golden, ReadsBothGenerationsOfTheConfigurationAlike) {
  ModelFiles files = ModelFiles::read(fixture(GetParam().folder));
  std::ifstream hub(fixture(GetParam().folder) + "/config.hub.json");
  ASSERT_TRUE(hub.good());
  files.config = boost::json::parse(std::string{std::istreambuf_iterator<char>(hub), {}}).as_object();
  TemporaryFolder folder;
  files.write(folder.path());
  const std::vector<int32_t> ids = golden_.ids("prompt_a.ids");
  EXPECT_TRUE(same_bits(logits_of(folder.path(), best_kernel_set(), ids, 97),
                        logits_of(fixture(GetParam().folder), best_kernel_set(), ids, 97)));
}

INSTANTIATE_TEST_SUITE_P(Models, Fp8Golden, testing::ValuesIn(kModels), [](const auto& param) {
  std::string name = param.param.folder;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
});

// Scales in other types than the fixture's.
TEST(Fp8, ReadsScalesInEveryFloatType) {
  const std::string source = fixture("hf/qwen3_ragged_fp8_block");
  std::vector<int32_t> ids = Golden(source + "/golden.safetensors").ids("prompt_a.ids");
  ids.resize(20);
  for (const std::string dtype : {"F16", "BF16"}) {
    ModelFiles files = ModelFiles::read(source);
    for (auto& [name, t] : files.tensors) {
      if (!name.ends_with("_scale_inv")) continue;
      std::vector<std::byte> halves;
      for (int64_t i = 0; i < t.shape[0] * t.shape[1]; ++i) {
        const uint16_t half = dtype == "F16" ? f32_to_f16(scale_at(t, i)) : f32_to_bf16(scale_at(t, i));
        const auto* bytes = reinterpret_cast<const std::byte*>(&half);
        halves.insert(halves.end(), bytes, bytes + 2);
      }
      t.dtype = dtype;
      t.data = std::move(halves);
    }
    TemporaryFolder folder, twin;
    files.write(folder.path());
    dequantise(files);
    files.write(twin.path());
    for (KernelSet set : kernel_sets()) {
      EXPECT_TRUE(same_bits(logits_of(folder.path(), set, ids, 20), logits_of(twin.path(), set, ids, 20)))
          << kernel_set_name(set) << " " << dtype;
    }
  }
}

boost::json::object& quantization(ModelFiles& files) { return files.config["quantization_config"].as_object(); }

TEST(Fp8, RefusesWhatItCannotHonourByName) {
  const std::string block = "hf/qwen3_ragged_fp8_block", channel = "hf/deepseek_v3_fp8_channel";
  const std::string scale = "model.layers.0.mlp.up_proj.weight_scale_inv";
  expect_refused(block, [](ModelFiles& f) { quantization(f)["quant_method"] = "awq"; }, {"quant_method", "awq"});
  expect_refused(block, [](ModelFiles& f) { quantization(f)["fmt"] = "e5m2"; }, {"fmt", "e5m2"});
  expect_refused(block, [](ModelFiles& f) { quantization(f)["activation_scheme"] = "static"; }, {"activation_scheme"});
  expect_refused(block, [](ModelFiles& f) { quantization(f)["weight_block_size"] = {64, 64}; }, {"weight_block_size"});
  expect_refused(block, [](ModelFiles& f) { quantization(f).erase("weight_block_size"); }, {"weight_block_size"});
  expect_refused(channel, [](ModelFiles& f) { quantization(f)["format"] = "pack-quantized"; }, {"format"});
  expect_refused(channel,
                 [](ModelFiles& f) {
                   quantization(f)["config_groups"].at("group_0").as_object()["weights"].as_object()["strategy"] =
                       "tensor";
                 },
                 {"strategy", "tensor"});
  expect_refused(block, [&](ModelFiles& f) { f.tensors.erase(scale); }, {"up_proj.weight_scale"});
  expect_refused(block, [&](ModelFiles& f) { f.tensors[scale].shape = {2, 3}; }, {scale, "[3, 2]"});
  expect_refused(block, [&](ModelFiles& f) { std::memset(f.tensors[scale].data.data(), 0x7f, 4); }, {scale});  // 3.4e38
  expect_refused(block, [&](ModelFiles& f) { std::memset(f.tensors[scale].data.data(), 0xff, 4); }, {scale, "NaN"});
}

}  // namespace
}  // namespace weir::test
