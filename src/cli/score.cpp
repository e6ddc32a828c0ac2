// weir score: how well a model predicts a token sequence; the logits of every position on request.
#include <boost/json.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/load.h"
#include "cli/options.h"
#include "formats/safetensors_writer.h"

namespace weir::cli {
namespace {

struct ScoreOptions {
  ModelOptions model;
  std::string tokens;
  std::string text;
  std::string logits;
  bool json = false;
};

// -log softmax(logits)[target], in double.
double negative_log_likelihood(std::span<const float> logits, int32_t target) {
  double max = -INFINITY;
  for (float logit : logits) max = std::max(max, static_cast<double>(logit));
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
  return max + std::log(sum) - static_cast<double>(logits[static_cast<size_t>(target)]);
}

std::vector<int32_t> scored_tokens(const ScoreOptions& options, const Model& model) {
  if (options.text.empty()) return read_tokens(options.tokens, model.spec.vocab, model.spec.max_positions);
  const std::string text = read_input(options.text, int64_t{1} << 30);
  const std::vector<int32_t> ids = ModelText::of(model).tokenizer().encode(text, SpecialTokens::kText, true);
  check_prompt(ids, model);
  if (ids.empty()) fail(options.text, ": expected at least one token, found none");
  if (static_cast<int64_t>(ids.size()) > model.spec.max_positions) {
    fail(options.text, ": expected at most ", model.spec.max_positions, " tokens, the model's context, found ",
         ids.size());
  }
  return ids;
}

void score(const ScoreOptions& options) {
  const std::unique_ptr<Model> model = Model::load(options.model.model);
  const std::vector<int32_t> tokens = scored_tokens(options, *model);
  const auto count = static_cast<int64_t>(tokens.size());
  EngineOptions engine_options = options.model.engine_options();
  engine_options.max_batch_rows = static_cast<int32_t>(std::min<int64_t>(engine_options.max_batch_rows, count));
  engine_options.max_logit_rows = engine_options.max_batch_rows;
  engine_options.max_tokens = count;
  Engine engine(*model, engine_options);

  std::optional<SafetensorsRowWriter> writer;
  for (const std::string& input : model->file_paths()) {
    std::error_code ignored;
    if (!options.logits.empty() && std::filesystem::equivalent(options.logits, input, ignored)) {
      fail(options.logits, ": cannot be written: it is a file of the model");
    }
  }
  if (!options.logits.empty()) writer.emplace(options.logits, "logits", count, model->spec.vocab);
  const std::unique_ptr<Sequence> sequence = engine.new_sequence();
  boost::json::array token_nll, rows_per_step;
  double total = 0;
  for (int64_t done = 0; done < count;) {
    const int64_t rows = std::min<int64_t>(engine_options.max_batch_rows, count - done);
    const SpanRequest request{sequence.get(),
                              std::span(tokens).subspan(static_cast<size_t>(done), static_cast<size_t>(rows)),
                              LogitsWanted::kAll};
    require_done(engine, engine.step({&request, 1}));
    sequence->accept(sequence->length());
    rows_per_step.push_back(rows);
    for (int64_t r = 0; r < rows; ++r) {
      const std::span<const float> logits = engine.logits(r);
      const int64_t position = done + r;
      for (const float logit : logits) {
        if (!std::isfinite(logit)) fail("position ", position, ": a logit is not finite");
      }
      if (writer) writer->append(logits);
      if (position + 1 == count) break;
      const double nll = negative_log_likelihood(logits, tokens[static_cast<size_t>(position + 1)]);
      token_nll.push_back(nll);
      total += nll;
    }
    done += rows;
  }
  if (writer) writer->finish();

  const auto scored = static_cast<int64_t>(token_nll.size());
  const double mean = scored > 0 ? total / static_cast<double>(scored) : NAN;
  if (options.json) {
    boost::json::object out;
    out["mean_nll"] = scored > 0 ? boost::json::value(mean) : boost::json::value(nullptr);
    out["ppl"] = scored > 0 ? boost::json::value(std::exp(mean)) : boost::json::value(nullptr);
    out["token_nll"] = std::move(token_nll);
    out["n_scored"] = scored;
    out["steps"] = engine.steps();
    out["rows_per_step"] = std::move(rows_per_step);
    out["weight_bytes_read"] = engine.device().counters().weight_bytes_read;
    std::printf("%s\n", boost::json::serialize(out).c_str());
    return;
  }
  std::printf("%s scored in %s\n", counted(scored, "token").c_str(), counted(engine.steps(), "step").c_str());
  if (scored == 0) std::printf("a token is scored by those before it: two are needed\n");
  if (scored > 0) std::printf("mean NLL %.6f, perplexity %.4f\n", mean, std::exp(mean));
}

}  // namespace

void add_score(CLI::App& app) {
  CLI::App* command = app.add_subcommand("score", "negative log-likelihood and logits of a token sequence");
  const auto options = std::make_shared<ScoreOptions>();
  options->model.add_to(*command);
  auto* source = command->add_option_group("source")->require_option(1);
  source->add_option("--tokens", options->tokens,
                     "JSON file (-: standard input): an array of token ids, taken as they are");
  source->add_option(
      "--text", options->text,
      "file of text (-: standard input), in which nothing is special; BOS in front if the model wants it");
  command->add_option("--logits", options->logits, "write F32 `logits` [n, vocab] to this safetensors file")
      ->check(CLI::Validator([](std::string& path) { return path.empty() ? "expected a path" : std::string(); }, ""));
  command->add_flag("--json", options->json, "print a JSON object");
  command->callback([options] { score(*options); });
}

}  // namespace weir::cli
