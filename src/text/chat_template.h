// A model's Jinja template: conversations to prompts.
#pragma once

#include <ctime>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/call_syntax.h"
#include "text/chat.h"
#include "text/jinja.h"

namespace weir {

// A token that tokenizers find in text as it is spelled.
struct TokenMarker {
  std::string text;
  bool lstrip = false, rstrip = false;  // takes the white space before, behind it along
};

// What a template is rendered with.
struct TemplateTokens {
  std::vector<std::pair<std::string, std::string>> variables;  // bos_token, eos_token, pad_token ...
  std::vector<TokenMarker> markers;                            // special and added tokens
};

class ChatTemplate {
 public:
  // `name` is for messages. jinja::TemplateError (an Error) for bad templates.
  ChatTemplate(std::string name, std::string_view source, TemplateTokens tokens, jinja::Limits limits = {});

  // chat_template.jinja, else chat_template of tokenizer_config.json (a string, or a list of {name, template}:
  // "default" is taken, or "tool_use" when `with_tools`). Variables come from tokenizer_config.json. Nullopt when there
  // is none.
  static std::optional<ChatTemplate> from_folder(const std::filesystem::path& folder, std::vector<TokenMarker> markers,
                                                 bool with_tools);

  // The template sees messages, tools, add_generation_prompt, the tokens and the request's options. A message's
  // reasoning is visible as reasoning_content and thinking, whichever it came as. jinja::TemplateError when it fails or
  // refuses. Content that is a list of text parts, or null, reaches a template that can't read it as one string.
  //
  // Segments: a marker that the template's author wrote is one of markup; all that stands between two such markers is
  // one of text. Encoding each segment gives the ids of the whole text, except that a marker spelled in a message is
  // text.
  RenderedPrompt render(const ChatRequest& request, const std::tm& now) const;

  const CallSyntax* call_syntax() const { return call_syntax_; }  // nullptr: tools are called in no known way

 private:
  jinja::Template template_;
  TemplateTokens tokens_;
  const CallSyntax* call_syntax_;
  bool reads_lists_ = true, reads_null_ = true;  // as content; tried once

  bool tries_list() const;
  bool tries_content(std::string_view content) const;
};

// The cut that render() makes. A marker counts only where all of its bytes are the template's.
RenderedPrompt cut_at_markers(const jinja::Text& text, std::span<const TokenMarker> markers);

std::tm local_time();  // now, for render

}  // namespace weir
