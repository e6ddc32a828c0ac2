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

Cost parts_cost(const std::vector<LinearArgs>& parts, int32_t rows) {
  Cost cost;
  for (const LinearArgs& part : parts) cost += linear_cost(part.weight, part.rows, rows);
  return cost;
}

int32_t bound_rows(const StepBounds& bounds, RowSet set) {
  return set == RowSet::kAll ? bounds.rows : bounds.logit_rows;
}

class LinearF32 final : public CudaOp {
 public:
  LinearF32(CudaDevice& device, std::string name, const std::vector<LinearArgs>& parts)
      : CudaOp(device, std::move(name)), parts_(parts) {
    for (const LinearArgs& part : parts) {
      launches_.push_back({.weight = upload(device, part.weight),
                           .bias = device.upload(part.bias, part.weight.out),
                           .x = static_cast<const float*>(part.x),
                           .x_stride = part.x_stride,
                           .y = static_cast<float*>(part.y),
                           .y_stride = part.y_stride,
                           .rows = part.rows});
    }
  }

  void enqueue(const StepBounds& bounds) override {
    for (LinearF32Args& launch : launches_) {
      launch.step = device().step();
      launch_linear_f32(device(), launch, bound_rows(bounds, launch.rows));
    }
  }
  Cost cost(int32_t rows, int64_t) const override { return parts_cost(parts_, rows); }

 private:
  std::vector<LinearArgs> parts_;
  std::vector<LinearF32Args> launches_;
};

// Matrices whose tiles have the same format go into one launch; those of the same x follow each other.
class LinearTiles final : public CudaOp {
 public:
  LinearTiles(CudaDevice& device, std::string name, const std::vector<LinearArgs>& parts)
      : CudaOp(device, std::move(name)), parts_(parts) {
    for (const LinearArgs& part : parts) add(part);
    for (Launch& launch : launches_) {
      prepare_multiply(device, launch.format);
      launch.args.counters = device.allocate_array<uint32_t>(launch.args.counter_count());
      device.reserve_workspace(multiply_bytes(device, launch.format, launch.args, parts.front().max_rows));
      device.reserve_posts(multiply_posts(launch.format, launch.args, parts.front().max_rows));
    }
  }

  void enqueue(const StepBounds& bounds) override {
    for (Launch& launch : launches_) {
      launch.args.step = device().step();
      multiply_tiles(device(), launch.format, launch.args, device().workspace(), bound_rows(bounds, launch.args.rows));
    }
  }
  Cost cost(int32_t rows, int64_t) const override { return parts_cost(parts_, rows); }

 private:
  struct Launch {
    TileFormat format;
    MultiplyArgs args;
  };

  void add(const LinearArgs& part) {
    const TiledWeight tiled = upload_tiles(device(), part.weight);
    MultiplyArgs& args = launch_of(tiled, part).args;
    args.parts[args.part_count++] = {.tiles = tiled.tiles,
                                     .bias = device().upload(part.bias, tiled.out),
                                     .x = part.x,
                                     .x_stride = part.x_stride,
                                     .y = part.y,
                                     .y_stride = part.y_stride,
                                     .y_type = part.y_type,
                                     .out = static_cast<int32_t>(tiled.out),
                                     .first_strip = args.strips};
    args.strips += static_cast<int32_t>(tiled.strips());
  }

  Launch& launch_of(const TiledWeight& tiled, const LinearArgs& part) {
    for (Launch& launch : launches_) {
      if (launch.format == tiled.format && launch.args.part_count < kMostLinearParts) return launch;
    }
    launches_.push_back({tiled.format, {}});
    MultiplyArgs& args = launches_.back().args;
    args.in = static_cast<int32_t>(tiled.in);
    args.segments = tiled.segments;
    args.segment_tiles = tiled.segment_tiles;
    args.x_type = part.x_type;
    args.rows = part.rows;
    return launches_.back();
  }

  std::vector<LinearArgs> parts_;
  std::vector<Launch> launches_;
};

}  // namespace

std::unique_ptr<BoundOp> bind_linears_cuda(CudaDevice& device, std::string name, const std::vector<LinearArgs>& parts) {
  if (parts.front().activations == Activations::kF32) {
    return std::make_unique<LinearF32>(device, std::move(name), parts);
  }
  return std::make_unique<LinearTiles>(device, std::move(name), parts);
}

std::unique_ptr<BoundOp> bind_linear_cuda(CudaDevice& device, std::string name, const LinearArgs& args) {
  return bind_linears_cuda(device, std::move(name), {args});
}

}  // namespace weir
