#include <gtest/gtest.h>

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

}  // namespace
}  // namespace weir::cuda
