// The tokens of one sequence as penalties need them: how often each id was generated, and which ids occur at all. What
// it says is a function of the list of tokens alone: one that was cut back equals one that was built anew.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weir {

class TokenHistory {
 public:
  struct Entry {
    int32_t id = -1;  // -1: an empty place of the table
    int32_t in_prompt = 0;
    int32_t in_output = 0;  // both 0: the id occurred only in tokens that were removed
  };

  // Ids are not negative. The prompt comes before what is generated: asserted.
  void add_prompt(std::span<const int32_t> tokens);
  void add(int32_t token);  // a generated one

  void remove_last() { truncate(length() - 1); }
  // Keeps the first `kept` tokens, prompt included. A cut within the prompt leaves a shorter prompt.
  void truncate(int64_t kept);

  int64_t length() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t prompt_length() const { return prompt_length_; }
  int64_t generated() const { return length() - prompt_length_; }

  Entry find(int32_t id) const;  // zeros when it does not occur
  // A hash table, in no particular order, with empty places. Read by the sampler.
  std::span<const Entry> table() const { return table_; }
  size_t place_of(int32_t id) const;  // of the id in the table, or of the empty place where it belongs
  std::span<const int32_t> tokens() const { return tokens_; }
  // Another number whenever more of the table has changed than the places of tokens that were added. No two histories
  // have the same.
  uint64_t table_version() const { return version_.number; }

  // The same tokens, of which the same number are the prompt's.
  friend bool operator==(const TokenHistory& a, const TokenHistory& b) {
    return a.prompt_length_ == b.prompt_length_ && a.tokens_ == b.tokens_;
  }

 private:
  struct Version {
    Version() = default;
    Version(const Version&) : Version() {}
    Version& operator=(const Version&);
    static uint64_t next();

    uint64_t number = next();
  };

  Entry& place(int32_t id);

  std::vector<int32_t> tokens_;
  int64_t prompt_length_ = 0;
  std::vector<Entry> table_;  // open addressing, at most half full, a power of two; entries stay when counts fall to 0
  size_t used_ = 0;
  Version version_;
};

}  // namespace weir
