// tiktoken.model: one "BASE64 RANK" a line; with tokenizer_config.json as Kimi's repositories have it: 256 special ids
// behind the ranks, whose names are in added_tokens_decoder.
#include <charconv>

#include "base/error.h"
#include "formats/json.h"
#include "text/bpe.h"
#include "text/tokenizer_parts.h"
#include "text/tokenizer_unicode.h"

namespace weir {
namespace {

constexpr int32_t kSpecialIds = 256;

// False when `text` is not Base64 with padding.
bool decode_base64(std::string_view text, std::string& out) {
  out.clear();
  if (text.empty() || text.size() % 4 != 0) return false;
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool pad = i + padding >= text.size();
    const size_t digit = pad ? 0 : kDigits.find(text[i]);
    if (digit == kDigits.npos) return false;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if (i % 4 == 3) {
      for (int shift = 16; shift >= 0; shift -= 8) out += static_cast<char>(bits >> shift & 0xff);
      bits = 0;
    }
  }
  out.resize(out.size() - padding);
  return true;
}

// Returns the number of ranks: 0 to n - 1, each once.
int32_t read_ranks(std::string_view text, const std::string& file, TokenTable& tokens) {
  int64_t line_number = 0, count = 0;
  std::string bytes;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == text.npos ? std::string_view() : text.substr(end + 1);
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    int32_t rank = -1;
    if (space != line.npos) {
      const char* last = line.data() + line.size();
      const auto parsed = std::from_chars(line.data() + space + 1, last, rank);
      if (parsed.ec != std::errc() || parsed.ptr != last || rank < 0 || rank >= kMaxTokens - kSpecialIds) rank = -1;
    }
    if (rank < 0 || !decode_base64(line.substr(0, space), bytes) || bytes.size() > kMaxTokenBytes) {
      fail(file, ": line ", line_number, ": expected a token in Base64, a space and a rank, found ", printable(line));
    }
    if (tokens.find(bytes) >= 0) fail(file, ": line ", line_number, ": token ", printable(bytes), " is there twice");
    if (!tokens.add(rank, bytes)) fail(file, ": line ", line_number, ": rank ", rank, " is there twice");
    ++count;
  }
  if (count != tokens.size()) fail(file, ": ", count, " tokens with ranks up to ", tokens.size() - 1);
  for (int b = 0; b < 256; ++b) {
    if (tokens.find(std::string(1, static_cast<char>(b))) < 0) fail(file, ": no token for byte ", b);
  }
  return static_cast<int32_t>(count);
}

std::vector<AddedToken> special_tokens(const JsonObject* config, int32_t ranks) {
  std::vector<AddedToken> tokens;
  const std::optional<JsonObject> named = config == nullptr ? std::nullopt : config->object_if("added_tokens_decoder");
  if (named) {
    for (const auto& [key, value] : named->raw()) {
      int32_t id = -1;
      const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
      if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || id < ranks ||
          id >= ranks + kSpecialIds) {
        fail(named->file(), ": field ", printable(concat(named->path(), ".", key)), ": expected an id from ", ranks,
             " to ", ranks + kSpecialIds - 1);
      }
    }
  }
  for (int32_t id = ranks; id < ranks + kSpecialIds; ++id) {
    AddedToken token;
    token.id = id;
    token.content = concat("<|reserved_token_", id, "|>");
    const std::string key = concat(id);
    if (named && named->has(key)) {
      const JsonObject entry = named->object(key);
      token.content = entry.string("content");
      if (token.content.empty() || token.content.size() > kMaxAddedTokenBytes) {
        entry.fail_field("content", concat("1 to ", kMaxAddedTokenBytes, " bytes"));
      }
    }
    // All 256 are special to the encoder, whatever the entry's "special" says.
    token.special = true;
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

std::string_view kimi_pattern() {
  return R"([\p{Han}]+)"
         R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
         R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
         R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
         R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
         R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

std::vector<std::string_view> kimi_slices(std::string_view text) {
  constexpr int64_t kMaxCharacters = 400'000, kMaxRun = 25'000;
  std::vector<std::string_view> slices;
  size_t begin = 0;
  int64_t characters = 0, run = 0;  // characters of the block of 400,000, and of one kind in a row
  bool run_is_space = false;
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    const bool space = is_python_space(utf8_at(text, at));
    const bool new_block = characters == kMaxCharacters;
    if (new_block || (space == run_is_space && run == kMaxRun)) {
      slices.push_back(text.substr(begin, at - begin));
      begin = at;
      run = 0;
    }
    if (new_block) characters = 0;
    if (space != run_is_space) run = 0;
    run_is_space = space;
    ++run;
    ++characters;
  }
  if (begin < text.size()) slices.push_back(text.substr(begin));
  return slices;
}

std::shared_ptr<const Tokenizer> Tokenizer::from_tiktoken(std::string_view ranks, const std::string& file,
                                                          std::string_view config, const std::string& config_file) {
  auto parts = std::make_unique<TokenizerParts>();
  auto bpe = std::make_unique<BpeModel>();
  const int32_t count = read_ranks(ranks, file, parts->tokens);
  bpe->tokens = &parts->tokens;
  bpe->bytes = bpe->whole_pieces = true;
  for (int32_t id = 0; id < count; ++id) bpe->ranks.push_back(static_cast<uint32_t>(id));
  parts->model = std::move(bpe);

  std::optional<JsonObject> root;
  if (!config.empty()) {
    boost::json::value value = parse_json(config, config_file);
    if (!value.is_object()) fail(config_file, ": expected a JSON object");
    root.emplace(config_file, "", std::move(value.get_object()));
  }
  std::vector<AddedToken> specials = special_tokens(root ? &*root : nullptr, count);
  for (const AddedToken& token : specials) {
    if (!parts->added_ids.emplace(token.content, token.id).second) {
      fail(config_file, ": field 'added_tokens_decoder.", token.id, "': ", printable(token.content), " is there twice");
    }
    parts->tokens.add(token.id, token.content, false);
    parts->mark_special(token.id);
  }
  parts->added = AddedTokens(std::move(specials), AddedTokens::Order::kLeftmostLongest);
  parts->kimi_slices = true;
  PreTokenizerStep split;
  split.regex = std::make_shared<Regex>(kimi_pattern(), RegexDialect::kRust, file);
  parts->pre_tokenizer.push_back(std::move(split));
  parts->decoder.push_back({.kind = DecoderStep::Kind::kBytes});
  if (root) parts->read_config(*root);
  parts->find_end_of_generation();
  return std::make_shared<const Tokenizer>(std::move(parts));
}

}  // namespace weir
