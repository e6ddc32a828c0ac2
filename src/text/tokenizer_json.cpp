// tokenizer.json: the vocabulary, the added tokens, and the parts around them (tokenizer_json_parts.cpp).
// Fields and their meaning follow the serialisation of the tokenizers library 0.23.
#include <algorithm>
#include <boost/json/array.hpp>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "formats/json.h"
#include "text/bpe.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_parts.h"
#include "text/tokenizer_unicode.h"
#include "text/unigram.h"

namespace weir {

std::vector<JsonObject> json_objects(const JsonObject& parent, std::string_view key) {
  std::vector<JsonObject> out;
  if (!parent.has(key)) return out;
  const boost::json::array* array = parent.raw().at(key).if_array();
  if (array == nullptr) parent.fail_field(key, "an array of objects");
  for (const boost::json::value& element : *array) {
    if (!element.is_object()) parent.fail_field(key, "an array of objects");
    const std::string path = concat(parent.path(), parent.path().empty() ? "" : ".", key, "[", out.size(), "]");
    out.emplace_back(parent.file(), path, element.get_object());
  }
  return out;
}

namespace {

constexpr JsonLimits kLimits{.max_bytes = int64_t{256} << 20, .max_depth = 64};

JsonObject root_of(std::string_view json, const std::string& file) {
  boost::json::value root = parse_json(json, file, kLimits);
  if (!root.is_object()) fail(file, ": expected a JSON object");
  return JsonObject(file, "", std::move(root.get_object()));
}

int32_t token_id(const JsonObject& object, std::string_view key) {
  return static_cast<int32_t>(object.integer(key, 0, kMaxTokens - 1));
}

// "<0x00>" to "<0xFF>" in the vocabulary, -1 where absent.
template <class Find>
void find_byte_tokens(int32_t (&out)[256], Find find) {
  constexpr char kHex[] = "0123456789ABCDEF";
  for (int b = 0; b < 256; ++b) out[b] = find(std::string("<0x") + kHex[b >> 4] + kHex[b & 15] + '>');
}

void add_token(TokenTable& tokens, int32_t id, std::string_view text, bool findable, const JsonObject& model) {
  if (text.size() > kMaxTokenBytes) {
    fail(model.file(), ": field 'model.vocab': token ", id, " has ", text.size(), " bytes; the limit is ",
         kMaxTokenBytes);
  }
  if (!tokens.add(id, text, findable)) {
    fail(model.file(), ": field 'model.vocab': id ", id, " is given twice, to ", printable(tokens.text(id)), " and ",
         printable(text));
  }
}

void read_merges(const JsonObject& model, const boost::json::object& vocab, BpeModel& bpe) {
  const boost::json::value* merges = model.raw().if_contains("merges");
  if (merges == nullptr || !merges->is_array()) model.fail_field("merges", "an array");
  const boost::json::array& list = merges->get_array();
  if (static_cast<int64_t>(list.size()) > kMaxMerges) model.fail_field("merges", concat("at most ", kMaxMerges));
  bpe.pairs.reserve(list.size());
  uint32_t rank = 0;
  for (const boost::json::value& merge : list) {
    const auto refuse = [&](std::string_view why) { fail(model.file(), ": field 'model.merges[", rank, "]': ", why); };
    // ["A", "B"], or in older files "A B".
    std::string_view left, right;
    if (const boost::json::array* pair = merge.if_array();
        pair != nullptr && pair->size() == 2 && pair->at(0).is_string() && pair->at(1).is_string()) {
      left = pair->at(0).get_string();
      right = pair->at(1).get_string();
    } else if (merge.is_string()) {
      const std::string_view text = merge.get_string();
      const size_t space = text.find(' ');
      if (space == text.npos || text.find(' ', space + 1) != text.npos)
        refuse("expected two tokens with a space between");
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else {
      refuse("expected two strings");
    }
    const auto id_of = [&](std::string_view token) {
      const boost::json::value* id = vocab.if_contains(token);
      if (id == nullptr) refuse(concat(printable(token), " is not in the vocabulary"));
      return static_cast<int32_t>(id->to_number<int64_t>());
    };
    const int32_t first = id_of(left), second = id_of(right);
    bpe.pairs.set(first, second, {rank, id_of(concat(left, right))});
    ++rank;
  }
}

std::unique_ptr<TokenModel> read_bpe(const JsonObject& model, bool byte_level, TokenizerParts& parts) {
  for (std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.string_or(key, "").empty()) model.fail_field(key, "nothing: this is not supported");
  }
  if (model.number_or("dropout", 0, 0, 1) != 0) model.fail_field("dropout", "0: random encodings are not supported");
  auto bpe = std::make_unique<BpeModel>();
  const JsonObject vocab = model.object("vocab");
  if (static_cast<int64_t>(vocab.raw().size()) > kMaxTokens) model.fail_field("vocab", concat("at most ", kMaxTokens));
  parts.tokens.reserve(vocab.raw().size());
  std::string bytes;
  for (const auto& [name, value] : vocab.raw()) {
    const int64_t* id = value.if_int64();
    if (id == nullptr || *id < 0 || *id >= kMaxTokens) {
      vocab.fail_field(name, concat("an integer from 0 to ", kMaxTokens - 1));
    }
    const bool spelled = byte_level && bytes_of_spelling(name, bytes);
    add_token(parts.tokens, static_cast<int32_t>(*id), spelled ? std::string_view(bytes) : std::string_view(name),
              spelled || !byte_level, model);
  }
  read_merges(model, vocab.raw(), *bpe);
  const auto find = [&](std::string_view name) {
    const boost::json::value* id = vocab.raw().if_contains(name);
    return id == nullptr ? -1 : static_cast<int32_t>(id->get_int64());
  };
  bpe->tokens = &parts.tokens;
  bpe->bytes = byte_level;
  bpe->whole_pieces = model.boolean_or("ignore_merges", false);
  bpe->byte_fallback = !byte_level && model.boolean_or("byte_fallback", false);
  bpe->fuse_unknown = model.boolean_or("fuse_unk", false);
  if (model.has("unk_token")) {
    bpe->unknown = find(model.string("unk_token"));
    if (*bpe->unknown < 0) model.fail_field("unk_token", "a token of the vocabulary");
  }
  find_byte_tokens(bpe->byte_tokens, find);
  bpe->find_word_cuts();
  return bpe;
}

// A score as the tokenizers library reads it: its JSON parser divides the digits, as one integer, by a power of ten,
// which is off by a unit in the last place for some numbers. Equal sums of scores are then not equal, so bits count.
// The digits are those of the shortest form, in which the library writes files.
double library_score(double exact) {
  char text[64];
  const char* end = std::to_chars(text, text + sizeof text, std::abs(exact), std::chars_format::scientific).ptr;
  uint64_t digits = 0;
  int exponent = 0;
  const char* at = text;
  for (bool fraction = false; at != end && *at != 'e'; ++at) {
    if (*at == '.') {
      fraction = true;
      continue;
    }
    digits = digits * 10 + static_cast<uint64_t>(*at - '0');
    exponent -= fraction ? 1 : 0;
  }
  int written = 0;
  if (at != end) std::from_chars(at[1] == '+' ? at + 2 : at + 1, end, written);
  exponent += written;
  double value = static_cast<double>(digits);
  if (std::abs(exponent) > 308) return exact;
  // Powers of ten as the nearest doubles.
  double power = 1;
  const std::string name = concat("1e", std::abs(exponent));
  std::from_chars(name.data(), name.data() + name.size(), power);
  value = exponent < 0 ? value / power : value * power;
  return exact < 0 ? -value : value;
}

std::unique_ptr<TokenModel> read_unigram(const JsonObject& model, TokenizerParts& parts) {
  auto unigram = std::make_unique<UnigramModel>();
  const boost::json::value* vocab = model.raw().if_contains("vocab");
  if (vocab == nullptr || !vocab->is_array()) model.fail_field("vocab", "an array of [token, score]");
  const boost::json::array& list = vocab->get_array();
  if (list.empty() || static_cast<int64_t>(list.size()) > kMaxTokens) {
    model.fail_field("vocab", concat("1 to ", kMaxTokens, " tokens"));
  }
  double lowest = INFINITY;
  for (const boost::json::value& element : list) {
    const auto id = static_cast<int32_t>(unigram->scores.size());
    const boost::json::array* pair = element.if_array();
    if (pair == nullptr || pair->size() != 2 || !pair->at(0).is_string() || !pair->at(1).is_number()) {
      fail(model.file(), ": field 'model.vocab[", id, "]': expected [token, score]");
    }
    const std::string_view name = pair->at(0).get_string();
    const double score = library_score(pair->at(1).to_number<double>());
    add_token(parts.tokens, id, name, true, model);
    unigram->trie.add(name, id);
    unigram->scores.push_back(score);
    lowest = std::min(lowest, score);
  }
  unigram->tokens = &parts.tokens;
  unigram->unknown_score = lowest - 10;
  if (model.has("unk_id")) {
    unigram->unknown = static_cast<int32_t>(model.integer("unk_id", 0, static_cast<int64_t>(list.size()) - 1));
  }
  unigram->byte_fallback = model.boolean_or("byte_fallback", false);
  find_byte_tokens(unigram->byte_tokens, [&](std::string_view name) { return parts.tokens.find(name); });
  return unigram;
}

bool only_spaces(std::string_view text) {
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    if (!is_white_space(utf8_at(text, at)) && !text.substr(at).starts_with(kSpacePiece)) return false;
  }
  return true;
}

AddedToken read_added_token(const JsonObject& entry) {
  AddedToken token;
  token.id = token_id(entry, "id");
  token.content = entry.string("content");
  if (token.content.empty() || token.content.size() > kMaxAddedTokenBytes) {
    entry.fail_field("content", concat("1 to ", kMaxAddedTokenBytes, " bytes"));
  }
  token.special = entry.boolean_or("special", false);
  token.single_word = entry.boolean_or("single_word", false);
  token.lstrip = entry.boolean_or("lstrip", false);
  token.rstrip = entry.boolean_or("rstrip", false);
  token.normalized = entry.boolean_or("normalized", !token.special);
  token.in_user_text = !token.special && only_spaces(token.content);
  return token;
}

// Added tokens into the tables. Returns by id those that a piece of user text may not become.
std::vector<bool> read_added_tokens(const JsonObject& root, bool byte_level, TokenizerParts& parts) {
  std::vector<AddedToken> raw, normal;
  std::vector<bool> guarded;
  const JsonObject model = root.object("model");
  const boost::json::value* vocab = model.raw().if_contains("vocab");
  for (const JsonObject& entry : json_objects(root, "added_tokens")) {
    AddedToken token = read_added_token(entry);
    const auto id = static_cast<size_t>(token.id);
    std::string bytes;
    const bool spelled = byte_level && bytes_of_spelling(token.content, bytes);
    const std::string_view text = spelled ? std::string_view(bytes) : std::string_view(token.content);
    const boost::json::value* known = vocab->is_object() ? vocab->get_object().if_contains(token.content) : nullptr;
    int32_t there = known != nullptr ? static_cast<int32_t>(known->get_int64()) : -1;
    if (vocab->is_array()) there = parts.tokens.find(text);
    if (there >= 0 && there != token.id) {
      entry.fail_field("id", concat("the id of ", printable(token.content), " in the vocabulary, ", there));
    }
    if (!parts.tokens.add(token.id, text, false) && parts.tokens.text(token.id) != text) {
      entry.fail_field("id", concat("an id that is not yet ", printable(parts.tokens.text(token.id))));
    }
    if (!parts.added_ids.emplace(token.content, token.id).second) entry.fail_field("content", "a new token");
    if (token.special) parts.mark_special(token.id);
    if (!token.in_user_text) {
      if (id >= guarded.size()) guarded.resize(id + 1);
      guarded[id] = true;
    }
    if (token.normalized) token.content = normalized(parts.normalizer, token.content);
    (token.normalized ? normal : raw).push_back(std::move(token));
  }
  parts.added = AddedTokens(std::move(raw), AddedTokens::Order::kLeftmostLongest);
  parts.normalized_added = AddedTokens(std::move(normal), AddedTokens::Order::kLeftmostLongest);
  return guarded;
}

}  // namespace

