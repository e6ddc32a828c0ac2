#include <algorithm>
#include <boost/json/array.hpp>

#include "base/error.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_unicode.h"

namespace weir {
namespace {

constexpr int kMaxDepth = 16;

[[noreturn]] void refuse_type(const JsonObject& part, std::string_view what) {
  fail(part.file(), ": field '", part.path(), ".type': the ", what, " ", printable(part.string("type")),
       " is not supported");
}

std::string where(const JsonObject& part, std::string_view key) {
  return concat(part.file(), ": field '", part.path(), ".", key, "'");
}

struct Pattern {
  std::string literal;
  std::shared_ptr<const Regex> regex;  // instead of literal
};

// {"String": text} or {"Regex": expression}.
Pattern pattern_of(const JsonObject& part) {
  const JsonObject pattern = part.object("pattern");
  if (pattern.has("Regex")) {
    return {"", std::make_shared<Regex>(pattern.string("Regex"), RegexDialect::kOniguruma, where(part, "pattern"))};
  }
  std::string literal = pattern.string("String");
  if (literal.empty()) pattern.fail_field("String", "a text");
  return {std::move(literal), nullptr};
}

std::string one_character(const JsonObject& part, std::string_view key) {
  std::string text = part.string(key);
  if (text.empty() || utf8_length(text[0]) != text.size()) part.fail_field(key, "one character");
  return text;
}

void add_normalizer(const JsonObject& part, int depth, Normalizer& out) {
  using Kind = NormalizerStep::Kind;
  if (depth > kMaxDepth) part.fail_field("type", "less nesting");
  const std::string type = part.string("type");
  NormalizerStep step;
  if (type == "Sequence") {
    for (const JsonObject& child : json_objects(part, "normalizers")) add_normalizer(child, depth + 1, out);
    return;
  }
  static const std::pair<std::string_view, Kind> kPlain[] = {{"NFC", Kind::kNfc},
                                                             {"NFD", Kind::kNfd},
                                                             {"NFKC", Kind::kNfkc},
                                                             {"NFKD", Kind::kNfkd},
                                                             {"Lowercase", Kind::kLowercase}};
  for (const auto& [name, kind] : kPlain) {
    if (type == name) {
      step.kind = kind;
      return out.push_back(std::move(step));
    }
  }
  if (type == "Replace") {
    Pattern pattern = pattern_of(part);
    step.kind = Kind::kReplace;
    step.pattern = std::move(pattern.literal);
    step.regex = std::move(pattern.regex);
    step.content = part.string("content");
  } else if (type == "Prepend") {
    step.kind = Kind::kPrepend;
    step.content = part.string("prepend");
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    step.left = part.boolean_or("strip_left", true);
    step.right = part.boolean_or("strip_right", true);
  } else {
    refuse_type(part, "normalizer");
  }
  out.push_back(std::move(step));
}

PreTokenizerStep::Behavior behavior_of(const JsonObject& part) {
  using Behavior = PreTokenizerStep::Behavior;
  static const std::pair<std::string_view, Behavior> kNames[] = {{"Isolated", Behavior::kIsolated},
                                                                 {"Removed", Behavior::kRemoved},
                                                                 {"MergedWithPrevious", Behavior::kMergedWithPrevious},
                                                                 {"MergedWithNext", Behavior::kMergedWithNext},
                                                                 {"Contiguous", Behavior::kContiguous}};
  const std::string name = part.string("behavior");
  for (const auto& [known, behavior] : kNames) {
    if (name == known) return behavior;
  }
  part.fail_field("behavior", "Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous");
}

PreTokenizerStep split_by(std::string_view expression, PreTokenizerStep::Behavior behavior, RegexDialect dialect,
                          const JsonObject& part) {
  PreTokenizerStep step;
  step.regex = std::make_shared<Regex>(expression, dialect, concat(part.file(), ": field '", part.path(), "'"));
  step.behavior = behavior;
  return step;
}

PreTokenizerStep metaspace_of(const JsonObject& part) {
  using Prefix = PreTokenizerStep::Prefix;
  PreTokenizerStep step;
  step.kind = PreTokenizerStep::Kind::kMetaspace;
  step.replacement = one_character(part, "replacement");
  const std::string scheme = part.string_or("prepend_scheme", "always");
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    part.fail_field("prepend_scheme", "always, first or never");
  }
  step.prefix = scheme == "always" ? Prefix::kAlways : scheme == "first" ? Prefix::kFirst : Prefix::kNever;
  if (!part.boolean_or("add_prefix_space", true)) step.prefix = Prefix::kNever;  // files before prepend_scheme
  return step;
}

void add_pre_tokenizer(const JsonObject& part, int depth, PreTokenizer& out, bool& byte_level) {
  using Behavior = PreTokenizerStep::Behavior;
  if (depth > kMaxDepth) part.fail_field("type", "less nesting");
  if (byte_level) part.fail_field("type", "nothing behind ByteLevel");
  const std::string type = part.string("type");
  if (type == "Sequence") {
    for (const JsonObject& child : json_objects(part, "pretokenizers")) {
      add_pre_tokenizer(child, depth + 1, out, byte_level);
    }
  } else if (type == "ByteLevel") {
    if (part.boolean_or("add_prefix_space", true)) {
      PreTokenizerStep step;
      step.kind = PreTokenizerStep::Kind::kPrefixSpace;
      out.push_back(std::move(step));
    }
    if (part.boolean_or("use_regex", true)) {
      out.push_back(split_by(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
                             Behavior::kIsolated, RegexDialect::kOniguruma, part));
    }
    byte_level = true;
  } else if (type == "Split") {
    const Pattern pattern = pattern_of(part);
    PreTokenizerStep step;
    step.regex = pattern.regex;
    if (!step.regex) {
      step.regex = std::make_shared<Regex>(regex_literal(pattern.literal), RegexDialect::kRust, where(part, "pattern"));
    }
    step.behavior = behavior_of(part);
    step.invert = part.boolean_or("invert", false);
    out.push_back(std::move(step));
  } else if (type == "Digits") {
    const bool single = part.boolean_or("individual_digits", false);
    out.push_back(
        split_by(R"(\p{N})", single ? Behavior::kIsolated : Behavior::kContiguous, RegexDialect::kRust, part));
  } else if (type == "Whitespace") {
    out.push_back(split_by(R"(\w+|[^\w\s]+)", Behavior::kRemoved, RegexDialect::kRust, part));
    out.back().invert = true;
  } else if (type == "WhitespaceSplit") {
    out.push_back(split_by(R"(\s)", Behavior::kRemoved, RegexDialect::kRust, part));
  } else if (type == "Punctuation") {
    const Behavior behavior = part.has("behavior") ? behavior_of(part) : Behavior::kIsolated;
    out.push_back(split_by(R"([\p{P}\$\+<=>\^`\|~\x{166d}])", behavior, RegexDialect::kRust, part));
  } else if (type == "CharDelimiterSplit") {
    out.push_back(
        split_by(regex_literal(one_character(part, "delimiter")), Behavior::kRemoved, RegexDialect::kRust, part));
  } else if (type == "Metaspace") {
    out.push_back(metaspace_of(part));
    if (part.boolean_or("split", true)) {
      out.push_back(
          split_by(regex_literal(out.back().replacement), Behavior::kMergedWithNext, RegexDialect::kRust, part));
    }
  } else {
    refuse_type(part, "pre-tokenizer");
  }
}

void add_decoder(const JsonObject& part, int depth, bool byte_level, bool& bytes, Decoder& out) {
  using Kind = DecoderStep::Kind;
  if (depth > kMaxDepth) part.fail_field("type", "less nesting");
  const std::string type = part.string("type");
  DecoderStep step;
  // From here on there is one string, which streams see in parts.
  const bool fused = std::any_of(out.begin(), out.end(), [](const DecoderStep& before) {
    return before.kind == Kind::kFuse || before.kind == Kind::kBytes;
  });
  if (type == "Sequence") {
    for (const JsonObject& child : json_objects(part, "decoders"))
      add_decoder(child, depth + 1, byte_level, bytes, out);
    return;
  }
  if (type == "ByteLevel") {
    if (!byte_level) part.fail_field("type", "another decoder: the pre-tokenizer is not ByteLevel");
    if (!out.empty()) part.fail_field("type", "ByteLevel as the first decoder");
    bytes = true;
    step.kind = Kind::kBytes;
  } else if (type == "ByteFallback") {
    if (fused) part.fail_field("type", "ByteFallback before Fuse");
    step.kind = Kind::kByteFallback;
  } else if (type == "Fuse") {
    step.kind = Kind::kFuse;
  } else if (type == "Replace") {
    Pattern pattern = pattern_of(part);
    step.kind = Kind::kReplace;
    step.pattern = std::move(pattern.literal);
    step.regex = std::move(pattern.regex);
    step.content = part.string("content");
    const bool single = !step.regex && utf8_length(step.pattern[0]) == step.pattern.size();
    if (fused && !single) part.fail_field("pattern", "one character, as the text is fused by now");
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    step.pattern = one_character(part, "content");
    step.start = static_cast<size_t>(part.integer("start", 0, 1'000'000));
    step.stop = static_cast<size_t>(part.integer("stop", 0, 1'000'000));
  } else if (type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    const PreTokenizerStep same = metaspace_of(part);
    step.pattern = same.replacement;
    step.drop_first = same.prefix != PreTokenizerStep::Prefix::kNever;
  } else {
    refuse_type(part, "decoder");
  }
  out.push_back(std::move(step));
}

class PostProcessor {
 public:
  PostProcessor(TokenizerParts& parts) : parts_(parts) {}

