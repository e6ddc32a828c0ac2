// Products on the GPU: with few rows, where the weights' bytes decide, for every format that has a goal, and with many.
// Rows of x are BF16, as the peers' are.
// Peers' figures are those of a table, measured on another day (an H200, torch 2.11).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/number.h"
#include "bench/cuda_timing.h"
#include "ops/cuda_op.h"
#include "ops/linear/linear.h"

namespace weir {
namespace {

struct Shape {
  int64_t out, in;
};

// Bytes that pass for any weights: BF16 numbers of usual size, positive ones where bytes are scales of MXFP4.
std::vector<std::byte> usual_bytes(bool positive) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.f, 0.05f);
  std::vector<std::byte> bytes(size_t{16} << 20);
  for (size_t i = 0; i < bytes.size(); i += 2) {
    const auto bits = static_cast<uint16_t>(f32_to_bf16(positive ? std::abs(normal(random)) : normal(random)) &
                                            (positive ? 0x7f7f : 0xffff));
    std::memcpy(bytes.data() + i, &bits, 2);
  }
  return bytes;
}

// A matrix that exists as a description: the device's row source fills it.
WeightView described_weight(WeightFormat format, Shape shape) {
  static int64_t next = 1;
  const auto somewhere = [] { return reinterpret_cast<const std::byte*>(next++ << 40); };
  WeightView view{.format = format, .out = shape.out, .in = shape.in, .data = somewhere()};
  view.row_bytes = weight_row_bytes(format, shape.in);
  if (format == WeightFormat::kMxfp4) {
    view.scales = somewhere();
    view.scale_row_bytes = shape.in / 32;
  } else if (format == WeightFormat::kE4m3) {
    view.scales = somewhere();
    view.scale_rows = view.scale_cols = 128;
    view.scale_row_bytes = (shape.in + 127) / 128 * 4;
  }
  return view;
}

// us of cuBLAS, by shape and rows.
double peer_us(Shape shape, int32_t rows) {
  static const std::map<std::pair<int64_t, int64_t>, std::map<int32_t, double>> table = {
      {{2304, 9216}, {{1, 14.82}, {8, 15.72}, {16, 15.91}, {64, 16.69}, {128, 19.44}, {256, 26.15}}},
      {{9216, 2304}, {{1, 12.87}, {8, 12.91}, {16, 12.96}, {64, 13.65}, {128, 14.17}, {256, 18.18}}},
      {{4096, 4096}, {{1, 13.52}, {8, 13.22}, {16, 13.59}, {64, 12.03}, {128, 13.89}, {256, 18.46}}},
      {{7168, 7168}, {{1, 29.6}, {8, 29.53}, {16, 30.06}, {64, 27.06}, {128, 29.66}, {256, 38.93}}},
      {{4096, 2304}, {{1, 7.85}, {8, 7.68}, {16, 7.76}, {64, 8.0}, {128, 8.91}, {256, 11.21}}},
      {{163840, 2304}, {{1, 170.95}, {8, 173.38}, {16, 177.49}, {64, 192.2}, {128, 205.48}, {256, 290.53}}}};
  const auto found = table.find({shape.out, shape.in});
  if (found == table.end() || !found->second.contains(rows)) return 0;
  return found->second.at(rows);
}

class Bench {
 public:
  Bench()
      : bytes_(usual_bytes(false)),
        positive_bytes_(usual_bytes(true)),
        report_device_(open_cuda()),
        report_(*report_device_) {}

