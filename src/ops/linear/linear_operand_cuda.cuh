// Tiles of weights as operands of the tensor cores (linear_tiles.h): for each format, how a tile's bytes become the A
// fragments of mma m16n8k16, and how they are made from a file's bytes.
//
// A fragment of lane l, g = l / 4, q = l % 4: register j holds row g + 8 (j % 2), k = 2q + 8 (j / 2) and the next one,
// the lower k in the lower half. A tile is four steps of 16 k.
//
// An operand gives
//   kBytes       of a tile
//   kInRegisters  a lane's part is in registers as a whole, not fetched when it is asked for
//   kGroupSteps  steps that share a scale: their products are summed from zero and the sum is multiplied by it; 0: none
//   kMinima      groups have minima, which multiply the sum of x over the group
//   kParts       fragments that add up to the weights (two for F16)
//   Lane(tile)   a lane's part of a tile in registers: a(step, part, fragment); scale(group, half) and min(group, half)
//                of row g + 8 half
//   word(...)    32 bits of a tile from the file's bytes, word w at byte 4 w
#pragma once

#include "device/cuda/kernel.h"
#include "device/cuda/ptx.h"
#include "ops/linear/dequant_cuda.cuh"
#include "ops/linear/linear_tiles.h"

namespace weir {

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) % 32; }

// Whether (o, k) lies in the matrix; a tile's elements beyond it are zero.
__device__ inline bool inside(const WeightView& weight, int64_t o, int64_t k) {
  return o < weight.out && k < weight.in;
}

// --- BF16 and F16: 8 x 8 matrices of 128 bytes, as ldmatrix and wgmma read them: rows 0-7 of k 0-7, 8-15, ..., 56-63,
// --- then rows 8-15

struct PlainTile {
  static constexpr int kBytes = 2048;
  static constexpr bool kInRegisters = false;
  static constexpr int kGroupSteps = 0;
  static constexpr bool kMinima = false;

  // Row and k of the first of the two elements of word w.
  __device__ static int row(int w) { return w / 256 * 8 + w / 4 % 8; }
  __device__ static int k(int w) { return w / 32 % 8 * 8 + w % 4 * 2; }

  __device__ explicit PlainTile(const std::byte* tile) {
    const int lane = lane_index(), matrix = lane / 8;
    at = cuda::ptx::shared_address(tile) + matrix % 2 * 1024 + matrix / 2 * 128 + lane % 8 * 16;
  }
  __device__ void load(int step, uint32_t (&a)[4]) const { cuda::ptx::load_matrix_x4(a, at + step * 256); }

  uint32_t at;
};

struct Bf16Operand : PlainTile {
  static constexpr int kParts = 1;

  using PlainTile::PlainTile;
  __device__ void a(int step, int, uint32_t (&fragment)[4]) const { load(step, fragment); }

  __device__ static uint32_t word(const WeightView& weight, int64_t o, int64_t k, int w) {
    uint32_t word = 0;
    for (int i = 0; i < 2; ++i) {
      const int64_t row = o + PlainTile::row(w), col = k + PlainTile::k(w) + i;
      if (inside(weight, row, col)) {
        word |= static_cast<uint32_t>(f32_to_bf16(weight_value(weight, row, col))) << (16 * i);
      }
    }
    return word;
  }
};

// w = high + low exactly: 11 bits of significand are 8 and 3, and BF16 has the exponents.
struct F16Operand : PlainTile {
  static constexpr int kParts = 2;

  using PlainTile::PlainTile;
  __device__ void a(int step, int part, uint32_t (&fragment)[4]) const {
    load(step, fragment);
    for (uint32_t& pair : fragment) {
      const float lo = cuda::widen_f16(static_cast<uint16_t>(pair)),
                  hi = cuda::widen_f16(static_cast<uint16_t>(pair >> 16));
      const uint32_t high = cuda::pack_bf16(lo, hi);
      pair = part == 0 ? high
                       : cuda::pack_bf16(lo - __uint_as_float(high << 16), hi - __uint_as_float(high & 0xffff0000u));
    }
  }

