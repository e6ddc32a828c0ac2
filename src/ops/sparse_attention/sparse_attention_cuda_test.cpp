#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "ops/attention/attention_testing.h"
#include "ops/cuda_op.h"
#include "ops/sparse_attention/sparse_attention.h"
#include "tests/support/cuda_case.h"

namespace weir {
namespace {

using testing::DeviceBuffer;

struct Shape {
  int64_t heads, key, value, top_k;
  StateDtype dtype;
  Activations activations;
};

class SparseAttentionOnCuda : public testing::CudaCaseWith<Shape> {
 protected:
  static constexpr int64_t kPositions = 620;

  SparseAttentionOnCuda()
      : field_{.offset = 64, .row_bytes = GetParam().key * state_dtype_bytes(GetParam().dtype)},
        pages_(random_, 1, kPositions, kPagePositions * field_.row_bytes + 128) {
    const Shape& s = GetParam();
    for (auto* x : {&keys_, &q_}) {
      x->resize(static_cast<size_t>(kPositions * s.key * (x == &q_ ? s.heads : 1)));
      for (float& f : *x) f = std::normal_distribution<float>()(random_);
    }
    args_.attention = {.heads = s.heads,
                       .kv_heads = 1,
                       .key_dim = s.key,
                       .value_dim = s.value,
                       .scale = 0.1f,
                       .dtype = s.dtype,
                       .key = field_,
                       .value = field_,
                       .q_stride = s.heads * s.key,
                       .out_stride = s.heads * s.value,
                       .max_rows = kPositions,
                       .activations = s.activations};
    args_.top_k = s.top_k;
    args_.workspace = make_sparse_attention_workspace();
  }

  void write(Device& device) {
    const DeviceBuffer<float> there(this->device(), keys_);
    const float* x = device.is_cuda() ? there.data() : keys_.data();
    bind_kv_write(
        device, "keys",
        {.dtype = GetParam().dtype, .field = field_, .size = GetParam().key, .x = x, .x_stride = GetParam().key})
        ->run(pages_.step({{0, 0, kPositions}}));
    EXPECT_TRUE(this->device().synchronize());
  }

  // Rows [first, first + rows), each with up to top_k of the positions that it sees.
  std::vector<float> run(Device& device, int64_t first, int32_t rows) {
    const Shape& s = GetParam();
    std::vector<int32_t> selected(static_cast<size_t>(rows * s.top_k), -1), count;
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<int32_t> all(static_cast<size_t>(first + r + 1));
      std::iota(all.begin(), all.end(), 0);
      std::mt19937 order(static_cast<uint32_t>(first + r));
      std::shuffle(all.begin(), all.end(), order);
      all.resize(std::min(all.size(), static_cast<size_t>(s.top_k)));
      std::sort(all.begin(), all.end());
      std::copy(all.begin(), all.end(), selected.begin() + r * s.top_k);
      count.push_back(static_cast<int32_t>(all.size()));
    }
    SparseAttentionArgs args = args_;
    std::vector<float> q(q_.begin() + first * s.heads * s.key, q_.begin() + (first + rows) * s.heads * s.key);
    std::vector<float> out(static_cast<size_t>(rows * s.heads * s.value), 77.f);
    const DeviceBuffer<float> q_there(this->device(), q), out_there(this->device(), out);
    const DeviceBuffer<int32_t> selected_there(this->device(), selected), count_there(this->device(), count);
    const bool gpu = device.is_cuda();
    args.attention.q = gpu ? q_there.data() : q.data();
    args.attention.out = gpu ? out_there.data() : out.data();
    args.selected = gpu ? selected_there.data() : selected.data();
    args.count = gpu ? count_there.data() : count.data();
    bind_sparse_attention(device, "attention", args)->run(pages_.step({{0, first, rows}}));
    return gpu ? out_there.values() : out;
  }

  std::mt19937 random_{3};
  PageField field_;
  PagedSequences pages_;
  std::vector<float> keys_, q_;
  SparseAttentionArgs args_;
};

TEST_P(SparseAttentionOnCuda, GivesWhatTheCpuGivesAndEachRowAlone) {
  const Shape& s = GetParam();
  CpuDevice cpu(1, KernelSet::kReference);
  std::vector<float> expected;
  if (s.dtype != StateDtype::kBf16) {
    write(cpu);
    expected = run(cpu, 590, 9);
  }
  const DeviceBuffer<std::byte> pool(device(), static_cast<int64_t>(pages_.bytes().size()));
  pages_.set_pool(pool.data());
  write(device());
  const std::vector<float> all = run(device(), 590, 9);
  if (s.activations == Activations::kF32) {
    EXPECT_EQ(all, expected);
  } else if (!expected.empty()) {
    // BF16 has an error of 2^-8 in q, keys, weights and values, of order one.
    for (size_t i = 0; i < all.size(); ++i) ASSERT_NEAR(all[i], expected[i], 0.04) << i;
  }
  for (int64_t r : {0, 4, 8}) {
    const std::vector<float> one = run(device(), 590 + r, 1);
    EXPECT_EQ(std::memcmp(one.data(), all.data() + r * s.heads * s.value, one.size() * 4), 0) << r;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, SparseAttentionOnCuda,
                         ::testing::Values(Shape{5, 36, 32, 300, StateDtype::kF16, Activations::kF32},
                                           Shape{20, 48, 32, 300, StateDtype::kF16, Activations::kAuto},
                                           Shape{40, 576, 512, 550, StateDtype::kBf16, Activations::kAuto}),
                         [](const auto& param) { return "shape" + std::to_string(param.index); });

}  // namespace
}  // namespace weir
