#include "formats/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <ctime>

#include "formats/testing.h"

namespace weir {
namespace {

using testing::error_of;
using testing::safetensors_bytes;
using testing::TempFolder;

// One U8 tensor of 4 bytes per name.
std::string shard(const std::vector<std::string>& names) {
  std::string header = "{";
  size_t offset = 0;
  for (const std::string& name : names) {
    header += concat(offset == 0 ? "" : ",", "\"", name, "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[",
                     offset, ",", offset + 4, "]}");
    offset += 4;
  }
  return safetensors_bytes(header + "}", offset);
}

// A folder with two shards; each test then spoils one thing.
class CheckpointFolder : public TempFolder {
 public:
  CheckpointFolder() {
    write("config.json", R"({"model_type": "t", "eps": 1e-6})");
    write("1.safetensors", shard({"c", "a"}));
    write("2.safetensors", shard({"b"}));
    index(R"("a": "1.safetensors", "b": "2.safetensors", "c": "1.safetensors")");
  }
  void index(std::string_view weight_map, std::string_view metadata = R"({"total_size": 12})") const {
    write("model.safetensors.index.json", concat("{\"metadata\": ", metadata, ", \"weight_map\": {", weight_map, "}}"));
  }
  std::string error() const {
    return error_of([&] { Checkpoint::open(path()); });
  }
};

TEST(Checkpoint, opens_the_published_layouts) {
  const struct {
    const char* folder;
    size_t files;
    size_t tensors;
    const char* type;
  } cases[] = {
      {"kimi_k3/k3-tiny", 10, 772, "kimi_k3"}, {"hf/llama", 5, 39, "llama"}, {"hf/kimi_linear", 1, 197, "kimi_linear"}};
  for (const auto& c : cases) {
    const Checkpoint checkpoint = Checkpoint::open(std::filesystem::path(WEIR_FIXTURES) / c.folder);
    EXPECT_EQ(checkpoint.files().size(), c.files);
    EXPECT_EQ(checkpoint.tensors().size(), c.tensors);
    EXPECT_EQ(checkpoint.config().string("model_type"), c.type);
    ASSERT_NE(checkpoint.generation_config(), nullptr);
    EXPECT_FALSE(checkpoint.generation_config()->integer_or_list("eos_token_id", 0, 1 << 20).empty());
    int64_t bytes = 0;
    int64_t tensors = 0;
    for (const Checkpoint::File& file : checkpoint.files()) {
      EXPECT_EQ(file.bytes, static_cast<int64_t>(std::filesystem::file_size(file.path)));
      bytes += file.bytes;
      tensors += file.tensors;
    }
    EXPECT_EQ(checkpoint.total_bytes(), bytes);
    EXPECT_EQ(tensors, static_cast<int64_t>(c.tensors));
    for (const Tensor& tensor : checkpoint.tensors()) EXPECT_EQ(checkpoint.find(tensor.name), &tensor);
  }
}

TEST(Checkpoint, finds_tensors_of_all_shards_by_name) {
  const CheckpointFolder folder;
  Checkpoint opened = Checkpoint::open(folder.path());
  const Checkpoint checkpoint = std::move(opened);
  ASSERT_EQ(checkpoint.tensors().size(), 3u);
  EXPECT_EQ(checkpoint.tensors()[0].name, "a");
  EXPECT_EQ(checkpoint.tensors()[2].name, "c");
  ASSERT_NE(checkpoint.find("a"), nullptr);
  EXPECT_EQ(static_cast<int>(*checkpoint.find("a")->data), 4);  // second of its shard
  EXPECT_EQ(*checkpoint.find("b")->file, folder.file("2.safetensors"));
  EXPECT_EQ(checkpoint.find(""), nullptr);
  EXPECT_EQ(checkpoint.find("aa"), nullptr);
  EXPECT_EQ(checkpoint.find("d"), nullptr);
  EXPECT_EQ(checkpoint.generation_config(), nullptr);
  EXPECT_EQ(checkpoint.folder(), folder.path().string());
}

TEST(Checkpoint, prefers_the_index_to_a_single_file) {
  const CheckpointFolder folder;
  folder.write("model.safetensors", "not even looked at");
  EXPECT_EQ(Checkpoint::open(folder.path()).files().size(), 2u);
  std::filesystem::remove(folder.file("model.safetensors.index.json"));
  folder.write("model.safetensors", shard({"x"}));
  EXPECT_NE(Checkpoint::open(folder.path()).find("x"), nullptr);
}

TEST(Checkpoint, follows_links_to_shards_as_download_caches_make_them) {
  const CheckpointFolder folder;
  const TempFolder blobs;
  std::filesystem::rename(folder.file("2.safetensors"), blobs.file("blob"));
  std::filesystem::create_symlink(blobs.file("blob"), folder.file("2.safetensors"));
  EXPECT_EQ(folder.error(), "no error");
}

TEST(Checkpoint, refuses_what_is_not_a_model_folder) {
  const CheckpointFolder folder;
  EXPECT_EQ(error_of([&] { Checkpoint::open(folder.path() / "no"); }),
            folder.file("no") + ": no such folder; expected a model folder with config.json");
  EXPECT_EQ(error_of([&] { Checkpoint::open(folder.path() / "config.json"); }),
            folder.file("config.json") + ": expected a model folder, found a file");
  EXPECT_NE(error_of([&] { Checkpoint::open(""); }), "no error");
  std::filesystem::remove(folder.file("model.safetensors.index.json"));
  EXPECT_EQ(folder.error(),
            folder.path().string() + ": no weights: looked for model.safetensors.index.json and model.safetensors");
  std::filesystem::remove(folder.file("config.json"));
  EXPECT_EQ(folder.error(), folder.file("config.json") + ": can't open: No such file or directory");
}

TEST(Checkpoint, refuses_bad_configs_naming_the_file) {
  for (const std::string name : {"config.json", "generation_config.json"}) {
    const struct {
      std::string_view text;
      std::string_view message;  // begins with
    } cases[] = {{"", ": not JSON at byte 0: "},
                 {"[]", ": expected a JSON object, found an array of 0"},
                 {"null", ": expected a JSON object, found null"},
                 {"3", ": expected a JSON object, found 3"},
                 {"{\"eps\": NaN}", ": not JSON at byte 8: "},
                 {"{\"eps\": 1e999}", ": not JSON at byte 13: number '1e999' is too large"},
                 {"{\"eps\": 1, \"eps\": 2}", ": not JSON at byte 19: duplicate key 'eps'"},
                 {"{\"eps\": 1", ": not JSON at byte 9: "}};
    for (const auto& c : cases) {
      const CheckpointFolder folder;
      folder.write(name, c.text);
      const std::string message = folder.error();
      EXPECT_TRUE(message.starts_with(concat(folder.file(name), c.message))) << message;
    }
    const CheckpointFolder folder;
    std::filesystem::remove(folder.file(name));
    std::filesystem::create_directory(folder.file(name));
    EXPECT_EQ(folder.error(), folder.file(name) + ": expected a regular file, found a folder");
  }
}

TEST(Checkpoint, refuses_an_index_that_lies) {
  const struct {
    std::string_view weight_map;
    std::string_view message;  // after "INDEX: "
  } cases[] = {
      {R"("a": "1.safetensors", "b": "2.safetensors")", "weight_map lacks tensor 'c', which is in 1.safetensors"},
      {R"("a": "2.safetensors", "b": "2.safetensors", "c": "1.safetensors")",
       "weight_map has tensor 'a' in '2.safetensors', but it is in 1.safetensors"},
      {R"("a": "1.safetensors", "b": "2.safetensors", "c": "1.safetensors", "d": "2.safetensors")",
       "weight_map has tensor 'd' in '2.safetensors', which does not hold it"},
      {R"("a": "1.safetensors", "b": "2.safetensors", "c": 1)",
       "field 'weight_map.c': expected the name of a file, found 1"},
      {R"("a": "1.safetensors", "b": "2.safetensors", "c": null)",
       "field 'weight_map.c': expected the name of a file, found null"},
      {R"("a": "1.safetensors", "a": "2.safetensors")", "not JSON at byte 89: duplicate key 'a'"},
  };
  for (const auto& c : cases) {
    const CheckpointFolder folder;
    folder.index(c.weight_map);
    EXPECT_EQ(folder.error(), folder.file("model.safetensors.index.json") + ": " + std::string(c.message));
  }
}

TEST(Checkpoint, refuses_shard_names_that_lead_out_of_the_folder) {
  for (const std::string name :
       {"../1.safetensors", "/etc/passwd", "..", ".", "", "sub/1.safetensors", "a\\\\b", "x\\u0000"}) {
    const CheckpointFolder folder;
    folder.index(concat("\"a\": \"", name, "\""));
    EXPECT_EQ(folder.error().find(folder.file("model.safetensors.index.json") +
                                  ": field 'weight_map.a': expected the name of a file in the same folder, found "),
              0u)
        << folder.error();
  }
}

TEST(Checkpoint, refuses_indexes_of_the_wrong_form) {
  const CheckpointFolder folder;
  const std::string index = folder.file("model.safetensors.index.json");
  folder.write("model.safetensors.index.json", "[]");
  EXPECT_EQ(folder.error(), index + ": expected a JSON object, found an array of 0");
  folder.write("model.safetensors.index.json", "{}");
  EXPECT_EQ(folder.error(), index + ": field 'weight_map': expected an object, found nothing");
  folder.write("model.safetensors.index.json", R"({"weight_map": ["a"]})");
  EXPECT_EQ(folder.error(), index + ": field 'weight_map': expected an object, found an array of 1");
}

TEST(Checkpoint, names_missing_and_unreadable_shards) {
  CheckpointFolder folder;
  std::filesystem::remove(folder.file("2.safetensors"));
  EXPECT_EQ(folder.error(), folder.file("2.safetensors") + ": no such file, but model.safetensors.index.json names it");
  std::filesystem::create_directory(folder.file("2.safetensors"));
  EXPECT_EQ(folder.error(), folder.file("2.safetensors") + ": expected a regular file, found a folder");
  std::filesystem::remove(folder.file("2.safetensors"));
  ASSERT_EQ(::mkfifo(folder.file("2.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(folder.error(), folder.file("2.safetensors") + ": expected a regular file, found a FIFO");
  std::filesystem::remove(folder.file("2.safetensors"));
  folder.write("2.safetensors", shard({"b"}).substr(0, 40));
  EXPECT_EQ(folder.error().find(folder.file("2.safetensors") + ": header length "), 0u) << folder.error();
}

TEST(Checkpoint, refuses_a_tensor_in_two_shards) {
  const CheckpointFolder folder;
  folder.write("2.safetensors", shard({"b", "a"}));
  EXPECT_EQ(folder.error(), folder.file("1.safetensors") + ": tensor 'a' is also in 2.safetensors");
}

TEST(Checkpoint, checks_the_total_size_against_the_files) {
  const CheckpointFolder folder;
  constexpr std::string_view kMap = R"("a": "1.safetensors", "b": "2.safetensors", "c": "1.safetensors")";
  const std::string bytes = concat(std::filesystem::file_size(folder.file("1.safetensors")) +
                                   std::filesystem::file_size(folder.file("2.safetensors")));
  for (const std::string metadata : {"{}", "null", R"({"total_size": 0})", R"({"total_size": 5.0})",
                                     R"({"total_size": null, "total_parameters": 3})"}) {
    folder.index(kMap, metadata);
    EXPECT_EQ(folder.error(), "no error") << metadata;
  }
  folder.index(kMap, R"({"total_size": 100000})");
  EXPECT_EQ(folder.error(), folder.file("model.safetensors.index.json") +
                                ": metadata.total_size is 100000 bytes, but the shards have only " + bytes +
                                "; are all files complete?");
  folder.index(kMap, R"({"total_size": "big"})");
  EXPECT_EQ(folder.error(), folder.file("model.safetensors.index.json") +
                                ": field 'metadata.total_size': expected an integer of at least 0, found string 'big'");
}

// The size of the largest published model: 497,220 tensors in 96 shards. The data are holes.
TEST(Checkpoint, opens_half_a_million_tensors_in_seconds) {
  constexpr int64_t kTensors = 497'220;
  constexpr int64_t kShards = 96;
  constexpr int64_t kBytes = 3072 * 1792;
  const TempFolder folder;
  folder.write("config.json", "{}");
  std::string index = "{\"weight_map\": {\n";
  for (int64_t s = 0; s < kShards; ++s) {
    const std::string file = concat("model-", s, ".safetensors");
    std::string header = "{\"__metadata__\":{\"format\":\"pt\"}";
    int64_t end = 0;
    for (int64_t i = s; i < kTensors; i += kShards) {
      const std::string name = concat("language_model.model.layers.", i % 93, ".block_sparse_moe.experts.",
                                      i / 93 % 896, ".w", i / 93 / 896, ".weight_packed");
      header += concat(",\"", name, "\":{\"dtype\":\"U8\",\"shape\":[3072,1792],\"data_offsets\":[", end, ",",
                       end + kBytes, "]}");
      end += kBytes;
      index += concat(i == 0 ? "" : ",\n", "\"", name, "\": \"", file, "\"");
    }
    header += "}";
    folder.write(file, safetensors_bytes(header, 0));
    std::filesystem::resize_file(folder.file(file), 8 + header.size() + static_cast<uint64_t>(end));
  }
  folder.write("model.safetensors.index.json", index + "}}");

  const std::clock_t start = std::clock();  // processor time: other programs don't count
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_EQ(checkpoint.tensors().size(), static_cast<size_t>(kTensors));
  EXPECT_GT(checkpoint.total_bytes(), kTensors * kBytes);
  RecordProperty("seconds", concat(seconds));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(seconds, 5.0);
#endif
}

}  // namespace
}  // namespace weir
