// Sampling on a GPU: what Sampler (sampler.h) computes, bit for bit, for rows of logits in device memory. Only options
// go to the device, and what histories have gained since the step before; only what was chosen comes back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "device/cuda_device.h"
#include "engine/sampler.h"

namespace weir {

// The arguments of Sampler::sample. What they point to is read by enqueue() alone.
struct SampleRow {
  const SamplingOptions* options = nullptr;
  const TokenHistory* history = nullptr;  // may be null when no penalty is set
  int64_t position = 0;
  int64_t generated = 0;
  std::span<const uint32_t> allowed;
};

class CudaSampler {
 public:
  virtual ~CudaSampler() = default;

  // Queues the sampling of rows[i] from logits + i * stride, on the device's stream. Once between two waits; 1 to
  // max_rows rows. The logits are the same afterwards, though not meanwhile. Buffers grow with the lists of the rows
  // (penalties, biases, allowed ids): then it waits for the stream.
  virtual void enqueue(std::span<const SampleRow> rows, float* logits, int64_t stride) = 0;

  // Waits for the choices of the last enqueue; valid until the next.
  virtual std::span<const std::optional<SampledToken>> wait() = 0;

  // [max_rows] on the device: the chosen ids, -1 for nothing, for work that is queued after enqueue().
  virtual const int32_t* ids() const = 0;
};

// 1 to 2^22 logits a row.
[[gnu::weak]] std::unique_ptr<CudaSampler> make_cuda_sampler(CudaDevice& device, int64_t vocab, int32_t max_rows);

}  // namespace weir
