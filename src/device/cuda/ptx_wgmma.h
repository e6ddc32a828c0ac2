// wgmma: products of a warpgroup (4 warps, the first one's index a multiple of 4). Included by ptx.h.
//
// m64nNk16: warp w holds rows 16 w to 16 w + 15; its A fragment is that of m16n8k16, and d[4 j + i] is d[i] of
// m16n8k16 for the columns 8 j to 8 j + 7.
//
// Order: wgmma_fence before the first wgmma that reads registers written by ordinary code, then the products,
// wgmma_commit, wgmma_wait. ptxas must not move arithmetic on accumulators above the wait, which names no registers, or
// it makes every product wait: pin them after it.
#pragma once

#include "device/cuda/wgmma_descriptor.h"

namespace weir::cuda::ptx {

WEIR_PTX void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
WEIR_PTX void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
WEIR_PTX void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
template <int kCount>
WEIR_PTX void pin(float* accumulators) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(accumulators[i])::"memory");
}

// The same for A in registers, before the fence: what makes it must not move behind.
template <int kCount>
WEIR_PTX void pin(uint32_t* operand) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(operand[i])::"memory");
}

// clang-format off
#define WEIR_D4 "%0, %1, %2, %3"
#define WEIR_D8 WEIR_D4 ", %4, %5, %6, %7"
#define WEIR_D12 WEIR_D8 ", %8, %9, %10, %11"
#define WEIR_D16 WEIR_D12 ", %12, %13, %14, %15"
#define WEIR_D24 WEIR_D16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WEIR_D32 WEIR_D24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WEIR_D40 WEIR_D32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define WEIR_D48 WEIR_D32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define WEIR_D64 WEIR_D48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WEIR_D96 WEIR_D64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WEIR_D128 WEIR_D96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WEIR_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WEIR_F4_ WEIR_F4(0)
#define WEIR_F8_ WEIR_F4_, WEIR_F4(4)
#define WEIR_F12_ WEIR_F8_, WEIR_F4(8)
#define WEIR_F16_ WEIR_F12_, WEIR_F4(12)
#define WEIR_F24_ WEIR_F16_, WEIR_F4(16), WEIR_F4(20)
#define WEIR_F32_ WEIR_F24_, WEIR_F4(24), WEIR_F4(28)
#define WEIR_F40_ WEIR_F32_, WEIR_F4(32), WEIR_F4(36)
#define WEIR_F48_ WEIR_F32_, WEIR_F4(32), WEIR_F4(36), WEIR_F4(40), WEIR_F4(44)
#define WEIR_F64_ WEIR_F48_, WEIR_F4(48), WEIR_F4(52), WEIR_F4(56), WEIR_F4(60)
#define WEIR_F96_ WEIR_F64_, WEIR_F4(64), WEIR_F4(68), WEIR_F4(72), WEIR_F4(76), WEIR_F4(80), WEIR_F4(84), WEIR_F4(88), WEIR_F4(92)
#define WEIR_F128_ WEIR_F96_, WEIR_F4(96), WEIR_F4(100), WEIR_F4(104), WEIR_F4(108), WEIR_F4(112), WEIR_F4(116), WEIR_F4(120), WEIR_F4(124)
// The operands behind n accumulators: A in registers n to n + 3, B at n + 4, the flag at n + 5; or A at n, B, flag.
#define WEIR_WGMMA(n, count, a0, a1, a2, a3, b, flag, trans)                                                        \
  if constexpr (kN == n) {                                                                                           \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" flag ", 0; wgmma.mma_async.sync.aligned.m64n" #n                   \
                 "k16.f32.bf16.bf16 {" WEIR_D##count "}, {%" a0 ", %" a1 ", %" a2 ", %" a3 "}, %" b ", p, 1, 1, %" trans "; }" \
                 : WEIR_F##count##_                                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_descriptor), "r"(accumulate ? 1 : 0),            \
                   "n"(kTransposeB));                                                                                 \
  }
#define WEIR_WGMMA_SHARED(n, count, a, b, flag, trans_a, trans_b)                                                    \
  if constexpr (kN == n) {                                                                                           \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" flag ", 0; wgmma.mma_async.sync.aligned.m64n" #n                   \
                 "k16.f32.bf16.bf16 {" WEIR_D##count "}, %" a ", %" b ", p, 1, 1, %" trans_a ", %" trans_b "; }"       \
                 : WEIR_F##count##_                                                                                   \
                 : "l"(a_descriptor), "l"(b_descriptor), "r"(accumulate ? 1 : 0), "n"(kTransposeA),                   \
                   "n"(kTransposeB));                                                                                 \
  }

