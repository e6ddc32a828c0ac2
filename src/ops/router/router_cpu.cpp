#include "base/lanes.h"
#include "ops/router/router.h"

namespace weir::WEIR_ISA {
namespace {

// Choice values as integers in the same order. NaN is below -inf; experts that cannot be chosen (any more) are below
// NaN.
constexpr int32_t kGone = INT32_MIN;
constexpr int32_t kNan = INT32_MIN + 1;

inline int32_t key_of(float value) {
  const int32_t bits = __builtin_bit_cast(int32_t, value);
  return value != value ? kNan : bits ^ ((bits >> 31) & 0x7fffffff);
}

inline float value_of(int32_t key) {
  return key == kNan ? __builtin_nanf("") : __builtin_bit_cast(float, key ^ ((key >> 31) & 0x7fffffff));
}

struct Row {
  int64_t padded = 0;         // experts, to a multiple of 16
  float* scores = nullptr;    // [padded]
  int32_t* keys = nullptr;    // [padded]
  int32_t* groups = nullptr;  // [groups], at most [padded]
  int32_t* tops = nullptr;    // [padded / 16, to a multiple of 8]: the largest key of each 16
};

inline __m256i load8(const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// n > 0, a multiple of 8.
inline int32_t largest(const int32_t* p, int64_t n) {
  __m256i top = load8(p);
  for (int64_t i = 8; i < n; i += 8) top = _mm256_max_epi32(top, load8(p + i));
  __m128i t = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
  t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0x4e));
  t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0xb1));
  return _mm_cvtsi128_si32(t);
}

// The first index that holds `value`, which is there; reads whole eights.
inline int64_t find(const int32_t* p, int32_t value) {
  const __m256i wanted = _mm256_set1_epi32(value);
  for (int64_t i = 0;; i += 8) {
    const int hits = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(load8(p + i), wanted)));
    if (hits != 0) return i + __builtin_ctz(static_cast<unsigned>(hits));
  }
}

// key_of for eight values.
inline void store_keys(const float* values, int32_t* keys) {
  const __m256 v = _mm256_loadu_ps(values);
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i flip = _mm256_and_si256(_mm256_srai_epi32(bits, 31), _mm256_set1_epi32(0x7fffffff));
  const __m256 ordered = _mm256_castsi256_ps(_mm256_xor_si256(bits, flip));
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(kNan));
  const __m256 key = _mm256_blendv_ps(ordered, nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(keys), _mm256_castps_si256(key));
}

// Scores before the choice; x of a softmax over all, with the z to divide by.
float raw_scores(const RouterArgs& args, const float* logits, const Row& row) {
  if (args.score != RouterScore::kSoftmax) {
    for (int64_t e = 0; e < args.experts; e += 16) {
      const V16 logit = load16_first(logits + e, args.experts - e < 16 ? args.experts - e : 16);
      store16(row.scores + e, args.score == RouterScore::kSigmoid ? math::sigmoid(logit) : logit);
    }
    return 1;
  }
  for (int64_t e = 0; e < args.experts; e += 16) {
    store16(row.scores + e, load16_first(logits + e, args.experts - e < 16 ? args.experts - e : 16));
    store_keys(row.scores + e, row.keys + e);
    store_keys(row.scores + e + 8, row.keys + e + 8);
  }
  for (int64_t e = args.experts; e < row.padded; ++e) row.keys[e] = kGone;
  const V16 most = set16(value_of(largest(row.keys, row.padded)));
  V16 sum = zero16();
  for (int64_t e = 0; e < args.experts; e += 16) {
    const int64_t n = args.experts - e < 16 ? args.experts - e : 16;
    store16(row.scores + e, math::exp(load16(row.scores + e) - most));
    sum = sum + load16_first(row.scores + e, n);
  }
  return fold16(sum);
}

void score(const RouterArgs& args, const float* logits, const Row& row) {
  const V16 z = set16(raw_scores(args, logits, row));
  for (int64_t e = 0; e < args.experts; e += 16) {
    const int64_t n = args.experts - e < 16 ? args.experts - e : 16;
    V16 s = load16(row.scores + e);
    if (args.score == RouterScore::kSoftmax) {
      s = s / z;
      store16(row.scores + e, s);
    }
    float choice[16];
    if (args.bias != nullptr) s = s + load16_first(args.bias + e, n);
    store16(choice, s + zero16());  // keys tell -0 from +0; no -0 is left
    store_keys(choice, row.keys + e);
    store_keys(choice + 8, row.keys + e + 8);
  }
  for (int64_t e = args.experts; e < row.padded; ++e) row.keys[e] = kGone;
}

