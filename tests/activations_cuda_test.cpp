// How far BF16 products on a GPU are from exact ones: the Kullback-Leibler divergence of the next token's distribution,
// on text that the models write. The bound is far above what an H200 showed; a wrong rounding point or a dropped low
// half shows as tens of percent.
#define WEIR_TEST_GPU 0
#include <cmath>

#include "engine/generate.h"
#include "models/builtin.h"
#include "tests/support/equality.h"
#include "tests/support/fixtures.h"

static const auto* const kEnvironment = ::testing::AddGlobalTestEnvironment(new weir::test::NeedsGpu);

namespace weir::test {
namespace {

constexpr int64_t kPrompt = 4, kText = 120;

std::vector<float> log_probabilities(std::span<const float> logits) {
  double largest = logits[0], sum = 0;
  for (const float l : logits) largest = std::max<double>(largest, l);
  for (const float l : logits) sum += std::exp(l - largest);
  std::vector<float> out;
  for (const float l : logits) out.push_back(static_cast<float>(l - largest - std::log(sum)));
  return out;
}

// Nats by which the distributions of a model differ on text that it writes itself.
void expect_near(const Model& model, const char* name) {
  const auto vocab = static_cast<size_t>(model.spec.vocab);
  EngineOptions exact = exact_options(128, 256);
  EngineOptions fast = exact;
  fast.activations = Activations::kAuto;
  fast.kv_dtype = StateDtype::kBf16;
  Engine reference(model, exact), engine(model, fast);
  double divergence = 0;
  int64_t rows = 0;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    std::vector<int32_t> text;
    for (int64_t i = 0; i < kPrompt; ++i) text.push_back(static_cast<int32_t>((seed * 131 + 17 * i) % 1000));
    GenerateOptions options;
    options.max_tokens = kText;
    options.ignore_eos = true;
    options.sampling.temperature = 1;
    options.sampling.seed = seed;
    const Completion written = generate(reference, text, options);
    text.insert(text.end(), written.tokens.begin(), written.tokens.end());
    const std::vector<float> a = all_logits(reference, text), b = all_logits(engine, text);
    for (size_t at = 0; at < a.size(); at += vocab, ++rows) {
      const std::vector<float> p = log_probabilities(std::span(a).subspan(at, vocab));
      const std::vector<float> q = log_probabilities(std::span(b).subspan(at, vocab));
      for (size_t i = 0; i < vocab; ++i) divergence += std::exp(p[i]) * (p[i] - q[i]);
    }
  }
  divergence /= static_cast<double>(rows);
  std::printf("KL of BF16 against f32, %s, over %lld rows: %.3e nats\n", name, static_cast<long long>(rows),
              divergence);
  EXPECT_GE(rows, 4 * kText);
  EXPECT_LT(divergence, 1e-3);
  EXPECT_GT(divergence, 0) << "both computed the same way";
}

TEST(ActivationsCuda, Bf16KeepsTheDistributionOfTheNextToken) {
  add_builtin_model();
  expect_near(*Model::load(kBuiltinModel), "built-in model");
}

TEST(ActivationsCuda, Bf16KeepsTheDistributionOfSmolLm2) {
  const std::string path = smollm2_path();
  if (path.empty()) GTEST_SKIP() << "SmolLM2 is not there: tools/fetch_smollm2.sh brings it";
  expect_near(*Model::load(path), "SmolLM2-135M Q4_1");
}

}  // namespace
}  // namespace weir::test
