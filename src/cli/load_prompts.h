// What `weir load` asks: named workloads of random words, made from a seed, or conversations of a file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weir::cli {

struct LoadMessage {
  std::string role, content;
};

// Requests that follow one another, each with the answers before it.
struct Conversation {
  int64_t number = 0;
  std::vector<LoadMessage> messages;  // of the next request
  std::vector<std::string> later;     // what the user says next, after each answer
  int64_t max_tokens = 0;
};

// Where requests come from. The n-th conversation depends on its number alone.
class PromptSource {
 public:
  virtual ~PromptSource() = default;
  virtual Conversation conversation(int64_t number) const = 0;  // any number from 0 up
};

// A workload by its name. All but turns are groups of prompts: those of a group begin with the same `shared` tokens and
// end with `own` ones. Groups are asked in rounds: the first prompt of each, then the second of each, so that the ones
// before have been answered.
struct PromptSpec {
  enum class Kind { kGroups, kTurns, kFile };
  Kind kind = Kind::kGroups;
  int64_t shared = 0, own = 0;  // tokens
  int64_t copies = 1;           // prompts in a group; 0: all prompts are one group
  int64_t turns = 1;            // kTurns: requests of a conversation, each with `own` new tokens
  std::optional<int64_t> max_tokens;
  std::string file;
};

// random:IN[,OUT]         prompts of IN tokens that share nothing
// repeat:K[,IN[,OUT]]     each prompt K times
// shared:PREFIX,TAIL[,OUT]  all begin with the same PREFIX tokens
// partial:PART,IN[,K[,OUT]] K of them (2) begin with the same PART of IN tokens
// turns:N[,IN[,OUT]]      conversations of N turns with IN new tokens each
// FILE.jsonl              lines {"messages": [...]}, {"conversations": [{"from", "value"}]} or {"prompt": "..."}
// IN is 512 where it is left out. Error saying what is expected.
PromptSpec parse_prompts(const std::string& text);

// The words that prompts are made of.
struct WordList {
  std::vector<std::string> words;
  double tokens_per_word = 1;
};
const std::vector<std::string>& common_words();  // about 250 English words, each one token for most vocabularies

// Distinct words that are pseudo-random in (seed, stream); about `tokens` tokens, at least one word.
std::string random_text(const WordList& list, int64_t tokens, uint64_t seed, uint64_t stream);

// `requests`: how many will be asked, which decides how long a round is; 0: not known. `max_tokens` where the workload
// says nothing of its own.
std::unique_ptr<PromptSource> make_prompts(const PromptSpec& spec, WordList list, int64_t requests, int64_t max_tokens,
                                           uint64_t seed);

// The conversations of a file, again and again. Error naming the line.
std::unique_ptr<PromptSource> read_prompts(const std::string& path, int64_t max_tokens);

}  // namespace weir::cli
