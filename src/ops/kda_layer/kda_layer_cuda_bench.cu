// KDA layers on the GPU, as in decode steps (sequences of all phases of a chunk) and in prompts, against the figures of
// peers on an H200: FlashInfer's recurrence with convolution and gated norm, FlashKDA (bounded gate) and
// flash-linear-attention (softplus gate), the latter two without convolution and norm.
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "base/error.h"
#include "device/cuda/kernel.h"
#include "device/cuda/ptx.h"
#include "ops/cuda_op.h"
#include "ops/kda_layer/kda_layer.h"

namespace weir {
namespace {

__global__ void fill_random(float* to, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 0x9e3779b9u;
    x = (x ^ (x >> 15)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    to[i] = static_cast<float>(static_cast<int32_t>(x ^ (x >> 16))) * 0x1p-30f;
  }
}
__global__ void read_all(const uint4* from, int64_t count, uint32_t* sink) {
  uint32_t sum = 0;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const uint4 x = cuda::ptx::load_stream(from + i);
    sum += x.x ^ x.y ^ x.z ^ x.w;
  }
  if (sum == 0x12345678u) *sink = sum;
}

// Microseconds of what `queue` puts on the stream, repeated until it takes some milliseconds.
template <class Queue>
double microseconds(CudaDevice& device, const Queue& queue) {
  using Clock = std::chrono::steady_clock;
  queue();
  device.synchronize();
  device.begin_capture();
  queue();
  const int graph = device.end_capture();
  if (graph < 0) fail("the launches could not be recorded: ", device.error());
  double best = 1e30;
  for (int repeats = 2; repeats < 1 << 20;) {
    device.synchronize();
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < repeats; ++i) device.launch_graph(graph);
    device.synchronize();
    const double us = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    best = std::min(best, us / repeats);
    if (us > 4000) break;
    repeats *= 3;
  }
  return best;
}

double read_bandwidth(CudaDevice& device) {
  const int64_t bytes = int64_t{2} << 30;
  std::byte* memory = device.allocate(bytes);
  const double us = microseconds(device, [&] {
    cuda::launch(device, {.grid = device.sm_count() * 16, .block = 256}, &read_all, reinterpret_cast<uint4*>(memory),
                 bytes / 16, reinterpret_cast<uint32_t*>(memory));
  });
  device.release(memory);
  return static_cast<double>(bytes) / us * 1e-3;  // GB/s
}

// Layers of one model over the same row buffers, each with its part of pages and anchors.
class Model {
 public:
  Model(CudaDevice& device, bool bounded, int64_t heads, int layers, int64_t rows, int64_t pages, int64_t slots)
      : device_(device), heads_(heads) {
    const int64_t width = heads * kKdaHeadDim, row_bytes = kda_layer_journal_row_bytes(heads),
                  state_bytes = kda_layer_anchor_bytes(heads);
    std::vector<float> weights(static_cast<size_t>(width * kKdaTaps), 0.25f);
    page_bytes_ = layers * kPagePositions * row_bytes;
    slot_bytes_ = layers * state_bytes;
    pages_ = allocate(pages * page_bytes_);
    slots_ = allocate(slots * slot_bytes_);
    float* buffers[7];
    for (float*& buffer : buffers) {
      buffer = reinterpret_cast<float*>(allocate(rows * width * 4));
      cuda::launch(device, {.grid = 4096, .block = 256}, &fill_random, buffer, rows * width);
    }
    for (int i = 0; i < layers; ++i) {
      ops_.push_back(bind_kda_layer(device, "bench",
                                    {.bounded = bounded,
                                     .heads = heads,
                                     .l2_eps = 1e-6f,
                                     .norm_eps = 1e-5f,
                                     .q_conv = weights.data(),
                                     .k_conv = weights.data(),
                                     .v_conv = weights.data(),
                                     .a = weights.data(),
                                     .dt_bias = weights.data(),
                                     .norm_weight = weights.data(),
                                     .journal = {.offset = i * kPagePositions * row_bytes, .row_bytes = row_bytes},
                                     .state = {.offset = i * state_bytes, .bytes = state_bytes},
                                     .q = {buffers[0], width},
                                     .k = {buffers[1], width},
                                     .v = {buffers[2], width},
                                     .f = {buffers[3], width},
                                     .beta_logit = {buffers[4], width},
                                     .gate = {buffers[5], width},
                                     .out = buffers[6],
                                     .out_stride = width}));
    }
  }
  ~Model() {
    ops_.clear();
    device_.synchronize();
    for (std::byte* memory : memory_) device_.release(memory);
  }

  // Spans of `rows` rows from each of these positions on; each sequence has two pages and two slots in turn.
  void stage(const std::vector<int64_t>& positions, int32_t rows) {
    spans_.clear();
    tables_.assign(positions.size(), {});
    writes_.assign(positions.size(), {});
    for (size_t s = 0; s < positions.size(); ++s) {
      const uint32_t first = static_cast<uint32_t>(2 * s);
      const int64_t position = positions[s], chunks = (position + rows - 1) / 16 + 1, start = position / 16;
      for (int64_t c = 0; c < chunks; ++c) {
        const bool kept = c == chunks - 1 || (c <= start && c + 1 >= start);
        tables_[s].push_back(kept ? PageId(first + static_cast<uint32_t>(c % 2)) : kNoPage);
      }
      SpanView span{.first_row = static_cast<int32_t>(s) * rows, .rows = rows, .first_position = position};
      span.pages[0] = tables_[s];
      span.anchor_position = position == 0 ? 0 : (position - 1) / 16 * 16;
      if (span.anchor_position > 0) span.anchor = SlotId(first);
      const int64_t last = span.last_position() / 16 * 16;
      if (last > span.anchor_position) writes_[s].push_back({last, SlotId(first + 1)});
      span.anchor_writes = writes_[s];
      spans_.push_back(span);
    }
    pool_ = {pages_, page_bytes_};
    view_.rows = static_cast<int32_t>(positions.size()) * rows;
    view_.spans = spans_;
    view_.page_pools = {&pool_, 1};
    view_.anchor_pool = {slots_, slot_bytes_};
    device_.stage(view_);
  }

