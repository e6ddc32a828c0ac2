// Time and bandwidth of the short convolution: decode and prompts at the width of Kimi K3 (q, k and v of 96 heads x
// 128).
//   short_conv_bench [threads] [kernels]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "device/roof.h"
#include "ops/short_conv/short_conv.h"

int main(int argc, char** argv) {
  using namespace weir;
  CpuDevice device(argc > 1 ? std::atoi(argv[1]) : default_threads(), parse_kernel_set(argc > 2 ? argv[2] : "auto"));
  const double roof = measure_read_bandwidth(device);
  std::printf("%s, %d threads: read roof %.1f GB/s\n", std::string(kernel_set_name(device.kernels())).c_str(),
              device.threads(), roof);
  constexpr int64_t kChannels = 3 * 96 * 128, kTaps = 4, kRows = 512, kRowBytes = kChannels * 4;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> weight(kChannels * kTaps, 0.3f), x(kRows * kChannels), y(x.size());
  for (float& value : x) value = normal(random);
  Mapping pages(kRows / 16 * 16 * kRowBytes);
  const auto op = bind_short_conv(device, "conv",
                                  {.channels = kChannels,
                                   .taps = kTaps,
                                   .weight = weight.data(),
                                   .journal = {.row_bytes = kRowBytes},
                                   .window = {.bytes = (kTaps - 1) * kRowBytes},
                                   .x = x.data(),
                                   .x_stride = kChannels,
                                   .y = y.data(),
                                   .y_stride = kChannels});
  const PoolView pool{pages.data(), 16 * kRowBytes};
  for (int32_t rows : {1, 16, 512}) {
    // As many sequences of one row, each at position 8 of its page, or one prompt whose inputs are not kept.
    for (bool prompt : {false, true}) {
      if (rows == (prompt ? 1 : 512)) continue;
      std::vector<std::vector<PageId>> tables(static_cast<size_t>(prompt ? 1 : rows));
      std::vector<SpanView> spans;
      std::vector<int32_t> row_spans;
      for (int32_t s = 0; s < static_cast<int32_t>(tables.size()); ++s) {
        std::vector<PageId>& table = tables[static_cast<size_t>(s)];
        table.assign(static_cast<size_t>(rows / 16 + 1), prompt ? kNoPage : PageId(static_cast<uint32_t>(s)));
        SpanView span{.first_row = s, .rows = prompt ? rows : 1, .first_position = prompt ? 0 : 8};
        span.pages[0] = table;
        spans.push_back(span);
      }
      for (int32_t r = 0; r < rows; ++r) row_spans.push_back(prompt ? 0 : r);
      const StepView step{.rows = rows, .spans = spans, .row_spans = row_spans, .page_pools = {&pool, 1}};
      double best = 1e9;
      for (int i = 0; i < 50; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        op->run(step);
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        if (seconds < best) best = seconds;
      }
      // x and y; three earlier inputs and one stored row for each sequence that decodes.
      const double bytes = static_cast<double>(rows) * kRowBytes * (prompt ? 2 : 6);
      std::printf("%-6s %4d rows x %lld channels %9.1f us  %6.1f GB/s (%.0f %%)\n", prompt ? "prompt" : "decode", rows,
                  static_cast<long long>(kChannels), best * 1e6, bytes / best * 1e-9, 100 * bytes / best * 1e-9 / roof);
    }
  }
}
