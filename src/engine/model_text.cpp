#include "engine/model_text.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "engine/gguf_tokenizer.h"
#include "formats/embedded_files.h"
#include "text/kimi_markup.h"
#include "text/tokenizer_parts.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

// Of pipes and devices too.
std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  if (!file) fail(path.string(), ": can't be read");
  return std::move(out).str();
}

bool is_there(const fs::path& path) { return path_exists(path.string()); }

}  // namespace

ModelText ModelText::from_folder(const fs::path& folder) {
  ModelText out;
  out.place_ = folder.string();
  if (is_there(folder / "tokenizer.json") || is_there(folder / "tiktoken.model")) {
    out.tokenizer_ = Tokenizer::from_folder(folder);
  }
  const fs::path config = folder / "config.json";
  if (is_there(config)) {
    const JsonObject object = JsonObject::read(config.string());
    const Family* family = object.has("model_type") ? find_family(object.string("model_type")) : nullptr;
    if (family != nullptr) out.format_ = family->chat_format;
  }
  const auto load = [&](bool with_tools) {
    Template result = concat(out.place_,
                             ": no chat template: expected chat_template.jinja, or chat_template in "
                             "tokenizer_config.json; without one this model only completes text");
    try {
      if (auto found = ChatTemplate::from_folder(folder, out.markers(), with_tools)) result = std::move(*found);
    } catch (const Error& error) {
      result = std::string(error.what());
    }
    return std::make_shared<const Template>(std::move(result));
  };
  if (out.format_ == ChatFormat::kTemplate) {
    out.template_ = load(false);
    out.tool_template_ = load(true);
    // A folder with only a tokenizer says nothing about a family.
    const bool missing = std::holds_alternative<std::string>(*out.template_);
    if (missing && !is_there(config) && out.knows_kimi_markers()) out.format_ = ChatFormat::kKimiK3;
  }
  return out;
}

ModelText ModelText::from_file(const fs::path& file) {
  const fs::path folder = file.parent_path(), config = folder / "tokenizer_config.json";
  const std::string config_text = is_there(config) ? file_text(config.string()) : std::string();
  ModelText out = from_folder(folder);
  out.tokenizer_ =
      file.extension() == ".json"
          ? Tokenizer::from_tokenizer_json(file_text(file.string()), file.string(), config_text, config.string())
          : Tokenizer::from_tiktoken(file_text(file.string()), file.string(), config_text, config.string());
  return out;
}

ModelText ModelText::from_gguf(const GgufFile& file) {
  const GgufMetadata& metadata = file.metadata();
  ModelText out;
  out.place_ = file.path();
  const std::optional<GgufTokenizerData> data = gguf_tokenizer_data(metadata);
  if (data) out.tokenizer_ = Tokenizer::from_gguf_metadata(*data);
  const Family* family = find_gguf_family(metadata.string_or("general.architecture", ""));
  if (family != nullptr) out.format_ = family->chat_format;

  constexpr std::string_view kKey = "tokenizer.chat_template";
  const auto load = [&](std::string_view key) {
    Template result = concat(out.place_, ": no chat template: expected the key ", kKey,
                             "; without it this model only completes text");
    if (!metadata.has(key)) return std::make_shared<const Template>(std::move(result));
    TemplateTokens tokens{.markers = out.markers()};
    if (data) tokens.variables = gguf_template_variables(*data, metadata);
    try {
      result = ChatTemplate(concat(out.place_, " ", key), metadata.string(key), std::move(tokens));
    } catch (const Error& error) {
      result = std::string(error.what());
    }
    return std::make_shared<const Template>(std::move(result));
  };
  const std::string tool_key = concat(kKey, ".tool_use");
  out.template_ = load(kKey);
  out.tool_template_ = metadata.has(tool_key) ? load(tool_key) : out.template_;
  return out;
}

ModelText ModelText::open(const fs::path& path) {
  if (!is_there(path)) fail(path.string(), ": no such file or folder");
  const auto opened = [&] {
    if (is_folder(path.string())) {
      const bool published =
          is_there(path / "config.json") || is_there(path / "tokenizer.json") || is_there(path / "tiktoken.model");
      const std::optional<fs::path> gguf = published ? std::nullopt : GgufFile::find_in(path);
      return gguf ? from_gguf(GgufFile::open(*gguf)) : from_folder(path);
    }
    if (path.extension() == ".json" || path.extension() == ".model") return from_file(path);
    return from_gguf(GgufFile::open(path));
  };
  ModelText out = opened();
  out.tokenizer();
  return out;
}

