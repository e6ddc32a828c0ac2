// Time of the KDA gates for one row, sixteen and a prompt, at the dimensions of Kimi K3.
//   gate_bench [threads] [kernels]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "device/roof.h"
#include "ops/gate/gate.h"

int main(int argc, char** argv) {
  using namespace weir;
  CpuDevice device(argc > 1 ? std::atoi(argv[1]) : default_threads(), parse_kernel_set(argc > 2 ? argv[2] : "auto"));
  const double roof = measure_read_bandwidth(device);
  std::printf("%s, %d threads: read roof %.1f GB/s\n", std::string(kernel_set_name(device.kernels())).c_str(),
              device.threads(), roof);
  constexpr int64_t kHeads = 96, kDim = 128, kWidth = kHeads * kDim, kRows = 1024;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> a(kHeads, 1.5f), bias(kWidth, 0.1f), f(kRows * kWidth), logit(kRows * kHeads), g(f), beta(logit);
  for (float& x : f) x = normal(random);
  for (float& x : logit) x = normal(random);
  for (bool bounded : {true, false}) {
    const auto op = bind_kda_gate(device, "gate",
                                  {.bounded = bounded,
                                   .heads = kHeads,
                                   .key_dim = kDim,
                                   .a = a.data(),
                                   .dt_bias = bias.data(),
                                   .f = f.data(),
                                   .f_stride = kWidth,
                                   .beta_logit = logit.data(),
                                   .beta_logit_stride = kHeads,
                                   .g = g.data(),
                                   .g_stride = kWidth,
                                   .beta = beta.data(),
                                   .beta_stride = kHeads});
    for (int32_t rows : {1, 16, 1024}) {
      double best = 1e9;
      for (int i = 0; i < 50; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        op->run(StepView{.rows = rows});
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        if (seconds < best) best = seconds;
      }
      const double elements = static_cast<double>(rows * kWidth);
      std::printf("%-9s %5d rows x 96 x 128 %9.1f us  %6.2f ns a vector of 16  %5.1f GB/s (%.0f %%)\n",
                  bounded ? "bounded" : "unbounded", rows, best * 1e6, best * 1e9 / (elements / 16),
                  8 * elements / best * 1e-9, 800 * elements / best * 1e-9 / roof);
    }
  }
}
