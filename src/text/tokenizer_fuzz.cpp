// Any tokenizer file either loads or throws Error; what loads encodes and decodes any text.
// Input: the text to encode, a 0 byte, then tokenizer.json, or a first byte 'T' and tiktoken.model, or 'R' and a
// regular expression, or 'G' and lines of GGUF metadata: model, pre, then tokens with a digit for their type in front
// (the scores fall), and merges with an 'm'.
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "text/tokenizer.h"
#include "text/tokenizer_regex.h"
#include "text/tokenizer_stream.h"

namespace {

weir::GgufTokenizerData gguf_data(std::string_view lines) {
  weir::GgufTokenizerData data;
  data.file = "fuzz.gguf";
  for (int number = 0; !lines.empty(); ++number) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
    if (number == 0) {
      data.model = line;
    } else if (number == 1) {
      data.pre = line;
    } else if (line.starts_with('m')) {
      data.merges.emplace_back(line.substr(1));
    } else if (!line.empty()) {
      data.types.push_back(line[0] - '0');
      data.tokens.emplace_back(line.substr(1));
      data.scores.push_back(-static_cast<float>(data.tokens.size()));
    }
  }
  data.eos = 1;
  data.add_space_prefix = data.tokens.size() % 2 == 0;
  return data;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  if (end == input.npos) return 0;
  const std::string_view text = input.substr(0, end);
  std::string_view file = input.substr(end + 1);
  try {
    std::shared_ptr<const weir::Tokenizer> tokenizer;
    if (file.starts_with('R')) {
      weir::pcre2_pattern(file.substr(1), weir::RegexDialect::kOniguruma, "fuzz");
      weir::Regex(file.substr(1), weir::RegexDialect::kRust, "fuzz");
      return 0;
    }
    if (file.starts_with('G')) {
      tokenizer = weir::Tokenizer::from_gguf_metadata(gguf_data(file.substr(1)));
    } else if (file.starts_with('T')) {
      tokenizer = weir::Tokenizer::from_tiktoken(file.substr(1), "fuzz.model", "", "");
    } else {
      tokenizer = weir::Tokenizer::from_tokenizer_json(file, "fuzz.json");
    }
    const std::vector<int32_t> ids = tokenizer->encode(text, weir::SpecialTokens::kParse, true);
    for (int32_t id : ids) {
      if (id < 0 || id >= tokenizer->vocab_size()) std::abort();
    }
    tokenizer->encode(text, weir::SpecialTokens::kText, false);
    tokenizer->decode(ids, true);
    weir::StreamDecoder stream(tokenizer, false);
    for (int32_t id : ids) stream.push(id);
    stream.finish();
  } catch (const weir::Error&) {}
  return 0;
}
