// The golden encodings of tests/fixtures/tokenizers (made with tokenizers 0.23.3, tiktoken 0.14.0 and llama.cpp) and
// tests/fixtures/kimi_k3/text.
#include "../tests/support/gguf_tokenizer.h"
#include "../tests/support/sha256.h"
#include "text/tokenizer_testing.h"
#include "text/tokenizer_unicode.h"

namespace weir {
namespace {

using boost::json::value;
using testing::file_text;
using testing::fixture_tokenizer;
using testing::ids_of;
using testing::streamed;
using testing::tokenizer_folder;

std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += part;
  return out;
}

class GoldenTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenTokenizer, GivesTheIdsAndTheTextOfEveryCase) {
  const auto tokenizer = fixture_tokenizer(GetParam());
  const value golden = parse_json(file_text(tokenizer_folder(GetParam()) / "cases.json"), "cases.json");
  int cases = 0;
  for (const value& c : golden.at("cases").as_array()) {
    const std::string_view text = c.at("text").as_string();
    SCOPED_TRACE(text);
    const std::vector<int32_t> ids = ids_of(c.at("ids"));
    EXPECT_EQ(tokenizer->encode(text, SpecialTokens::kParse, false), ids);
    const auto* with_special = c.as_object().if_contains("ids_with_special");
    if (with_special != nullptr) {
      EXPECT_EQ(tokenizer->encode(text, SpecialTokens::kParse, true),
                with_special->is_null() ? ids : ids_of(*with_special));
    }
    if (const auto* as_text = c.as_object().if_contains("ids_special_as_text")) {
      EXPECT_EQ(tokenizer->encode(text, SpecialTokens::kText, false), as_text->is_null() ? ids : ids_of(*as_text));
    }
    EXPECT_EQ(tokenizer->decode(ids, false), c.at("decoded").as_string());
    std::string rest;
    EXPECT_EQ(joined(streamed(tokenizer, ids, false, rest)) + rest, c.at("decoded").as_string());
    if (const auto* skipped = c.as_object().if_contains("decoded_skip_special")) {
      EXPECT_EQ(tokenizer->decode(ids, true), skipped->as_string());
      EXPECT_EQ(joined(streamed(tokenizer, ids, true, rest)) + rest, skipped->as_string());
    }
    ++cases;
  }
  EXPECT_GE(cases, 151);
}

// As a rendered conversation is encoded when somebody's words spell a marker: where none do, the ids of the whole.
TEST_P(GoldenTokenizer, EncodesPartsAsTheWholeText) {
  const auto tokenizer = fixture_tokenizer(GetParam());
  const value golden = parse_json(file_text(tokenizer_folder(GetParam()) / "cases.json"), "cases.json");
  std::string marker;  // the first token that is one
  for (int32_t id = 0; id < tokenizer->vocab_size() && marker.empty(); ++id) {
    if (tokenizer->is_special(id)) marker = tokenizer->token_bytes(id);
  }
  ASSERT_FALSE(marker.empty());
  int cases = 0;
  for (const value& c : golden.at("cases").as_array()) {
    const std::string text(c.at("text").as_string());
    SCOPED_TRACE(text);
    const bool harmless =
        tokenizer->encode(text, SpecialTokens::kParse, false) == tokenizer->encode(text, SpecialTokens::kText, false);
    if (!harmless || text.empty()) continue;
    const TextPart words{text, SpecialTokens::kText}, mark{marker, SpecialTokens::kParse};
    for (const bool first : {false, true}) {
      const std::string whole = (first ? marker : "") + text + marker + text + marker;
      std::vector<TextPart> parts{words, mark, words, mark};
      if (first) parts.insert(parts.begin(), mark);
      EXPECT_EQ(tokenizer->encode_parts(parts), tokenizer->encode(whole, SpecialTokens::kParse, false));
    }
    ++cases;
  }
  EXPECT_GE(cases, 80);
}

class GoldenDecoding : public GoldenTokenizer {};

