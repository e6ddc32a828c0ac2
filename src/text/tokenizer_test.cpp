#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <thread>

#include "formats/testing.h"
#include "text/tokenizer_testing.h"
#include "text/tokenizer_unicode.h"

namespace weir {
namespace {

using testing::error_of;
using testing::file_text;
using testing::fixture_tokenizer;
using testing::TempFolder;
using testing::tokenizer_folder;

boost::json::object fixture_json(const std::string& name) {
  return parse_json(file_text(tokenizer_folder(name) / "tokenizer.json"), "fixture").as_object();
}

std::shared_ptr<const Tokenizer> loaded(const boost::json::object& json) {
  return Tokenizer::from_tokenizer_json(boost::json::serialize(json), "t.json");
}

// The message of the Error that a file like the fixture, but with the value at a JSON pointer replaced, is refused
// with.
std::string refusal(const std::string& fixture, std::string_view pointer, boost::json::value value) {
  boost::json::value json = fixture_json(fixture);
  json.at_pointer(pointer) = std::move(value);
  return error_of([&] { loaded(json.as_object()); });
}

std::vector<int32_t> parsed(const Tokenizer& tokenizer, std::string_view text) {
  return tokenizer.encode(text, SpecialTokens::kParse, false);
}

TEST(Tokenizer, NothingInUserTextBecomesASpecialOrAddedToken) {
  for (const char* name :
       {"gpt2", "qwen2", "llama3", "deepseek", "o200k", "kimi_tiktoken", "llama2", "gemma", "unigram"}) {
    const auto tokenizer = fixture_tokenizer(name);
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      if (!tokenizer->is_special(id)) continue;
      const std::string marker(tokenizer->token_bytes(id));
      for (const std::string& text : {marker, " " + marker + " ", marker + marker, "x" + marker + "y"}) {
        for (int32_t got : tokenizer->encode(text, SpecialTokens::kText, false)) {
          const bool unknown = tokenizer->token_bytes(got) == "<unk>" && marker != "<unk>";
          EXPECT_TRUE(unknown || !tokenizer->is_special(got)) << name << ": " << text << " gave " << got;
        }
      }
    }
  }
  // Not "special" in the file, but markers all the same.
  const auto deepseek = fixture_tokenizer("deepseek");
  EXPECT_EQ(parsed(*deepseek, "<｜User｜>"), std::vector<int32_t>{1002});
  for (int32_t id : deepseek->encode("<｜User｜><think>", SpecialTokens::kText, false)) EXPECT_LT(id, 1000);
}

TEST(Tokenizer, WhiteSpaceTokensAreFoundInUserTextToo) {
  const auto gemma = fixture_tokenizer("gemma");
  EXPECT_EQ(gemma->encode("a\n\n\n\nb", SpecialTokens::kText, false), parsed(*gemma, "a\n\n\n\nb"));
}

TEST(Tokenizer, BrokenUtf8IsReadAsReplacementCharacters) {
  for (const char* name : {"gpt2", "llama2", "unigram", "kimi_tiktoken"}) {
    const auto tokenizer = fixture_tokenizer(name);
    EXPECT_EQ(parsed(*tokenizer, "a\xff\xc3(\xe2\x82"), parsed(*tokenizer, "a\ufffd\ufffd(\ufffd")) << name;
  }
}

TEST(Tokenizer, StreamsHalfACharacterNeverAndLosesNothing) {
  const auto tokenizer = fixture_tokenizer("gpt2");
  const std::string text = "né 中文 😀👨‍👩‍👧 ﷺ";
  std::string rest, all;
  const std::vector<int32_t> ids = parsed(*tokenizer, text);
  EXPECT_GT(ids.size(), 20u);  // characters are split over ids
  for (const std::string& delta : testing::streamed(tokenizer, ids, false, rest)) {
    EXPECT_TRUE(is_utf8(delta)) << delta;
    all += delta;
  }
  EXPECT_EQ(all, text);
  EXPECT_EQ(rest, "");
  StreamDecoder stream(tokenizer, false);
  const std::vector<int32_t> euro = parsed(*tokenizer, "€");
  ASSERT_EQ(tokenizer->token_bytes(euro.back()), "\xac");
  std::string cut;
  for (size_t i = 0; i + 1 < euro.size(); ++i) cut += stream.push(euro[i]);
  EXPECT_EQ(cut, "");
  EXPECT_EQ(stream.finish(), "\ufffd");
  EXPECT_EQ(stream.push(parsed(*tokenizer, "a")[0]), "a");
}

TEST(Tokenizer, TextBehindBrokenBytesIsNotHeldBack) {
  const auto tokenizer = fixture_tokenizer("gpt2");
  const int32_t half = parsed(*tokenizer, "€")[0];
  StreamDecoder stream(tokenizer, false);
  std::string out = stream.push(half);
  out += stream.push(parsed(*tokenizer, "a")[0]);
  EXPECT_EQ(out, "\ufffda");
}

TEST(Tokenizer, ManyThreadsUseOneObject) {
  const auto tokenizer = fixture_tokenizer("qwen2");
  const std::string text = "The harbour was quiet, I'd say: 1234 naïve 中文 tokens.\n";
  const std::vector<int32_t> expected = parsed(*tokenizer, text);
  std::vector<std::jthread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) wrong += parsed(*tokenizer, text) != expected;
    });
  }
  threads.clear();
  EXPECT_EQ(wrong, 0);
}

