#include "cli/load_prompts.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace weir::cli {
namespace {

constexpr int64_t kDefaultTokens = 512;
constexpr int64_t kMostTokens = int64_t{1} << 24;
constexpr int64_t kDefaultRound = 32;  // groups, where nobody knows how many requests come

// splitmix64: the next value of a stream whose state is any number.
uint64_t next_random(uint64_t& state) {
  uint64_t z = state += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

std::vector<int64_t> numbers_of(const std::string& text, std::string_view numbers, std::string_view form) {
  std::vector<int64_t> out;
  const char* at = numbers.data();
  const char* const end = at + numbers.size();
  for (;;) {
    int64_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || value < 1 || value > kMostTokens || (next != end && *next != ',')) {
      fail("--prompts: expected ", form, " with numbers from 1 to ", kMostTokens, ", found ", printable(text));
    }
    out.push_back(value);
    if (next == end) return out;
    at = next + 1;
  }
}

struct Form {
  std::string_view name, form;
  size_t least, most;  // numbers
};
constexpr Form kForms[] = {{"random", "random:IN[,OUT]", 1, 2},
                           {"repeat", "repeat:K[,IN[,OUT]]", 1, 3},
                           {"shared", "shared:PREFIX,TAIL[,OUT]", 2, 3},
                           {"partial", "partial:PART,IN[,K[,OUT]]", 2, 4},
                           {"turns", "turns:N[,IN[,OUT]]", 1, 3}};

PromptSpec spec_of(std::string_view name, const std::vector<int64_t>& n) {
  const auto number = [&](size_t i) { return i < n.size() ? std::optional(n[i]) : std::nullopt; };
  PromptSpec out;
  if (name == "random") {
    out.own = n[0];
    out.max_tokens = number(1);
  } else if (name == "repeat") {
    out.copies = n[0];
    out.shared = number(1).value_or(kDefaultTokens);
    out.max_tokens = number(2);
  } else if (name == "shared") {
    out.copies = 0;
    out.shared = n[0];
    out.own = n[1];
    out.max_tokens = number(2);
  } else if (name == "partial") {
    if (n[0] >= n[1]) fail("--prompts partial:PART,IN: expected PART below IN, found ", n[0], ",", n[1]);
    out.copies = number(2).value_or(2);
    out.shared = n[0];
    out.own = n[1] - n[0];
    out.max_tokens = number(3);
  } else {
    out.kind = PromptSpec::Kind::kTurns;
    out.turns = n[0];
    out.own = number(1).value_or(kDefaultTokens);
    out.max_tokens = number(2);
  }
  return out;
}

// Streams of words: groups count up from 0, what each prompt has for itself from far above.
constexpr uint64_t kOwnStreams = uint64_t{1} << 40;

class RandomPrompts final : public PromptSource {
 public:
  RandomPrompts(const PromptSpec& spec, WordList list, int64_t requests, int64_t max_tokens, uint64_t seed)
      : spec_(spec), list_(std::move(list)), max_tokens_(max_tokens), seed_(seed) {
    const int64_t copies = std::max<int64_t>(spec.copies, 1);
    round_ = requests > 0 ? (requests + copies - 1) / copies : kDefaultRound;
  }

  Conversation conversation(int64_t number) const override {
    Conversation out;
    out.number = number;
    out.max_tokens = max_tokens_;
    if (spec_.kind == PromptSpec::Kind::kTurns) {
      out.messages.push_back({"user", own(number * spec_.turns)});
      for (int64_t turn = spec_.turns - 1; turn > 0; --turn) out.later.push_back(own(number * spec_.turns + turn));
      std::reverse(out.later.begin(), out.later.end());
      return out;
    }
    std::string text;
    if (spec_.shared > 0) text = random_text(list_, spec_.shared, seed_, static_cast<uint64_t>(group(number)));
    if (spec_.own > 0) text += (text.empty() ? "" : " ") + own(number);
    out.messages.push_back({"user", std::move(text)});
    return out;
  }

 private:
  int64_t group(int64_t number) const {
    if (spec_.copies == 0) return 0;
    const int64_t rounds = number / (round_ * spec_.copies);  // of all copies
    return rounds * round_ + number % round_;
  }
  std::string own(int64_t number) const {
    return random_text(list_, spec_.own, seed_, kOwnStreams + static_cast<uint64_t>(number));
  }

  PromptSpec spec_;
  WordList list_;
  int64_t max_tokens_, round_;
  uint64_t seed_;
};

}  // namespace

PromptSpec parse_prompts(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string_view name = std::string_view(text).substr(0, colon);
  for (const Form& form : kForms) {
    if (name != form.name || colon == text.npos) continue;
    const std::vector<int64_t> numbers = numbers_of(text, std::string_view(text).substr(colon + 1), form.form);
    if (numbers.size() < form.least || numbers.size() > form.most) {
      fail("--prompts: expected ", form.form, ", found ", printable(text));
    }
    return spec_of(name, numbers);
  }
  if (!text.ends_with(".jsonl")) {
    fail("--prompts: expected random:, repeat:, shared:, partial: or turns: with numbers, or a file FILE.jsonl, found ",
         printable(text));
  }
  PromptSpec out;
  out.kind = PromptSpec::Kind::kFile;
  out.file = text;
  return out;
}

std::string random_text(const WordList& list, int64_t tokens, uint64_t seed, uint64_t stream) {
  const auto count = std::max<int64_t>(1, std::llround(static_cast<double>(tokens) / list.tokens_per_word));
  uint64_t state = seed;
  state = next_random(state) ^ stream;
  // Streams next to each other begin with different words, so that a prefix of theirs is never the same by chance.
  std::string out = list.words[(seed + stream) % list.words.size()];
  for (int64_t i = 1; i < count; ++i) {
    out += ' ';
    out += list.words[next_random(state) % list.words.size()];
  }
  return out;
}

std::unique_ptr<PromptSource> make_prompts(const PromptSpec& spec, WordList list, int64_t requests, int64_t max_tokens,
                                           uint64_t seed) {
  if (spec.kind == PromptSpec::Kind::kFile) return read_prompts(spec.file, max_tokens);
  return std::make_unique<RandomPrompts>(spec, std::move(list), requests, spec.max_tokens.value_or(max_tokens), seed);
}

}  // namespace weir::cli
