// What turns words into a model's token ids and back: its tokenizer and its way of writing conversations.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "engine/request.h"
#include "text/chat.h"
#include "text/chat_template.h"
#include "text/json_token_masks.h"
#include "text/tokenizer.h"

namespace weir {

// One answer as its ids arrive, the id that ends it included.
class AnswerStream {
 public:
  virtual ~AnswerStream() = default;
  virtual void push(int32_t id, std::vector<ChatEvent>& events) = 0;
  virtual void finish(std::vector<ChatEvent>& events) = 0;  // no more ids
  virtual const ParsedMessage& message() const = 0;         // so far
};

// Immutable: any number of threads may use one object.
class ModelText {
 public:
  // `path`: a model, or only its tokenizer: a folder, a GGUF file, tokenizer.json or tiktoken.model. No weights are
  // read. Error when the files are broken, or hold no tokenizer.
  static ModelText open(const std::filesystem::path& path);
  // Of a loaded model; without tokenizer when it has none.
  static ModelText of(const Model& model);
  // Conversations by this template, without tokenizer or special tokens.
  static ModelText of_template(const std::filesystem::path& file);

  bool has_tokenizer() const { return tokenizer_ != nullptr; }
  const Tokenizer& tokenizer() const;  // Error when there is none
  bool can_chat() const;               // has it a chat format at all?

  const std::string& place() const { return place_; }  // that messages begin with

  // Error: no format, a broken template, or one that refuses the conversation.
  RenderedPrompt render(const ChatRequest& request) const;
  // The ids of a rendered conversation, in which nobody's words become a marker.
  std::vector<int32_t> encode(const RenderedPrompt& prompt) const;
  // The ids of a text in which markers count, with what the files put around texts (BOS).
  std::vector<int32_t> encode_raw(std::string_view text) const;

  // Can a prompt make the model call a tool? Then open_call() adds the beginning of an answer that calls this one, or
  // without a name up to where that comes. The answer has no reasoning. Error when it can't.
  bool opens_calls() const;
  void open_call(RenderedPrompt& prompt, std::optional<std::string_view> tool) const;

  // What follows `prompt` as a message (an empty prompt: as text, of which nothing is reasoning), with what the prompt
  // has of it; calls get the ids CALL_PREFIX0, CALL_PREFIX1 ... Behind a template, calls are only looked for when there
  // are `tools`, which are read here and not kept.
  std::unique_ptr<AnswerStream> answer(const RenderedPrompt& prompt, std::string call_prefix = "call_",
                                       const boost::json::array* tools = nullptr) const;

  // For an answer to `prompt` whose content is one JSON object: see json_mask.h. `stop_tokens` is not empty; `vocab`:
  // the model's number of ids. Error when the vocabulary can't write JSON. The first call takes tenths of a second.
  std::shared_ptr<TokenMask> json_mask(const RenderedPrompt& prompt, std::vector<int32_t> stop_tokens,
                                       int64_t vocab) const;

  // What follows a text that is no conversation: content only.
  std::unique_ptr<AnswerStream> plain_answer() const;

  // Ids at which generation stops: `configured` and those that end a turn or a text by the tokenizer's account.
  std::vector<int64_t> stop_tokens(std::span<const int64_t> configured) const;

 private:
  // A compiled template, or why there is none: reported when a conversation is asked for, so that a broken template
  // doesn't keep people from completing text.
  using Template = std::variant<std::string, ChatTemplate>;

  static ModelText from_folder(const std::filesystem::path& folder);
  static ModelText from_file(const std::filesystem::path& file);
  static ModelText from_gguf(const GgufFile& file);
  std::vector<TokenMarker> markers() const;
  bool spells_marker(std::string_view text) const;
  bool knows_kimi_markers() const;
  const CallSyntax* call_syntax() const;  // of the template for conversations with tools
  std::shared_ptr<const JsonTokenMasks> json_tokens(int64_t vocab) const;

  std::string place_;  // for messages
  std::shared_ptr<const Tokenizer> tokenizer_;
  ChatFormat format_ = ChatFormat::kTemplate;
  std::shared_ptr<const Template> template_, tool_template_;  // the same object when the model has one for both
  struct JsonTokens {
    std::mutex mutex;
    std::shared_ptr<const JsonTokenMasks> made;  // by the first who needs them
  };
  std::shared_ptr<JsonTokens> json_tokens_ = std::make_shared<JsonTokens>();
};

}  // namespace weir