std::shared_ptr<const Tokenizer> Tokenizer::from_tokenizer_json(std::string_view json, const std::string& file,
                                                                std::string_view config,
                                                                const std::string& config_file) {
  const JsonObject root = root_of(json, file);
  auto parts = std::make_unique<TokenizerParts>();
  bool byte_level = false;
  parts->normalizer = normalizer_of(root);
  parts->pre_tokenizer = pre_tokenizer_of(root, byte_level);
  parts->decoder = decoder_of(root, byte_level);

  const JsonObject model = root.object("model");
  const boost::json::value* vocab = model.raw().if_contains("vocab");
  // Files before "type": a list of scores is Unigram, merges are BPE.
  const std::string fallback = vocab != nullptr && vocab->is_array() ? "Unigram" : model.has("merges") ? "BPE" : "";
  const std::string type = model.string_or("type", fallback);
  std::unique_ptr<TokenModel> reader;
  if (type == "BPE") {
    reader = read_bpe(model, byte_level, *parts);
  } else if (type == "Unigram") {
    if (byte_level) fail(file, ": field 'pre_tokenizer': ByteLevel with a Unigram model is not supported");
    reader = read_unigram(model, *parts);
  } else {
    fail(file, ": field 'model.type': ", printable(type), " is not supported (BPE, Unigram are)");
  }
  reader->not_in_user_text = read_added_tokens(root, byte_level, *parts);
  parts->model = std::move(reader);
  read_post_processor(root, *parts);
  if (!config.empty()) parts->read_config(root_of(config, config_file));
  parts->find_end_of_generation();
  return std::make_shared<const Tokenizer>(std::move(parts));
}

}  // namespace weir
