// weir tokenize: text to token ids and back.
#include <boost/json.hpp>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "engine/model_text.h"
#include "formats/json.h"

namespace weir::cli {
namespace {

struct TokenizeOptions {
  std::string model;
  std::optional<std::string> prompt;
  bool ids = false;
  std::string special = "add";
  bool jsonl = false;
};

std::vector<int32_t> ids_of(const boost::json::value& value, const std::string& where) {
  if (!value.is_array()) fail(where, ": expected an array of token ids, found ", printable(serialize(value)));
  std::vector<int32_t> ids;
  for (const boost::json::value& element : value.get_array()) {
    boost::json::error_code error;
    const auto id = element.to_number<int32_t>(error);
    if (error || element.is_double()) {
      fail(where, ": element ", ids.size(), ": expected a token id, found ", printable(serialize(element)));
    }
    ids.push_back(id);
  }
  return ids;
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text, const std::string& special) {
  return tokenizer.encode(text, special == "text" ? SpecialTokens::kText : SpecialTokens::kParse, special == "add");
}

std::string decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, const std::string& special) {
  return tokenizer.decode(ids, special == "text");
}

std::string ids_json(const std::vector<int32_t>& ids) {
  return boost::json::serialize(boost::json::array(ids.begin(), ids.end()));
}

void print(const std::string& line) {
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fputc('\n', stdout);
}

void tokenize_lines(const Tokenizer& tokenizer, const TokenizeOptions& options) {
  std::string line;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    const std::string where = concat("standard input, line ", number);
    const boost::json::value value = parse_json(line, where);
    if (options.ids) {
      print(boost::json::serialize(boost::json::value(decode(tokenizer, ids_of(value, where), options.special))));
    } else {
      if (!value.is_string()) fail(where, ": expected a JSON string, found ", printable(serialize(value)));
      print(ids_json(encode(tokenizer, value.get_string(), options.special)));
    }
  }
}

// "[1, 2]" or "1 2".
std::vector<int32_t> parse_ids(std::string text) {
  if (text.find('[') == std::string::npos) {
    std::string array = "[";
    for (const char c : text) {
      const bool space = c == ' ' || c == '\t' || c == '\n' || c == ',';
      if (!space) array += c;
      if (space && array.back() != ',' && array.back() != '[') array += ',';
    }
    if (array.back() == ',') array.pop_back();
    text = array + "]";
  }
  return ids_of(parse_json(text, "ids"), "ids");
}

void tokenize(const TokenizeOptions& options) {
  const ModelText text = ModelText::open(options.model);
  const Tokenizer& tokenizer = text.tokenizer();
  if (options.jsonl) return tokenize_lines(tokenizer, options);
  const std::string input =
      options.prompt ? *options.prompt : std::string{std::istreambuf_iterator<char>(std::cin), {}};
  if (options.ids) {
    print(decode(tokenizer, parse_ids(input), options.special));
  } else {
    print(ids_json(encode(tokenizer, input, options.special)));
  }
}

}  // namespace

void add_tokenize(CLI::App& app) {
  CLI::App* command = app.add_subcommand("tokenize", "text to token ids and back");
  const auto options = std::make_shared<TokenizeOptions>();
  command->add_option("MODEL", options->model, "folder or GGUF file of a model, or of a tokenizer alone")->required();
  auto* prompt = command->add_option("-p,--prompt", options->prompt, "the text, or ids (default: standard input)");
  command->add_flag("--ids", options->ids, "the other way round: ids to text");
  command
      ->add_option("--special", options->special,
                   "add: special tokens count, BOS and EOS as the model wants them; parse: without BOS and EOS; "
                   "text: nothing in the text is special, and special ids are left out of it")
      ->check(CLI::IsMember({"add", "parse", "text"}))
      ->capture_default_str();
  command
      ->add_flag("--jsonl", options->jsonl,
                 "lines: a JSON string each in, an array of ids each out; with --ids the other way round")
      ->excludes(prompt);
  command->callback([options] { tokenize(*options); });
}

}  // namespace weir::cli
