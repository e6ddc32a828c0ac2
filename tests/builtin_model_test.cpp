// The trained model of models/tiny-k3: it loads, and says what the PyTorch model that it was trained as says
// (tests/fixtures/builtin, written by tools/tiny_k3/make_golden.py).
#include <boost/json.hpp>
#include <cmath>

#include "engine/generate.h"
#include "engine/model_text.h"
#include "formats/json.h"
#include "tests/support/cli.h"
#include "tests/support/fixtures.h"

namespace weir::test {
namespace {

constexpr const char* kFolder = WEIR_FIXTURES "/../../models/tiny-k3";
// Ten times the largest difference seen.
constexpr double kTolerance = 2e-4;

boost::json::value read_golden(const std::string& name) {
  return read_json_file(concat(WEIR_FIXTURES "/builtin/", name));
}

std::vector<int32_t> ids_of(const boost::json::value& array) {
  return boost::json::value_to<std::vector<int32_t>>(array);
}

double negative_log_likelihood(std::span<const float> logits, int32_t target) {
  double sum = 0;
  const double max = *std::max_element(logits.begin(), logits.end());
  for (const float logit : logits) sum += std::exp(logit - max);
  return max + std::log(sum) - logits[static_cast<size_t>(target)];
}

class BuiltinModelTest : public CliFixture {
 protected:
  std::unique_ptr<Model> model_ = Model::load(kFolder);
};

TEST_F(BuiltinModelTest, IsAKimiK3WithPackedExperts) {
  EXPECT_EQ(model_->spec.family, "kimi_k3");
  EXPECT_GE(model_->spec.max_positions, 32768);
  const CliResult inspected = weir(concat("inspect ", kFolder));
  EXPECT_NE(inspected.out.find("MXFP4                  1008 tensors"), std::string::npos) << inspected.out;
  EXPECT_NE(inspected.out.find("2 MLA, 6 KDA; 7 with experts"), std::string::npos) << inspected.out;
}

TEST_F(BuiltinModelTest, TokensOfFiftyDialoguesAreAsLikelyAsInPyTorch) {
  const boost::json::value golden = read_golden("dialogues.json");
  ASSERT_EQ(golden.get_array().size(), 50u);
  Engine engine(*model_, exact_options(256, 256));
  const auto vocab = static_cast<size_t>(model_->spec.vocab);
  double worst = 0;
  for (const boost::json::value& dialogue : golden.get_array()) {
    const std::vector<int32_t> ids = ids_of(dialogue.at("ids"));
    const std::vector<float> logits = all_logits(engine, ids);
    const boost::json::array& expected = dialogue.at("nll").as_array();
    ASSERT_EQ(expected.size() + 1, ids.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const double nll = negative_log_likelihood(std::span(logits).subspan(i * vocab, vocab), ids[i + 1]);
      worst = std::max(worst, std::abs(nll - expected[i].to_number<double>()));
    }
  }
  EXPECT_LE(worst, kTolerance);
  std::printf("largest difference of a negative log-likelihood: %.2e\n", worst);
}

TEST_F(BuiltinModelTest, GreedyAnswersAreThoseOfPyTorch) {
  const boost::json::value golden = read_golden("greedy.json");
  ASSERT_EQ(golden.get_array().size(), 20u);
  const ModelText text = ModelText::of(*model_);
  Engine engine(*model_, exact_options(256, 1024));
  for (const boost::json::value& entry : golden.get_array()) {
    SCOPED_TRACE(boost::json::serialize(entry.at("request")));
    const RenderedPrompt prompt = text.render(parse_chat_request(entry.at("request"), "greedy.json"));
    ASSERT_EQ(text.encode(prompt), ids_of(entry.at("prompt")));
    GenerateOptions options;
    options.max_tokens = 256;
    const Completion completion = generate(engine, ids_of(entry.at("prompt")), options);
    EXPECT_EQ(completion.tokens, ids_of(entry.at("answer")));
    EXPECT_EQ(completion.finish_reason, FinishReason::kStop);
    EXPECT_EQ(text.tokenizer().decode(completion.tokens, false), entry.at("text").as_string());
  }
}

TEST_F(BuiltinModelTest, LogitsStayFiniteFarBeyondTheLengthsOfTraining) {
  std::vector<int32_t> ids(20000);
  uint32_t random = 1;
  for (int32_t& id : ids) id = static_cast<int32_t>((random = random * 1664525u + 1013904223u) >> 16) % 1792;
  EngineOptions options = exact_options(512, 20016, 2);
  options.max_logit_rows = 1;
  Engine engine(*model_, options);
  GenerateOptions generate_options;
  generate_options.max_tokens = 8;
  generate_options.ignore_eos = true;
  EXPECT_EQ(generate(engine, ids, generate_options).tokens.size(), 8u);  // Error when a logit is not finite
}

}  // namespace
}  // namespace weir::test
