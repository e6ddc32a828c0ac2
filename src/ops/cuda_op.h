// An op bound to a GPU: a sequence of launches on the device's stream.
#pragma once

#include <string>
#include <utility>

#include "device/cuda_device.h"
#include "formats/weight.h"
#include "ops/bound_op.h"

namespace weir {

class CudaOp : public BoundOp {
 public:
  CudaOp(CudaDevice& device, std::string name) : BoundOp(std::move(name)), device_(device) {}

  // Queues the op for any step within the bounds; its numbers are those of device().step() when the launches run. Does
  // not wait, allocate or throw. Launches depend on the bounds alone, so that they may be recorded and replayed.
  virtual void enqueue(const StepBounds& bounds) = 0;

  // Stages the step and queues the op. (A circuit stages once for all its ops.)
  void run(const StepView& step) final {
    device_.stage(step);
    enqueue(CudaDevice::bounds_of(step));
  }

 protected:
  CudaDevice& device() const { return device_; }

 private:
  CudaDevice& device_;
};

// A matrix on the device, rows and scales packed; empty stays empty. Row addresses are multiples of 16 where the row
// size is; the first is a multiple of 256.
inline WeightView upload(CudaDevice& device, const WeightView& host) {
  if (host.empty()) return host;
  WeightView view = host;
  view.row_bytes = weight_row_bytes(host.format, host.in);
  view.data = device.upload(host.data, host.out, view.row_bytes, host.row_bytes);
  if (host.scales != nullptr) {
    const int64_t rows = (host.scale_first + host.out - 1) / host.scale_rows + 1;
    view.scale_row_bytes = host.format == WeightFormat::kMxfp4 ? host.in / 32
                                                               : (host.in + host.scale_cols - 1) / host.scale_cols *
                                                                     weight_block(host.scale_format).bytes;
    view.scales = device.upload(host.scales, rows, view.scale_row_bytes, host.scale_row_bytes);
  }
  return view;
}

}  // namespace weir
