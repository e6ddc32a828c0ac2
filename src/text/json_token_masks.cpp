#include "text/json_token_masks.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "text/call_parser_scan.h"
#include "text/token_bytes.h"
#include "text/tokenizer_parts.h"

namespace weir {
namespace {

using Mode = JsonAutomaton::Mode;

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";

void set(std::span<uint32_t> mask, int32_t id) {
  mask[static_cast<size_t>(id) / 32] |= uint32_t{1} << (static_cast<uint32_t>(id) % 32);
}

bool follows_value(unsigned char byte) {
  return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t' || byte == ',' || byte == '}' || byte == ']';
}

bool in_string(Mode mode) { return mode >= Mode::kString && mode <= Mode::kUtfF4; }
bool has_runs(Mode mode) { return mode < Mode::kString || mode == Mode::kDigits || mode == Mode::kFraction; }

// Tries a token where the innermost container is known and what is around it is not.
struct Probe {
  JsonAutomaton at;
  int depth;             // before the token
  bool depends = false;  // on the depth
  bool popped = false;   // what is around decides

  // False: refused, wherever.
  bool push(unsigned char byte) {
    if (popped) return true;
    if (depth > 0 && at.depth() < depth) {
      popped = true;
      return follows_value(byte);
    }
    if (!at.push(byte)) return at.depth() == JsonAutomaton::kMaxDepth && (popped = true);
    depends = depends || at.depth() > depth;
    return true;
  }
};

}  // namespace

JsonTokenMasks::JsonTokenMasks(const Tokenizer& tokenizer, int64_t vocab)
    : vocab_(vocab), words_(static_cast<size_t>(vocab + 31) / 32) {
  read(tokenizer);
  require_bytes();
  entries_.resize(static_cast<size_t>(JsonAutomaton::kModes) * kVariants);
  build(JsonAutomaton());
  build(JsonAutomaton::probe(Mode::kStart, false, false, true, 0));
  for (int m = 1; m < static_cast<int>(Mode::kDone); ++m) {
    const auto mode = static_cast<Mode>(m);
    for (const bool object : {false, true}) {
      for (const bool key : {false, true}) {
        for (const bool over : {false, true}) {
          if ((key && !(in_string(mode) && object)) || (over && !has_runs(mode))) continue;
          build(JsonAutomaton::probe(mode, object, key, over, 2));
        }
      }
    }
  }
  for (size_t matched = 0; matched < kThinkEnd.size(); ++matched) build_reasoning(static_cast<int>(matched));
}

size_t JsonTokenMasks::index(const JsonAutomaton& at) {
  const size_t object = at.depth() > 0 && at.in_object() ? 4 : 0;
  const size_t key = in_string(at.mode()) && at.in_key() ? 2 : 0;
  return static_cast<size_t>(at.mode()) * kVariants + object + key + (at.run_over() ? 1 : 0);
}

void JsonTokenMasks::read(const Tokenizer& tokenizer) {
  std::vector<bool> added(static_cast<size_t>(vocab_));
  for (const auto& [text, id] : tokenizer.parts().added_ids) {
    if (id < vocab_ && !blank(text)) added[static_cast<size_t>(id)] = true;
  }
  for (int32_t id = 0; id < vocab_; ++id) {
    offsets_.push_back(bytes_.size());
    const std::string text = bytes_in_text(tokenizer, id);
    const bool special = tokenizer.is_special(id);
    if (!special || text == kThink || text == kThinkEnd) bytes_ += text;
    if (!special && !added[static_cast<size_t>(id)] && !text.empty()) sorted_.push_back(id);
    longest_ = std::max(longest_, text.size());
  }
  offsets_.push_back(bytes_.size());
  std::ranges::sort(sorted_, {}, [&](int32_t id) { return bytes(id); });
  std::string_view before;
  for (const int32_t id : sorted_) {
    const std::string_view now = bytes(id);
    shared_.push_back(static_cast<uint32_t>(std::ranges::mismatch(before, now).in2 - now.begin()));
    before = now;
  }
}

