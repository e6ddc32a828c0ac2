#include "text/chat_template.h"

#include <algorithm>
#include <array>
#include <boost/json/serialize.hpp>

#include "base/error.h"
#include "formats/embedded_files.h"
#include "formats/json.h"
#include "text/jinja_unicode.h"

namespace weir {
namespace {

using jinja::Origin;
using jinja::Text;
using jinja::Value;

// Templates build markers from roles ("<|" + role + "|>"), so these words count as the template's own.
constexpr std::string_view kRoles[] = {"system", "user",     "assistant", "tool",        "developer",
                                       "model",  "function", "ipython",   "observation", "tool_results"};

Value role_value(const boost::json::value& role) {
  if (role.is_string()) {
    for (const std::string_view known : kRoles) {
      if (role.get_string() == known) return jinja::make_text(std::string(known), Origin::kTemplate);
    }
  }
  return jinja::from_json(role);
}

std::string joined_text(const ChatMessage& message) {
  std::string out;
  for (const ContentPart& part : message.content) {
    if (&part != &message.content.front()) out += '\n';
    out += part.text;
  }
  return out;
}

// The content as a template that wants strings is to see it.
Value content_value(const ChatMessage& message, const boost::json::value& given, bool lists, bool nulls) {
  const bool all_text =
      std::ranges::all_of(message.content, [](const auto& part) { return part.kind == ContentPart::Kind::kText; });
  if ((given.is_array() && !lists && all_text) || (given.is_null() && !nulls)) {
    return jinja::make_text(joined_text(message), Origin::kValue);
  }
  return jinja::from_json(given);
}

Value message_value(const ChatMessage& message, bool lists, bool nulls) {
  jinja::Dict out;
  for (const auto& [key, value] : message.json) {
    Value shown = key == "role"      ? role_value(value)
                  : key == "content" ? content_value(message, value, lists, nulls)
                                     : jinja::from_json(value);
    out.put(jinja::make_text(std::string(key), Origin::kValue), std::move(shown));
  }
  if (!nulls && !message.json.contains("content")) {
    out.put(jinja::make_text("content", Origin::kTemplate), jinja::make_text("", Origin::kValue));
  }
  if (message.role != "assistant" || message.reasoning.empty()) return out;
  for (const std::string_view name : {"reasoning_content", "thinking"}) {
    if (out.find(name)) continue;
    out.put(jinja::make_text(std::string(name), Origin::kTemplate),
            jinja::make_text(message.reasoning, Origin::kValue));
  }
  return out;
}

// Markers by their first byte, the longest first.
class MarkerTable {
 public:
  explicit MarkerTable(std::span<const TokenMarker> markers) {
    for (const TokenMarker& marker : markers) {
      if (!marker.text.empty()) by_first_[static_cast<unsigned char>(marker.text[0])].push_back(&marker);
    }
    for (auto& list : by_first_) {
      std::sort(list.begin(), list.end(), [](const auto* a, const auto* b) { return a->text.size() > b->text.size(); });
    }
  }

  const TokenMarker* match(std::string_view text) const {
    for (const TokenMarker* marker : by_first_[static_cast<unsigned char>(text[0])]) {
      if (text.starts_with(marker->text)) return marker;
    }
    return nullptr;
  }

 private:
  std::array<std::vector<const TokenMarker*>, 256> by_first_;
};

size_t space_end(const std::string& bytes, size_t at) {
  for (size_t n = 0; at < bytes.size() && jinja::is_space(jinja::decode_at(bytes, at, &n));) at += n;
  return at;
}

size_t space_begin(const std::string& bytes, size_t from, size_t at) {
  for (size_t n = 0; at > from;) {
    size_t before = at - 1;
    while (before > from && (static_cast<unsigned char>(bytes[before]) & 0xC0) == 0x80) --before;
    if (!jinja::is_space(jinja::decode_at(bytes, before, &n))) break;
    at = before;
  }
  return at;
}

// "bos_token": "<s>" or {"content": "<s>", ...}.
std::vector<std::pair<std::string, std::string>> token_variables(const JsonObject& config) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& [key, value] : config.raw()) {
    if (!key.ends_with("_token")) continue;
    const boost::json::value* text = &value;
    if (value.is_object()) text = value.get_object().if_contains("content");
    if (text && text->is_string()) out.emplace_back(std::string(key), std::string(text->get_string()));
  }
  return out;
}

