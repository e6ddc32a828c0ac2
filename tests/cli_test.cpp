// The program as a user meets it: output formats, exit codes, one-line errors.
#include <boost/json.hpp>
#include <cmath>
#include <cstdio>

#include "tests/support/cli.h"
#include "tests/support/fixtures.h"
#include "tests/support/model_files.h"

namespace weir::test {
namespace {

class CliTest : public CliFixture {
 protected:
  const std::string k3_ = fixture("kimi_k3/k3-tiny");
};

TEST_F(CliTest, ScoreReportsEveryTokenAndTheStepsItTook) {
  std::string ids = "[1";
  for (int i = 1; i < 70; ++i) ids += concat(",", i * 5 % 256);
  ids += "]";
  const std::string tokens = file("tokens.json", ids);
  const std::string logits = (folder_.path() / "logits.safetensors").string();
  const CliResult result = weir(concat("score ", k3_, " --tokens ", tokens, " --logits ", logits,
                                       " --json --max-batch-rows 16 --kv-dtype f32 --activations f32"));
  ASSERT_EQ(result.code, 0) << result.err;
  const boost::json::object out = boost::json::parse(result.out).as_object();
  EXPECT_EQ(out.at("n_scored").as_int64(), 69);
  EXPECT_EQ(out.at("steps").as_int64(), 5);
  EXPECT_EQ(boost::json::serialize(out.at("rows_per_step")), "[16,16,16,16,6]");
  EXPECT_EQ(out.at("token_nll").as_array().size(), 69u);
  double sum = 0;
  for (const auto& v : out.at("token_nll").as_array()) sum += v.to_number<double>();
  EXPECT_NEAR(out.at("mean_nll").to_number<double>(), sum / 69, 1e-12);
  EXPECT_NEAR(out.at("ppl").to_number<double>(), std::exp(sum / 69), 1e-9 * std::exp(sum / 69));
  EXPECT_GT(out.at("weight_bytes_read").as_int64(), 0);

  const SafetensorsFile written = SafetensorsFile::open(logits);
  ASSERT_EQ(written.tensors().size(), 1u);
  EXPECT_EQ(written.tensors()[0].name, "logits");
  EXPECT_EQ(written.tensors()[0].dtype, Dtype::kF32);
  EXPECT_EQ(shape_text(written.tensors()[0].shape), "[70, 512]");
  const CliResult again = weir(concat("score ", k3_, " --tokens ", tokens, " --logits ", logits,
                                      "2 --json --max-batch-rows 70 --threads 1 --kv-dtype f32 --activations f32"));
  EXPECT_EQ(read(logits), read(logits + "2"));
}

TEST_F(CliTest, RunGoesOnFromAPromptOfIds) {
  const std::string prompt = file("prompt.json", "[5, 6, 7]");
  const CliResult result =
      weir(concat("run ", k3_, " --prompt-tokens ", prompt, " --max-tokens 20 --ignore-eos --json"));
  ASSERT_EQ(result.code, 0) << result.err;
  const boost::json::object out = boost::json::parse(result.out).as_object();
  EXPECT_EQ(out.at("tokens").as_array().size(), 20u);
  EXPECT_TRUE(out.at("text").is_string());  // this model has a tokenizer
  EXPECT_EQ(out.at("finish_reason").as_string(), "length");
  EXPECT_EQ(out.at("timings").at("prompt_n").as_int64(), 3);
  const CliResult plain = weir(concat("run ", k3_, " --prompt-tokens ", prompt, " --max-tokens 20 --ignore-eos"));
  std::string expected;
  for (const auto& id : out.at("tokens").as_array()) expected += concat(expected.empty() ? "" : " ", id.as_int64());
  EXPECT_EQ(plain.out, expected + "\n");
  EXPECT_NE(plain.err.find("tok/s"), std::string::npos);
}

TEST_F(CliTest, RunStopsAtAStopToken) {
  ModelFiles files = ModelFiles::read(fixture("hf/llama"));
  const std::string prompt = file("prompt.json", "[5, 6, 7]");
  const auto run = [&](const std::string& model, const std::string& more) {
    const CliResult result = weir(concat("run ", model, " --prompt-tokens ", prompt, " --max-tokens 8 --json ", more));
    EXPECT_EQ(result.code, 0) << result.err;
    return boost::json::parse(result.out).as_object();
  };
  const boost::json::object free = run(fixture("hf/llama"), "--ignore-eos");
  const int64_t third = free.at("tokens").as_array()[2].as_int64();
  files.config["eos_token_id"] = third;
  files.generation_config.clear();
  files.write(folder_.path() / "model");
  const boost::json::object stopped = run((folder_.path() / "model").string(), "");
  EXPECT_EQ(stopped.at("finish_reason").as_string(), "stop");
  EXPECT_LE(stopped.at("tokens").as_array().size(), 2u);
  EXPECT_EQ(run((folder_.path() / "model").string(), "--ignore-eos").at("tokens"), free.at("tokens"));
}

TEST_F(CliTest, RunEndsAtTheContext) {
  ModelFiles files = ModelFiles::read(fixture("hf/llama"));
  files.config["max_position_embeddings"] = 10;
  files.write(folder_.path() / "model");
  const std::string prompt = file("prompt.json", "[5, 6, 7]");
  const CliResult result = weir(concat("run ", (folder_.path() / "model").string(), " --prompt-tokens ", prompt,
                                       " --max-tokens 100 --ignore-eos --json"));
  ASSERT_EQ(result.code, 0) << result.err;
  const boost::json::object out = boost::json::parse(result.out).as_object();
  EXPECT_EQ(out.at("tokens").as_array().size(), 8u);  // seven rows follow the prompt, and one token needs no row
  EXPECT_EQ(out.at("finish_reason").as_string(), "length");
}

TEST_F(CliTest, InspectDescribesFilesStateAndCircuit) {
  const CliResult result = weir("inspect " + k3_ + " --circuit");
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* part : {"kimi_k3", "3 MLA, 4 KDA", "BF16", "MXFP4", "anchor", "state per token", "layers.0.kda.core",
                           "layers.3.mla.absorb", "layers.1.ffn.experts", "head.linear"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part;
  }
}

TEST_F(CliTest, BadInputIsOneLineThatNamesIt) {
  const std::string good = file("good.json", "[1,2,3]");
  expect_error("score /nonexistent --tokens " + good, {"/nonexistent"});
  expect_error("score " + folder_.path().string() + " --tokens " + good, {"config.json"});
  expect_error(concat("score ", k3_, " --tokens /nonexistent.json"), {"/nonexistent.json"});
  for (const char* command : {"score", "run"}) {
    const std::string flag = std::string(command) == "score" ? " --tokens " : " --prompt-tokens ";
    const std::string start = concat(command, " ", k3_, flag);
    expect_error(start + file("a.json", "[]"), {"a.json", "empty"});
    expect_error(start + file("b.json", "{\"a\":1}"), {"b.json", "array"});
    expect_error(start + file("c.json", "[1,2"), {"c.json"});
    expect_error(start + file("d.json", "[1,\"2\"]"), {"d.json", "element 1"});
    expect_error(start + file("e.json", "[1,2.5]"), {"e.json", "element 1", "2.5"});
    expect_error(start + file("f.json", "[1,512]"), {"f.json", "element 1", "[0, 512)", "512"});
    expect_error(start + file("g.json", "[-1]"), {"g.json", "element 0", "-1"});
    expect_error(start + file("h.json", "[99999999999999999999]"), {"h.json"});
    expect_error(start + file("i.json", ""), {"i.json"});
    std::string many = "[1";
    for (int i = 0; i < 4096; ++i) many += ",1";
    expect_error(start + file("j.json", many + "]"), {"j.json", "4096", "4097"});
  }
  expect_error(concat("score ", k3_, " --tokens ", good, " --logits /nonexistent/out.safetensors"),
               {"/nonexistent/out.safetensors"});
}

TEST_F(CliTest, WrongUsageExitsWithTwo) {
  EXPECT_EQ(weir("").code, 2);
  EXPECT_EQ(weir("frobnicate").code, 2);
  EXPECT_NE(weir("frobnicate").err.find("unknown command 'frobnicate'"), std::string::npos);
  const std::string start = concat("run ", k3_, " --prompt-tokens ", file("good.json", "[1,2,3]"));
  for (const char* option :
       {"--kernels sse9", "--kv-dtype f8", "--activations q9", "--seed -1", "--seed 18446744073709551616", "--seed 1.5",
        "--temperature nan", "--temperature inf", "--temperature -1", "--temperature x"}) {
    const CliResult result = weir(concat(start, " ", option));
    EXPECT_EQ(result.code, 2) << option;
    EXPECT_NE(result.err.find(std::string(option).substr(0, std::string(option).find(' '))), std::string::npos)
        << result.err;
  }
  EXPECT_EQ(weir(start + " --seed 18446744073709551615 --max-tokens 1").code, 0);

  EXPECT_EQ(weir("score").code, 2);
  EXPECT_EQ(weir("run " + k3_ + " --max-tokens 0 --prompt-tokens x").code, 2);
  EXPECT_EQ(weir("run " + k3_ + " --prompt-tokens x --threads 0").code, 2);
  EXPECT_EQ(weir("score " + k3_ + " --tokens x --max-batch-rows 0").code, 2);
  EXPECT_EQ(weir("--help").code, 0);
  EXPECT_EQ(weir("run --help").code, 0);
  EXPECT_EQ(weir("--version").code, 0);
}

TEST_F(CliTest, WrongUsageIsOneLineThatSaysWhereHelpIs) {
  const std::string run = "run " + k3_;
  const std::vector<std::string> wrong = {"",
                                          "score",
                                          "--frobnicate",
                                          run + " --frobnicate",
                                          run + " --kernels sse9",
                                          run + " --seed -1",
                                          "score " + k3_,
                                          "tokenize",
                                          "run a 'b\n\x1b[31m' c"};
  for (const std::string& arguments : wrong) {
    const CliResult result = weir(arguments);
    EXPECT_EQ(result.code, 2) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << arguments << "\n" << result.err;
    EXPECT_TRUE(result.err.starts_with("weir: ")) << result.err;
    EXPECT_NE(result.err.find("--help"), std::string::npos) << result.err;
    EXPECT_EQ(result.err.find('\x1b'), std::string::npos) << result.err;
  }
}

TEST_F(CliTest, NamesInMessagesCantBreakTheLineOrSteerTheTerminal) {
  const std::string good = file("good.json", "[1,2,3]");
  const std::string odd = folder_.path().string() + "/a\n\x1b[31mb";
  expect_error("score " + shell_quoted(odd) + " --tokens " + good, {"a\\x0a\\x1b[31mb"});
  expect_error("score " + k3_ + " --tokens " + shell_quoted(odd), {"a\\x0a\\x1b[31mb"});
  expect_error("score " + k3_ + " --tokens " + good + " --logits " + shell_quoted(odd + "/c"), {"a\\x0a\\x1b[31mb/c"});
  ModelFiles files = ModelFiles::read(fixture("hf/llama"));
  files.write(path("model"));
  file("model/model.safetensors.index.json", R"({"weight_map": {"x": "a\n\u001b[31mb"}})");
  expect_error("score " + path("model") + " --tokens " + good, {"a\\x0a\\x1b[31mb"});
}

TEST_F(CliTest, IdsComeFromAFileAPipeOrStandardInput) {
  const std::string start = concat("run ", k3_, " --max-tokens 4 --ignore-eos --prompt-tokens ");
  const CliResult expected = weir(start + file("ids.json", "[5, 6, 7]"));
  ASSERT_EQ(expected.code, 0) << expected.err;
  EXPECT_EQ(weir(start + "-", "[5, 6, 7]").out, expected.out);
  EXPECT_EQ(weir(start + "/dev/stdin", "[5, 6, 7]").out, expected.out);
  const std::string pipe =
      concat("cat ", path("ids.json"), " | ", WEIR_BINARY, " ", start, "- >", path("piped"), " 2>&1");
  EXPECT_EQ(std::system(pipe.c_str()), 0) << read(path("piped"));
  EXPECT_TRUE(read(path("piped")).starts_with(expected.out)) << read(path("piped"));
  const std::string score = concat("score ", k3_, " --json --tokens ");
  EXPECT_EQ(weir(score + "-", "[5, 6, 7]").out, weir(score + path("ids.json")).out);
  expect_error(start + "-", {"standard input", "empty"}, "[]");
  expect_error(start + path(""), {"directory"});
  expect_error(start + "/dev/zero", {"/dev/zero", "more than"});
}

TEST_F(CliTest, InspectNamesPackedWeightsAndWhatIsNotUsed) {
  const CliResult result = weir("inspect " + k3_);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("MXFP4"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("U8"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("10 files,"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("vision_tower.*: 15 tensors, 31.3 kB"), std::string::npos) << result.out;
  const CliResult dense = weir("inspect " + fixture("hf/llama"));
  EXPECT_EQ(dense.out.find("not used"), std::string::npos) << dense.out;
  EXPECT_EQ(dense.out.find("KDA"), std::string::npos) << dense.out;
}

TEST_F(CliTest, InspectDescribesTheFilesOfAModelThatItCannotRun) {
  ModelFiles files = ModelFiles::read(fixture("hf/llama"));
  files.config["model_type"] = "mystery";
  files.write(path("model"));
  const CliResult result = weir("inspect " + path("model"));
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.out.find("1 file,"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("BF16"), std::string::npos) << result.out;
  EXPECT_NE(result.err.find("mystery"), std::string::npos) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

TEST_F(CliTest, AKilledScoreLeavesNothingBehind) {
  const std::string logits = path("logits.safetensors");
  const std::string model = shell_quoted(k3_), ids = path("ids");
  std::string many = "[1";
  for (int i = 1; i < 4000; ++i) many += ",1";
  file("ids", many + "]");
  // Killed while it computes: by then the file is open, without a name (or as .partial).
  const std::string command =
      concat(WEIR_BINARY, " score ", model, " --tokens ", ids, " --logits ", logits,
             " --max-batch-rows 1 --kernels reference --threads 1 >/dev/null 2>&1 & child=$!; seen=3; for i in $(seq "
             "5000); do "
             "ls -l /proc/$child/fd 2>/dev/null | grep -q 'deleted\\|partial' && seen=0 && break; done; "
             "kill -9 $child; wait $child; [ $? = 137 ] || seen=4; exit $seen");
  const int status = std::system(concat("bash -c ", shell_quoted(command)).c_str());
  ASSERT_EQ(WEXITSTATUS(status), 0) << "ended before it was killed";
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    EXPECT_EQ(entry.path().filename().string().find("logits"), std::string::npos) << entry.path();
  }
}

TEST_F(CliTest, LostOutputIsAnErrorOfEveryCommand) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP();
  const std::string good = file("good.json", "[1,2,3]");
  const auto with_output = [&](const std::string& arguments, const std::string& output) {
    const std::string command = concat(WEIR_BINARY, " ", arguments, " </dev/null ", output, " 2>", path("err"));
    const int status = std::system(command.c_str());
    EXPECT_EQ(WEXITSTATUS(status), 1) << command;
    const std::string err = read(path("err"));
    EXPECT_NE(err.find("standard output"), std::string::npos) << command << "\n" << err;
    EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << command << "\n" << err;
  };
  const std::string endless = concat("run ", k3_, " --ignore-eos --prompt-tokens ", good);
  const std::vector<std::string> commands = {"--help",         "run --help", "--version",
                                             "inspect " + k3_, endless,      "run " + k3_ + " --ignore-eos -p x"};
  for (const std::string& arguments : commands) {
    with_output(arguments, ">/dev/full");
    with_output(arguments, ">&-");
  }
}

TEST_F(CliTest, AFullDiskIsAnError) {
  const std::string good = file("good.json", "[1,2,3]");
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP();
  const int status =
      std::system(concat(WEIR_BINARY, " score ", k3_, " --tokens ", good, " --json >/dev/full 2>/dev/null").c_str());
  EXPECT_NE(status, 0) << "output was lost and nobody was told";
}

}  // namespace
}  // namespace weir::test