  __device__ static uint32_t word(const WeightView& weight, int64_t o, int64_t k, int w) {
    uint32_t word = 0;
    for (int i = 0; i < 2; ++i) {
      const int64_t row = o + PlainTile::row(w), col = k + PlainTile::k(w) + i;
      if (!inside(weight, row, col)) continue;
      const auto* at = reinterpret_cast<const uint8_t*>(weight.data) + row * weight.row_bytes + col * 2;
      word |= static_cast<uint32_t>(at[0] | at[1] << 8) << (16 * i);
    }
    return word;
  }
};

// --- packed codes in the order of the fragments: sixteen bytes a lane, then the groups' scales by row; of one word
// --- a row, the two rows of a lane side by side (of several that takes longer)

// Row of a tile's scale i of sixteen.
__device__ inline int scale_row(int i) { return i / 2 + i % 2 * 8; }

// Position in the tile of half h of register j of a lane's fragment of a step.
__device__ inline int fragment_row(int lane, int j) { return lane / 4 + 8 * (j % 2); }
__device__ inline int fragment_k(int lane, int step, int j, int h) {
  return step * 16 + lane % 4 * 2 + 8 * (j / 2) + h;
}

// Four bits an element: word `step` of the lane's sixteen bytes. code(row, k) gives 0 .. 15; nibble j is the lower
// half of register j, nibble j + 4 the upper.
template <class Code>
__device__ inline uint32_t four_bit_word(int w, Code code) {
  const int lane = w / 4, step = w % 4;
  uint32_t word = 0;
  for (int i = 0; i < 8; ++i) {
    word |= static_cast<uint32_t>(code(fragment_row(lane, i % 4), fragment_k(lane, step, i % 4, i / 4))) << (4 * i);
  }
  return word;
}

// Eight bits an element: two runs of sixteen bytes, two steps each, two words a step. Bytes 0 and 2 are register 0 (of
// the second word 2), bytes 1 and 3 register 1 (3).
template <class Code>
__device__ inline uint32_t eight_bit_word(int w, Code code) {
  const int lane = w / 4 % 32, step = w / 128 * 2 + w % 4 / 2, pair = w % 2;
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    const int j = 2 * pair + i % 2;
    word |= static_cast<uint32_t>(code(fragment_row(lane, j), fragment_k(lane, step, j, i / 2)) & 255) << (8 * i);
  }
  return word;
}

// E2M1 times a power of two is a BF16 number. The eight elements of a word lie so that one shift brings sign and
// magnitude of most to their places in BF16: in each half of the word register 0 has its sign at bit 15 and its
// magnitude at bits 8-6, register 1 at 12 and 5-3, register 2 at 14 and 2-0, register 3 at 13 and 11-9. Read as BF16,
// with 2^-126 the least normal number, the magnitude's three bits are E2M1 times 2^-126, subnormal 0.5 included; the
// scale's factor 2^(e - 1) makes up for it. Scale codes are at most kMxfp4MostScale, others go to BF16 tiles.
struct Mxfp4Operand {
  static constexpr int kBytes = 544;
  static constexpr bool kInRegisters = true;
  static constexpr int kGroupSteps = 0;
  static constexpr bool kMinima = false;
  static constexpr int kParts = 1;

  __device__ explicit Mxfp4Operand(const std::byte* tile) {
    const int lane = lane_index();
    codes = reinterpret_cast<const uint4*>(tile)[lane];
    const uint32_t exponents = reinterpret_cast<const uint32_t*>(tile + 512)[lane / 4];
    factor[0] = __byte_perm(exponents, 0, 0x4140) * 0x80u;
    factor[1] = __byte_perm(exponents, 0, 0x4342) * 0x80u;
  }
  __device__ void a(int step, int, uint32_t (&fragment)[4]) const {
    constexpr uint32_t kSign = 0x80008000u, kMagnitude = 0x01c001c0u;
    const uint32_t w = step == 0 ? codes.x : step == 1 ? codes.y : step == 2 ? codes.z : codes.w;
    const uint32_t f0 = factor_of(step / 2, factor[0]), f1 = factor_of(step / 2, factor[1]);
    fragment[0] = cuda::ptx::mul_bf16x2(w & (kSign | kMagnitude), f0);
    fragment[1] = cuda::ptx::mul_bf16x2(w << 3 & (kSign | kMagnitude), f1);
    // << 1 and << 6 in one: what comes to other places than it should is masked, and nothing carries
    fragment[2] = cuda::ptx::mul_bf16x2((w & 0x40074007u) * 66u & (kSign | kMagnitude), f0);
    fragment[3] = cuda::ptx::mul_bf16x2((w << 2 & kSign) | (w >> 3 & kMagnitude), f1);
  }