  double layer_microseconds() {
    const StepBounds bounds = CudaDevice::bounds_of(view_);
    return microseconds(device_,
                        [&] {
                          for (const auto& op : ops_) static_cast<CudaOp&>(*op).enqueue(bounds);
                        }) /
           static_cast<double>(ops_.size());
  }
  double layer_bytes() const {  // of state and rows
    double bytes = 0;
    for (const SpanView& span : spans_) {
      bytes += static_cast<double>(ops_[0]->cost(span.rows, span.last_position()).state_bytes) +
               static_cast<double>(span.rows * heads_ * (7 * kKdaHeadDim + 1) * 4);
    }
    return bytes;
  }

 private:
  std::byte* allocate(int64_t bytes) {
    memory_.push_back(device_.allocate(bytes));
    return memory_.back();
  }

  CudaDevice& device_;
  int64_t heads_;
  int64_t page_bytes_ = 0, slot_bytes_ = 0;
  std::byte *pages_ = nullptr, *slots_ = nullptr;
  std::vector<std::byte*> memory_;
  std::vector<std::unique_ptr<BoundOp>> ops_;
  std::vector<std::vector<PageId>> tables_;
  std::vector<std::vector<AnchorWrite>> writes_;
  std::vector<SpanView> spans_;
  PoolView pool_;
  StepView view_;
};

void decode(CudaDevice& device, double roof, bool bounded, int64_t heads, int64_t batch, double peer) {
  const int layers = static_cast<int>(std::max<int64_t>(2, 4096 / (batch * heads)));  // 390 MB of state and more
  Model model(device, bounded, heads, layers, batch, 2 * batch, 2 * batch);
  double us = 0, bytes = 0, crossing = 0;
  const int phases = batch < 16 ? 16 : 2;
  for (int phase = 0; phase < phases; ++phase) {
    std::vector<int64_t> positions;
    for (int64_t s = 0; s < batch; ++s) positions.push_back(64 + (s + phase) % 16);
    model.stage(positions, 1);
    us += model.layer_microseconds() / phases;
    bytes += model.layer_bytes() / phases;
  }
  model.stage(std::vector<int64_t>(static_cast<size_t>(batch), 64), 1);
  crossing = model.layer_microseconds();
  std::printf(
      "decode %-9s %3lld heads x %3lld: %7.2f us, %5.0f GB/s (%3.0f %% of reading), all cross %7.2f us | "
      "FlashInfer %6.1f, %.2f x\n",
      bounded ? "bounded" : "unbounded", static_cast<long long>(heads), static_cast<long long>(batch), us,
      bytes / us * 1e-3, 100 * bytes / us * 1e-3 / roof, crossing, peer, peer / us);
  std::fflush(stdout);
}

void prompt(CudaDevice& device, bool bounded, int64_t heads, int64_t batch, int64_t rows, double peer) {
  Model model(device, bounded, heads, 1, batch * rows, 2 * batch, 2 * batch);
  model.stage(std::vector<int64_t>(static_cast<size_t>(batch), 0), static_cast<int32_t>(rows));
  const double us = model.layer_microseconds();
  std::printf("prompt %-9s %3lld heads, %lld x %4lld: %8.1f us, %5.0f GB/s of rows | %s %6.0f, %.2f x\n",
              bounded ? "bounded" : "unbounded", static_cast<long long>(heads), static_cast<long long>(batch),
              static_cast<long long>(rows), us, model.layer_bytes() / us * 1e-3, bounded ? "FlashKDA" : "FLA", peer,
              peer / us);
  std::fflush(stdout);
}

void run() {
  const std::unique_ptr<CudaDevice> device = open_cuda();
  const double roof = read_bandwidth(*device);
  std::printf("%s, reading %.0f GB/s\n", device->info().name.c_str(), roof);
  const int64_t batches[] = {1, 8, 64, 256};
  const double flash_infer[2][4] = {{5.87, 29.1, 210, 825}, {4.29, 10.6, 72.4, 278}};
  for (int i = 0; i < 4; ++i) decode(*device, roof, true, 96, batches[i], flash_infer[0][i]);
  for (int i = 0; i < 4; ++i) decode(*device, roof, false, 32, batches[i], flash_infer[1][i]);
  const struct {
    int64_t batch, rows;
    double bounded, unbounded;
  } prompts[] = {{1, 512, 114, 105}, {1, 2048, 371, 289}, {1, 8192, 1389, 1047}, {8, 1024, 1182, 990}};
  for (const auto& p : prompts) prompt(*device, true, 96, p.batch, p.rows, p.bounded);
  for (const auto& p : prompts) prompt(*device, false, 32, p.batch, p.rows, p.unbounded);
  if (!device->error().empty()) fail(device->error());
}

}  // namespace
}  // namespace weir

int main() {
  try {
    weir::run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "kda_layer_cuda_bench: %s\n", e.what());
    return 1;
  }
}