  void add(const JsonObject& part, int depth) {
    if (depth > kMaxDepth) part.fail_field("type", "less nesting");
    const std::string type = part.string("type");
    if (type == "Sequence") {
      for (const JsonObject& child : json_objects(part, "processors")) add(child, depth + 1);
    } else if (type == "TemplateProcessing") {
      add_template(part);
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      parts_.before.insert(parts_.before.begin(), token_of(part, "cls"));
      parts_.after.push_back(token_of(part, "sep"));
    } else if (type != "ByteLevel") {  // which changes offsets only
      refuse_type(part, "post-processor");
    }
  }

 private:
  // A later template puts its tokens around those of an earlier one.
  void add_template(const JsonObject& part) {
    std::vector<int32_t> before, after;
    bool seen = false;
    for (const JsonObject& item : json_objects(part, "single")) {
      if (item.has("Sequence")) {
        if (seen || item.object("Sequence").string("id") != "A") part.fail_field("single", "sequence A once");
        seen = true;
        continue;
      }
      const std::string name = item.object("SpecialToken").string("id");
      const JsonObject token = part.object("special_tokens").object(name);
      for (int64_t id : token.integers("ids", 0, kMaxTokens - 1)) {
        if (!parts_.tokens.has(static_cast<int32_t>(id))) token.fail_field("ids", "ids of the vocabulary");
        (seen ? after : before).push_back(static_cast<int32_t>(id));
      }
    }
    if (!seen) part.fail_field("single", "sequence A once");
    parts_.before.insert(parts_.before.begin(), before.begin(), before.end());
    parts_.after.insert(parts_.after.end(), after.begin(), after.end());
  }