  __device__ static uint32_t factor_of(int group, uint32_t factors) {
    return group == 0 ? cuda::ptx::both_halves<0>(factors) : cuda::ptx::both_halves<1>(factors);
  }

  __device__ static uint32_t word(const WeightView& weight, int64_t o, int64_t k, int w) {
    if (w >= 128) return factor_word(weight, o, k, w - 128);
    constexpr int kSignAt[4] = {15, 12, 14, 13}, kMagnitudeAt[4] = {6, 3, 0, 9};
    const int lane = w / 4, step = w % 4;
    uint32_t word = 0;
    for (int i = 0; i < 8; ++i) {
      const int j = i % 4, h = i / 4;
      const int64_t row = o + fragment_row(lane, j), col = k + fragment_k(lane, step, j, h);
      const int code = inside(weight, row, col) ? mxfp4_code(weight, row, col) : 0;
      word |= static_cast<uint32_t>(code >> 3) << (kSignAt[j] + 16 * h);
      word |= static_cast<uint32_t>(code & 7) << (kMagnitudeAt[j] + 16 * h);
    }
    return word;
  }
  // Bytes of the rows w and w + 8: the exponents of 2^(e - 1) as BF16 has them, for both groups.
  __device__ static uint32_t factor_word(const WeightView& weight, int64_t o, int64_t k, int w) {
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) {
      const int64_t row = o + w + 8 * (i / 2), col = k + i % 2 * 32;
      if (inside(weight, row, col)) word |= static_cast<uint32_t>(mxfp4_scale(weight, row, col) + 126) << (8 * i);
    }
    return word;
  }

  uint4 codes;
  uint32_t factor[2];  // [half]: of both groups
};
inline constexpr int kMxfp4MostScale = 128;

// Bits of E4M3 read as BF16 are the value times 2^-120, subnormals included. A NaN makes the sum of its output and
// tile NaN: the scale is stored as NaN.
struct E4m3Operand {
  static constexpr int kBytes = 1088;
  static constexpr bool kInRegisters = true;
  static constexpr int kGroupSteps = 4;
  static constexpr bool kMinima = false;
  static constexpr int kParts = 1;

  __device__ explicit E4m3Operand(const std::byte* tile) {
    const int lane = lane_index();
    codes[0] = reinterpret_cast<const uint4*>(tile)[lane];
    codes[1] = reinterpret_cast<const uint4*>(tile)[32 + lane];
    const float2 scales = reinterpret_cast<const float2*>(tile + 1024)[lane / 4];
    scale_[0] = scales.x;
    scale_[1] = scales.y;
  }
  __device__ void a(int step, int, uint32_t (&fragment)[4]) const {
    const uint4& run = codes[step / 2];
    widen(step % 2 == 0 ? run.x : run.z, fragment[0], fragment[1]);
    widen(step % 2 == 0 ? run.y : run.w, fragment[2], fragment[3]);
  }
  __device__ float scale(int, int half) const { return scale_[half]; }

  // In each half of a word the code for the register with the even number lies where BF16 has its bits, 15 and 10-4; of
  // the other's the sign lies at 11, the rest at 14-12 and 3-0.
  __device__ static uint32_t spread(uint32_t bytes) {
    const uint32_t even = bytes & 0x00ff00ffu, odd = bytes >> 8 & 0x00ff00ffu;
    return (even & 0x00800080u) << 8 | (even & 0x007f007fu) << 4 | (odd & 0x00800080u) << 4 |
           (odd & 0x00700070u) << 8 | (odd & 0x000f000fu);
  }
  __device__ static void widen(uint32_t w, uint32_t& even, uint32_t& odd) {
    constexpr uint32_t kFactor = 0x7b807b80u;  // 2^120
    even = cuda::ptx::mul_bf16x2(w & 0x87f087f0u, kFactor);
    odd = cuda::ptx::mul_bf16x2((w << 4 & 0x80f080f0u) | (w >> 4 & 0x07000700u), kFactor);
  }

