// Attention on the GPU: decode and prompts, grouped queries and MLA. Peers: FlashInfer fa3 for MLA decode, torch's SDPA
// for prompts; for grouped queries 2 us and the bytes of K and V at 4.5 TB/s.
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/number.h"
#include "bench/cuda_timing.h"
#include "ops/attention/attention.h"
#include "ops/cuda_op.h"

namespace weir {
namespace {

struct Shape {
  std::string what;
  int64_t heads, kv_heads, key_dim, value_dim;
  bool shared;
  int sequences;
  int64_t context;
  int32_t rows;  // of each sequence
  double peer_us;
  int64_t window = 0;

  std::string text() const {
    return std::to_string(heads) + "/" + std::to_string(kv_heads) + " heads " + std::to_string(sequences) + " x " +
           std::to_string(context) + " rows " + std::to_string(rows);
  }
};

// BF16 numbers of order one, the same megabyte over and over.
void fill_random(CudaDevice& device, std::byte* to, int64_t bytes) {
  std::mt19937 random(1);
  std::vector<uint16_t> block(1 << 19);
  for (uint16_t& x : block) x = f32_to_bf16(std::normal_distribution<float>()(random));
  const auto size = static_cast<int64_t>(block.size() * 2);
  for (int64_t at = 0; at < bytes; at += size) device.to_device(to + at, block.data(), std::min(size, bytes - at));
}

float* random_floats(CudaDevice& device, int64_t count) {
  std::mt19937 random(2);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& f : x) f = std::normal_distribution<float>()(random);
  float* there = device.allocate_array<float>(count);
  device.to_device(there, x.data(), count * 4);
  return there;
}

// A step over sequences whose pages lie in random order.
struct Pages {
  Pages(CudaDevice& device, const Shape& s, int layers) {
    const int64_t key_bytes = s.kv_heads * s.key_dim * 2, value_bytes = s.shared ? 0 : s.kv_heads * s.value_dim * 2;
    layer_bytes = kPagePositions * (key_bytes + value_bytes);
    const int64_t each = (s.context + kPagePositions - 1) / kPagePositions, count = each * s.sequences;
    base = device.allocate(count * layer_bytes * layers);
    fill_random(device, base, count * layer_bytes * layers);
    for (PoolView& pool : pools) pool = {base, layer_bytes * layers};
    std::vector<uint32_t> order(static_cast<size_t>(count));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<uint32_t>(i);
    std::shuffle(order.begin(), order.end(), std::mt19937(3));
    tables.resize(static_cast<size_t>(s.sequences));
    for (size_t i = 0; i < order.size(); ++i) tables[i % tables.size()].push_back(PageId{order[i]});
    for (int q = 0; q < s.sequences; ++q) {
      SpanView span{.first_row = q * s.rows, .rows = s.rows, .first_position = s.context - s.rows};
      for (auto& table : span.pages) table = tables[static_cast<size_t>(q)];
      spans.push_back(span);
      for (int32_t r = 0; r < s.rows; ++r) {
        positions.push_back(s.context - s.rows + r);
        row_spans.push_back(q);
      }
    }
    key = {.row_bytes = key_bytes};
    value = s.shared ? key : PageField{.offset = kPagePositions * key_bytes, .row_bytes = value_bytes};
  }

  StepView step() const {
    return {.rows = static_cast<int32_t>(positions.size()),
            .spans = spans,
            .positions = positions,
            .row_spans = row_spans,
            .page_pools = pools};
  }

