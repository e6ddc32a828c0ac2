// The specification of delta_rule.h, row by row.
#include "base/math.h"
#include "ops/delta_rule/delta_rule_kernel.h"
#include "ops/simd/lanes_ref.h"

namespace weir::reference {
namespace {

struct Head {
  const DeltaRuleArgs& args;
  DeltaRuleScratch s;
  const float* state;  // S0 [key_dim, value_dim]; null: zeros

  bool bounded() const { return args.decay == DecayKind::kBounded; }
  bool scalar() const { return args.decay == DecayKind::kScalar; }

  // A scalar decay is kept once per channel, so that the commit need not tell it apart.
  int64_t decay_at(int64_t c) const { return scalar() ? 0 : c; }

  void load_rows(const StepView& step, const SpanView& span, int64_t head) {
    for (int64_t p = span.anchor_position; p < span.first_position; ++p) {
      const JournalRow row = journal_row(args, step, span, head, p);
      const int64_t i = p - span.anchor_position;
      for (int64_t c = 0; c < args.key_dim; ++c) s.k[i * s.key_pad + c] = row.k[c];
      for (int64_t c = 0; c < args.key_dim; ++c) s.decay[i * s.key_pad + c] = row.decay[decay_at(c)];
      for (int64_t v = 0; v < args.value_dim; ++v) s.u[i * s.value_pad + v] = row.u[v];
    }
  }

  // The next anchor, in scratch (in place if the old one lies there) and, if wanted, in `target`.
  void commit(float* target) {
    const float* last = s.decay + 15 * s.key_pad;
    for (int64_t c = 0; c < args.key_dim; ++c) {
      const float e = math::exp(last[c]);
      float w[16];
      for (int64_t j = 0; j < 16; ++j) {
        const float k = s.k[j * s.key_pad + c];
        w[j] = k * (bounded() ? e : math::exp(last[c] - s.decay[j * s.key_pad + c]));
      }
      for (int64_t v = 0; v < args.value_dim; ++v) {
        float a = e * (state == nullptr ? 0.f : state[c * args.value_dim + v]);
        for (int64_t j = 0; j < 16; ++j) a = math::fma(w[j], s.u[j * s.value_pad + v], a);
        s.state[c * args.value_dim + v] = a;
        if (target != nullptr) target[c * args.value_dim + v] = a;
      }
    }
    state = s.state;
  }

  // Row `i` of the chunk.
  void row(int64_t i, const float* q, const float* k, const float* v, const float* g, float beta, float* out) {
    float* decay = s.decay + i * s.key_pad;
    float* kd = s.kq;
    float* qd = s.kq + s.key_pad;
    for (int64_t c = 0; c < args.key_dim; ++c) {
      decay[c] = i == 0 ? g[decay_at(c)] : decay[c - s.key_pad] + g[decay_at(c)];
      const float e = scalar() ? 1.f : math::exp(decay[c]);
      kd[c] = k[c] * e;
      qd[c] = q[c] * e;
      s.k[i * s.key_pad + c] = bounded() ? k[c] * math::exp(-decay[c]) : k[c];
    }
    float l[16], a[16];
    for (int64_t j = 0; j <= i; ++j) {
      const float* kj = s.k + j * s.key_pad;
      const float* decay_j = s.decay + j * s.key_pad;
      const auto key = [&](int64_t c) { return kj[c]; };
      if (scalar()) {
        const float f = math::exp(decay[0] - decay_j[0]);
        l[j] = f * dot_lanes(
                       args.key_dim, [&](int64_t c) { return k[c]; }, key);
        a[j] = f * dot_lanes(
                       args.key_dim, [&](int64_t c) { return q[c]; }, key);
      } else if (bounded()) {
        l[j] = dot_lanes(
            args.key_dim, [&](int64_t c) { return kd[c]; }, key);
        a[j] = dot_lanes(
            args.key_dim, [&](int64_t c) { return qd[c]; }, key);
      } else {
        l[j] = dot_lanes(
            args.key_dim, [&](int64_t c) { return k[c] * math::exp(decay[c] - decay_j[c]); }, key);
        a[j] = dot_lanes(
            args.key_dim, [&](int64_t c) { return q[c] * math::exp(decay[c] - decay_j[c]); }, key);
      }
    }
    for (int64_t column = 0; column < args.value_dim; ++column) {
      float p = 0.f, o = 0.f;
      for (int64_t c = 0; state != nullptr && c < args.key_dim; ++c) {
        p = math::fma(kd[c], state[c * args.value_dim + column], p);
        o = math::fma(qd[c], state[c * args.value_dim + column], o);
      }
      if (scalar()) {
        p = math::exp(decay[0]) * p;
        o = math::exp(decay[0]) * o;
      }
      float* u = s.u + column;
      float rest = v[column] - p;
      for (int64_t j = 0; j < i; ++j) rest = math::fma(-l[j], u[j * s.value_pad], rest);
      u[i * s.value_pad] = beta * rest;
      for (int64_t j = 0; j <= i; ++j) o = math::fma(a[j], u[j * s.value_pad], o);
      out[column] = o;
    }
  }

  void store_row(const JournalRow& row, int64_t head, int64_t i) const {
    if (row.k == nullptr) return;
    for (int64_t c = 0; stores_key(args, head) && c < args.key_dim; ++c) row.k[c] = s.k[i * s.key_pad + c];
    for (int64_t c = 0; c < decay_dim(args); ++c) row.decay[c] = s.decay[i * s.key_pad + c];
    for (int64_t v = 0; v < args.value_dim; ++v) row.u[v] = s.u[i * s.value_pad + v];
  }
};

}  // namespace

void delta_rule_head(const DeltaRuleArgs& args, const StepView& step, const SpanView& span, int64_t head,
                     float* memory) {
  Head h{args, delta_rule_scratch(args, memory),
         span.anchor == kZeroAnchor ? nullptr : anchor_state(args, step, span.anchor, head)};
  h.load_rows(step, span, head);
  for (int64_t r = 0; r < span.rows; ++r) {
    const int64_t position = span.first_position + r;
    const int64_t row = span.first_row + r;
    const int64_t i = position % kPagePositions;
    if (i == 0 && position > span.anchor_position) h.commit(anchor_target(args, step, span, head, position));
    const int64_t key = key_head(args, head) * args.key_dim;
    h.row(i, args.q + row * args.q_stride + key, args.k + row * args.k_stride + key,
          args.v + row * args.v_stride + head * args.value_dim, args.g + row * args.g_stride + head * decay_dim(args),
          args.beta[row * args.beta_stride + head], args.out + row * args.out_stride + head * args.value_dim);
    h.store_row(journal_row(args, step, span, head, position), head, i);
  }
}

}  // namespace weir::reference
