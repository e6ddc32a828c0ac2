// The launches of a step of experts, each alone and together: Kimi Linear (256 experts, top 8) in BF16 and MXFP4, Kimi
// K3 (896, top 16, latent width) in MXFP4. Routings take turns, so that weights come from memory as in a model.
#include <cmath>
#include <cstdlib>
#include <random>

#include "bench/cuda_timing.h"
#include "ops/moe/moe_cuda.cuh"

namespace weir {
namespace {

struct Model {
  const char* name;
  TileFormat format;
  int64_t experts, top_k, in, inter, out;
  double bits;  // of a weight
  GluFunction act;
  // torch._grouped_mm on an H200, us; 0: not known
  double peer_gate_up[7], peer_down[7];
};
constexpr int32_t kTokens[] = {1, 4, 16, 64, 256, 1024, 2048};
constexpr int32_t kMostTokens = 2048;
constexpr double kReadBandwidth = 4.5e6;  // bytes a us, of the bar
constexpr double kMostOfBar = 1.6;

// Any bits do, except NaN: bytes 0x3c..0x3f and 0xbc..0xbf make normal numbers.
__global__ void fill_random(uint32_t* to, int64_t words) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += stride) {
    uint64_t z = static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    to[i] = 0x3c3c3c3cu | (static_cast<uint32_t>(z >> 20) & 0x83838383u);
  }
}

template <class T>
T* random_array(CudaDevice& device, int64_t count) {
  T* to = device.allocate_array<T>(count);
  const int64_t words = count * static_cast<int64_t>(sizeof(T)) / 4;
  cuda::launch(device, {.grid = 1024, .block = 256}, fill_random, reinterpret_cast<uint32_t*>(to), words);
  return to;
}

ExpertTiles random_experts(CudaDevice& device, const Model& m, int64_t out, int64_t in) {
  const TiledWeight shape = tiled_shape({.format = WeightFormat::kBf16, .out = out, .in = in}, kExpertSegmentIns);
  ExpertTiles experts{m.format, nullptr, static_cast<int32_t>(shape.strips()), shape.segments, shape.segment_tiles};
  experts.tiles =
      random_array<std::byte>(device, m.experts * experts.strips * experts.k_tiles() * tile_bytes(m.format));
  return experts;
}

struct Set {
  MoeArgs args;
  StepBuffers buffers;
};

class ModelBench {
 public:
  ModelBench(CudaDevice& device, bench::CudaReport& report, const Model& model)
      : device_(device), report_(report), m_(model) {
    experts_ = {random_experts(device, m_, 2 * m_.inter, m_.in), random_experts(device, m_, m_.out, m_.inter)};
    allow_plan(device, m_.name, m_.experts);
    for (const ExpertTiles& side : {experts_.gate_up, experts_.down}) allow_few(device, m_.name, side);
    allow_many(m_.format);
    const int64_t pairs = kMostTokens * m_.top_k;
    x_ = random_array<float>(device, kMostTokens * m_.in);
    rounded_ = random_array<uint16_t>(device, kMostTokens * experts_.gate_up.width());
    h_ = random_array<uint16_t>(device, pairs * experts_.down.width());
    z_ = random_array<float>(device, pairs * m_.out);
    y_ = random_array<float>(device, kMostTokens * m_.out);
    weights_ = random_array<float>(device, pairs);
  }

  void run(size_t which) {
    tokens_ = kTokens[which];
    const double read = 1 - std::pow(1 - static_cast<double>(m_.top_k) / static_cast<double>(m_.experts), tokens_);
    const double touched = read * static_cast<double>(m_.experts);
    const double gate_up = touched * static_cast<double>(2 * m_.inter * m_.in) * m_.bits / 8;
    const double down = touched * static_cast<double>(m_.inter * m_.out) * m_.bits / 8;
    route(bench::rotation(device_, static_cast<int64_t>(gate_up), 16));
    StepView step;
    step.rows = tokens_;
    device_.stage(step);
    const double products = static_cast<double>(tokens_ * m_.top_k) * static_cast<double>(m_.inter);
    line("plan", 0, 0, 0, [](const ExpertStep& step) { step.plan(); });
    line("gate up", gate_up, 4 * products * static_cast<double>(m_.in), m_.peer_gate_up[which],
         [](const ExpertStep& step) { step.gate_up(); });
    line("down", down, 2 * products * static_cast<double>(m_.out), m_.peer_down[which],
         [](const ExpertStep& step) { step.down(); });
    line("sum", 0, 0, 0, [](const ExpertStep& step) { step.sum(); });
    line("whole", gate_up + down, 2 * products * static_cast<double>(2 * m_.in + m_.out), 0,
         [](const ExpertStep& step) {
           step.plan();
           step.gate_up();
           step.down();
           step.sum();
         });
  }