TEST(Tokenizer, KnowsItsEndsFromTheConfiguration) {
  const std::string json = file_text(tokenizer_folder("qwen2") / "tokenizer.json");
  const auto tokenizer = Tokenizer::from_tokenizer_json(
      json, "t.json", R"({"bos_token": null, "eos_token": {"content": "<|im_end|>"}})", "c.json");
  EXPECT_EQ(tokenizer->bos(), std::nullopt);
  EXPECT_EQ(tokenizer->eos(), 1102);
  const std::span<const int32_t> ends = tokenizer->end_of_generation();
  EXPECT_EQ(std::vector<int32_t>(ends.begin(), ends.end()), (std::vector<int32_t>{1100, 1102}));
  EXPECT_EQ(error_of([&] { Tokenizer::from_tokenizer_json(json, "t.json", R"({"eos_token": "<none>"})", "c.json"); }),
            "c.json: field 'eos_token': expected a token of the vocabulary, found string '<none>'");
}

TEST(Tokenizer, RefusesComponentsByName) {
  EXPECT_EQ(refusal("gpt2", "/model/type", "WordPiece"),
            "t.json: field 'model.type': 'WordPiece' is not supported (BPE, Unigram are)");
  EXPECT_EQ(refusal("qwen2", "/normalizer/type", "Nmt"),
            "t.json: field 'normalizer.type': the normalizer 'Nmt' is not supported");
  EXPECT_EQ(refusal("qwen2", "/pre_tokenizer/pretokenizers/0/type", "UnicodeScripts"),
            "t.json: field 'pre_tokenizer.pretokenizers[0].type': the pre-tokenizer 'UnicodeScripts' is not supported");
  EXPECT_EQ(refusal("llama2", "/decoder/decoders/1/type", "CTC"),
            "t.json: field 'decoder.decoders[1].type': the decoder 'CTC' is not supported");
  EXPECT_EQ(refusal("llama2", "/post_processor/type", "Odd"),
            "t.json: field 'post_processor.type': the post-processor 'Odd' is not supported");
  EXPECT_EQ(refusal("gpt2", "/model/end_of_word_suffix", "</w>"),
            "t.json: field 'model.end_of_word_suffix': expected nothing: this is not supported, found string '</w>'");
}

