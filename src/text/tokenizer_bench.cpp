// Encodes 1 MB of each kind of text with each fixture's tokenizer: seconds and MB/s on one thread.
//   tokenizer_bench FOLDER...
#include <chrono>
#include <cstdio>
#include <string>

#include "base/error.h"
#include "text/tokenizer_texts.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::puts("usage: tokenizer_bench FOLDER... (each with tokenizer.json, or tiktoken.model)");
    return 2;
  }
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  std::vector<std::pair<std::string, std::string>> texts = weir::testing::large_texts(1'000'000);
  for (int i = 1; i < argc; ++i) {
    try {
      const Clock::time_point load = Clock::now();
      const auto tokenizer = weir::Tokenizer::from_folder(argv[i]);
      std::printf("%s: %lld tokens, loaded in %.3f s\n", argv[i], static_cast<long long>(tokenizer->vocab_size()),
                  seconds_since(load));
      for (const auto& [name, text] : texts) {
        const Clock::time_point start = Clock::now();
        const std::vector<int32_t> ids = tokenizer->encode(text, weir::SpecialTokens::kParse, true);
        const double encode = seconds_since(start);
        const Clock::time_point back = Clock::now();
        const std::string decoded = tokenizer->decode(ids, false);
        std::printf("  %-22s %7.3f s  %6.1f MB/s  %8zu ids; decode %.3f s\n", name.c_str(), encode,
                    static_cast<double>(text.size()) / 1e6 / encode, ids.size(), seconds_since(back));
      }
    } catch (const weir::Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 1;
    }
  }
  return 0;
}