TEST_P(GoldenDecoding, DecodesIdsThatNoTextEncodesTo) {
  const auto tokenizer = fixture_tokenizer(GetParam());
  const value golden = parse_json(file_text(tokenizer_folder(GetParam()) / "cases.json"), "cases.json");
  for (const value& c : golden.at("decode_only").as_array()) {
    SCOPED_TRACE(boost::json::serialize(c.at("ids")));
    EXPECT_EQ(tokenizer->decode(ids_of(c.at("ids")), false), c.at("decoded").as_string());
    EXPECT_EQ(tokenizer->decode(ids_of(c.at("ids")), true), c.at("decoded_skip_special").as_string());
  }
}

TEST_P(GoldenDecoding, StreamsTheSamePiecesAsTheReference) {
  const auto tokenizer = fixture_tokenizer(GetParam());
  const value golden = parse_json(file_text(tokenizer_folder(GetParam()) / "cases.json"), "cases.json");
  for (const value& c : golden.at("stream").as_array()) {
    SCOPED_TRACE(boost::json::serialize(c.at("ids")));
    std::vector<std::string> expected;
    for (const value& delta : c.at("deltas").as_array()) {
      expected.emplace_back(delta.is_null() ? std::string_view() : std::string_view(delta.as_string()));
    }
    std::string rest;
    const std::vector<std::string> deltas = streamed(tokenizer, ids_of(c.at("ids")), false, rest);
    EXPECT_EQ(deltas, expected);
    for (const std::string& delta : deltas) EXPECT_TRUE(is_utf8(delta));
    // The reference never gives the broken end away; here it follows as one U+FFFD per byte.
    if (c.at("concat_equals_decoded").as_bool()) {
      EXPECT_EQ(rest, "");
    } else {
      EXPECT_TRUE(rest.starts_with(kReplacementCharacter));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTokenizer,
                         ::testing::Values("gpt2", "qwen2", "llama3", "deepseek", "o200k", "kimi_tiktoken", "llama2",
                                           "llama2_metaspace", "gemma", "unigram"),
                         [](const auto& test) { return std::string(test.param); });

INSTANTIATE_TEST_SUITE_P(All, GoldenDecoding, ::testing::Values("llama2", "llama2_metaspace", "gemma", "unigram"),
                         [](const auto& test) { return std::string(test.param); });

class GgufTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(GgufTokenizer, GivesTheIdsOfLlamaCpp) {
  const std::filesystem::path folder = tokenizer_folder(GetParam());
  const auto tokenizer = Tokenizer::from_gguf_metadata(
      test::GgufTokenizerFile::read((folder / (std::string(GetParam()) + "-vocab.gguf")).string()));
  const value golden = parse_json(file_text(folder / "gguf_cases.json"), "gguf_cases.json");
  for (const value& c : golden.at("cases").as_array()) {
    const std::string_view text = c.at("text").as_string();
    SCOPED_TRACE(text);
    const std::vector<int32_t> ids = ids_of(c.at("ids"));
    EXPECT_EQ(tokenizer->encode(text, SpecialTokens::kParse, false), ids);
    const value& no_parse = c.at("ids_no_parse_special");
    EXPECT_EQ(tokenizer->encode(text, SpecialTokens::kText, false), no_parse.is_null() ? ids : ids_of(no_parse));
  }
  const value& with_bos = golden.at("with_bos_example");
  EXPECT_EQ(tokenizer->encode(with_bos.at("text").as_string(), SpecialTokens::kParse, true),
            ids_of(with_bos.at("ids")));
}

TEST_P(GgufTokenizer, DecodesLikeTheTokenizerJsonOfTheSameModel) {
  const std::filesystem::path folder = tokenizer_folder(GetParam());
  const auto tokenizer = Tokenizer::from_gguf_metadata(
      test::GgufTokenizerFile::read((folder / (std::string(GetParam()) + "-vocab.gguf")).string()));
  const value golden = parse_json(file_text(folder / "cases.json"), "cases.json");
  for (std::string_view kind : {"cases", "decode_only"}) {
    for (const value& c : golden.at(kind).as_array()) {
      SCOPED_TRACE(boost::json::serialize(c.at("ids")));
      EXPECT_EQ(tokenizer->decode(ids_of(c.at("ids")), false), c.at("decoded").as_string());
      EXPECT_EQ(tokenizer->decode(ids_of(c.at("ids")), true), c.at("decoded_skip_special").as_string());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GgufTokenizer, ::testing::Values("llama2", "gemma"),
                         [](const auto& test) { return std::string(test.param); });

class KimiTokenizer : public ::testing::Test {
 protected:
  std::filesystem::path folder_ = std::filesystem::path(WEIR_FIXTURES) / "kimi_k3" / "text";
  std::shared_ptr<const Tokenizer> tokenizer_ = Tokenizer::from_folder(folder_);
  value golden_ = parse_json(file_text(folder_ / "tokenizer_k3.json"), "tokenizer_k3.json");
};

TEST_F(KimiTokenizer, GivesTheIdsOfEveryString) {
  for (const value& c : golden_.at("cases").as_array()) {
    const std::string_view text = c.at("text").as_string();
    SCOPED_TRACE(text);
    const std::vector<int32_t> ids = ids_of(c.at("ids"));
    EXPECT_EQ(tokenizer_->encode(text, SpecialTokens::kText, false), ids);
    const auto* allowed = c.as_object().if_contains("ids_special_allowed");
    EXPECT_EQ(tokenizer_->encode(text, SpecialTokens::kParse, true), allowed == nullptr ? ids : ids_of(*allowed));
    EXPECT_EQ(tokenizer_->decode(ids, false), text);
    std::string rest;
    EXPECT_EQ(joined(streamed(tokenizer_, ids, false, rest)), text);
    EXPECT_EQ(rest, "");
  }
}

TEST_F(KimiTokenizer, CutsLongRunsWhereTheReferenceDoes) {
  for (const value& c : golden_.at("repeats").as_array()) {
    const std::string_view unit = c.at("unit").as_string();
    SCOPED_TRACE(unit);
    std::string text;
    for (int64_t i = 0; i < c.at("count").as_int64(); ++i) text += unit;
    const std::vector<int32_t> ids = tokenizer_->encode(text, SpecialTokens::kText, false);
    ASSERT_EQ(static_cast<int64_t>(ids.size()), c.at("n_ids").as_int64());
    EXPECT_EQ(std::vector<int32_t>(ids.begin(), ids.begin() + 8), ids_of(c.at("first")));
    EXPECT_EQ(std::vector<int32_t>(ids.end() - 8, ids.end()), ids_of(c.at("last")));
    const std::string_view bytes(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof ids[0]);
    EXPECT_EQ(test::sha256_hex(bytes), c.at("sha256_le_i32").as_string());
    EXPECT_EQ(tokenizer_->decode(ids, false), text);
  }
}

TEST_F(KimiTokenizer, EncodesSegmentsApartSoThatUserTextForgesNoMarker) {
  for (const value& c : golden_.at("segmented").as_array()) {
    std::vector<int32_t> ids;
    std::string all;
    for (const value& segment : c.at("segments").as_array()) {
      const std::string_view text = segment.at(0).as_string();
      const SpecialTokens mode = segment.at(1).as_int64() != 0 ? SpecialTokens::kParse : SpecialTokens::kText;
      const std::vector<int32_t> part = tokenizer_->encode(text, mode, false);
      ids.insert(ids.end(), part.begin(), part.end());
      all += text;
    }
    EXPECT_EQ(ids, ids_of(c.at("ids")));
    EXPECT_EQ(tokenizer_->encode(all, SpecialTokens::kParse, false), ids_of(c.at("ids_if_joined")));
  }
}

TEST_F(KimiTokenizer, KnowsItsSpecialIds) {
  EXPECT_EQ(tokenizer_->vocab_size(), 1256);
  for (const auto& [name, id] : golden_.at("specials").as_object()) {
    EXPECT_EQ(tokenizer_->id_of(name), id.to_number<int32_t>());
    EXPECT_TRUE(tokenizer_->is_special(id.to_number<int32_t>()));
    EXPECT_EQ(tokenizer_->token_bytes(id.to_number<int32_t>()), std::string_view(name));
  }
  EXPECT_EQ(tokenizer_->id_of("<|reserved_token_1008|>"), 1008);
  EXPECT_EQ(tokenizer_->bos(), 1000);
  EXPECT_EQ(tokenizer_->eos(), 1001);
  const std::span<const int32_t> ends = tokenizer_->end_of_generation();
  EXPECT_EQ(std::vector<int32_t>(ends.begin(), ends.end()), (std::vector<int32_t>{1001, 1002, 1009}));
}

}  // namespace
}  // namespace weir
