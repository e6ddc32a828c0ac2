// Kimi K3's chat markup: a conversation as segments, of which only the markers (<|open|>, <|close|>, <|sep|>,
// <|end_of_msg|>, images) are encoded as special tokens. Follows the newer of the two published encoders.
#pragma once

#include "text/chat.h"

namespace weir {

// Options of the request that count, all optional:
//   thinking           true: messages of the assistant have a think channel, and the answer begins in it; default true
//   thinking_effort    "low", "high" or "max"; without it no message about effort
//   tool_choice        "auto", "none", "required"; an object that names a function counts as required
//   response_format    "text", "json_object", "json_schema" or an object whose type is one of these
//   response_schema    instead of the schema in response_format
//   images             prompts of the images, in order: strings of markup. Must match the images in the messages, and
//                      the words <|kimi_image_placeholder|> in them; those are plain words when no images are given.
//   prefill            true: the last message is an assistant's that the model shall go on with
// Throws Error "messages[2].role: expected WHAT, found WHAT".
RenderedPrompt render_kimi_k3(const ChatRequest& request);

// Adds to a prompt whose last opened channel is think or response the beginning of an answer that calls this tool, or
// without a name up to where that comes.
void open_kimi_k3_call(RenderedPrompt& prompt, std::optional<std::string_view> tool);
std::string_view open_kimi_k3_channel(const RenderedPrompt& prompt);  // "think" or "response", before the answer

}  // namespace weir