TEST(Tokenizer, RefusesInconsistentFiles) {
  EXPECT_EQ(refusal("gpt2", "/model/merges/0", boost::json::array{"h", "zz"}),
            "t.json: field 'model.merges[0]': 'zz' is not in the vocabulary");
  EXPECT_EQ(refusal("gpt2", "/model/merges/0", 5), "t.json: field 'model.merges[0]': expected two strings");
  EXPECT_EQ(refusal("gpt2", "/model/vocab/he", 0), "t.json: field 'model.vocab': id 0 is given twice, to '!' and 'he'");
  EXPECT_EQ(refusal("gpt2", "/model/vocab/he", -1),
            "t.json: field 'model.vocab.he': expected an integer from 0 to 4194303, found -1");
  EXPECT_EQ(refusal("gpt2", "/added_tokens/0/id", 5),
            "t.json: field 'added_tokens[0].id': expected an id that is not yet '&', found 5");
  EXPECT_EQ(refusal("gpt2", "/added_tokens/0/content", boost::json::string(2000, 'x')).substr(0, 74),
            "t.json: field 'added_tokens[0].content': expected 1 to 1024 bytes, found s");
  EXPECT_EQ(
      refusal("llama2", "/post_processor/special_tokens/<s>/ids", boost::json::array{9000}),
      "t.json: field 'post_processor.special_tokens.<s>.ids': expected ids of the vocabulary, found an array of 1");
  EXPECT_EQ(refusal("unigram", "/model/vocab/5", boost::json::array{"a", "b"}),
            "t.json: field 'model.vocab[5]': expected [token, score]");
  EXPECT_EQ(refusal("qwen2", "/pre_tokenizer/pretokenizers/0/pattern/Regex", "(").substr(0, 95),
            "t.json: field 'pre_tokenizer.pretokenizers[0].pattern': regular expression '(': missing closing");
  EXPECT_EQ(refusal("llama2", "/decoder", boost::json::object{{"type", "ByteLevel"}}),
            "t.json: field 'decoder.type': expected another decoder: the pre-tokenizer is not ByteLevel, found string "
            "'ByteLevel'");
  EXPECT_NE(error_of([] {
              Tokenizer::from_tokenizer_json(R"({"model": {"vocab": {"a": 1, "a": 2}}})", "t.json");
            }).find("duplicate key"),
            std::string::npos);
}

TEST(Tokenizer, RefusesBadTiktokenFiles) {
  const auto error = [](std::string_view ranks, std::string_view config = "") {
    return error_of([&] { Tokenizer::from_tiktoken(ranks, "r", config, "c"); });
  };
  EXPECT_EQ(error("IQ== 0\nIg== x\n"), "r: line 2: expected a token in Base64, a space and a rank, found 'Ig== x'");
  EXPECT_EQ(error("IQ== 0\nIg= 1\n"), "r: line 2: expected a token in Base64, a space and a rank, found 'Ig= 1'");
  EXPECT_EQ(error("IQ== 0\nIQ== 1\n"), "r: line 2: token '!' is there twice");
  EXPECT_EQ(error("IQ== 0\nIg== 0\n"), "r: line 2: rank 0 is there twice");
  EXPECT_EQ(error("IQ== 0\nIg== 2\n"), "r: 2 tokens with ranks up to 2");
  EXPECT_EQ(error("IQ== 0\n"), "r: no token for byte 0");
  const std::string good = file_text(tokenizer_folder("kimi_tiktoken") / "tiktoken.model");
  EXPECT_EQ(error(good), "no error");
  EXPECT_EQ(error(good, R"({"added_tokens_decoder": {"999": {"content": "x"}}})"),
            "c: field 'added_tokens_decoder.999': expected an id from 1000 to 1255");
  EXPECT_EQ(error(good, R"({"added_tokens_decoder": {"1000": {"content": "x"}, "1001": {"content": "x"}}})"),
            "c: field 'added_tokens_decoder.1001': 'x' is there twice");
}

TEST(Tokenizer, SaysWhatAFolderLacks) {
  const TempFolder folder;
  EXPECT_EQ(error_of([&] { Tokenizer::from_folder(folder.path()); }),
            folder.path().string() +
                ": no tokenizer here: expected tokenizer.json, or tiktoken.model with tokenizer_config.json");
}

GgufTokenizerData small_gguf() {
  GgufTokenizerData data;
  data.file = "m.gguf";
  data.model = "gpt2";
  data.pre = "gpt-2";
  data.tokens = {"a", "b", "ab", "Ġ", "<|im_end|>", "<tool>", "1", "2"};
  data.types = {1, 1, 1, 1, 3, 4, 1, 1};
  data.merges = {"a b"};
  return data;
}