// With a token for each of these bytes there is a way on from everywhere.
void JsonTokenMasks::require_bytes() const {
  std::array<bool, 256> there{};
  for (const int32_t id : sorted_) {
    if (bytes(id).size() == 1) there[static_cast<unsigned char>(bytes(id)[0])] = true;
  }
  const auto require = [&](unsigned char byte) {
    if (!there[byte]) fail("tokenizer: expected a token for each byte that JSON needs, found none for byte ", +byte);
  };
  for (const char c : std::string_view("{}[]:,\"\\u0123456789cdefalrstn.-")) require(static_cast<unsigned char>(c));
  for (int byte = 0x80; byte < 0xC0; ++byte) require(static_cast<unsigned char>(byte));
}

// found(id, state) for every plain token whose bytes `push` takes all. A prefix that it refuses is tried once.
template <class State, class Push, class Found>
void JsonTokenMasks::walk(const State& start, Push push, Found found) const {
  std::vector<State> states(longest_ + 1, start);  // after so many bytes of the token
  size_t good = 0;                                 // bytes of the token before that were taken
  bool refused = false;                            // byte `good` of it was not
  for (size_t i = 0; i < sorted_.size(); ++i) {
    const size_t shared = shared_[i];
    if (refused && shared > good) continue;
    const std::string_view text = bytes(sorted_[i]);
    refused = false;
    for (good = std::min(shared, good); good < text.size(); ++good) {
      states[good + 1] = states[good];
      if (!push(states[good + 1], static_cast<unsigned char>(text[good]))) {
        refused = true;
        break;
      }
    }
    if (!refused) found(sorted_[i], states[good]);
  }
}

void JsonTokenMasks::build(const JsonAutomaton& at) {
  Entry& entry = entries_[index(at)];
  entry.mask.assign(words_, 0);
  walk(
      Probe{.at = at, .depth = at.depth()}, [](Probe& probe, unsigned char byte) { return probe.push(byte); },
      [&](int32_t id, const Probe& probe) {
        if (probe.popped || probe.depends) {
          entry.dependents.push_back(id);
        } else {
          set(entry.mask, id);
        }
      });
}

void JsonTokenMasks::json(const JsonAutomaton& at, std::span<uint32_t> out) const {
  const Entry& entry = entries_[index(at)];
  std::ranges::copy(entry.mask, out.begin());
  for (const int32_t id : entry.dependents) {
    JsonAutomaton tried = at;
    const std::string_view text = bytes(id);
    if (std::ranges::all_of(text, [&](char c) { return tried.push(static_cast<unsigned char>(c)); })) set(out, id);
  }
}

bool JsonTokenMasks::Reasoning::push(unsigned char byte) {
  if (closed) return json.push(byte);
  // No proper prefix of the tag ends with another but for "<".
  if (byte != static_cast<unsigned char>(kThinkEnd[static_cast<size_t>(matched)])) matched = 0;
  if (byte == static_cast<unsigned char>(kThinkEnd[static_cast<size_t>(matched)])) ++matched;
  closed = static_cast<size_t>(matched) == kThinkEnd.size();
  return true;
}

void JsonTokenMasks::build_reasoning(int matched) {
  std::vector<uint32_t>& mask = reasoning_.emplace_back(words_, 0);
  for (int32_t id = 0; id < vocab_; ++id) {
    Reasoning tried{.matched = matched, .closed = false, .json = {}};
    const std::string_view text = bytes(id);
    if (std::ranges::all_of(text, [&](char c) { return tried.push(static_cast<unsigned char>(c)); })) set(mask, id);
  }
}

void JsonTokenMasks::reasoning(int matched, std::span<uint32_t> out) const {
  std::ranges::copy(reasoning_[static_cast<size_t>(matched)], out.begin());
}

}  // namespace weir