std::optional<std::string> configured_template(const JsonObject& config, bool with_tools) {
  if (!config.has("chat_template")) return std::nullopt;
  const boost::json::value& value = config.raw().at("chat_template");
  if (value.is_string()) return std::string(value.get_string());
  if (!value.is_array()) config.fail_field("chat_template", "a string or a list of {name, template}");
  std::optional<std::string> out;
  for (const boost::json::value& entry : value.get_array()) {
    const boost::json::object* named = entry.if_object();
    const boost::json::value* name = named ? named->if_contains("name") : nullptr;
    const boost::json::value* source = named ? named->if_contains("template") : nullptr;
    if (!name || !name->is_string() || !source || !source->is_string()) {
      config.fail_field("chat_template", "a string or a list of {name, template}");
    }
    const bool tools = with_tools && name->get_string() == "tool_use";
    if (tools || (!out && name->get_string() == "default")) out = std::string(source->get_string());
  }
  return out;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string name, std::string_view source, TemplateTokens tokens, jinja::Limits limits)
    : template_(jinja::Template::compile(std::move(name), source, limits)),
      tokens_(std::move(tokens)),
      call_syntax_(find_call_syntax(source)) {
  reads_lists_ = tries_list();
  reads_null_ = tries_content("null") || !tries_content(R"("")");
}

// Does the text of a list of parts arrive in the prompt, and not the list itself?
bool ChatTemplate::tries_list() const {
  try {
    constexpr const char* kMessages =
        R"([{"role": "user", "content": [{"type": "text", "text": "weir-words", "weir-key": ""}]}])";
    const RenderedPrompt prompt = render(parse_chat_request(parse_json(kMessages, "probe"), "probe"), local_time());
    return prompt.text.find("weir-words") != prompt.text.npos && prompt.text.find("weir-key") == prompt.text.npos;
  } catch (const Error&) {
    return false;
  }
}

// Can it render the content of an assistant's message that calls a tool?
bool ChatTemplate::tries_content(std::string_view content) const {
  const std::string messages =
      concat(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": )", content,
             R"(, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}]}])");
  try {
    render(parse_chat_request(parse_json(messages, "probe"), "probe"), local_time());
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::optional<ChatTemplate> ChatTemplate::from_folder(const std::filesystem::path& folder,
                                                      std::vector<TokenMarker> markers, bool with_tools) {
  const std::filesystem::path config_path = folder / "tokenizer_config.json", file = folder / "chat_template.jinja";
  std::optional<JsonObject> config;
  if (path_exists(config_path.string())) config = JsonObject::read(config_path.string());
  TemplateTokens tokens{.markers = std::move(markers)};
  if (config) tokens.variables = token_variables(*config);
  if (path_exists(file.string())) return ChatTemplate(file.string(), file_text(file.string()), std::move(tokens));
  const std::optional<std::string> source = config ? configured_template(*config, with_tools) : std::nullopt;
  if (!source) return std::nullopt;
  return ChatTemplate(config_path.string() + " chat_template", *source, std::move(tokens));
}

RenderedPrompt ChatTemplate::render(const ChatRequest& request, const std::tm& now) const {
  jinja::Variables variables;
  for (const auto& [name, token] : tokens_.variables) {
    variables.emplace_back(name, jinja::make_text(token, Origin::kTemplate));
  }
  for (const auto& [name, value] : request.options) variables.emplace_back(name, jinja::from_json(value));
  jinja::List messages;
  for (const ChatMessage& message : request.messages) {
    messages.items.push_back(message_value(message, reads_lists_, reads_null_));
  }
  variables.emplace_back("messages", Value(std::move(messages)));
  variables.emplace_back("tools", request.tools ? jinja::from_json(*request.tools) : Value(jinja::None{}));
  variables.emplace_back("add_generation_prompt", Value(request.add_generation_prompt));
  return cut_at_markers(template_.render(variables, now), tokens_.markers);
}

RenderedPrompt cut_at_markers(const Text& text, std::span<const TokenMarker> markers) {
  const MarkerTable table(markers);
  const std::string& bytes = text.bytes();
  RenderedPrompt out;
  size_t done = 0;  // bytes that are in a segment
  size_t at = 0;    // of the run
  text.for_each_run(0, text.size(), [&](std::string_view run, Origin origin) {
    const size_t end = at + run.size();
    if (origin == Origin::kTemplate) {
      for (size_t i = std::max(at, done); i < end;) {
        const TokenMarker* marker = table.match(std::string_view(bytes).substr(i, end - i));
        if (!marker) {
          ++i;
          continue;
        }
        const size_t begin = marker->lstrip ? space_begin(bytes, done, i) : i;
        const size_t stop = marker->rstrip ? space_end(bytes, i + marker->text.size()) : i + marker->text.size();
        out.add(std::string_view(bytes).substr(done, begin - done), false);
        out.add(std::string_view(bytes).substr(begin, stop - begin), true);
        done = stop;
        i = stop;
      }
    }
    at = end;
  });
  out.add(std::string_view(bytes).substr(done), false);
  return out;
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm out{};
  localtime_r(&now, &out);
  return out;
}

}  // namespace weir
