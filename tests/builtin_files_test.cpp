// The model inside the program is the one in models/tiny-k3, file by file, and is read as one on disk is.
#include "models/builtin.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "engine/generate.h"
#include "engine/identity.h"
#include "engine/model_text.h"
#include "formats/embedded_files.h"
#include "formats/mapped_file.h"
#include "tests/support/fixtures.h"

namespace weir::test {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(WEIR_FIXTURES) / "../../models/tiny-k3";

class BuiltinFiles : public testing::Test {
 protected:
  BuiltinFiles() { add_builtin_model(); }
};

TEST_F(BuiltinFiles, AreThoseOfTheFolder) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    ++files;
    const std::string name = entry.path().filename().string();
    std::ifstream stream(entry.path(), std::ios::binary);
    const std::string expected{std::istreambuf_iterator<char>(stream), {}};
    EXPECT_TRUE(file_text(std::string(kBuiltinModel) + "/" + name) == expected) << name;
  }
  EXPECT_EQ(embedded_files().size(), files);
  EXPECT_GT(files, 4u);
}

TEST_F(BuiltinFiles, StartOnPagesAndOutliveTheirMappings) {
  for (const EmbeddedFile& file : embedded_files()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(file.bytes.data()) % 4096, 0u) << file.path;
    { const MappedFile mapped = MappedFile::open(std::string(file.path)); }
    EXPECT_EQ(MappedFile::open(std::string(file.path)).bytes().data(), file.bytes.data());
  }
}

TEST_F(BuiltinFiles, WhatIsNotThereIsSaidSo) {
  EXPECT_TRUE(is_folder(kBuiltinModel));
  EXPECT_FALSE(is_folder("builtin:tiny"));
  EXPECT_FALSE(path_exists(std::string(kBuiltinModel) + "/model.bin"));
  try {
    Model::load("builtin:nothing");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("builtin:nothing: no such folder"), std::string::npos) << error.what();
  }
}

TEST_F(BuiltinFiles, GiveTheSameModelAndWords) {
  const std::unique_ptr<Model> inside = Model::load(kBuiltinModel), outside = Model::load(kFolder);
  const ModelText words = ModelText::of(*inside);
  const std::vector<int32_t> prompt = words.encode_raw("Tell me a story");
  EXPECT_EQ(prompt, ModelText::of(*outside).encode_raw("Tell me a story"));
  std::vector<std::vector<int32_t>> answers;
  for (const Model* model : {inside.get(), outside.get()}) {
    Engine engine(*model, exact_options(64, 256));
    answers.push_back(generate(engine, prompt, {.max_tokens = 32}).tokens);
  }
  EXPECT_EQ(answers[0], answers[1]);
}

}  // namespace
}  // namespace weir::test