  __device__ static uint32_t word(const WeightView& weight, int64_t o, int64_t k, int w) {
    const auto code = [&](int row, int col) -> int {
      if (!inside(weight, o + row, k + col)) return 0;
      const int bits = static_cast<uint8_t>(weight.data[(o + row) * weight.row_bytes + k + col]);
      return (bits & 0x7f) == 0x7f ? 0 : bits;
    };
    if (w < 256) return spread(eight_bit_word(w, code));
    const int row = scale_row(w - 256);
    if (o + row >= weight.out || k >= weight.in) return 0;
    bool nan = false;
    for (int col = 0; col < kTileIns && k + col < weight.in; ++col) {
      nan |= (static_cast<int>(weight.data[(o + row) * weight.row_bytes + k + col]) & 0x7f) == 0x7f;
    }
    return nan ? 0x7fc00000u : __float_as_uint(e4m3_block_scale(weight, o + row, k));
  }

  uint4 codes[2];
  float scale_[2];
};

// --- GGUF's integers

enum class Codes { kUnsigned4, kMinus8, kIq4, kSigned8 };
// Scales of a row in words: halves of the two groups of 32 (and their minima), or the superblock's d (and dmin) with
// small integers for groups of 32 or 16.
enum class Scales { kHalf, kHalfMin, kSuper32, kSuper32Min, kSuper16, kSuper16Min };

// 128 + n and 136 are exact in BF16, and so is the difference.
__device__ inline uint32_t nibbles_to_bf16(uint32_t nibbles, uint32_t minus) {
  return cuda::ptx::add_bf16x2(cuda::ptx::and_or(nibbles, 0x000f000fu, 0x43004300u), minus);
}
// Signed bytes in the lower bytes of both halves: (128 + lower seven bits) - (128 or, with the sign bit, 256).
__device__ inline uint32_t bytes_to_bf16(uint32_t bytes) {
  return cuda::ptx::add_bf16x2(cuda::ptx::and_or(bytes, 0x007f007fu, 0x43004300u),
                               cuda::ptx::and_or(bytes, 0x00800080u, 0xc300c300u));
}
// Bytes of kIq4Values for four nibbles.
__device__ inline uint32_t iq4_bytes(uint32_t nibbles) {
  const uint32_t low = __byte_perm(0xbfad9881u, 0xf6eaddcfu, nibbles & 0x7777u);
  const uint32_t high = __byte_perm(0x26190d01u, 0x71594535u, nibbles & 0x7777u);
  return __byte_perm(low, high, 0x3210u | (nibbles & 0x8888u) >> 1);
}

// d times (byte `byte` of `bytes` less `less`): exact, as d has eleven bits. The byte is put into 2^15's significand.
__device__ inline float byte_product(float d, uint32_t bytes, int byte, int less) {
  const float shifted = __uint_as_float(__byte_perm(bytes, 0x47000000u, 0x7404u + static_cast<uint32_t>(byte) * 16));
  return fmaf(d, shifted, d * -(32768.f + static_cast<float>(less)));
}
__device__ inline float signed_product(float d, uint32_t bytes, int byte) {
  return byte_product(d, bytes ^ 0x80808080u, byte, 128);
}

template <Codes kCodes, Scales kScales>
struct IntegerOperand {
  static constexpr bool kWide = kCodes == Codes::kSigned8;
  static constexpr int kCodeBytes = kWide ? 1024 : 512;
  static constexpr int kScaleWords = kScales == Scales::kHalf || kScales == Scales::kSuper32 ? 1
                                     : kScales == Scales::kSuper16Min                        ? 3
                                                                                             : 2;
  static constexpr int kBytes = kCodeBytes + 64 * kScaleWords;
  static constexpr bool kInRegisters = true;
  static constexpr int kGroupSteps = kScales == Scales::kSuper16 || kScales == Scales::kSuper16Min ? 1 : 2;
  static constexpr bool kMinima =
      kScales == Scales::kHalfMin || kScales == Scales::kSuper32Min || kScales == Scales::kSuper16Min;
  static constexpr int kParts = 1;

