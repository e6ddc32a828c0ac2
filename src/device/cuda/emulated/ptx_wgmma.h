// wgmma on the CPU: each warp of the group computes its 16 rows at once. Included by ptx.h.
#pragma once

#include "device/cuda/wgmma_descriptor.h"

namespace weir::cuda::ptx {

inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int kPending>
void wgmma_wait() {}
template <int kCount>
void pin(float*) {}
template <int kCount>
void pin(uint32_t*) {}

namespace detail {

// Element (row, k) of an operand of 16 k.
inline float operand_element(uint64_t descriptor, Major major, int row, int k) {
  const uint32_t start = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
  const uint32_t leading = static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4;
  const uint32_t stride = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
  const bool swizzled = descriptor >> 62 == static_cast<uint64_t>(Swizzle::k128);
  const uint32_t r = static_cast<uint32_t>(row), c = static_cast<uint32_t>(k);
  uint32_t address = start;
  if (major == Major::kK) {
    address += r / 8 * stride + (swizzled ? r % 8 * 128 + c * 2 : c / 8 * leading + r % 8 * 16 + c % 8 * 2);
  } else if (swizzled) {
    address += r / 64 * leading + c / 8 * stride + c % 8 * 128 + r % 64 * 2;
  } else {
    address += r / 8 * stride + c / 8 * leading + c % 8 * 16 + r % 8 * 2;
  }
  if (swizzled) address = swizzle128(address);
  if (address >= emulated::kSharedBytes) {
    emulated::fail_kernel("a wgmma operand lies outside the dynamic shared memory");
  }
  uint16_t bits;
  std::memcpy(&bits, emulated::dynamic_shared() + address, sizeof bits);
  return bf16_to_f32(bits);
}

template <int kN, Major kMajorB>
struct Wgmma {
  float* d;
  const uint32_t* a;
  uint64_t b;
  bool accumulate;

  static void run(Wgmma* const* lanes, uint32_t mask) {
    if (mask != kAllLanes) emulated::fail_kernel("wgmma needs all lanes of a warp");
    const uint32_t* registers[32];
    for (int lane = 0; lane < 32; ++lane) registers[lane] = lanes[lane]->a;
    double a[16][16];
    gather_a(a, registers, true);
    for (int column = 0; column < kN; ++column) {
      double b[16];
      for (int k = 0; k < 16; ++k) b[k] = operand_element(lanes[0]->b, kMajorB, column, k);
      for (int row = 0; row < 16; ++row) {
        const Wgmma& lane = *lanes[row % 8 * 4 + column % 8 / 2];
        float& d = lane.d[column / 8 * 4 + row / 8 * 2 + column % 2];
        d = product_step(a[row], b, lane.accumulate ? d : 0.f);
      }
    }
  }
};

// This lane's A fragment of an operand in shared memory.
inline void load_fragment(uint32_t* a, uint64_t descriptor, Major major) {
  const int lane = emulated::current->lane;
  const int warp = static_cast<int>(emulated::current->warp - emulated::current_block->warps.data()) % 4;
  for (int r = 0; r < 4; ++r) {
    const int row = 16 * warp + lane / 4 + r % 2 * 8, k = lane % 4 * 2 + r / 2 * 8;
    a[r] = pack_bf16(operand_element(descriptor, major, row, k), operand_element(descriptor, major, row, k + 1));
  }
}

}  // namespace detail

template <int kN, Major kMajorB = Major::kK>
void wgmma_bf16(float* d, const uint32_t* a, uint64_t b_descriptor, bool accumulate = true) {
  detail::Wgmma<kN, kMajorB> op{d, a, b_descriptor, accumulate};
  emulated::meet(kAllLanes, op);
}

template <int kN, Major kMajorA = Major::kK, Major kMajorB = Major::kK>
void wgmma_bf16_shared(float* d, uint64_t a_descriptor, uint64_t b_descriptor, bool accumulate = true) {
  uint32_t a[4];
  detail::load_fragment(a, a_descriptor, kMajorA);
  wgmma_bf16<kN, kMajorB>(d, a, b_descriptor, accumulate);
}

}  // namespace weir::cuda::ptx
