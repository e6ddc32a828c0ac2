// linear as an op of the GPU: tiles on the tensor cores, or FP32 products.
#include <algorithm>
#include <utility>
#include <vector>

#include "ops/cuda_op.h"
#include "ops/linear/linear.h"
#include "ops/linear/linear_f32.h"
#include "ops/linear/linear_multiply.h"

namespace weir {
namespace {

int32_t bound_rows(const StepBounds& bounds, RowSet set) {
  return set == RowSet::kAll ? bounds.rows : bounds.logit_rows;
}

class LinearF32 final : public CudaOp {
 public:
  LinearF32(CudaDevice& device, std::string name, const LinearArgs& args)
      : CudaOp(device, std::move(name)),
        weight_(args.weight),
        args_{.weight = upload(device, args.weight),
              .bias = device.upload(args.bias, args.weight.out),
              .x = args.x,
              .x_stride = args.x_stride,
              .y = args.y,
              .y_stride = args.y_stride,
              .rows = args.rows} {}

  void enqueue(const StepBounds& bounds) override {
    args_.step = device().step();
    launch_linear_f32(device(), args_, bound_rows(bounds, args_.rows));
  }
  Cost cost(int32_t rows, int64_t) const override { return linear_cost(weight_, args_.rows, rows); }

 private:
  WeightView weight_;
  LinearF32Args args_;
};

// One matrix, or several whose tiles have the same format and which multiply the same x.
class LinearTiles final : public CudaOp {
 public:
  LinearTiles(CudaDevice& device, std::string name, const std::vector<LinearArgs>& parts)
      : CudaOp(device, std::move(name)) {
    const LinearArgs& first = parts.front();
    args_.x = first.x;
    args_.x_stride = first.x_stride;
    args_.rows = first.rows;
    for (const LinearArgs& part : parts) add(part);
    prepare_multiply(device, format_);
    args_.counters = device.allocate_array<uint32_t>(args_.strips);
    device.reserve_workspace(multiply_bytes(args_, first.max_rows));
  }

  void enqueue(const StepBounds& bounds) override {
    args_.step = device().step();
    multiply_tiles(device(), format_, args_, device().workspace(), bound_rows(bounds, args_.rows));
  }
  Cost cost(int32_t rows, int64_t) const override {
    Cost cost;
    for (const WeightView& weight : weights_) cost += linear_cost(weight, args_.rows, rows);
    return cost;
  }

 private:
  void add(const LinearArgs& part) {
    const TiledWeight tiled = upload_tiles(device(), part.weight);
    format_ = tiled.format;
    args_.in = static_cast<int32_t>(tiled.in);
    args_.segments = tiled.segments;
    args_.segment_tiles = tiled.segment_tiles;
    args_.parts[args_.part_count++] = {.tiles = tiled.tiles,
                                       .bias = device().upload(part.bias, tiled.out),
                                       .y = part.y,
                                       .y_stride = part.y_stride,
                                       .out = static_cast<int32_t>(tiled.out),
                                       .first_strip = args_.strips};
    args_.strips += static_cast<int32_t>(tiled.strips());
    weights_.push_back(part.weight);
  }

  TileFormat format_ = TileFormat::kBf16;
  MultiplyArgs args_;
  std::vector<WeightView> weights_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_linear_cuda(CudaDevice& device, std::string name, const LinearArgs& args) {
  if (args.activations == Activations::kF32) return std::make_unique<LinearF32>(device, std::move(name), args);
  return std::make_unique<LinearTiles>(device, std::move(name), std::vector<LinearArgs>{args});
}

}  // namespace weir