 private:
  void route(int sets) {
    while (static_cast<int>(sets_.size()) < sets) {
      const int64_t pairs = kMostTokens * m_.top_k;
      MoeArgs args{.in = m_.in, .inter = m_.inter, .out = m_.out, .top_k = m_.top_k, .act = m_.act};
      args.routed_before = true;  // as in models, where a shared expert comes between
      args.x = x_;
      args.x_stride = m_.in;
      args.ids = device_.allocate_array<int32_t>(pairs);
      args.weights = weights_;
      args.y = y_;
      args.y_stride = m_.out;
      const PairPlan plan{device_.allocate_array<int32_t>(1), device_.allocate_array<PairTile>(pairs),
                          device_.allocate_array<int32_t>(pairs)};
      sets_.push_back({args, {plan, rounded_, h_, z_}});
    }
    sets_in_use_ = sets;
    std::mt19937 random(1);
    std::vector<int32_t> all(static_cast<size_t>(m_.experts)), ids;
    for (size_t e = 0; e < all.size(); ++e) all[e] = static_cast<int32_t>(e);
    for (int set = 0; set < sets; ++set) {
      ids.clear();
      for (int32_t t = 0; t < tokens_; ++t) {
        for (size_t k = 0; k < static_cast<size_t>(m_.top_k); ++k)
          std::swap(all[k], all[k + random() % (all.size() - k)]);
        ids.insert(ids.end(), all.begin(), all.begin() + m_.top_k);
        std::sort(ids.end() - m_.top_k, ids.end());
      }
      device_.to_device(const_cast<int32_t*>(sets_[static_cast<size_t>(set)].args.ids), ids.data(),
                        static_cast<int64_t>(ids.size()) * 4);
    }
  }

  template <class Call>
  void line(const char* what, double bytes, double flops, double peer_us, Call call) {
    const bench::CudaTiming timing = bench::time_calls(device_, {.sets = sets_in_use_}, [&](int i) {
      const Set& set = sets_[static_cast<size_t>(i)];
      call(ExpertStep(device_, tokens_, set.args, m_.experts, experts_, set.buffers));
    });
    bench::BenchRow row{.what = concat("moe ", what, " ", m_.name),
                        .shape = concat("tokens=", tokens_),
                        .us = timing.us,
                        .bytes = static_cast<int64_t>(bytes),
                        .flops = flops,
                        .bar_us = bytes > 0 ? kMostOfBar * (2 + bytes / kReadBandwidth) : 0};
    report_.add(row);
    if (peer_us == 0) return;
    row.us = peer_us;
    row.by = "torch (table)";
    report_.add(row);
  }

  CudaDevice& device_;
  bench::CudaReport& report_;
  Model m_;
  TiledExperts experts_;
  float *x_, *z_, *y_, *weights_;
  uint16_t *rounded_, *h_;
  std::vector<Set> sets_;
  int sets_in_use_ = 0;
  int32_t tokens_ = 0;
};

constexpr Model kModels[] = {
    {"kimi-linear bf16",
     TileFormat::kBf16,
     256,
     8,
     2304,
     1024,
     2304,
     16,
     {},
     {41.94, 113.48, 351.48, 701.34, 782.03, 765.05, 740.65},
     {26.37, 66.32, 197.31, 374.89, 422.12, 400.09, 418.26}},
    {"kimi-linear mxfp4", TileFormat::kMxfp4, 256, 8, 2304, 1024, 2304, 4.25, {}, {}, {}},
    {"kimi-linear q4_0", TileFormat::kQ4_0, 256, 8, 2304, 1024, 2304, 4.5, {}, {}, {}},
    {"kimi-k3 mxfp4", TileFormat::kMxfp4, 896, 16, 3584, 3072, 3584, 4.25, {ElementwiseKind::kSitu, 4, 25}, {}, {}},
};

}  // namespace
}  // namespace weir

// Arguments, optional: part of a model's name, rows of a step.
int main(int argc, char** argv) {
  using namespace weir;
  if (const std::string why = why_no_cuda(); !why.empty()) {
    std::printf("no GPU: %s\n", why.c_str());
    return 77;
  }
  for (const Model& model : kModels) {
    if (argc > 1 && std::string(model.name).find(argv[1]) == std::string::npos) continue;
    const std::unique_ptr<CudaDevice> device = open_cuda();
    bench::CudaReport report(*device);
    ModelBench bench(*device, report, model);
    for (size_t i = 0; i < std::size(kTokens); ++i) {
      if (argc <= 2 || std::atoi(argv[2]) == kTokens[i]) bench.run(i);
    }
  }
}
