#include "base/lanes.h"
#include "ops/norm/norm.h"

namespace weir::WEIR_ISA {
namespace {

// A sum of squares is one chain of FMAs (4 cycles each), so several units are summed side by side. Four V16 are four
// chains with AVX-512 (64 bytes a cycle, what L2 delivers) and eight with AVX2 (the two FMA ports).
constexpr int kUnits = 4;

struct Unit {
  const float* x;
  const float* gate;
  float* y;
};

Unit unit_at(const NormArgs& args, int64_t index) {
  const int64_t row = index / args.groups;
  const int64_t at = (index - row * args.groups) * args.size;
  return {args.x + row * args.x_stride + at,
          norm_has_gate(args.kind) ? args.gate + row * args.gate_stride + at : nullptr,
          static_cast<float*>(args.y) + row * args.y_stride + at};
}

template <NormKind kKind>
void write(const NormArgs& args, const Unit& unit, float ss) {
  const V16 sum = set16(ss);
  const V16 mean = kKind == NormKind::kL2 ? sum : sum / set16(static_cast<float>(args.size));
  const V16 r = set16(1.f) / sqrt(mean + set16(args.eps));
  const V16 scale = set16(args.scale);
  const int64_t whole = args.size & ~int64_t{15};
  for (int64_t k = 0; k < whole; k += 16) {
    V16 y = load16(unit.x + k) * r;
    if constexpr (kKind == NormKind::kL2) {
      y = y * scale;
    } else if constexpr (kKind != NormKind::kRmsPlain) {
      y = y * load16(args.weight + k);
    }
    if constexpr (kKind == NormKind::kRmsGated) {
      store16(unit.y + k, y * math::sigmoid(load16(unit.gate + k)));
    } else if constexpr (kKind == NormKind::kRmsSiluGated) {
      store16(unit.y + k, y * math::silu(load16(unit.gate + k)));
    } else {
      store16(unit.y + k, y);
    }
  }
  if (const int64_t rest = args.size - whole; rest != 0) {
    V16 y = load16_first(unit.x + whole, rest) * r;
    if constexpr (kKind == NormKind::kL2) {
      y = y * scale;
    } else if constexpr (kKind != NormKind::kRmsPlain) {
      y = y * load16_first(args.weight + whole, rest);
    }
    if constexpr (kKind == NormKind::kRmsGated) y = y * math::sigmoid(load16_first(unit.gate + whole, rest));
    if constexpr (kKind == NormKind::kRmsSiluGated) y = y * math::silu(load16_first(unit.gate + whole, rest));
    store16_first(unit.y + whole, y, rest);
  }
}

template <int N>
void sums(const Unit* units, int64_t size, float* ss) {
  V16 sum[N];
  for (int i = 0; i < N; ++i) sum[i] = zero16();
  const int64_t whole = size & ~int64_t{15};
  for (int64_t k = 0; k < whole; k += 16) {
    for (int i = 0; i < N; ++i) {
      const V16 x = load16(units[i].x + k);
      sum[i] = fma(x, x, sum[i]);
    }
  }
  if (whole != size) {
    for (int i = 0; i < N; ++i) {
      const V16 x = load16_first(units[i].x + whole, size - whole);
      sum[i] = fma(x, x, sum[i]);
    }
  }
  for (int i = 0; i < N; ++i) ss[i] = fold16(sum[i]);
}

template <NormKind kKind>
void run(const NormArgs& args, int64_t begin, int64_t end) {
  Unit units[kUnits];
  float ss[kUnits];
  int64_t u = begin;
  for (; u + kUnits <= end; u += kUnits) {
    for (int i = 0; i < kUnits; ++i) units[i] = unit_at(args, u + i);
    sums<kUnits>(units, args.size, ss);
    for (int i = 0; i < kUnits; ++i) write<kKind>(args, units[i], ss[i]);
  }
  for (; u < end; ++u) {
    units[0] = unit_at(args, u);
    sums<1>(units, args.size, ss);
    write<kKind>(args, units[0], ss[0]);
  }
}

}  // namespace

void norm_units(const NormArgs& args, int64_t begin, int64_t end) {
  switch (args.kind) {
    case NormKind::kRms:
      return run<NormKind::kRms>(args, begin, end);
    case NormKind::kRmsPlain:
      return run<NormKind::kRmsPlain>(args, begin, end);
    case NormKind::kL2:
      return run<NormKind::kL2>(args, begin, end);
    case NormKind::kRmsGated:
      return run<NormKind::kRmsGated>(args, begin, end);
    case NormKind::kRmsSiluGated:
      return run<NormKind::kRmsSiluGated>(args, begin, end);
  }
}

}  // namespace weir::WEIR_ISA
