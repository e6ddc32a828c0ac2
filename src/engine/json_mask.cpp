#include "engine/json_mask.h"

#include <algorithm>

namespace weir {

JsonObjectMask::JsonObjectMask(std::shared_ptr<const JsonTokenMasks> tokens, JsonAnswer answer)
    : tokens_(std::move(tokens)),
      answer_(std::move(answer)),
      phase_(answer_.in_reasoning ? Phase::kReasoning : Phase::kStart),
      mask_(tokens_->words()) {}

void JsonObjectMask::allow(int32_t id) {
  if (id >= 0 && id < tokens_->vocab()) {
    mask_[static_cast<size_t>(id) / 32] |= uint32_t{1} << (static_cast<uint32_t>(id) % 32);
  }
}

void JsonObjectMask::forbid(std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= tokens_->vocab()) continue;
    mask_[static_cast<size_t>(id) / 32] &= ~(uint32_t{1} << (static_cast<uint32_t>(id) % 32));
  }
}

std::span<const uint32_t> JsonObjectMask::allowed() {
  switch (phase_) {
    case Phase::kReasoning:
      if (answer_.close_reasoning >= 0) {
        std::ranges::fill(mask_, ~uint32_t{0});
        forbid(answer_.not_in_reasoning);
      } else {
        tokens_->reasoning(reasoning_.matched, mask_);
      }
      forbid(answer_.stop_tokens);
      return mask_;
    case Phase::kBeforeContent:
      std::ranges::fill(mask_, 0);
      allow(answer_.before_content[written_]);
      return mask_;
    case Phase::kStart:
    case Phase::kContent:
      json_.begin_token();
      tokens_->json(json_, mask_);
      forbid(answer_.stop_tokens);
      if (phase_ == Phase::kStart) allow(answer_.think);
      return mask_;
    case Phase::kAfterContent:
      break;
  }
  std::ranges::fill(mask_, 0);
  if (written_ < answer_.after_content.size()) {
    allow(answer_.after_content[written_]);
  } else {
    for (const int32_t id : answer_.stop_tokens) allow(id);
  }
  return mask_;
}

void JsonObjectMask::push(int32_t id) {
  switch (phase_) {
    case Phase::kReasoning:
      if (answer_.close_reasoning >= 0) {
        if (id != answer_.close_reasoning) return;
        phase_ = answer_.before_content.empty() ? Phase::kContent : Phase::kBeforeContent;
        return;
      }
      for (const char c : tokens_->bytes(id)) reasoning_.push(static_cast<unsigned char>(c));
      if (!reasoning_.closed) return;
      json_ = reasoning_.json;
      return leave_content();
    case Phase::kBeforeContent:
      if (++written_ < answer_.before_content.size()) return;
      written_ = 0;
      phase_ = Phase::kContent;
      return;
    case Phase::kStart:
      if (id == answer_.think) {
        phase_ = Phase::kReasoning;
        return;
      }
      [[fallthrough]];
    case Phase::kContent:
      for (const char c : tokens_->bytes(id)) json_.push(static_cast<unsigned char>(c));
      return leave_content();
    case Phase::kAfterContent:
      ++written_;
  }
}

// Inside of the content, and behind it when the object is complete.
void JsonObjectMask::leave_content() { phase_ = json_.done() ? Phase::kAfterContent : Phase::kContent; }

}  // namespace weir
