#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "device/cuda/ptx.h"
#include "device/cuda/testing.h"

namespace weir::cuda {
namespace {

using Wgmma = KernelTest;

constexpr int kK = 64;

// How an operand of kRows x 64 lies in shared memory, as wgmma_descriptor.h describes it.
template <int kRows, ptx::Major kMajor, ptx::Swizzle kSwizzle>
struct Layout {
  static constexpr bool kSwizzled = kSwizzle == ptx::Swizzle::k128;
  static constexpr bool kByK = kMajor == ptx::Major::kK;
  static constexpr int kRounded = (kRows + 63) / 64 * 64;
  static constexpr int kBytes = kRounded * kK * 2;
  static constexpr int kLeading = kByK ? 128 : kSwizzled ? kK / 8 * 1024 : kRounded / 8 * 128;
  static constexpr int kStride = kByK || kSwizzled ? 1024 : 128;
  static constexpr int kStep = kByK ? (kSwizzled ? 32 : 256) : kSwizzled ? 2048 : 2 * kLeading;  // of 16 k

  static __device__ int offset(int row, int k) {
    if (kByK && !kSwizzled) return row / 8 * kStride + k / 8 * kLeading + row % 8 * 16 + k % 8 * 2;
    if (kByK)
      return row / 8 * kStride + static_cast<int>(ptx::swizzle128(static_cast<uint32_t>(row % 8 * 128 + k * 2)));
    if (!kSwizzled) return k / 8 * kLeading + row / 8 * kStride + k % 8 * 16 + row % 8 * 2;
    return row / 64 * kLeading + k / 8 * kStride +
           static_cast<int>(ptx::swizzle128(static_cast<uint32_t>(k % 8 * 128 + row % 64 * 2)));
  }
  static __device__ uint64_t descriptor(const unsigned char* operand, int step) {
    return ptx::wgmma_descriptor(ptx::shared_address(operand) + static_cast<uint32_t>(step * kStep), kLeading, kStride,
                                 kSwizzle);
  }
};

template <class Where, int kRows>
__device__ void fill(unsigned char* operand, const uint16_t* values) {
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kK; i += static_cast<int>(blockDim.x)) {
    *reinterpret_cast<uint16_t*>(operand + Where::offset(i / kK, i % kK)) = values[i];
  }
}

template <int kN, bool kSharedA, ptx::Major kMajorA, ptx::Major kMajorB, ptx::Swizzle kSwizzle>
__global__ void __launch_bounds__(128) product_kernel(float* y, const uint16_t* a, const uint16_t* b) {
  using LayoutA = Layout<64, kMajorA, kSwizzle>;
  using LayoutB = Layout<kN, kMajorB, kSwizzle>;
  WEIR_DYNAMIC_SHARED(unsigned char, shared);
  unsigned char* shared_b = shared + LayoutA::kBytes;
  fill<LayoutA, 64>(shared, a);
  fill<LayoutB, kN>(shared_b, b);
  ptx::fence_async_shared();
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int g = lane / 4, c = lane % 4;
  uint32_t fragments[kK / 16][4];
  for (int step = 0; step < kK / 16; ++step) {
    for (int r = 0; r < 4; ++r) {
      const int row = 16 * warp + g + r % 2 * 8, k = 16 * step + 2 * c + r / 2 * 8;
      fragments[step][r] = a[row * kK + k] | static_cast<uint32_t>(a[row * kK + k + 1]) << 16;
    }
  }
  float d[kN / 2];
  for (int i = 0; i < kN / 2; ++i) d[i] = 1000.f;  // the first step must not add to it
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kK / 16; ++step) {
    if constexpr (kSharedA) {
      ptx::wgmma_bf16_shared<kN, kMajorA, kMajorB>(d, LayoutA::descriptor(shared, step),
                                                   LayoutB::descriptor(shared_b, step), step > 0);
    } else {
      ptx::wgmma_bf16<kN, kMajorB>(d, fragments[step], LayoutB::descriptor(shared_b, step), step > 0);
    }
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin<kN / 2>(d);
  for (int j = 0; j < kN / 2; ++j) {
    const int row = 16 * warp + g + j % 4 / 2 * 8, column = j / 4 * 8 + 2 * c + j % 2;
    y[row * kN + column] = d[j];
  }
}

std::vector<uint16_t> operand(int rows, uint32_t seed) {
  std::vector<uint16_t> values;
  for (uint32_t i = 0; i < static_cast<uint32_t>(rows * kK); ++i) {
    values.push_back(f32_to_bf16(static_cast<float>(small_integer(i + seed))));
  }
  return values;
}

template <int kN, bool kSharedA, ptx::Major kMajorA, ptx::Major kMajorB, ptx::Swizzle kSwizzle>
void check_product(StreamOwner& owner) {
  const DeviceArray<uint16_t> a(operand(64, 11)), b(operand(kN, 5000));
  DeviceArray<float> out(64 * kN);
  const int bytes = Layout<64, kMajorA, kSwizzle>::kBytes + Layout<kN, kMajorB, kSwizzle>::kBytes;
  launch(owner, {.grid = 1, .block = 128, .shared_bytes = bytes},
         product_kernel<kN, kSharedA, kMajorA, kMajorB, kSwizzle>, out.device(), a.device(), b.device());
  const std::vector<float>& y = out.host();
  int wrong = 0;
  for (uint32_t row = 0; row < 64; ++row) {
    for (uint32_t column = 0; column < static_cast<uint32_t>(kN); ++column) {
      int sum = 0;
      for (uint32_t k = 0; k < kK; ++k) {
        sum += small_integer(row * kK + k + 11) * small_integer(column * kK + k + 5000);
      }
      wrong += y[row * kN + column] != static_cast<float>(sum);
    }
  }
  EXPECT_EQ(wrong, 0) << "N " << kN << ", A in " << (kSharedA ? "shared memory" : "registers") << ", A "
                      << (kMajorA == ptx::Major::kK ? "K" : "MN") << "-major, B "
                      << (kMajorB == ptx::Major::kK ? "K" : "MN") << "-major, swizzle " << static_cast<int>(kSwizzle);
}

template <int kN>
void check_width(StreamOwner& owner) {
  using enum ptx::Major;
  using enum ptx::Swizzle;
  check_product<kN, false, kK, kK, kNone>(owner);
  check_product<kN, false, kK, kK, k128>(owner);
  check_product<kN, true, kK, kK, kNone>(owner);
  check_product<kN, true, kK, kK, k128>(owner);
}

TEST_F(Wgmma, EveryWidth) {
  check_width<8>(owner);
  check_width<16>(owner);
  check_width<24>(owner);
  check_width<32>(owner);
  check_width<48>(owner);
  check_width<64>(owner);
  check_width<96>(owner);
  check_width<128>(owner);
  check_width<192>(owner);
  check_width<256>(owner);
}

TEST_F(Wgmma, OperandsWithContiguousRows) {
  using enum ptx::Major;
  using enum ptx::Swizzle;
  check_product<64, false, kK, kMN, kNone>(owner);
  check_product<64, false, kK, kMN, k128>(owner);
  check_product<128, false, kK, kMN, kNone>(owner);
  check_product<128, false, kK, kMN, k128>(owner);
  check_product<192, false, kK, kMN, k128>(owner);
  check_product<32, false, kK, kMN, k128>(owner);
  check_product<128, true, kMN, kK, k128>(owner);
  check_product<128, true, kMN, kMN, k128>(owner);
  check_product<64, true, kMN, kMN, kNone>(owner);
}

// --- one order of sums in every shape: a row's bits don't depend on the kernel that computes it

// The same product by m16n8k16, a warp for 16 rows.
__global__ void __launch_bounds__(128)
    warp_product_kernel(float* y, const uint16_t* a, const uint16_t* b, int columns) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int g = lane / 4, c = lane % 4;
  const auto pair = [](const uint16_t* x) { return x[0] | static_cast<uint32_t>(x[1]) << 16; };
  for (int first = 0; first < columns; first += 8) {
    float d[4] = {};
    for (int k = 2 * c; k < kK; k += 16) {
      const uint16_t* row = a + (16 * warp + g) * kK + k;
      const uint16_t* column = b + (first + g) * kK + k;
      const uint32_t fragment[4] = {pair(row), pair(row + 8 * kK), pair(row + 8), pair(row + 8 * kK + 8)};
      ptx::mma_bf16(d, fragment, pair(column), pair(column + 8));
    }
    for (int i = 0; i < 4; ++i) y[(16 * warp + g + i / 2 * 8) * columns + first + 2 * c + i % 2] = d[i];
  }
}

