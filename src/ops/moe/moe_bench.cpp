// Experts against the machine's roofs: 64 experts of [768, 1024], top 8, as packed MXFP4 and as BF16. Several layers
// with fresh routing each call, so that decoding reads weights from memory as in a model. GB/s counts weights.
#include "ops/moe/moe.h"

#include <random>

#include "base/error.h"
#include "ops/simd/op_bench.h"

namespace weir {
namespace {

constexpr int64_t kExperts = 64, kIn = 1024, kInter = 768, kTopK = 8;
constexpr int32_t kMaxRows = 512;

// Any bits do, except NaN and denormals: bytes 0x3c..0x3f are normal in every format (2^-65 as E8M0).
Mapping random_weights(int64_t bytes) {
  Mapping memory(bytes);
  std::mt19937 random(1);
  for (uint32_t& word : memory.as<uint32_t>()) word = 0x3c3c3c3cu | (static_cast<uint32_t>(random()) & 0x83838383u);
  return memory;
}

void bench_format(OpBench& bench, WeightFormat format, const Mapping& memory, int layers) {
  const std::byte* next = memory.data();
  const auto take = [&](int64_t out, int64_t in) {
    const bool packed = format == WeightFormat::kMxfp4;
    WeightView view{.format = format, .out = out, .in = in, .data = next, .row_bytes = packed ? in / 2 : in * 2};
    if (packed) {
      view.scales = next + out * view.row_bytes;
      view.scale_row_bytes = in / 32;
    }
    next += view.bytes();
    return view;
  };
  const Mapping x(kMaxRows * kIn * 4), y(kMaxRows * kIn * 4), weights(kMaxRows * kTopK * 4), ids(kMaxRows * kTopK * 4);
  fill(x);
  fill(weights);
  const auto workspace = std::make_shared<MoeWorkspace>();
  std::vector<std::unique_ptr<BoundOp>> ops;
  for (int layer = 0; layer < layers; ++layer) {
    MoeArgs args{.in = kIn,
                 .inter = kInter,
                 .out = kIn,
                 .top_k = kTopK,
                 .act = {ElementwiseKind::kSitu, 4, 25},
                 .x = x.as<float>().data(),
                 .x_stride = kIn,
                 .ids = ids.as<int32_t>().data(),
                 .weights = weights.as<float>().data(),
                 .y = y.as<float>().data(),
                 .y_stride = kIn,
                 .max_rows = kMaxRows,
                 .workspace = workspace};
    for (int64_t e = 0; e < kExperts; ++e)
      args.experts.push_back({take(kInter, kIn), take(kInter, kIn), take(kIn, kInter)});
    ops.push_back(bind_moe(bench.device(), "moe", std::move(args)));
  }
  std::mt19937 random(2);
  const auto route = [&](int32_t rows) {
    for (int32_t row = 0; row < rows; ++row) {
      uint64_t chosen = 0;
      for (int64_t k = 0; k < kTopK;) {
        const uint64_t bit = uint64_t{1} << (random() % kExperts);
        k += (chosen & bit) == 0;
        chosen |= bit;
      }
      int32_t* out = ids.as<int32_t>().data() + row * kTopK;
      for (int32_t e = 0; e < kExperts; ++e) {
        if ((chosen >> e & 1) != 0) *out++ = e;
      }
    }
  };
  for (const int32_t rows : {1, 4, 16, 64, 512}) {
    StepView step;
    step.rows = rows;
    const int64_t calls = rows <= 4 ? 64 : rows <= 64 ? layers : 1;
    route(rows);
    bench.device().counters() = {};
    for (int64_t i = 0; i < calls; ++i) ops[static_cast<size_t>(i % layers)]->run(step);
    const double bytes = static_cast<double>(bench.device().counters().weight_bytes_read) / static_cast<double>(calls);
    bench.line(concat(weight_format_name(format), ", ", rows, " rows"), calls, bytes, ops[0]->cost(rows, 0).flops, [&] {
      for (int64_t i = 0; i < calls; ++i) {
        if (rows <= 4) route(rows);
        ops[static_cast<size_t>(i % layers)]->run(step);
      }
    });
  }
}

}  // namespace
}  // namespace weir

int main() {
  using namespace weir;
  constexpr int64_t kBytes = int64_t{2} * kExperts * 3 * kIn * kInter * 2;  // two layers of BF16, seven of MXFP4
  const Mapping memory = random_weights(kBytes);
  each_device([&](OpBench& bench) {
    bench_format(bench, WeightFormat::kMxfp4, memory, 7);
    bench_format(bench, WeightFormat::kBf16, memory, 2);
  });
}