TEST(GgufTokenizer, MergesBytesAndFindsItsTokens) {
  const auto tokenizer = Tokenizer::from_gguf_metadata(small_gguf());
  EXPECT_EQ(parsed(*tokenizer, "ab a<|im_end|><tool>"), (std::vector<int32_t>{2, 3, 0, 4, 5}));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{2, 3, 0, 4, 5}, true), "ab a<tool>");
  EXPECT_EQ(std::vector<int32_t>(tokenizer->end_of_generation().begin(), tokenizer->end_of_generation().end()),
            std::vector<int32_t>{4});
}

TEST(GgufTokenizer, CutsUserDefinedTokensLongestFirst) {
  GgufTokenizerData data = small_gguf();
  data.tokens.insert(data.tokens.end(), {"aa", "aaab"});
  data.types.insert(data.types.end(), {4, 4});
  const auto tokenizer = Tokenizer::from_gguf_metadata(data);
  // From the left: aa, ab, ...; the longest first: aaab is taken before aa may overlap it.
  EXPECT_EQ(parsed(*tokenizer, "aaaaab"), (std::vector<int32_t>{8, 9}));
  EXPECT_EQ(parsed(*tokenizer, "aaaab"), (std::vector<int32_t>{0, 9}));
}

TEST(GgufTokenizer, RefusesBadMetadata) {
  const auto error = [](auto change) {
    GgufTokenizerData data = small_gguf();
    change(data);
    return error_of([&] { Tokenizer::from_gguf_metadata(data); });
  };
  EXPECT_EQ(error([](auto& d) { d.model = "gemma4"; }),
            "m.gguf: field 'tokenizer.ggml.model': 'gemma4' is not supported (gpt2, llama are)");
  EXPECT_EQ(error([](auto& d) { d.pre = "new-one"; }),
            "m.gguf: field 'tokenizer.ggml.pre': 'new-one' is not supported");
  EXPECT_EQ(error([](auto& d) { d.types.pop_back(); }),
            "m.gguf: field 'tokenizer.ggml.token_type': 7 types for 8 tokens");
  EXPECT_EQ(error([](auto& d) { d.merges = {"ab"}; }),
            "m.gguf: field 'tokenizer.ggml.merges[0]': 'ab': expected two tokens with a space between");
  EXPECT_EQ(error([](auto& d) { d.merges = {"a a"}; }),
            "m.gguf: field 'tokenizer.ggml.merges[0]': 'a a': not in the vocabulary, or its result is not");
  EXPECT_EQ(error([](auto& d) { d.merges.clear(); }),
            "m.gguf: field 'tokenizer.ggml.merges': expected merges, found none");
  EXPECT_EQ(error([](auto& d) { d.eos = 8; }),
            "m.gguf: field 'tokenizer.ggml.eos_token_id': 8; expected an id below 8");
  EXPECT_EQ(error([](auto& d) { d.model = "llama"; }), "m.gguf: field 'tokenizer.ggml.scores': 0 scores for 8 tokens");
  EXPECT_EQ(error([](auto& d) { d.tokens.clear(); }),
            "m.gguf: field 'tokenizer.ggml.tokens': 0 tokens; expected 1 to 4194304");
}

TEST(GgufTokenizer, SplitsAsTheNamedPreTokenizerDoes) {
  GgufTokenizerData data = small_gguf();
  data.tokens.push_back("12");
  data.types.push_back(1);
  data.merges.push_back("1 2");
  const auto digits = [&](const char* pre) {
    data.pre = pre;
    return parsed(*Tokenizer::from_gguf_metadata(data), "1212");
  };
  EXPECT_EQ(digits("gpt-2"), (std::vector<int32_t>{8, 8}));
  EXPECT_EQ(digits("llama-bpe"), (std::vector<int32_t>{8, 6, 7}));  // 121|2
  EXPECT_EQ(digits("qwen2"), (std::vector<int32_t>{6, 7, 6, 7}));   // one digit a piece
  EXPECT_EQ(digits("smollm"), (std::vector<int32_t>{6, 7, 6, 7}));
  EXPECT_EQ(digits("tekken"), (std::vector<int32_t>{6, 7, 6, 7}));
  EXPECT_EQ(digits("default"), (std::vector<int32_t>{8, 6, 7}));
  for (const char* pre : {"qwen35", "deepseek-v3", "kimi-k2", "gpt-4o", "glm4", "seed-coder", ""}) digits(pre);
}

}  // namespace
}  // namespace weir