// Of many magnitudes: sums in another order, or cut elsewhere, have other bits.
std::vector<uint16_t> rough_operand(int rows, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> values;
  for (int i = 0; i < rows * kK; ++i) {
    values.push_back(f32_to_bf16(normal(random) * std::exp2(static_cast<float>(random() % 12))));
  }
  return values;
}

template <int kN, bool kSharedA, ptx::Major kMajorB>
void check_bits(StreamOwner& owner, int& rough) {
  constexpr ptx::Major kByK = ptx::Major::kK;
  constexpr ptx::Swizzle kSwizzle = ptx::Swizzle::k128;
  const std::vector<uint16_t> values_a = rough_operand(64, 3), values_b = rough_operand(kN, 4);
  const DeviceArray<uint16_t> a(values_a), b(values_b);
  DeviceArray<float> out(64 * kN), by_warps(64 * kN);
  const int bytes = Layout<64, kByK, kSwizzle>::kBytes + Layout<kN, kMajorB, kSwizzle>::kBytes;
  launch(owner, {.grid = 1, .block = 128, .shared_bytes = bytes}, product_kernel<kN, kSharedA, kByK, kMajorB, kSwizzle>,
         out.device(), a.device(), b.device());
  launch(owner, {.grid = 1, .block = 128}, warp_product_kernel, by_warps.device(), a.device(), b.device(), kN);
  const std::vector<float>&x = out.host(), &y = by_warps.host();
  EXPECT_EQ(std::memcmp(x.data(), y.data(), x.size() * sizeof(float)), 0) << "N " << kN;
  for (size_t i = 0; i < x.size(); ++i) {
    float descending = 0;
    for (size_t k = kK; k-- > 0;) {
      descending =
          std::fmaf(bf16_to_f32(values_a[i / kN * kK + k]), bf16_to_f32(values_b[i % kN * kK + k]), descending);
    }
    rough += descending != x[i];
  }
}

TEST_F(Wgmma, EveryShapeGivesTheBitsOfTheOthers) {
  using enum ptx::Major;
  int rough = 0;  // how many sums another order would change
  check_bits<8, false, kK>(owner, rough);
  check_bits<16, true, kK>(owner, rough);
  check_bits<24, false, kK>(owner, rough);
  check_bits<32, true, kK>(owner, rough);
  check_bits<48, false, kK>(owner, rough);
  check_bits<64, true, kK>(owner, rough);
  check_bits<96, false, kK>(owner, rough);
  check_bits<128, true, kK>(owner, rough);
  check_bits<128, false, kMN>(owner, rough);
  check_bits<192, true, kK>(owner, rough);
  check_bits<256, false, kK>(owner, rough);
  check_bits<256, true, kK>(owner, rough);
  EXPECT_GT(rough, 1000);
}

}  // namespace
}  // namespace weir::cuda
