// The op has the bits of those that it stands for, on the same device.
#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/attention/attention_inputs.h"
#include "ops/attention/attention_testing.h"
#include "ops/cuda_op.h"
#include "ops/norm/norm.h"
#include "ops/split/split.h"
#include "tests/support/cuda_case.h"

namespace weir {
namespace {

using testing::DeviceBuffer;

struct Case {
  const char* name;
  int64_t heads, kv_heads, head_dim, pairs;
  RopePairing pairing = RopePairing::kHalfSplit;
  bool qk_norm = false, v_norm = false, v_is_k = false, gate = false;
  StateDtype dtype = StateDtype::kBf16;
  int64_t spare = 0;  // numbers behind each row: strides that quads don't divide
};

class AttentionInputsOnCuda : public testing::CudaCaseWith<Case> {};

std::vector<float> random_floats(std::mt19937& random, int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  for (float& f : x) f = std::normal_distribution<float>()(random);
  return x;
}

TEST_P(AttentionInputsOnCuda, HaveTheBitsOfTheOpsOneByOne) {
  const Case& c = GetParam();
  constexpr int32_t kSpareRows = 3;  // that the bounds allow for and the step doesn't have
  std::mt19937 random(5);
  const int64_t row_bytes = c.kv_heads * c.head_dim * state_dtype_bytes(c.dtype) + 16;
  PagedSequences pages(random, 2, 200, 2 * row_bytes * kPagePositions);
  const StepView step = pages.step({{0, 0, 7}, {1, 130, 5}});
  const int64_t rows = step.rows, all = rows + kSpareRows, q_width = c.heads * c.head_dim;
  const int64_t q_stride = q_width + c.spare, from_stride = (c.gate ? 2 : 1) * q_width + c.spare;
  const int64_t kv_stride = c.kv_heads * c.head_dim + c.spare;
  const std::vector<float> from = random_floats(random, all * from_stride), k = random_floats(random, all * kv_stride),
                           v = random_floats(random, all * kv_stride);
  const std::vector<float> q_norm = random_floats(random, c.head_dim), k_norm = random_floats(random, c.head_dim);
  const DeviceBuffer<float> cos(device(), random_floats(random, all * c.pairs + 1)),
      sin(device(), random_floats(random, all * c.pairs + 1));
  const PageField key{.group = 0, .offset = 0, .row_bytes = row_bytes};
  const PageField value{.group = 1, .offset = row_bytes * kPagePositions, .row_bytes = row_bytes};
  struct Run {
    DeviceBuffer<float> from, k, v, q, gate;
    DeviceBuffer<std::byte> pool;
  };
  const auto prepare = [&] {
    return Run{.from{device(), from},
               .k{device(), k},
               .v{device(), v},
               .q{device(), all * q_stride},
               .gate{device(), all * q_stride},
               .pool{device(), static_cast<int64_t>(pages.bytes().size())}};
  };
  StepBounds bounds = CudaDevice::bounds_of(step);
  bounds.rows += kSpareRows;
  const auto run = [&](const Run& r, auto bind) {
    pages.set_pool(r.pool.data());
    device().stage(pages.step({{0, 0, 7}, {1, 130, 5}}));
    for (const std::unique_ptr<BoundOp>& op : bind()) static_cast<CudaOp&>(*op).enqueue(bounds);
    ASSERT_TRUE(device().synchronize());
  };

  const Run apart = prepare();
  run(apart, [&] {
    std::vector<std::unique_ptr<BoundOp>> ops;
    float* q = c.gate ? apart.q.data() : apart.from.data();
    const auto norm = [&](int64_t heads, const float* weight, float* x, int64_t stride, float* y) {
      ops.push_back(bind_norm(device(), "norm",
                              {.kind = weight != nullptr ? NormKind::kRms : NormKind::kRmsPlain,
                               .groups = heads,
                               .size = c.head_dim,
                               .eps = 1e-5f,
                               .weight = weight,
                               .x = x,
                               .x_stride = stride,
                               .y = y,
                               .y_stride = stride}));
    };
    const auto rotate = [&](int64_t heads, float* x, int64_t stride) {
      if (c.pairs == 0) return;
      ops.push_back(bind_rope(device(), "rope",
                              {.pairing = c.pairing,
                               .heads = heads,
                               .head_stride = c.head_dim,
                               .pairs = c.pairs,
                               .cos = cos.data(),
                               .sin = sin.data(),
                               .x = x,
                               .x_stride = stride}));
    };
    const auto write = [&](const PageField& field, const float* x) {
      ops.push_back(bind_kv_write(
          device(), "write",
          {.dtype = c.dtype, .field = field, .size = c.kv_heads * c.head_dim, .x = x, .x_stride = kv_stride}));
    };
    if (c.gate) {
      ops.push_back(bind_split(device(), "split",
                               {.groups = c.heads,
                                .parts = {{c.head_dim, q, q_stride}, {c.head_dim, apart.gate.data(), q_stride}},
                                .x = apart.from.data(),
                                .x_stride = from_stride}));
    }
    if (c.qk_norm) norm(c.heads, q_norm.data(), q, q_stride, q);
    rotate(c.heads, q, q_stride);
    if (c.kv_heads == 0) return ops;
    if (c.v_norm) norm(c.kv_heads, nullptr, (c.v_is_k ? apart.k : apart.v).data(), kv_stride, apart.v.data());
    if (c.qk_norm) norm(c.kv_heads, k_norm.data(), apart.k.data(), kv_stride, apart.k.data());
    rotate(c.kv_heads, apart.k.data(), kv_stride);
    write(key, apart.k.data());
    write(value, apart.v.data());
    return ops;
  });

  const Run whole = prepare();
  run(whole, [&] {
    std::vector<std::unique_ptr<BoundOp>> ops;
    ops.push_back(bind_attention_inputs(device(), "inputs",
                                        {.heads = c.heads,
                                         .kv_heads = c.kv_heads,
                                         .head_dim = c.head_dim,
                                         .eps = 1e-5f,
                                         .q_norm = c.qk_norm ? q_norm.data() : nullptr,
                                         .k_norm = c.qk_norm ? k_norm.data() : nullptr,
                                         .v_norm = c.v_norm,
                                         .pairs = c.pairs,
                                         .pairing = c.pairing,
                                         .cos = cos.data(),
                                         .sin = sin.data(),
                                         .q_from = whole.from.data(),
                                         .q_from_stride = from_stride,
                                         .k = whole.k.data(),
                                         .k_stride = kv_stride,
                                         .v = (c.v_is_k ? whole.k : whole.v).data(),
                                         .v_stride = kv_stride,
                                         .q = (c.gate ? whole.q : whole.from).data(),
                                         .q_stride = q_stride,
                                         .gate = c.gate ? whole.gate.data() : nullptr,
                                         .gate_stride = q_stride,
                                         .dtype = c.dtype,
                                         .key = key,
                                         .value = value}));
    return ops;
  });

  const auto bits = [](const DeviceBuffer<float>& buffer) {
    std::vector<uint32_t> words;
    for (const float f : buffer.values()) words.push_back(std::bit_cast<uint32_t>(f));
    return words;
  };
  EXPECT_EQ(bits(c.gate ? whole.q : whole.from), bits(c.gate ? apart.q : apart.from));
  EXPECT_EQ(bits(whole.gate), bits(apart.gate));
  EXPECT_EQ(whole.pool.values(), apart.pool.values());
  EXPECT_EQ(c.kv_heads > 0, whole.pool.values() != std::vector<std::byte>(pages.bytes().size(), std::byte{0xff}));
}

constexpr Case kCases[] = {
    {.name = "llama", .heads = 6, .kv_heads = 2, .head_dim = 64, .pairs = 32},
    {.name = "gguf",
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 128,
     .pairs = 64,
     .pairing = RopePairing::kInterleavedToHalf},
    {.name = "partly", .heads = 3, .kv_heads = 3, .head_dim = 80, .pairs = 10, .pairing = RopePairing::kInterleaved},
    {.name = "qwen", .heads = 5, .kv_heads = 1, .head_dim = 256, .pairs = 32, .qk_norm = true, .gate = true},
    {.name = "gemma",
     .heads = 2,
     .kv_heads = 2,
     .head_dim = 512,
     .pairs = 256,
     .qk_norm = true,
     .v_norm = true,
     .v_is_k = true,
     .dtype = StateDtype::kF32},
    {.name = "crooked",
     .heads = 3,
     .kv_heads = 2,
     .head_dim = 37,
     .pairs = 18,
     .qk_norm = true,
     .v_norm = true,
     .dtype = StateDtype::kF16,
     .spare = 3},
    {.name = "shared", .heads = 4, .kv_heads = 0, .head_dim = 64, .pairs = 32, .qk_norm = true},
    {.name = "unrotated", .heads = 1, .kv_heads = 1, .head_dim = 64, .pairs = 0},
};
INSTANTIATE_TEST_SUITE_P(Families, AttentionInputsOnCuda, ::testing::ValuesIn(kCases),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(AttentionInputs, AreRefusedWhereTheyDontFit) {
  CpuDevice cpu(1, KernelSet::kReference);
  float x[64] = {};
  AttentionInputsArgs args{.heads = 1,
                           .head_dim = 32,
                           .q_from = x,
                           .q_from_stride = 64,
                           .q = x,
                           .q_stride = 32,
                           .gate = x,
                           .gate_stride = 32};
  const auto refused = [&](const char* expected) {
    try {
      bind_attention_inputs(cpu, "layer.inputs", args);
      ADD_FAILURE() << "bound";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  };
  refused("layer.inputs: attention inputs: q can't be taken apart in place");
  args.q_from_stride = 63;
  refused("expected rows of projected q at least 64 numbers apart, found 63");
  args.gate = nullptr;
  refused("only GPUs have them as one op");
  args.head_dim = 513;
  refused("expected heads of 1 to 512 elements");
  args.head_dim = 32;
  args.pairs = 17;
  refused("expected at most 16 rotated pairs");
}

}  // namespace
}  // namespace weir
