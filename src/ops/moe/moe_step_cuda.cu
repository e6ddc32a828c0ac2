// The launches of a step, one after the other.
#include <algorithm>

#include "ops/moe/moe_cuda.cuh"

namespace weir {
namespace {

StepShape step_shape(const CudaDevice& device, int32_t rows, int64_t top_k, int64_t count,
                     const TiledExperts& experts) {
  constexpr int64_t kRowsForMany = 16;  // of an expert, on average: the weights' time is then no longer all
  const auto& [gate_up, down] = experts;
  StepShape shape{.rows = rows, .pairs = static_cast<int32_t>(rows * top_k)};
  shape.small = shape.pairs <= kMostSmallPairs;
  const int32_t most = std::min(many_tile_rows(gate_up.format), many_tile_rows(down.format));
  shape.many = most > 0 && shape.pairs >= kRowsForMany * count;
  if (shape.many) {
    shape.tile_rows = most;
    shape.small = false;
  } else {
    // Experts with more rows than a tile of them are read twice: seldom, with so few pairs.
    shape.wanted_tile_rows = std::min(rows, shape.pairs <= 3 * count ? 8 : 32);
    shape.tile_rows = std::min(few_tile_rows(device, shape.wanted_tile_rows, shape.pairs, gate_up),
                               few_tile_rows(device, shape.wanted_tile_rows, shape.pairs, down));
  }
  return shape;
}

}  // namespace

ExpertStep::ExpertStep(CudaDevice& device, int32_t rows, const MoeArgs& args, int64_t count,
                       const TiledExperts& experts, const StepBuffers& buffers)
    : device_(device),
      args_(args),
      experts_(experts),
      buffers_(buffers),
      shape_(step_shape(device, rows, args.top_k, count, experts)),
      plan_{.ids = args.ids,
            .experts = static_cast<int32_t>(count),
            .top_k = static_cast<int32_t>(args.top_k),
            .tile_rows = shape_.tile_rows,
            .x = args.x_type == RowType::kF32 ? static_cast<const float*>(args.x) : nullptr,
            .x_stride = args.x_stride,
            .in = args.in,
            .rounded = buffers.x,
            .width = experts.gate_up.width(),
            .routed_before = args.routed_before} {
  if (shape_.small) buffers_.plan = {};
}

void ExpertStep::plan() const {
  if (!shape_.small) plan_pairs(device_, shape_.rows, plan_, buffers_.plan);
}

ExpertProduct ExpertStep::product(const ExpertTiles& side) const {
  return {.experts = side,
          .plan = buffers_.plan,
          .ids = args_.ids,
          .top_k = plan_.top_k,
          .most_pairs = shape_.pairs,
          .tile_rows = shape_.tile_rows};
}

void ExpertStep::multiply(const ExpertProduct& product) const {
  if (shape_.many) {
    multiply_many_pairs(device_, product);
  } else {
    multiply_few_pairs(device_, shape_, product);
  }
}

void ExpertStep::gate_up() const {
  ExpertProduct gate_up = product(experts_.gate_up);
  gate_up.planned_before = shape_.small && args_.routed_before;
  if (plan_.x == nullptr) {
    gate_up.x.rounded = static_cast<const uint16_t*>(args_.x);
  } else if (shape_.small) {
    gate_up.x = {.exact = plan_.x, .exact_stride = args_.x_stride, .in = args_.in};
  } else {
    gate_up.x.rounded = buffers_.x;
  }
  gate_up.x.pairs_per_row = plan_.top_k;
  gate_up.out = {.hidden = true,
                 .strips = experts_.gate_up.strips,
                 .h = {.act = args_.act,
                       .gate_bias = args_.gate_bias,
                       .up_bias = args_.up_bias,
                       .inter = args_.inter,
                       .h = buffers_.h,
                       .width = experts_.down.width()}};
  multiply(gate_up);
}

void ExpertStep::down() const {
  ExpertProduct down = product(experts_.down);
  down.planned_before = true;
  down.x.rounded = buffers_.h;
  down.out = {.strips = experts_.down.strips, .z = {.bias = args_.down_bias, .out = args_.out, .z = buffers_.z}};
  multiply(down);
}

void ExpertStep::sum() const { sum_pairs(device_, shape_.rows, args_, buffers_.z); }

}  // namespace weir
