// Time, bandwidth and arithmetic of the delta rule: decode (one row a sequence, at the middle of a chunk and where it
// crosses into the next) and prompts, at the dimensions of Kimi K3 (96 heads), Kimi Linear (32 heads) and, with the
// scalar decay, Qwen3-Next (32 heads on 16 key heads).
//   delta_rule_bench [threads] [kernels]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "device/roof.h"
#include "ops/delta_rule/delta_rule_testing.h"

namespace weir::test {
namespace {

struct Roof {
  double gb_s;
  double gflop_s;
};

// Best of several runs after one to warm up, in seconds.
double best_time(BoundOp& op, const StepView& step) {
  double best = 1e9, total = 0;
  for (int i = 0; i < 200 && (i < 4 || total < 1); ++i) {
    const auto begin = std::chrono::steady_clock::now();
    op.run(step);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (i > 0 && seconds < best) best = seconds;
    total += seconds;
  }
  return best;
}

void report(const std::string& what, double seconds, double bytes, double flops, const Roof& roof) {
  std::printf("%-44s %10.1f us  %7.1f GB/s %5.1f %%  %7.1f GFLOP/s %5.1f %%\n", what.c_str(), seconds * 1e6,
              bytes / seconds * 1e-9, 100 * bytes / seconds * 1e-9 / roof.gb_s, flops / seconds * 1e-9,
              100 * flops / seconds * 1e-9 / roof.gflop_s);
}

std::string_view name(DecayKind decay) {
  return decay == DecayKind::kBounded ? "bounded" : decay == DecayKind::kUnbounded ? "unbounded" : "scalar";
}

// `rows` rows before the measured step bring every sequence to a position and leave it a real anchor.
void decode(CpuDevice& device, DecayKind decay, int64_t heads, int64_t sequences, int64_t before, const Roof& roof) {
  const Shape shape{decay, heads, 128, 128, decay == DecayKind::kScalar ? heads / 2 : 0};
  World world(device, shape, sequences, before + 2, sequences * before, false);
  const Rows rows = random_rows(shape, before + 1, Gates::kMild, 1);
  for (int64_t s = 0; s < sequences; ++s) world.sequence(s).rows = rows;
  world.step(std::vector<int64_t>(static_cast<size_t>(sequences), before), Anchors::kLast);
  const StepView& step = world.stage(std::vector<int64_t>(static_cast<size_t>(sequences), 1), Anchors::kLast);
  const Cost cost = world.op().cost(1, before);
  const double seconds = best_time(world.op(), step);
  report(concat("decode ", name(decay), " ", heads, " heads x ", sequences, before % 16 == 0 ? ", crossing" : ", row ",
                before % 16 == 0 ? "" : std::to_string(before % 16)),
         seconds, static_cast<double>(cost.state_bytes * sequences), cost.flops * static_cast<double>(sequences), roof);
}

void prompt(CpuDevice& device, DecayKind decay, int64_t heads, int64_t rows, const Roof& roof) {
  const Shape shape{decay, heads, 128, 128, decay == DecayKind::kScalar ? heads / 2 : 0};
  World world(device, shape, 1, rows + 1, rows, false);
  world.sequence(0).rows = random_rows(shape, rows, Gates::kMild, 1);
  const StepView& step = world.stage({rows}, Anchors::kLast, true);
  const double seconds = best_time(world.op(), step);
  // q, k, g in, v in, out
  const double bytes = static_cast<double>(rows * heads * 5 * 128) * 4;
  report(concat("prompt ", name(decay), " ", heads, " heads x ", rows, " rows"), seconds, bytes,
         world.op().cost(static_cast<int32_t>(rows), rows - 1).flops, roof);
}

}  // namespace
}  // namespace weir::test

int main(int argc, char** argv) {
  using namespace weir;
  using namespace weir::test;
  const int threads = argc > 1 ? std::atoi(argv[1]) : default_threads();
  CpuDevice device(threads, parse_kernel_set(argc > 2 ? argv[2] : "auto"));
  const Roof roof{measure_read_bandwidth(device, int64_t{512} << 20), measure_fma_peak(device)};
  std::printf("%s, %d threads: read roof %.1f GB/s, FMA peak %.1f GFLOP/s\n",
              std::string(kernel_set_name(device.kernels())).c_str(), threads, roof.gb_s, roof.gflop_s);
  for (int64_t heads : {int64_t{32}, int64_t{96}}) {
    for (int64_t sequences : {1, 8, 64}) {
      for (int64_t before : {17, 24, 31, 32}) decode(device, DecayKind::kBounded, heads, sequences, before, roof);
    }
    decode(device, DecayKind::kUnbounded, heads, 8, 24, roof);
    decode(device, DecayKind::kUnbounded, heads, 8, 32, roof);
    for (DecayKind decay : {DecayKind::kBounded, DecayKind::kUnbounded}) {
      for (int64_t rows : {512, 2048}) prompt(device, decay, heads, rows, roof);
    }
  }
  for (int64_t sequences : {1, 8}) {
    for (int64_t before : {24, 32}) decode(device, DecayKind::kScalar, 32, sequences, before, roof);
  }
  for (int64_t rows : {512, 2048}) prompt(device, DecayKind::kScalar, 32, rows, roof);
}