ModelText ModelText::of(const Model& model) {
  return model.gguf() != nullptr ? from_gguf(*model.gguf()) : from_folder(model.checkpoint()->folder());
}

ModelText ModelText::of_template(const fs::path& file) {
  ModelText out;
  out.place_ = file.string();
  out.template_ = out.tool_template_ =
      std::make_shared<const Template>(ChatTemplate(out.place_, text_of(file), TemplateTokens{}));
  return out;
}

const Tokenizer& ModelText::tokenizer() const {
  if (!tokenizer_) {
    fail(place_,
         ": no tokenizer here: expected tokenizer.json, or tiktoken.model with tokenizer_config.json, or a "
         "GGUF file with tokenizer.ggml.tokens");
  }
  return *tokenizer_;
}

bool ModelText::can_chat() const {
  return format_ == ChatFormat::kKimiK3 || (template_ && std::holds_alternative<ChatTemplate>(*template_));
}

std::vector<TokenMarker> ModelText::markers() const {
  std::vector<TokenMarker> out;
  if (!tokenizer_) return out;
  for (const AddedTokens* added : {&tokenizer_->parts().added, &tokenizer_->parts().normalized_added}) {
    for (const AddedToken& token : added->tokens()) out.push_back({token.content, token.lstrip, token.rstrip});
  }
  return out;
}

bool ModelText::knows_kimi_markers() const {
  if (!tokenizer_) return false;
  return std::ranges::all_of(std::initializer_list<const char*>{"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"},
                             [&](const char* name) { return tokenizer_->id_of(name).has_value(); });
}

RenderedPrompt ModelText::render(const ChatRequest& request) const {
  if (format_ == ChatFormat::kKimiK3) return render_kimi_k3(request);
  const bool with_tools = request.tools && !request.tools->empty();
  const Template& chosen = with_tools ? *tool_template_ : *template_;
  if (const std::string* reason = std::get_if<std::string>(&chosen)) fail(*reason);
  ChatRequest parsed = request;
  parse_tool_arguments(parsed);
  return std::get<ChatTemplate>(chosen).render(parsed, local_time());
}

bool ModelText::spells_marker(std::string_view text) const {
  const TokenizerParts& parts = tokenizer_->parts();
  for (const AddedTokens* added : {&parts.added, &parts.normalized_added}) {
    const std::vector<TextSection> parsed = added->sections(text, SpecialTokens::kParse);
    const std::vector<TextSection> plain = added->sections(text, SpecialTokens::kText);
    if (!std::ranges::equal(parsed, plain, {}, &TextSection::begin, &TextSection::begin)) return true;
    if (!std::ranges::equal(parsed, plain, {}, &TextSection::id, &TextSection::id)) return true;
  }
  return false;
}

std::vector<int32_t> ModelText::encode(const RenderedPrompt& prompt) const {
  const Tokenizer& words = tokenizer();
  // A template's prompt is one text: where no words spell a marker, its ids are those of the whole, as some tokenizers
  // treat the start of a text apart.
  const auto harmless = [&](const Segment& segment) { return segment.markup || !spells_marker(segment.text); };
  if (format_ == ChatFormat::kTemplate && std::ranges::all_of(prompt.segments, harmless)) {
    return words.encode(prompt.text, SpecialTokens::kParse, false);
  }
  std::vector<TextPart> parts;
  for (const Segment& segment : prompt.segments) {
    parts.push_back({segment.text, segment.markup ? SpecialTokens::kParse : SpecialTokens::kText});
  }
  return words.encode_parts(parts);
}

std::vector<int32_t> ModelText::encode_raw(std::string_view text) const {
  return tokenizer().encode(text, SpecialTokens::kParse, true);
}

std::vector<int64_t> ModelText::stop_tokens(std::span<const int64_t> configured) const {
  std::vector<int64_t> stops(configured.begin(), configured.end());
  if (!tokenizer_) return stops;
  for (const int32_t id : tokenizer_->end_of_generation()) {
    if (std::ranges::find(stops, id) == stops.end()) stops.push_back(id);
  }
  return stops;
}

}  // namespace weir