  __device__ explicit IntegerOperand(const std::byte* tile) {
    const int lane = lane_index();
    codes[0] = reinterpret_cast<const uint4*>(tile)[lane];
    if constexpr (kWide) codes[1] = reinterpret_cast<const uint4*>(tile)[32 + lane];
    const auto* words = reinterpret_cast<const uint32_t*>(tile + kCodeBytes);
    if constexpr (kScaleWords == 1) {
      const uint2 rows = reinterpret_cast<const uint2*>(words)[lane / 4];
      scales[0][0] = rows.x;
      scales[1][0] = rows.y;
    } else {
      for (int w = 0; w < kScaleWords; ++w) {
        scales[0][w] = words[16 * w + lane / 4];
        scales[1][w] = words[16 * w + lane / 4 + 8];
      }
    }
  }

  __device__ void a(int step, int, uint32_t (&fragment)[4]) const {
    if constexpr (kWide) {
      const uint4& run = codes[step / 2];
      const uint32_t first = step % 2 == 0 ? run.x : run.z, second = step % 2 == 0 ? run.y : run.w;
      fragment[0] = bytes_to_bf16(first);
      fragment[1] = bytes_to_bf16(first >> 8);
      fragment[2] = bytes_to_bf16(second);
      fragment[3] = bytes_to_bf16(second >> 8);
    } else {
      const uint4& run = codes[0];
      const uint32_t w = step == 0 ? run.x : step == 1 ? run.y : step == 2 ? run.z : run.w;
      if constexpr (kCodes == Codes::kIq4) {
        const uint32_t low = iq4_bytes(w), high = iq4_bytes(w >> 16);  // lower and upper halves of the registers
        fragment[0] = bytes_to_bf16(__byte_perm(low, high, 0x7430));
        fragment[1] = bytes_to_bf16(__byte_perm(low, high, 0x7531));
        fragment[2] = bytes_to_bf16(__byte_perm(low, high, 0x7632));
        fragment[3] = bytes_to_bf16(__byte_perm(low, high, 0x7733));
      } else {
        constexpr uint32_t kMinus = kCodes == Codes::kMinus8 ? 0xc308c308u : 0xc300c300u;  // 136, 128
        for (int j = 0; j < 4; ++j) fragment[j] = nibbles_to_bf16(w >> (4 * j), kMinus);
      }
    }
  }

  __device__ float scale(int group, int half) const {
    const uint32_t first = scales[half][0];
    if constexpr (kScales == Scales::kHalf || kScales == Scales::kHalfMin) {
      return cuda::widen_f16(static_cast<uint16_t>(first >> (16 * group)));
    } else {
      const float d = cuda::widen_f16(static_cast<uint16_t>(first));
      constexpr bool kInFirst = kScales == Scales::kSuper32;
      return signed_product(d, kInFirst ? first : scales[half][1], kInFirst ? 2 + group : group);
    }
  }
  __device__ float min(int group, int half) const {
    if constexpr (kScales == Scales::kHalfMin) {
      return -cuda::widen_f16(static_cast<uint16_t>(scales[half][1] >> (16 * group)));
    } else {
      const float dmin = cuda::widen_f16(static_cast<uint16_t>(scales[half][0] >> 16));
      constexpr bool kSecond = kScales == Scales::kSuper32Min;
      return byte_product(dmin, scales[half][kSecond ? 1 : kScaleWords - 1], kSecond ? 2 + group : group, 0);
    }
  }

  __device__ static uint32_t word(const WeightView& weight, int64_t o, int64_t k, int w) {
    constexpr int kOffset = kCodes == Codes::kMinus8 ? 8 : 0;
    const auto code = [&](int row, int col) -> int {
      if (!inside(weight, o + row, k + col)) return kOffset;
      const IntegerBlock block = integer_block(weight, o + row, k + col);
      const int i = static_cast<int>((k + col) % weight_block(weight.format).elements);
      if constexpr (kCodes == Codes::kIq4) return block.iq4_code(i);
      return block.code(i) + kOffset;
    };
    if constexpr (kWide) {
      if (w < 256) return eight_bit_word(w, code);
    } else {
      if (w < 128) return four_bit_word(w, code);
    }
    const int at = w - kCodeBytes / 4;
    return scale_word(weight, o + (kScaleWords == 1 ? scale_row(at) : at % 16), k, at / 16);
  }

