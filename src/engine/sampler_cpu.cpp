#include "base/lanes.h"
#include "engine/sampler_kernels.h"
#include "engine/sampler_noise.h"

namespace weir::WEIR_ISA {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr int64_t kVectors = kSampleBlock / 16;

// Sixteen 32-bit integers, and the words of Philox: 64-bit lanes of which the low half counts.
#if defined(WEIR_ISA_avx512)

struct I16 {
  __m512i v;
};
struct Words {
  __m512i v;
};
constexpr int64_t kCounters = 8;  // a Words has one lane for each
inline I16 zero_int() { return {_mm512_setzero_si512()}; }
inline I16 truncate(V16 a) { return {_mm512_cvttps_epi32(a.v)}; }
inline V16 to_float(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline I16 operator+(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline void store(uint32_t* p, I16 a) { _mm512_storeu_si512(p, a.v); }
inline I16 shift_right_9(I16 a) { return {_mm512_srli_epi32(a.v, 9)}; }
inline float largest_of(V16 a) { return _mm512_reduce_max_ps(a.v); }

inline Words set_words(uint32_t a) { return {_mm512_set1_epi64(a)}; }
// Counters in the order that makes `by_id` sequential.
inline Words counters(uint64_t first) {
  return {
      _mm512_add_epi64(_mm512_set1_epi64(static_cast<long long>(first)), _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7))};
}
inline Words product(Words a, Words b) { return {_mm512_mul_epu32(a.v, b.v)}; }
inline Words high(Words a) { return {_mm512_srli_epi64(a.v, 32)}; }
inline Words operator^(Words a, Words b) { return {_mm512_xor_si512(a.v, b.v)}; }
// w[0..3] of each counter, one after the other: 2 x 16 integers.
inline void by_id(const Words (&w)[4], I16* out) {
  const __m512i a = _mm512_mask_blend_epi32(0xAAAA, w[0].v, _mm512_slli_epi64(w[1].v, 32));
  const __m512i b = _mm512_mask_blend_epi32(0xAAAA, w[2].v, _mm512_slli_epi64(w[3].v, 32));
  out[0] = {_mm512_unpacklo_epi64(a, b)};
  out[1] = {_mm512_unpackhi_epi64(a, b)};
}
constexpr int64_t kOutputs = 2;

#else

struct I16 {
  __m256i lo, hi;
};
struct Words {
  __m256i v;
};
constexpr int64_t kCounters = 4;
inline I16 zero_int() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline I16 truncate(V16 a) { return {_mm256_cvttps_epi32(a.lo), _mm256_cvttps_epi32(a.hi)}; }
inline V16 to_float(I16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline I16 operator+(I16 a, I16 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
inline void store(uint32_t* p, I16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}
inline I16 shift_right_9(I16 a) { return {_mm256_srli_epi32(a.lo, 9), _mm256_srli_epi32(a.hi, 9)}; }
inline float largest_of(V16 a) {
  const __m256 m8 = _mm256_max_ps(a.lo, a.hi);
  const __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
  const __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
  return _mm_cvtss_f32(_mm_max_ss(m2, _mm_shuffle_ps(m2, m2, 1)));
}

inline Words set_words(uint32_t a) { return {_mm256_set1_epi64x(a)}; }
inline Words counters(uint64_t first) {
  return {_mm256_add_epi64(_mm256_set1_epi64x(static_cast<long long>(first)), _mm256_setr_epi64x(0, 2, 1, 3))};
}
inline Words product(Words a, Words b) { return {_mm256_mul_epu32(a.v, b.v)}; }
inline Words high(Words a) { return {_mm256_srli_epi64(a.v, 32)}; }
inline Words operator^(Words a, Words b) { return {_mm256_xor_si256(a.v, b.v)}; }
inline void by_id(const Words (&w)[4], I16* out) {
  const __m256i a = _mm256_blend_epi32(w[0].v, _mm256_slli_epi64(w[1].v, 32), 0xAA);
  const __m256i b = _mm256_blend_epi32(w[2].v, _mm256_slli_epi64(w[3].v, 32), 0xAA);
  out[0] = {_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b)};
}
constexpr int64_t kOutputs = 1;

#endif

static_assert(kCounters * 4 == kOutputs * 16);

inline V16 scores(const float* logits, V16 largest, V16 temperature) {
  return (load16(logits) - largest) / temperature;
}

// philox4x32 of sampler.cpp for kCounters counters at once. The high halves of lanes hold rubbish, which no
// multiplication reads.
inline void philox(uint64_t key, uint64_t counter_high, uint64_t counter_low, I16* out) {
  const Words m0 = set_words(0xD2511F53u), m1 = set_words(0xCD9E8D57u);
  const Words first = counters(counter_low);
  Words c[4] = {first, high(first), set_words(static_cast<uint32_t>(counter_high)),
                set_words(static_cast<uint32_t>(counter_high >> 32))};
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const Words p0 = product(m0, c[0]), p1 = product(m1, c[2]);
    c[0] = high(p1) ^ c[1] ^ set_words(k0);
    c[1] = p1;
    c[2] = high(p0) ^ c[3] ^ set_words(k1);
    c[3] = p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  by_id(c, out);
}

// n: 23 random bits.
inline V16 gumbel(V16 n) {
  const V16 u = (n + set16(0.5f)) * set16(0x1p-23f);
  return -math::log(-math::log(u));
}

// Noise of at least `wanted` needs u >= exp(-exp(-wanted)), so more random bits than these. What is taken off is far
// more than the roundings here and in scores.
inline float bits_for(float wanted) {
  const V16 u = math::exp(-math::exp(set16(1e-3f - wanted)));
  return largest_of(u * set16(0x1p23f)) - 4;
}

struct Best {
  float score = -kInfinity;
  int32_t id = -1;
};

// top_score: the largest score of the block without noise.
void draw_block(const NoiseArgs& args, int64_t b, float top_score, Best& best) {
  const float* logits = args.row.block(b);
  const V16 largest = set16(args.largest), temperature = set16(args.temperature);
  const int64_t first = b * kSampleBlock;
  I16 bits[kVectors];
  for (int64_t v = 0; v < kVectors; v += kOutputs) {
    philox(args.seed, static_cast<uint64_t>(args.position), static_cast<uint64_t>(first + v * 16) / 4, bits + v);
  }
  V16 n[kVectors], largest_n = zero16();
  for (int64_t v = 0; v < kVectors; ++v) {
    n[v] = to_float(shift_right_9(bits[v]));
    largest_n = max(largest_n, n[v]);
  }
  if (largest_of(largest_n) < bits_for(best.score - top_score)) return;  // saves the logarithms

  // Ids up to the cut's need its value, the others more: a window of 16 that slides over both.
  float needed[32];
  store16(needed, set16(args.cut.value));
  store16(needed + 16, set16(args.cut.above));
  float noisy[kSampleBlock];
  V16 top = set16(-kInfinity);
  for (int64_t v = 0; v < kVectors; ++v) {
    const V16 logit = load16(logits + v * 16);
    int64_t equal_count = args.cut.id + int64_t{1} - (first + v * 16);
    equal_count = equal_count < 0 ? 0 : equal_count > 16 ? 16 : equal_count;
    const V16 least = load16(needed + 16 - equal_count);
    const V16 with_noise = (logit - largest) / temperature + gumbel(n[v]);
    const V16 kept = select_less(logit, least, set16(-kInfinity), with_noise);
    store16(noisy + v * 16, kept);
    top = max(top, kept);
  }
  if (largest_of(top) < best.score) return;
  for (int64_t i = 0; i < kSampleBlock; ++i) {
    const auto id = static_cast<int32_t>(first + i);
    if (noisy[i] > best.score || (noisy[i] == best.score && id < best.id)) best = {noisy[i], id};
  }
}

}  // namespace

bool sample_block_maxima(const LogitRow& row, float* maxima) {
  const V16 infinity = set16(kInfinity), one = set16(1), zero = zero16();
  V16 bad = zero;
  for (int64_t b = 0; b < row.blocks; ++b) {
    const float* logits = row.block(b);
    V16 top = set16(-kInfinity);
    for (int64_t v = 0; v < kVectors; ++v) {
      const V16 x = load16(logits + v * 16);
      bad = max(bad, select_less(x, infinity, zero, one));
      top = max(top, x);
    }
    maxima[b] = largest_of(top);
  }
  return fold16(bad) == 0;
}

uint64_t sample_total_weight(const LogitRow& row, const float* maxima, float largest, float temperature, float least) {
  const V16 max16 = set16(largest), t16 = set16(temperature), least16 = set16(least), zero = zero16();
  const V16 unit = set16(0x1p20f);
  uint64_t total = 0;
  // A lane of `units` takes four numbers up to 2^20 from a block: 1023 blocks fit 32 bits.
  for (int64_t from = 0; from < row.blocks; from += 1023) {
    const int64_t end = from + 1023 < row.blocks ? from + 1023 : row.blocks;
    I16 units = zero_int(), parts = zero_int();
    for (int64_t b = from; b < end; ++b) {
      if (maxima[b] < least || (maxima[b] - largest) / temperature < kWeightless) continue;
      const float* logits = row.block(b);
      for (int64_t v = 0; v < kVectors; ++v) {
        const V16 weight = math::exp(scores(logits + v * 16, max16, t16));
        const V16 kept = select_less(load16(logits + v * 16), least16, zero, weight) * unit;
        const I16 whole = truncate(kept);
        units = units + whole;
        parts = parts + truncate((kept - to_float(whole)) * unit);  // both exact
      }
    }
    uint32_t high_sums[16], low_sums[16];
    store(high_sums, units);
    store(low_sums, parts);
    for (int i = 0; i < 16; ++i) total += (uint64_t{high_sums[i]} << 20) + low_sums[i];
  }
  return total;
}

void sample_weights(const float* logits, int64_t n, float largest, float temperature, float* weights) {
  const V16 max16 = set16(largest), t16 = set16(temperature);
  for (int64_t i = 0; i < n; i += 16) store16(weights + i, math::exp(scores(logits + i, max16, t16)));
}

int32_t sample_draw(const NoiseArgs& args) {
  Best best;
  draw_block(args, args.first_block, 0, best);
  for (int64_t b = 0; b < args.row.blocks; ++b) {
    const float top = args.maxima[b];
    if (b == args.first_block || top < args.cut.value) continue;
    const float top_score = (top - args.largest) / args.temperature;
    if (top_score + kMaxGumbel < best.score) continue;  // no noise could lift it so far
    draw_block(args, b, top_score, best);
  }
  return best.id;
}

}  // namespace weir::WEIR_ISA
