// gpt-oss in its three layouts, and sliding windows over whole models: pages, rollback, configurations.
#include <algorithm>
#include <cstring>

#include "engine/generate.h"
#include "tests/support/fixtures.h"
#include "tests/support/model_files.h"

namespace weir::test {
namespace {

constexpr float kTolerance = 2.5e-3f;  // the fixture's

std::vector<float> logits_of(const std::filesystem::path& path, std::span<const int32_t> ids, KernelSet set,
                             Activations activations = Activations::kF32) {
  const std::unique_ptr<Model> model = Model::load(path);
  EngineOptions options = exact_options(static_cast<int32_t>(ids.size()), static_cast<int64_t>(ids.size()));
  options.kernels = set;
  options.activations = activations;
  Engine engine(*model, options);
  return all_logits(engine, ids);
}
std::vector<float> logits_of(const std::filesystem::path& path, std::span<const int32_t> ids) {
  return logits_of(path, ids, best_kernel_set());
}

std::vector<int32_t> prompt_a() { return Golden(fixture("hf/gpt_oss/golden.safetensors")).ids("prompt_a.ids"); }

// The first `count` layers of a model.
ModelFiles first_layers(ModelFiles files, int64_t count) {
  std::erase_if(files.tensors, [&](const auto& entry) {
    const std::string prefix = "model.layers.";
    return entry.first.starts_with(prefix) && std::stoll(entry.first.substr(prefix.size())) >= count;
  });
  files.config["num_hidden_layers"] = count;
  files.config.erase("layer_types");
  return files;
}

TEST(GptOss, PublishedMxfp4BlocksGiveTheBitsOfTheirValuesInBf16) {
  const std::vector<int32_t> ids = prompt_a();
  for (const KernelSet set : kernel_sets()) {
    for (const Activations activations : {Activations::kF32, Activations::kAuto}) {
      const std::vector<float> packed = logits_of(fixture("hf/gpt_oss/mxfp4"), ids, set, activations);
      EXPECT_TRUE(same_bits(packed, logits_of(fixture("hf/gpt_oss"), ids, set, activations))) << kernel_set_name(set);
    }
  }
}

TEST(GptOss, Mxfp4BlocksAreReadInPlaceAndOnlyTheTransposedFormIsCopied) {
  EXPECT_TRUE(Model::load(fixture("hf/gpt_oss/mxfp4"))->spec.owned.empty());
  EXPECT_TRUE(Model::load(fixture("gguf/gpt_oss-mxfp4.gguf"))->spec.owned.empty());
  int64_t bytes = 0;
  const std::unique_ptr<Model> model = Model::load(fixture("hf/gpt_oss"));
  for (const Mapping& memory : model->spec.owned) bytes += memory.bytes();
  EXPECT_EQ(bytes, 4 * 8 * 3 * 64 * 64 * 2);  // layers, experts, matrices, BF16
}

TEST(GptOss, ConfigOfPublishedFilesGivesTheSameBits) {
  ModelFiles files = ModelFiles::read(fixture("hf/gpt_oss"));
  files.config = read_json_file(fixture("hf/gpt_oss") + "/config.hub.json").as_object();
  TemporaryFolder folder;
  files.write(folder.path());
  const std::vector<int32_t> ids = prompt_a();
  const std::vector<float> expected = logits_of(fixture("hf/gpt_oss"), ids);
  EXPECT_TRUE(same_bits(logits_of(folder.path(), ids), expected));
  // Layers alternate where nothing is said; the number of chosen experts has two names.
  files.config.erase("layer_types");
  files.config.erase("num_experts_per_tok");
  files.write(folder.path());
  EXPECT_TRUE(same_bits(logits_of(folder.path(), ids), expected));
}

// GGUF has no place for yarn's truncate: such a file means true, for which it has a golden of its own.
TEST(GptOss, GgufHasTheLogitsOfItsGolden) {
  const std::unique_ptr<Model> model = Model::load(fixture("gguf/gpt_oss-mxfp4.gguf"));
  const Golden golden(fixture("gguf/gpt_oss-gguf-golden.safetensors"));
  const std::vector<int32_t> ids = golden.ids("prompt_a.ids");
  for (const KernelSet set : kernel_sets()) {
    EngineOptions options = exact_options(128, 128);
    options.kernels = set;
    Engine engine(*model, options);
    const float difference = max_difference(all_logits(engine, ids), golden.floats("prompt_a.logits"));
    EXPECT_LE(difference, kTolerance);
    std::printf("gguf/gpt_oss-mxfp4.gguf, %s: largest logit difference %.2e\n",
                std::string(kernel_set_name(set)).c_str(), difference);
  }
}

TEST(GptOss, GgufGivesTheBitsOfAFolderThatTruncates) {
  ModelFiles files = ModelFiles::read(fixture("hf/gpt_oss/mxfp4"));
  files.config["rope_scaling"].as_object()["truncate"] = true;
  TemporaryFolder folder;
  files.write(folder.path());
  const std::vector<int32_t> ids = prompt_a();
  const std::vector<float> expected = logits_of(folder.path(), ids);
  EXPECT_TRUE(same_bits(logits_of(fixture("gguf/gpt_oss-mxfp4.gguf"), ids), expected));
  EXPECT_FALSE(same_bits(logits_of(fixture("hf/gpt_oss/mxfp4"), ids), expected));
}

// A lone layer sees nothing but its window, and rotary positions are relative: the last row of a long prompt has the
// logits of the window's tokens alone.
TEST(Windows, ALoneLayerSeesTheTokensOfItsWindowAndNoOther) {
  ModelFiles files = first_layers(ModelFiles::read(fixture("hf/qwen2")), 1);
  files.config["use_sliding_window"] = true;
  files.config["max_window_layers"] = 0;
  const std::vector<int32_t> ids = Golden(fixture("hf/qwen2/golden.safetensors")).ids("prompt_b.ids");
  const auto vocab = files.config["vocab_size"].to_number<size_t>();
  for (const int64_t window : {1, 16, 17, 100, 300}) {
    files.config["sliding_window"] = window;
    TemporaryFolder folder;
    files.write(folder.path());
    const std::span<const int32_t> prompt = std::span(ids).first(333);
    const std::vector<float> all = logits_of(folder.path(), prompt);
    const std::vector<float> seen = logits_of(folder.path(), prompt.last(static_cast<size_t>(window)));
    EXPECT_LE(max_difference(std::span(all).last(vocab), std::span(seen).last(vocab)), 2e-4f) << window;
    if (window == 1) continue;
    const std::vector<float> fewer = logits_of(folder.path(), prompt.last(static_cast<size_t>(window - 1)));
    EXPECT_GT(max_difference(std::span(all).last(vocab), std::span(fewer).last(vocab)), 2e-4f) << window;
  }
}

TEST(Windows, OfQwenAreNamedByLayerOrByTheFirstOne) {
  ModelFiles files = ModelFiles::read(fixture("hf/qwen2"));
  const auto layers = files.config["num_hidden_layers"].to_number<int64_t>();
  files.config["use_sliding_window"] = true;
  files.config["sliding_window"] = 20;
  files.config["max_window_layers"] = 1;
  files.config.erase("layer_types");
  TemporaryFolder folder;
  files.write(folder.path());
  std::vector<int64_t> windows;
  const std::unique_ptr<Model> model = Model::load(folder.path());
  for (const LayerSpec& layer : model->spec.layers) windows.push_back(std::get<AttentionMixer>(layer.mixer).window);
  std::vector<int64_t> expected(static_cast<size_t>(layers), 20);
  expected[0] = 0;
  EXPECT_EQ(windows, expected);
  const std::vector<int32_t> ids = Golden(fixture("hf/qwen2/golden.safetensors")).ids("prompt_a.ids");
  const std::vector<float> by_number = logits_of(folder.path(), ids);
  boost::json::array types(static_cast<size_t>(layers), "sliding_attention");
  types[0] = "full_attention";
  files.config["layer_types"] = types;
  files.write(folder.path());
  EXPECT_TRUE(same_bits(logits_of(folder.path(), ids), by_number));
  EXPECT_FALSE(same_bits(logits_of(fixture("hf/qwen2"), ids), by_number));
  files.config["sliding_window"] = nullptr;
  files.write(folder.path());
  EXPECT_TRUE(same_bits(logits_of(fixture("hf/qwen2"), ids), logits_of(folder.path(), ids)));
}

TEST(Windows, HoldAsManyPagesAfter20000TokensAsAfter100) {
  ModelFiles files = first_layers(ModelFiles::read(fixture("hf/gpt_oss")), 2);
  files.config["max_position_embeddings"] = 20480;
  files.config["layer_types"] = boost::json::array{"sliding_attention", "sliding_attention"};
  TemporaryFolder folder;
  files.write(folder.path());
  const std::unique_ptr<Model> model = Model::load(folder.path());
  Engine engine(*model, exact_options(64, 20480));
  ASSERT_EQ(engine.pools().groups(), 1);
  const RawBlockPool& pages = engine.pools().pages(0);
  const std::unique_ptr<Sequence> sequence = engine.new_sequence();
  std::vector<int32_t> next = {1, 2, 3};
  int64_t most = 0;
  while (sequence->length() < 20000) {
    const SpanRequest request{sequence.get(), next, LogitsWanted::kLast};
    ASSERT_EQ(engine.step({&request, 1}), StepStatus::kDone);
    sequence->accept(sequence->length());
    const std::span<const float> logits = engine.logits(0);
    next = {static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin())};
    most = std::max(most, pages.held_count());
  }
  EXPECT_EQ(most, 3);  // 32 positions lie in at most three pages
  EXPECT_EQ(engine.steps(), 20000 - 2);
}

TEST(Windows, FreeTheirPagesWhileFullLayersKeepTheirs) {
  const std::unique_ptr<Model> model = Model::load(fixture("hf/gpt_oss"));
  Engine engine(*model, exact_options(48, 1040));
  const StateLayout& layout = engine.circuit().layout();
  const int window = layout.group_of(Retention::kWindow, 32);
  const int full = layout.group_of(Retention::kForever);
  ASSERT_GE(window, 0);
  ASSERT_GE(full, 0);
  const std::vector<int32_t> ids = Golden(fixture("hf/gpt_oss/golden.safetensors")).ids("prompt_b.ids");
  const std::unique_ptr<Sequence> sequence = engine.new_sequence();
  for (size_t done = 0; done < ids.size();) {
    const size_t rows = std::min<size_t>(48, ids.size() - done);
    const SpanRequest request{sequence.get(), std::span(ids).subspan(done, rows), LogitsWanted::kLast};
    ASSERT_EQ(engine.step({&request, 1}), StepStatus::kDone);
    sequence->accept(sequence->length());
    done += rows;
    EXPECT_LE(engine.pools().pages(window).held_count(), 3);
    EXPECT_EQ(engine.pools().pages(full).held_count(), (static_cast<int64_t>(done) + 15) / 16);
  }
}

TEST(Windows, KeptForDeepRollbacksTakeWhatTheMemoryForAnchorsAllows) {
  const std::unique_ptr<Model> model = Model::load(fixture("hf/gpt_oss"));
  EngineOptions options = exact_options(64, 1024);
  options.anchor_memory = 1 << 30;
  Engine engine(*model, options);
  EXPECT_EQ(engine.options().anchor_spacing, 64);
  const std::vector<int32_t> ids = Golden(fixture("hf/gpt_oss/golden.safetensors")).ids("prompt_b.ids");
  const std::unique_ptr<Sequence> sequence = engine.new_sequence();
  for (size_t done = 0; done < 512; done += 64) {
    const SpanRequest request{sequence.get(), std::span(ids).subspan(done, 64), LogitsWanted::kLast};
    ASSERT_EQ(engine.step({&request, 1}), StepStatus::kDone);
    sequence->accept(sequence->length());
  }
  EXPECT_EQ(sequence->rollback(300), 300 / 64 * 64);
}

}  // namespace
}  // namespace weir::test