  int64_t layer_bytes = 0;
  std::byte* base = nullptr;
  PoolView pools[kMaxPageGroups];
  std::vector<std::vector<PageId>> tables;
  std::vector<SpanView> spans;
  std::vector<int64_t> positions;
  std::vector<int32_t> row_spans;
  PageField key, value;
};

void bench_attention(CudaDevice& device, const bench::CudaReport& report, const Shape& s) {
  const int64_t seen = s.window > 0 ? std::min(s.window, s.context) : s.context;
  const int64_t position_bytes = s.kv_heads * (s.key_dim + (s.shared ? 0 : s.value_dim)) * 2;
  const int64_t bytes = s.sequences * (s.rows == 1 ? seen : s.context) * position_bytes;
  const int layers = bench::rotation(device, bytes, 32);
  Pages pages(device, s, layers);
  const int64_t rows = static_cast<int64_t>(s.sequences) * s.rows;
  // Latents: BF16 rows, as models have them.
  const RowType type = s.shared ? RowType::kBf16 : RowType::kF32;
  float* const q = random_floats(device, rows * s.heads * s.key_dim);
  if (s.shared) fill_random(device, reinterpret_cast<std::byte*>(q), rows * s.heads * s.key_dim * 2);
  float* const out = device.allocate_array<float>(rows * s.heads * s.value_dim);
  std::vector<std::unique_ptr<BoundOp>> ops;
  for (int layer = 0; layer < layers; ++layer) {
    PageField key = pages.key, value = pages.value;
    key.offset += layer * pages.layer_bytes;
    value.offset += layer * pages.layer_bytes;
    ops.push_back(bind_attention(device, "attention",
                                 {.heads = s.heads,
                                  .kv_heads = s.kv_heads,
                                  .key_dim = s.key_dim,
                                  .value_dim = s.value_dim,
                                  .scale = 1 / std::sqrt(static_cast<float>(s.key_dim)),
                                  .dtype = StateDtype::kBf16,
                                  .key = key,
                                  .value = value,
                                  .value_head_stride = s.value_dim,
                                  .q = q,
                                  .q_stride = s.heads * s.key_dim,
                                  .out = out,
                                  .out_stride = s.heads * s.value_dim,
                                  .q_type = type,
                                  .out_type = type,
                                  .max_rows = static_cast<int32_t>(rows),
                                  .window = s.window,
                                  .activations = Activations::kAuto}));
  }
  const StepView step = pages.step();
  device.stage(step);
  const StepBounds bounds = CudaDevice::bounds_of(step);
  const bench::CudaTiming timing = bench::time_calls(
      device, {.sets = layers}, [&](int set) { static_cast<CudaOp&>(*ops[static_cast<size_t>(set)]).enqueue(bounds); });
  const double positions =
      static_cast<double>(rows) * (static_cast<double>(seen) - (s.window > 0 ? 0 : (s.rows - 1) / 2.));
  report.add({.what = s.what,
              .shape = s.text(),
              .us = timing.us,
              .bytes = s.rows == 1 ? bytes : 0,
              .flops = 2. * static_cast<double>(s.heads * (s.key_dim + s.value_dim)) * positions,
              .bar_us = s.peer_us > 0 ? s.peer_us : 2 + static_cast<double>(bytes) / 4.5e6});
  ops.clear();
  device.release(pages.base);
  device.release(reinterpret_cast<std::byte*>(q));
  device.release(reinterpret_cast<std::byte*>(out));
}

Shape latent(int64_t heads, int sequences, int64_t context, double peer_us, int32_t rows = 1) {
  return {"mla", heads, 1, 576, 512, true, sequences, context, rows, peer_us};
}
Shape grouped(int64_t heads, int64_t kv_heads, int64_t dim, int sequences, int64_t context, int32_t rows = 1,
              double peer_us = 0) {
  return {"gqa " + std::to_string(dim), heads, kv_heads, dim, dim, false, sequences, context, rows, peer_us};
}

// Those whose name and shape begin with `only`.
void run(const std::string& only) {
  const std::unique_ptr<CudaDevice> device = open_cuda();
  const bench::CudaReport report(*device);
  for (const Shape& shape : {latent(32, 1, 64, 0), latent(32, 64, 64, 0), latent(32, 1, 4096, 17.83),
                             latent(32, 16, 4096, 30.42), latent(32, 64, 4096, 83.66), latent(32, 64, 1024, 31.56),
                             latent(32, 1, 32768, 46.52), latent(32, 16, 32768, 151.49), latent(64, 64, 4096, 90.62),
                             latent(96, 1, 4096, 17.81), latent(96, 64, 4096, 129.34), latent(128, 64, 4096, 132.63),
                             latent(32, 64, 4096, 83.66, 2), latent(32, 1, 2048, 103.81, 2048)}) {
    if ((shape.what + " " + shape.text()).starts_with(only)) bench_attention(*device, report, shape);
  }
  for (const Shape& shape : {grouped(32, 8, 128, 1, 64), grouped(32, 8, 128, 64, 64), grouped(16, 2, 256, 1, 64),
                             grouped(16, 2, 256, 64, 64), grouped(9, 3, 64, 1, 64), grouped(9, 3, 64, 64, 64),
                             grouped(32, 8, 128, 1, 4096), grouped(32, 8, 128, 64, 1024), grouped(32, 8, 128, 64, 4096),
                             grouped(32, 8, 128, 1, 32768), grouped(16, 2, 256, 1, 4096), grouped(16, 2, 256, 64, 4096),
                             grouped(9, 3, 64, 1, 1024), grouped(9, 3, 64, 64, 1024),
                             grouped(32, 8, 128, 1, 2048, 2048, 103.81), grouped(16, 2, 256, 1, 2048, 2048, 103.81),
                             grouped(9, 3, 64, 1, 2048, 2048, 103.81), grouped(32, 32, 128, 1, 2048, 2048, 103.81)}) {
    if ((shape.what + " " + shape.text()).starts_with(only)) bench_attention(*device, report, shape);
  }
}

}  // namespace
}  // namespace weir

int main(int count, char** arguments) {
  try {
    weir::run(count > 1 ? arguments[1] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