  __device__ static uint32_t scale_word(const WeightView& weight, int64_t o, int64_t k, int w) {
    if (!inside(weight, o, k)) return 0;
    const int64_t elements = weight_block(weight.format).elements;
    const auto group_block = [&](int g) { return integer_block(weight, o, k + g * 32); };
    const auto halves = [](uint32_t low, uint32_t high) { return low | high << 16; };
    if constexpr (kScales == Scales::kHalf || kScales == Scales::kHalfMin) {
      const bool second = k + 32 < weight.in;
      const int at = 2 * w;  // d, then m
      return halves(group_block(0).half_bits(at), second ? group_block(1).half_bits(at) : 0);
    } else {
      const IntegerBlock block = integer_block(weight, o, k);
      const int group = static_cast<int>(k % elements) / 16;  // the tile's first
      const auto byte = [&](int value, int at) { return static_cast<uint32_t>(value & 255) << (8 * at); };
      if constexpr (kScales == Scales::kSuper32) {
        return halves(block.half_bits(block.d_at()), byte(block.scale(group), 0) | byte(block.scale(group + 2), 1));
      } else if (w == 0) {
        return halves(block.half_bits(block.d_at()), kMinima ? block.half_bits(block.dmin_at()) : 0);
      } else if constexpr (kScales == Scales::kSuper32Min) {
        return byte(block.scale(group), 0) | byte(block.scale(group + 2), 1) | byte(block.min(group), 2) |
               byte(block.min(group + 2), 3);
      } else {
        uint32_t word = 0;
        for (int i = 0; i < 4; ++i) word |= byte(w == 1 ? block.scale(group + i) : block.min(group + i), i);
        return word;
      }
    }
  }

  uint4 codes[kWide ? 2 : 1];
  uint32_t scales[2][kScaleWords];  // [half]
};

template <TileFormat kFormat>
struct OperandOf;
template <>
struct OperandOf<TileFormat::kBf16> {
  using Type = Bf16Operand;
};
template <>
struct OperandOf<TileFormat::kF16> {
  using Type = F16Operand;
};
template <>
struct OperandOf<TileFormat::kE4m3> {
  using Type = E4m3Operand;
};
template <>
struct OperandOf<TileFormat::kMxfp4> {
  using Type = Mxfp4Operand;
};
template <>
struct OperandOf<TileFormat::kQ4_0> {
  using Type = IntegerOperand<Codes::kMinus8, Scales::kHalf>;
};
template <>
struct OperandOf<TileFormat::kQ4_1> {
  using Type = IntegerOperand<Codes::kUnsigned4, Scales::kHalfMin>;
};
template <>
struct OperandOf<TileFormat::kQ8_0> {
  using Type = IntegerOperand<Codes::kSigned8, Scales::kHalf>;
};
template <>
struct OperandOf<TileFormat::kQ5_1> {
  using Type = IntegerOperand<Codes::kSigned8, Scales::kHalfMin>;
};
template <>
struct OperandOf<TileFormat::kIq4Nl> {
  using Type = IntegerOperand<Codes::kIq4, Scales::kHalf>;
};
template <>
struct OperandOf<TileFormat::kQ2_K> {
  using Type = IntegerOperand<Codes::kUnsigned4, Scales::kSuper16Min>;
};
template <>
struct OperandOf<TileFormat::kQ3_K> {
  using Type = IntegerOperand<Codes::kMinus8, Scales::kSuper16>;
};
template <>
struct OperandOf<TileFormat::kQ4_K> {
  using Type = IntegerOperand<Codes::kUnsigned4, Scales::kSuper32Min>;
};
template <>
struct OperandOf<TileFormat::kQ5_K> {
  using Type = IntegerOperand<Codes::kSigned8, Scales::kSuper32Min>;
};
template <>
struct OperandOf<TileFormat::kQ6_K> {
  using Type = IntegerOperand<Codes::kSigned8, Scales::kSuper16>;
};
template <>
struct OperandOf<TileFormat::kIq4Xs> {
  using Type = IntegerOperand<Codes::kIq4, Scales::kSuper32>;
};

}  // namespace weir
