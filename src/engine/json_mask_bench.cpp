// Time to say which tokens may follow, along a JSON text in a vocabulary.
//   json_mask_bench [MODEL...]   tokenizers, as weir takes them; without one, a generated vocabulary of 150,000 tokens
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <set>

#include "base/error.h"
#include "engine/json_mask.h"
#include "engine/model_text.h"

namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

std::string base64(std::string_view bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) {
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    }
    for (size_t k = 0; k < 4; ++k) out += i + k > bytes.size() ? '=' : kDigits[group >> (18 - 6 * k) & 63];
  }
  return out;
}

// Words, and one token in ten of JSON's characters mixed with letters: more than trained vocabularies have.
std::shared_ptr<const weir::Tokenizer> generated() {
  std::mt19937 random(1);
  std::set<std::string> seen;
  std::string ranks;
  const auto add = [&](const std::string& token) {
    if (seen.insert(token).second) ranks += base64(token) + " " + std::to_string(seen.size() - 1) + "\n";
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  const std::string marks = "{}[]\",: \n\t0123abcdef";
  while (seen.size() < 150'000) {
    std::string token;
    if (random() % 10 == 0) {
      for (uint32_t n = 2 + random() % 5; n > 0; --n) token += marks[random() % marks.size()];
    } else {
      if (random() % 2 == 0) token = " ";
      for (uint32_t n = 2 + random() % 9; n > 0; --n) token += static_cast<char>('a' + random() % 26);
    }
    add(token);
  }
  return weir::Tokenizer::from_tiktoken(
      ranks, "generated", R"({"added_tokens_decoder": {"150000": {"content": "[EOS]", "special": true}}})",
      "generated");
}

std::string sample() {
  std::string out = "{\n  \"items\": [";
  for (int i = 0; i < 40; ++i) {
    out += (i > 0 ? ", " : "") + std::string("{\"id\": ") + std::to_string(i * 37) +
           ", \"name\": \"the name of it\", \"tags\": [\"one\", \"two\"], \"value\": -1.25e3, \"nested\": {\"a\": [[1, "
           "2], "
           "[true, null]]}}";
  }
  return out + "]\n}";
}

void measure(const char* name, const weir::Tokenizer& tokenizer) {
  const Clock::time_point start = Clock::now();
  const auto tokens = std::make_shared<const weir::JsonTokenMasks>(tokenizer, tokenizer.vocab_size());
  const double made = microseconds_since(start);
  weir::JsonObjectMask mask(tokens, {.stop_tokens = {static_cast<int32_t>(tokenizer.vocab_size() - 1)}});
  std::vector<double> times;
  for (const int32_t id : tokenizer.encode(sample(), weir::SpecialTokens::kText, false)) {
    const Clock::time_point before = Clock::now();
    mask.allowed();
    mask.push(id);
    times.push_back(microseconds_since(before));
  }
  std::ranges::sort(times);
  std::printf("%s: %lld tokens, tables in %.0f ms; a token of %zu: median %.1f us, p99 %.1f, most %.1f\n", name,
              static_cast<long long>(tokenizer.vocab_size()), made / 1e3, times.size(), times[times.size() / 2],
              times[times.size() * 99 / 100], times.back());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 2) measure("generated", *generated());
    for (int i = 1; i < argc; ++i) measure(argv[i], weir::ModelText::open(argv[i]).tokenizer());
  } catch (const weir::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