  void measure(WeightFormat format, Shape shape, const std::vector<int32_t>& rows_list, double bar) {
    const auto device = open_cuda();
    const std::vector<std::byte>& bytes = format == WeightFormat::kMxfp4 ? positive_bytes_ : bytes_;
    const auto fill = [&](void* to, int64_t count) {
      const auto most = static_cast<int64_t>(bytes.size());
      for (int64_t at = 0; at < count; at += most) {
        device->to_device(static_cast<std::byte*>(to) + at, bytes.data(), std::min(most, count - at));
      }
    };
    device->set_row_source([&](std::byte* to, const std::byte*, int64_t rows, int64_t row_bytes, int64_t) {
      fill(to, rows * row_bytes);
      return true;
    });
    const int32_t most_rows = rows_list.back();
    uint16_t* x = device->allocate_array<uint16_t>(most_rows * shape.in);
    fill(x, most_rows * shape.in * 2);
    float* y = device->allocate_array<float>(most_rows * shape.out);
    const WeightView described = described_weight(format, shape);
    std::vector<std::unique_ptr<BoundOp>> sets;
    for (int set = 0; set < bench::rotation(*device, described.bytes()); ++set) {
      sets.push_back(bind_linear(*device, "bench",
                                 {.weight = described_weight(format, shape),
                                  .x = x,
                                  .x_stride = shape.in,
                                  .y = y,
                                  .y_stride = shape.out,
                                  .x_type = RowType::kBf16,
                                  .activations = Activations::kAuto,
                                  .max_rows = most_rows}));
    }
    for (const int32_t rows : rows_list) {
      StepView step;
      step.rows = rows;
      device->stage(step);
      const bench::CudaTiming timing = bench::time_calls(
          *device, {.sets = static_cast<int>(sets.size()), .round_us = 1000, .budget_us = 30e3},
          [&](int set) { static_cast<CudaOp&>(*sets[static_cast<size_t>(set)]).enqueue(CudaDevice::bounds_of(step)); });
      const std::string name = "linear " + std::string(weight_format_name(format));
      const std::string at = std::to_string(shape.out) + "x" + std::to_string(shape.in) + " m=" + std::to_string(rows);
      const double flops = 2. * rows * static_cast<double>(shape.out * shape.in);
      report_.add({.what = name,
                   .shape = at,
                   .us = timing.us,
                   .bytes = described.bytes(),
                   .flops = flops,
                   .bar_us = rows <= 64 ? bar * report_.floor_us(described.bytes()) : 0});
      if (const double us = peer_us(shape, rows); us > 0 && format == WeightFormat::kBf16) {
        report_.add(
            {.what = name, .shape = at, .us = us, .bytes = described.bytes(), .flops = flops, .by = "cuBLAS (table)"});
      }
    }
    if (!device->synchronize()) std::printf("failed: %s\n", device->error().c_str());
  }

 private:
  std::vector<std::byte> bytes_, positive_bytes_;
  std::unique_ptr<CudaDevice> report_device_;
  bench::CudaReport report_;
};

int run() {
  Bench bench;
  constexpr double kBar = 1.2;
  for (const Shape shape : {Shape{4096, 4096}, Shape{2304, 9216}, Shape{9216, 2304}, Shape{4096, 2304},
                            Shape{7168, 7168}, Shape{163840, 2304}}) {
    bench.measure(WeightFormat::kBf16, shape, {1, 2, 8, 16, 32, 64, 128, 256}, kBar);
  }
  for (const Shape shape : {Shape{6144, 4096}, Shape{28672, 4096}, Shape{4096, 14336}}) {  // of Llama 8B
    for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kQ4_0}) {
      bench.measure(format, shape, {1, 8, 16, 64}, kBar);
    }
  }
  for (const WeightFormat format :
       {WeightFormat::kE4m3, WeightFormat::kMxfp4, WeightFormat::kQ4_0, WeightFormat::kQ8_0, WeightFormat::kQ4_K}) {
    for (const Shape shape : {Shape{4096, 4096}, Shape{2304, 9216}, Shape{7168, 7168}}) {
      bench.measure(format, shape, {1, 8, 16, 64}, kBar);
    }
    bench.measure(format, {4096, 4096}, {2048}, kBar);
  }
  for (const Shape shape : {Shape{4096, 4096}, Shape{2304, 9216}, Shape{9216, 2304}, Shape{8192, 8192}}) {
    bench.measure(WeightFormat::kBf16, shape, {512, 1024, 2048, 8192}, kBar);
  }
  return 0;
}

}  // namespace
}  // namespace weir

int main() {
  if (const std::string why = weir::why_no_cuda(); !why.empty()) {
    std::printf("no GPU: %s\n", why.c_str());
    return 0;
  }
  return weir::run();
}
