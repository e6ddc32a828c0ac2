// Answers whose content is one JSON object: `response_format` json_object.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/request.h"
#include "text/json_token_masks.h"

namespace weir {

// What stands around the content of an answer.
struct JsonAnswer {
  std::vector<int32_t> stop_tokens;  // at least one; allowed where the answer is complete, and nowhere else
  bool in_reasoning = false;         // the answer begins with reasoning
  // Reasoning between tags: it ends with the text </think>, and may be begun by this token, if the answer starts with
  // it (-1: no such token).
  int32_t think = -1;
  // Reasoning in markup (close_reasoning >= 0): it ends with that token, behind which come the ids up to the content;
  // other markers don't belong into it.
  int32_t close_reasoning = -1;
  std::vector<int32_t> not_in_reasoning;
  std::vector<int32_t> before_content, after_content;
};

// Anything in reasoning, but no end of the answer; then the object; then the end.
class JsonObjectMask final : public TokenMask {
 public:
  JsonObjectMask(std::shared_ptr<const JsonTokenMasks> tokens, JsonAnswer answer);

  std::span<const uint32_t> allowed() override;
  void push(int32_t id) override;

 private:
  enum class Phase { kStart, kReasoning, kBeforeContent, kContent, kAfterContent };

  void allow(int32_t id);
  void forbid(std::span<const int32_t> ids);
  void leave_content();

  std::shared_ptr<const JsonTokenMasks> tokens_;
  JsonAnswer answer_;
  Phase phase_;
  JsonTokenMasks::Reasoning reasoning_;
  JsonAutomaton json_;
  size_t written_ = 0;  // of the ids before or after the content
  std::vector<uint32_t> mask_;
};

}  // namespace weir
