// What the kernel sets of the delta rule share: the work item, its scratch and where its state lies. Internal to the
// folder. Everything is static, so that no instruction set's code serves another.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "ops/delta_rule/delta_rule.h"

namespace weir {

// Computes all rows of `span` for `head`. `memory`: delta_rule_scratch_floats() floats, 64-byte aligned.
using DeltaRuleHead = void (*)(const DeltaRuleArgs& args, const StepView& step, const SpanView& span, int64_t head,
                               float* memory);

namespace reference {
void delta_rule_head(const DeltaRuleArgs& args, const StepView& step, const SpanView& span, int64_t head,
                     float* memory);
}
namespace avx2 {
void delta_rule_head(const DeltaRuleArgs& args, const StepView& step, const SpanView& span, int64_t head,
                     float* memory);
}
namespace avx512 {
void delta_rule_head(const DeltaRuleArgs& args, const StepView& step, const SpanView& span, int64_t head,
                     float* memory);
}

// One head's working copy of the current chunk. Rows are padded with zeros to multiples of 16 floats, the state is not.
struct DeltaRuleScratch {
  int64_t key_pad;    // floats between rows of keys
  int64_t value_pad;  // floats between rows of values
  float* k;           // [16, key_pad] k' of the chunk's rows
  float* decay;       // [16, key_pad] G; scalar decay: [16], or as the reference likes
  float* u;           // [16, value_pad]
  float* kq;          // [32, key_pad] this span's n rows of the chunk: kd of all, then qd of all
  float* product;     // [32, value_pad] P of the n rows, then O
  float* pair;        // [32, 16] -L of the n rows, then A
  float* carry;       // [16, key_pad] w of the finished chunk
  float* keep;        // [key_pad] e^(G_15) of the finished chunk
  float* factor;      // [16] e^(G_i) (scalar decay)
  float* state;       // [key_dim, value_dim]
};

WEIR_HD static inline int64_t delta_rule_pad(int64_t n) { return (n + 15) / 16 * 16; }

static inline int64_t delta_rule_scratch_floats(int64_t key_dim, int64_t value_dim) {
  const int64_t keys = delta_rule_pad(key_dim), values = delta_rule_pad(value_dim);
  return (16 + 16 + 32 + 16 + 1) * keys + (16 + 32) * values + 33 * 16 + delta_rule_pad(key_dim * value_dim);
}

static inline DeltaRuleScratch delta_rule_scratch(const DeltaRuleArgs& args, float* memory) {
  DeltaRuleScratch s;
  s.key_pad = delta_rule_pad(args.key_dim);
  s.value_pad = delta_rule_pad(args.value_dim);
  s.k = memory;
  s.decay = s.k + 16 * s.key_pad;
  s.kq = s.decay + 16 * s.key_pad;
  s.carry = s.kq + 32 * s.key_pad;
  s.keep = s.carry + 16 * s.key_pad;
  s.u = s.keep + s.key_pad;
  s.product = s.u + 16 * s.value_pad;
  s.pair = s.product + 32 * s.value_pad;
  s.factor = s.pair + 32 * 16;
  s.state = s.factor + 16;
  return s;
}

WEIR_HD static inline int64_t key_heads(const DeltaRuleArgs& args) {
  return args.decay == DecayKind::kScalar ? args.key_heads : args.heads;
}

WEIR_HD static inline int64_t key_head(const DeltaRuleArgs& args, int64_t head) {
  if (args.decay != DecayKind::kScalar) return head;
  return args.order == KeyHeadOrder::kTiled ? head % args.key_heads : head / (args.heads / args.key_heads);
}

// Of the heads that share a key head, the first one stores its keys.
WEIR_HD static inline bool stores_key(const DeltaRuleArgs& args, int64_t head) {
  if (args.decay != DecayKind::kScalar) return true;
  return args.order == KeyHeadOrder::kTiled ? head < args.key_heads : head % (args.heads / args.key_heads) == 0;
}

// Log decays of one head and row.
WEIR_HD static inline int64_t decay_dim(const DeltaRuleArgs& args) {
  return args.decay == DecayKind::kScalar ? 1 : args.key_dim;
}

// What a step of `rows` rows of one sequence, the last at `position`, moves and computes at least.
Cost delta_rule_cost(const DeltaRuleArgs& args, int32_t rows, int64_t position);

// One head's parts of a journal row; null where the chunk has no page.
struct JournalRow {
  float* k = nullptr;
  float* decay = nullptr;  // [decay_dim]
  float* u = nullptr;
};

WEIR_HD static inline JournalRow journal_row(const DeltaRuleArgs& args, const StepView& step, const SpanView& span,
                                             int64_t head, int64_t position) {
  const PageId page = span.pages[args.journal.group][static_cast<size_t>(position / kPagePositions)];
  if (page == kNoPage) return {};
  std::byte* block = step.page_pools[static_cast<size_t>(args.journal.group)].base +
                     static_cast<int64_t>(page) * step.page_pools[static_cast<size_t>(args.journal.group)].block_bytes;
  float* row =
      reinterpret_cast<float*>(block + args.journal.offset + position % kPagePositions * args.journal.row_bytes);
  float* decays = row + key_heads(args) * args.key_dim;
  float* updates = decays + args.heads * decay_dim(args);
  return {row + key_head(args, head) * args.key_dim, decays + head * decay_dim(args), updates + head * args.value_dim};
}

// One head's [key_dim, value_dim] in an anchor.
WEIR_HD static inline float* anchor_state(const DeltaRuleArgs& args, const StepView& step, SlotId slot, int64_t head) {
  std::byte* block = step.anchor_pool.base + static_cast<int64_t>(slot) * step.anchor_pool.block_bytes;
  return reinterpret_cast<float*>(block + args.state.offset) + head * args.key_dim * args.value_dim;
}

// Where the anchor at `position` is to be stored; null if nobody wants it.
WEIR_HD static inline float* anchor_target(const DeltaRuleArgs& args, const StepView& step, const SpanView& span,
                                           int64_t head, int64_t position) {
  for (const AnchorWrite& write : span.anchor_writes) {
    if (write.position == position) return anchor_state(args, step, write.slot, head);
  }
  return nullptr;
}

}  // namespace weir