  // ["</s>", 2]
  int32_t token_of(const JsonObject& part, std::string_view key) const {
    const boost::json::value* value = part.raw().if_contains(key);
    const boost::json::array* pair = value == nullptr ? nullptr : value->if_array();
    if (pair == nullptr || pair->size() != 2 || !pair->at(1).is_int64()) part.fail_field(key, "[token, id]");
    const int64_t id = pair->at(1).get_int64();
    if (id < 0 || id >= parts_.tokens.size()) part.fail_field(key, "an id of the vocabulary");
    return static_cast<int32_t>(id);
  }

  TokenizerParts& parts_;
};

}  // namespace

Normalizer normalizer_of(const JsonObject& root) {
  Normalizer out;
  if (root.has("normalizer")) add_normalizer(root.object("normalizer"), 0, out);
  return out;
}

PreTokenizer pre_tokenizer_of(const JsonObject& root, bool& byte_level) {
  PreTokenizer out;
  if (root.has("pre_tokenizer")) add_pre_tokenizer(root.object("pre_tokenizer"), 0, out, byte_level);
  return out;
}

Decoder decoder_of(const JsonObject& root, bool byte_level) {
  Decoder out;
  if (!root.has("decoder")) {
    out.push_back({.kind = byte_level ? DecoderStep::Kind::kBytes : DecoderStep::Kind::kSpaces});
    return out;
  }
  bool bytes = false;
  add_decoder(root.object("decoder"), 0, byte_level, bytes, out);
  if (byte_level && !bytes) root.fail_field("decoder", "ByteLevel, as the pre-tokenizer is");
  return out;
}

void read_post_processor(const JsonObject& root, TokenizerParts& parts) {
  if (root.has("post_processor")) PostProcessor(parts).add(root.object("post_processor"), 0);
}

}  // namespace weir