// The sum of the two largest values of a group.
int32_t group_key(const int32_t* keys, int64_t members) {
  int32_t first = keys[0];
  int32_t second = kGone;
  for (int64_t i = 1; i < members; ++i) {
    const int32_t lower = keys[i] < first ? keys[i] : first;
    first = keys[i] > first ? keys[i] : first;
    second = lower > second ? lower : second;
  }
  return members == 1 ? first : key_of(value_of(first) + value_of(second));
}

// Leaves the keys of the topk_group best groups.
void drop_groups(const RouterArgs& args, const Row& row) {
  const int64_t members = args.experts / args.groups;
  int32_t* groups = row.groups;
  for (int64_t g = 0; g < args.groups; ++g) groups[g] = group_key(row.keys + g * members, members);
  for (int64_t n = 0; n < args.topk_group; ++n) {
    int64_t best = 0;
    for (int64_t g = 1; g < args.groups; ++g) best = groups[g] > groups[best] ? g : best;
    groups[best] = kGone;
  }
  for (int64_t g = 0; g < args.groups; ++g) {
    if (groups[g] == kGone) continue;
    for (int64_t i = 0; i < members; ++i) row.keys[g * members + i] = kGone;
  }
}

// The largest keys, ties to the lowest id: the largest of each 16 first, so that a choice looks at few of them.
void choose(const RouterArgs& args, const Row& row, int32_t* ids) {
  const int64_t blocks = row.padded / 16;
  const int64_t tops = (blocks + 7) / 8 * 8;
  for (int64_t b = 0; b < tops; ++b) row.tops[b] = b < blocks ? largest(row.keys + b * 16, 16) : kGone;
  for (int64_t k = 0; k < args.top_k; ++k) {
    const int32_t top = largest(row.tops, tops);
    const int64_t block = find(row.tops, top);
    int32_t* keys = row.keys + block * 16;
    const int64_t lane = find(keys, top);
    keys[lane] = kGone;
    row.tops[block] = largest(keys, 16);
    const int32_t id = static_cast<int32_t>(block * 16 + lane);
    int64_t slot = k;
    for (; slot > 0 && ids[slot - 1] > id; --slot) ids[slot] = ids[slot - 1];
    ids[slot] = id;
  }
}

// weights: s of the chosen experts, made their weights.
void weigh(const RouterArgs& args, float* weights) {
  const bool of_chosen = args.score == RouterScore::kSoftmaxOfChosen;
  if (of_chosen) {
    int32_t top = kGone;
    for (int64_t k = 0; k < args.top_k; ++k) top = key_of(weights[k]) > top ? key_of(weights[k]) : top;
    const V16 most = set16(value_of(top));
    for (int64_t k = 0; k < args.top_k; k += 16) {
      const int64_t n = args.top_k - k < 16 ? args.top_k - k : 16;
      store16_first(weights + k, math::exp(load16_first(weights + k, n) - most), n);
    }
  }
  float sum = 0;
  for (int64_t k = 0; k < args.top_k; ++k) sum = sum + weights[k];
  if (!of_chosen) sum = sum + 1e-20f;
  const bool divide = args.renormalize;
  for (int64_t k = 0; k < args.top_k; ++k) weights[k] = (divide ? weights[k] / sum : weights[k]) * args.scaling_factor;
}

}  // namespace

void route_row(const RouterArgs& args, int64_t index, std::byte* scratch) {
  Row row;
  row.padded = (args.experts + 15) / 16 * 16;
  row.scores = reinterpret_cast<float*>(scratch);
  row.keys = reinterpret_cast<int32_t*>(row.scores + row.padded);
  row.groups = row.keys + row.padded;
  row.tops = row.groups + row.padded;
  score(args, args.logits + index * args.logits_stride, row);
  if (args.groups > 1 && args.topk_group < args.groups) drop_groups(args, row);

  int32_t* ids = args.ids + index * args.top_k;
  float* weights = args.weights + index * args.top_k;
  choose(args, row, ids);
  for (int64_t k = 0; k < args.top_k; ++k) weights[k] = row.scores[ids[k]];
  weigh(args, weights);
  if (args.expert_scale == nullptr) return;
  for (int64_t k = 0; k < args.top_k; ++k) weights[k] = weights[k] * args.expert_scale[ids[k]];
}

}  // namespace weir::WEIR_ISA
