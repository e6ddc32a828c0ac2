// What a model's files say about sampling.
#include "engine/sampling_defaults.h"

#include "tests/support/fixtures.h"
#include "tests/support/gguf_files.h"
#include "tests/support/model_files.h"

namespace weir::test {
namespace {

SamplingOptions defaults_with(const boost::json::object& fields) {
  TemporaryFolder folder;
  ModelFiles::read(fixture("hf/llama")).write(folder.path());
  std::ofstream(folder.path() / "generation_config.json") << boost::json::serialize(fields);
  return sampling_defaults(*Model::load(folder.path()));
}

TEST(SamplingDefaults, AreTheMakersOrGreedy) {
  EXPECT_EQ(defaults_with({}).temperature, 0);
  EXPECT_EQ(defaults_with({{"top_k", 5}}).top_k, 0);  // means nothing without sampling
  EXPECT_EQ(defaults_with({{"do_sample", true}}).temperature, 1);
  EXPECT_EQ(defaults_with({{"do_sample", false}, {"temperature", 0.7}}).temperature, 0);
  const SamplingOptions all = defaults_with(
      {{"temperature", 0.7}, {"top_k", 20}, {"top_p", 0.8}, {"min_p", 0.05}, {"repetition_penalty", 1.1}});
  EXPECT_EQ(all.temperature, 0.7f);
  EXPECT_EQ(all.top_k, 20);
  EXPECT_EQ(all.top_p, 0.8f);
  EXPECT_EQ(all.min_p, 0.05f);
  EXPECT_EQ(all.repetition_penalty, 1.1f);
}

TEST(SamplingDefaults, OfGgufFilesAreInTheirMetadata) {
  TemporaryFolder folder;
  testing::GgufBytes file = read_gguf(fixture("gguf/k3-tiny-mxfp4.gguf"));
  write_gguf(file, folder.path() / "plain.gguf");
  EXPECT_EQ(sampling_defaults(*Model::load(folder.path() / "plain.gguf")).temperature, 0);
  file.set("general.sampling.temp", testing::gguf_f32(0.6f));
  file.set("general.sampling.top_p", testing::gguf_f32(0.95f));
  write_gguf(file, folder.path() / "sampled.gguf");
  const SamplingOptions options = sampling_defaults(*Model::load(folder.path() / "sampled.gguf"));
  EXPECT_EQ(options.temperature, 0.6f);
  EXPECT_EQ(options.top_p, 0.95f);
}

TEST(SamplingDefaults, OutOfRangeIsRefusedByName) {
  for (const char* field : {"temperature", "top_p", "min_p", "top_k", "repetition_penalty"}) {
    try {
      defaults_with({{"do_sample", true}, {field, -1}});
      ADD_FAILURE() << field;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(field), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("generation_config.json"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace weir::test
