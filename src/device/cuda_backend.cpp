#include "base/error.h"
#include "device/cuda_device.h"

namespace weir {

std::string why_no_cuda() {
  if (cuda_backend == nullptr) return "this program was built without CUDA";
  return cuda_backend().why_not();
}

std::unique_ptr<CudaDevice> open_cuda(int index) {
  if (const std::string reason = why_no_cuda(); !reason.empty()) fail("--device cuda: ", reason);
  return cuda_backend().open(index);
}

StepBounds CudaDevice::bounds_of(const StepView& step) {
  StepBounds bounds{.rows = step.rows,
                    .spans = static_cast<int32_t>(step.spans.size()),
                    .logit_rows = static_cast<int32_t>(step.logit_rows.size())};
  for (const SpanView& span : step.spans) {
    bounds.longest_span = span.rows > bounds.longest_span ? span.rows : bounds.longest_span;
    const int64_t end = span.first_position + span.rows;
    bounds.longest_context = end > bounds.longest_context ? end : bounds.longest_context;
  }
  return bounds;
}

}  // namespace weir
