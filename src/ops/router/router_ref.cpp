#include "base/math.h"
#include "ops/router/router.h"
#include "ops/simd/lanes_ref.h"

namespace weir::reference {
namespace {

// NaN counts below everything.
bool above(float a, float b) { return a > b || (a == a && b != b); }

// The largest of values[begin, end) that is not taken; ties to the lowest index.
int64_t best(const float* values, const uint8_t* taken, int64_t begin, int64_t end) {
  int64_t found = -1;
  for (int64_t i = begin; i < end; ++i) {
    if (!taken[i] && (found < 0 || above(values[i], values[found]))) found = i;
  }
  return found;
}

float group_score(const float* choice, int64_t begin, int64_t end) {
  int64_t first = begin;
  for (int64_t e = begin; e < end; ++e) {
    if (above(choice[e], choice[first])) first = e;
  }
  int64_t second = -1;
  for (int64_t e = begin; e < end; ++e) {
    if (e != first && (second < 0 || above(choice[e], choice[second]))) second = e;
  }
  return second < 0 ? choice[first] : choice[first] + choice[second];
}

// s of all experts.
void score(const RouterArgs& args, const float* logits, float* scores) {
  if (args.score != RouterScore::kSoftmax) {
    for (int64_t e = 0; e < args.experts; ++e) {
      scores[e] = args.score == RouterScore::kSigmoid ? math::sigmoid(logits[e]) : logits[e];
    }
    return;
  }
  float most = logits[0];
  for (int64_t e = 1; e < args.experts; ++e) most = above(logits[e], most) ? logits[e] : most;
  Lanes lanes;
  for (int64_t e = 0; e < args.experts; ++e) {
    scores[e] = math::exp(logits[e] - most);
    lanes.add(e, scores[e]);
  }
  const float z = lanes.fold();
  for (int64_t e = 0; e < args.experts; ++e) scores[e] = scores[e] / z;
}

// weights: s of the chosen experts, made their weights.
void weigh(const RouterArgs& args, float* weights) {
  const bool of_chosen = args.score == RouterScore::kSoftmaxOfChosen;
  if (of_chosen) {
    float most = weights[0];
    for (int64_t k = 1; k < args.top_k; ++k) most = above(weights[k], most) ? weights[k] : most;
    for (int64_t k = 0; k < args.top_k; ++k) weights[k] = math::exp(weights[k] - most);
  }
  float sum = 0;
  for (int64_t k = 0; k < args.top_k; ++k) sum = sum + weights[k];
  if (!of_chosen) sum = sum + 1e-20f;
  const bool divide = args.renormalize;
  for (int64_t k = 0; k < args.top_k; ++k) weights[k] = (divide ? weights[k] / sum : weights[k]) * args.scaling_factor;
}

}  // namespace

void route_row(const RouterArgs& args, int64_t row, std::byte* scratch) {
  const float* logits = args.logits + row * args.logits_stride;
  int32_t* ids = args.ids + row * args.top_k;
  float* weights = args.weights + row * args.top_k;
  float* scores = reinterpret_cast<float*>(scratch);                   // [experts]
  float* choice = scores + args.experts;                               // [experts]
  uint8_t* taken = reinterpret_cast<uint8_t*>(choice + args.experts);  // [experts]; 1: chosen, 2: not to be chosen
  score(args, logits, scores);
  for (int64_t e = 0; e < args.experts; ++e) {
    choice[e] = args.bias == nullptr ? scores[e] : scores[e] + args.bias[e];
    taken[e] = 0;
  }
  if (args.groups > 1) {
    const int64_t members = args.experts / args.groups;
    uint8_t* kept = taken + args.experts;  // [groups]
    for (int64_t g = 0; g < args.groups; ++g) kept[g] = 0;
    for (int64_t n = 0; n < args.topk_group; ++n) {
      int64_t found = -1;
      float found_score = 0;
      for (int64_t g = 0; g < args.groups; ++g) {
        if (kept[g]) continue;
        const float score = group_score(choice, g * members, (g + 1) * members);
        if (found < 0 || above(score, found_score)) {
          found = g;
          found_score = score;
        }
      }
      kept[found] = 1;
    }
    for (int64_t e = 0; e < args.experts; ++e) taken[e] = kept[e / members] ? 0 : 2;
  }
  for (int64_t k = 0; k < args.top_k; ++k) taken[best(choice, taken, 0, args.experts)] = 1;

  int64_t slot = 0;
  for (int64_t e = 0; e < args.experts; ++e) {
    if (taken[e] != 1) continue;
    ids[slot] = static_cast<int32_t>(e);
    weights[slot] = scores[e];
    ++slot;
  }
  weigh(args, weights);
  if (args.expert_scale == nullptr) return;
  for (int64_t k = 0; k < args.top_k; ++k) weights[k] = weights[k] * args.expert_scale[ids[k]];
}

}  // namespace weir::reference
