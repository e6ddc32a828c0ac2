// SHA-256 (FIPS 180-4), for golden values that are too long to store.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace weir::test {

// The first 32 fractional bits of the square or cube root of the n-th prime: where the constants come from.
inline uint32_t root_bits(int n, bool cube) {
  int prime = 1;
  for (int found = 0; found <= n;) {
    ++prime;
    bool divides = false;
    for (int d = 2; d * d <= prime; ++d) divides = divides || prime % d == 0;
    if (!divides) ++found;
  }
  // The largest r with r^2 <= prime * 2^64, or r^3 <= prime * 2^96.
  uint64_t low = 0, high = uint64_t{1} << 37;
  while (high - low > 1) {
    const uint64_t middle = (low + high) / 2;
    const auto wide = static_cast<long double>(middle);
    const long double power = cube ? wide * wide * wide / 0x1p96L : wide * wide / 0x1p64L;
    (power <= static_cast<long double>(prime) ? low : high) = middle;
  }
  return static_cast<uint32_t>(low);
}

inline std::string sha256_hex(std::string_view bytes) {
  std::array<uint32_t, 8> state;
  std::array<uint32_t, 64> round;
  for (int i = 0; i < 8; ++i) state[static_cast<size_t>(i)] = root_bits(i, false);
  for (int i = 0; i < 64; ++i) round[static_cast<size_t>(i)] = root_bits(i, true);
  std::string padded(bytes);
  padded += '\x80';
  padded.resize((padded.size() + 8 + 63) / 64 * 64);
  for (size_t i = 0; i < 8; ++i) padded[padded.size() - 1 - i] = static_cast<char>((bytes.size() * 8) >> (8 * i));
  for (size_t block = 0; block < padded.size(); block += 64) {
    std::array<uint32_t, 64> w{};
    for (size_t i = 0; i < 64; ++i) w[i / 4] = w[i / 4] << 8 | static_cast<unsigned char>(padded[block + i]);
    for (size_t i = 16; i < 64; ++i) {
      const uint32_t a = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
      const uint32_t b = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
      w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    std::array<uint32_t, 8> s = state;
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t e = std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25);
      const uint32_t a = std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22);
      const uint32_t first = s[7] + e + ((s[4] & s[5]) ^ (~s[4] & s[6])) + round[i] + w[i];
      const uint32_t second = a + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      s = {first + second, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
    }
    for (size_t i = 0; i < 8; ++i) state[i] += s[i];
  }
  std::string hex;
  for (uint32_t word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[word >> shift & 15];
  }
  return hex;
}

}  // namespace weir::test
