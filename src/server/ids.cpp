#include "server/ids.h"

#include <random>

namespace weir {

std::string random_id(std::string_view prefix) {
  static constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::random_device random;
  std::uniform_int_distribution<size_t> letter(0, kLetters.size() - 1);
  std::string out(prefix);
  for (int i = 0; i < 24; ++i) out += kLetters[letter(random)];
  return out;
}

uint64_t random_seed() { return std::random_device()(); }

}  // namespace weir
