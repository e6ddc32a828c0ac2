#include <algorithm>
#include <cmath>
#include <limits>

#include "base/math.h"
#include "base/number.h"
#include "ops/attention/attention_kernel.h"
#include "ops/simd/lanes_ref.h"

namespace weir::reference {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A row of a field in the pages of one sequence.
struct PagedRows {
  PoolView pool;
  const PageId* pages;
  PageField field;
  StateDtype dtype;
  int64_t first;  // element

  float at(int64_t position, int64_t element) const {
    const std::byte* row =
        pool.block(pages[position / kPagePositions]) + field.offset + position % kPagePositions * field.row_bytes;
    if (dtype == StateDtype::kF32) return reinterpret_cast<const float*>(row)[first + element];
    return f16_to_f32(reinterpret_cast<const uint16_t*>(row)[first + element]);
  }
};

struct Running {
  float m = -kInfinity;
  float l = 0;
  float* acc;  // [value_dim]
};

// Positions [begin, end) of the tile at `tile`.
void add_tile(const AttentionArgs& args, const float* q, const PagedRows& keys, const PagedRows& values, int64_t tile,
              int64_t begin, int64_t end, bool first, Running& run) {
  float p[kAttentionTile];
  float m = run.m;
  for (int64_t j = begin; j < end; ++j) {
    const float s =
        args.scale * dot_lanes(
                         args.key_dim, [&](int64_t k) { return q[k]; }, [&](int64_t k) { return keys.at(j, k); });
    p[j - tile] = s;
    m = math::max(m, s);
  }
  const float c = first ? 0.f : math::exp(run.m - m);
  Lanes sum;
  for (int64_t j = begin; j < end; ++j) {
    p[j - tile] = math::exp(p[j - tile] - m);
    sum.add(j - tile, p[j - tile]);
  }
  run.m = m;
  run.l = run.l * c + sum.fold();
  for (int64_t d = 0; d < args.value_dim; ++d) {
    float acc = run.acc[d] * c;
    for (int64_t j = begin; j < end; ++j) acc = math::fma(p[j - tile], values.at(j, d), acc);
    run.acc[d] = acc;
  }
}

void merge(const AttentionArgs& args, Running& run, const Running& next) {
  const float m = math::max(run.m, next.m);
  const float a = math::exp(run.m - m);
  const float b = math::exp(next.m - m);
  run.m = m;
  run.l = math::fma(run.l, a, next.l * b);
  for (int64_t d = 0; d < args.value_dim; ++d) run.acc[d] = math::fma(run.acc[d], a, next.acc[d] * b);
}

}  // namespace

// `scratch`: 2 * value_dim floats.
void attention_row(const AttentionArgs& args, const StepView& step, int64_t row, int64_t head, float* scratch) {
  const int64_t position = step.positions[static_cast<size_t>(row)];
  const SpanView& span = step.spans[static_cast<size_t>(step.row_spans[static_cast<size_t>(row)])];
  const int64_t kv_head = head / (args.heads / args.kv_heads);
  const auto rows_of = [&](const PageField& field, int64_t first) {
    const auto group = static_cast<size_t>(field.group);
    return PagedRows{step.page_pools[group], span.pages[group].data(), field, args.dtype, first};
  };
  const PagedRows keys = rows_of(args.key, kv_head * args.key_dim);
  const PagedRows values = rows_of(args.value, kv_head * args.value_head_stride);
  const float* q = args.q + row * args.q_stride + head * args.key_dim;

  const int64_t piece = attention_piece(position, args.window);
  const int64_t visible = first_visible(position, args.window);
  const int64_t first_piece = visible / piece * piece;
  Running all{.acc = scratch};
  for (int64_t begin = first_piece; begin <= position; begin += piece) {
    Running one{.acc = begin == first_piece ? scratch : scratch + args.value_dim};
    for (int64_t d = 0; d < args.value_dim; ++d) one.acc[d] = 0;
    const int64_t first_tile = std::max(begin, visible / kAttentionTile * kAttentionTile);
    for (int64_t tile = first_tile; tile <= position && tile < begin + piece; tile += kAttentionTile) {
      const int64_t end = std::min(tile + kAttentionTile, position + 1);
      add_tile(args, q, keys, values, tile, std::max(tile, visible), end, tile == first_tile, one);
    }
    if (begin == first_piece) {
      all = one;
    } else {
      merge(args, all, one);
    }
  }
  if (args.sinks != nullptr) {
    const float m = math::max(all.m, args.sinks[head]);
    const float a = math::exp(all.m - m);
    all.l = math::fma(all.l, a, math::exp(args.sinks[head] - m));
    for (int64_t d = 0; d < args.value_dim; ++d) all.acc[d] = all.acc[d] * a;
  }
  float* out = args.out + row * args.out_stride + head * args.value_dim;
  for (int64_t d = 0; d < args.value_dim; ++d) out[d] = all.acc[d] / all.l;
}

}  // namespace weir::reference