// d = A B (+ d when accumulate), A in registers.
template <int kN, Major kMajorB = Major::kK>
WEIR_PTX void wgmma_bf16(float* d, const uint32_t* a, uint64_t b_descriptor, bool accumulate = true) {
  constexpr int kTransposeB = kMajorB == Major::kMN ? 1 : 0;
  static_assert(kN == 8 || kN == 16 || kN == 24 || kN == 32 || kN == 48 || kN == 64 || kN == 80 || kN == 96 || kN == 128 || kN == 192 || kN == 256);
  WEIR_WGMMA(8, 4, "4", "5", "6", "7", "8", "9", "10")
  WEIR_WGMMA(16, 8, "8", "9", "10", "11", "12", "13", "14")
  WEIR_WGMMA(24, 12, "12", "13", "14", "15", "16", "17", "18")
  WEIR_WGMMA(32, 16, "16", "17", "18", "19", "20", "21", "22")
  WEIR_WGMMA(48, 24, "24", "25", "26", "27", "28", "29", "30")
  WEIR_WGMMA(64, 32, "32", "33", "34", "35", "36", "37", "38")
  WEIR_WGMMA(80, 40, "40", "41", "42", "43", "44", "45", "46")
  WEIR_WGMMA(96, 48, "48", "49", "50", "51", "52", "53", "54")
  WEIR_WGMMA(128, 64, "64", "65", "66", "67", "68", "69", "70")
  WEIR_WGMMA(192, 96, "96", "97", "98", "99", "100", "101", "102")
  WEIR_WGMMA(256, 128, "128", "129", "130", "131", "132", "133", "134")
}

// The same with A in shared memory.
template <int kN, Major kMajorA = Major::kK, Major kMajorB = Major::kK>
WEIR_PTX void wgmma_bf16_shared(float* d, uint64_t a_descriptor, uint64_t b_descriptor, bool accumulate = true) {
  constexpr int kTransposeA = kMajorA == Major::kMN ? 1 : 0;
  constexpr int kTransposeB = kMajorB == Major::kMN ? 1 : 0;
  static_assert(kN == 8 || kN == 16 || kN == 24 || kN == 32 || kN == 48 || kN == 64 || kN == 96 || kN == 128 || kN == 192 || kN == 256);
  WEIR_WGMMA_SHARED(8, 4, "4", "5", "6", "7", "8")
  WEIR_WGMMA_SHARED(16, 8, "8", "9", "10", "11", "12")
  WEIR_WGMMA_SHARED(24, 12, "12", "13", "14", "15", "16")
  WEIR_WGMMA_SHARED(32, 16, "16", "17", "18", "19", "20")
  WEIR_WGMMA_SHARED(48, 24, "24", "25", "26", "27", "28")
  WEIR_WGMMA_SHARED(64, 32, "32", "33", "34", "35", "36")
  WEIR_WGMMA_SHARED(96, 48, "48", "49", "50", "51", "52")
  WEIR_WGMMA_SHARED(128, 64, "64", "65", "66", "67", "68")
  WEIR_WGMMA_SHARED(192, 96, "96", "97", "98", "99", "100")
  WEIR_WGMMA_SHARED(256, 128, "128", "129", "130", "131", "132")
}

#undef WEIR_D4
#undef WEIR_F4_
#undef WEIR_D8
#undef WEIR_F8_
#undef WEIR_D12
#undef WEIR_F12_
#undef WEIR_D16
#undef WEIR_F16_
#undef WEIR_D24
#undef WEIR_F24_
#undef WEIR_D32
#undef WEIR_F32_
#undef WEIR_D40
#undef WEIR_D48
#undef WEIR_F40_
#undef WEIR_F48_
#undef WEIR_D64
#undef WEIR_F64_
#undef WEIR_D96
#undef WEIR_F96_
#undef WEIR_D128
#undef WEIR_F128_
#undef WEIR_F4
#undef WEIR_WGMMA
#undef WEIR_WGMMA_SHARED
// clang-format on

}  // namespace weir::cuda::ptx
