// CUDA's built-in device functions, as far as kernels here use them.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "device/cuda/emulated/block.h"

using std::max;
using std::min;

// --- numbers
// ----------------------------------------------------------------------------------------------------------
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.f / a; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline int __float2int_rn(float a) { return static_cast<int>(std::nearbyintf(a)); }
inline int __float2int_rz(float a) { return static_cast<int>(a); }
inline float __int2float_rn(int a) { return static_cast<float>(a); }
inline int __popc(unsigned a) { return std::popcount(a); }
inline int __popcll(unsigned long long a) { return std::popcount(a); }
inline int __clz(int a) { return std::countl_zero(static_cast<unsigned>(a)); }
inline int __clzll(long long a) { return std::countl_zero(static_cast<unsigned long long>(a)); }
inline int __ffs(int a) { return a == 0 ? 0 : std::countr_zero(static_cast<unsigned>(a)) + 1; }
inline int __ffsll(long long a) { return a == 0 ? 0 : std::countr_zero(static_cast<unsigned long long>(a)) + 1; }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((uint64_t{a} * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>((static_cast<Wide>(a) * b) >> 64);
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
  }
  return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (shift & 31));
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
  return c;
}

// --- memory
// -----------------------------------------------------------------------------------------------------------
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T value) {
  *p = value;
}
template <class T>
void __stcg(T* p, T value) {
  *p = value;
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) { weir::emulated::yield(); }
[[noreturn]] inline void __trap() { weir::emulated::fail_kernel("__trap"); }
inline long long clock64() { return 0; }

template <class T>
T atomicAdd(T* p, std::type_identity_t<T> value) {
  const T old = *p;
  *p = old + value;
  return old;
}
template <class T>
T atomicSub(T* p, std::type_identity_t<T> value) {
  const T old = *p;
  *p = old - value;
  return old;
}
template <class T>
T atomicMax(T* p, std::type_identity_t<T> value) {
  const T old = *p;
  *p = std::max(old, value);
  return old;
}
template <class T>
T atomicMin(T* p, std::type_identity_t<T> value) {
  const T old = *p;
  *p = std::min(old, value);
  return old;
}
template <class T>
T atomicOr(T* p, std::type_identity_t<T> value) {
  const T old = *p;
  *p = old | value;
  return old;
}
template <class T>
T atomicAnd(T* p, std::type_identity_t<T> value) {
  const T old = *p;
  *p = old & value;
  return old;
}
template <class T>
T atomicExch(T* p, std::type_identity_t<T> value) {
  const T old = *p;
  *p = value;
  return old;
}
template <class T>
T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  const T old = *p;
  if (old == expected) {
    *p = value;
  } else {
    weir::emulated::yield();
  }
  return old;
}
inline unsigned atomicInc(unsigned* p, unsigned last) {
  const unsigned old = *p;
  *p = old >= last ? 0 : old + 1;
  return old;
}

// --- the block
// --------------------------------------------------------------------------------------------------------
inline void __syncthreads() { weir::emulated::meet_block(0, 0, 0); }
inline int __syncthreads_count(int predicate) { return weir::emulated::meet_block(0, 0, predicate != 0).sum; }
inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) != 0; }
inline int __syncthreads_and(int predicate) {
  const weir::emulated::BarrierResult result = weir::emulated::meet_block(0, 0, predicate != 0);
  return result.sum == result.threads;
}

// --- the warp
// ---------------------------------------------------------------------------------------------------------
namespace weir::emulated {

struct SyncWarp {
  static void run(SyncWarp* const*, uint32_t) {}
};

struct Ballot {
  bool predicate;
  uint32_t result = 0;  // lanes with the predicate
  uint32_t live = 0;

  static void run(Ballot* const* lanes, uint32_t mask) {
    uint32_t set = 0;
    for (int i = 0; i < kWarpLanes; ++i) {
      if ((mask >> i & 1) && lanes[i]->predicate) set |= 1u << i;
    }
    for (int i = 0; i < kWarpLanes; ++i) {
      if (mask >> i & 1) *lanes[i] = {lanes[i]->predicate, set, mask};
    }
  }
};

template <class T>
struct Shuffle {
  T value;
  int source;
  T result;

  static void run(Shuffle* const* lanes, uint32_t mask) {
    for (int i = 0; i < kWarpLanes; ++i) {
      if (!(mask >> i & 1)) continue;
      if (!(mask >> lanes[i]->source & 1)) fail_kernel("a shuffle reads from a lane that does not take part");
      lanes[i]->result = lanes[lanes[i]->source]->value;
    }
  }
};

template <class T>
T shuffle(uint32_t mask, T value, int source) {
  Shuffle<T> op{value, source, value};
  meet(mask, op);
  return op.result;
}

inline Ballot ballot(uint32_t mask, bool predicate) {
  Ballot op{predicate};
  meet(mask, op);
  return op;
}

}  // namespace weir::emulated

inline void __syncwarp(unsigned mask = 0xffffffffu) {
  weir::emulated::SyncWarp op;
  weir::emulated::meet(mask, op);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) { return weir::emulated::ballot(mask, predicate).result; }
inline int __any_sync(unsigned mask, int predicate) { return weir::emulated::ballot(mask, predicate).result != 0; }
inline int __all_sync(unsigned mask, int predicate) {
  const weir::emulated::Ballot op = weir::emulated::ballot(mask, predicate);
  return op.result == op.live;
}
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = weir::emulated::current->lane;
  return weir::emulated::shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)));
}
inline unsigned __match_any_sync(unsigned mask, int value) {
  unsigned same = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1) != 0 && __shfl_sync(mask, value, lane) == value) same |= 1u << lane;
  }
  return same;
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int lane = weir::emulated::current->lane;
  const int source = lane ^ bits;
  return weir::emulated::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = weir::emulated::current->lane;
  const int source = lane + static_cast<int>(delta);
  return weir::emulated::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = weir::emulated::current->lane;
  const int source = lane - static_cast<int>(delta);
  return weir::emulated::shuffle(mask, value, source < (lane & ~(width - 1)) ? lane : source);
}
// Over all lanes of the mask, for integers.
template <class T, class Combine>
T reduce_lanes(unsigned mask, T value, Combine combine) {
  T result = value;
  for (int lane = 0; lane < 32; ++lane) {
    if (mask >> lane & 1) result = combine(result, __shfl_sync(mask, value, lane));
  }
  return result;
}
inline int __reduce_add_sync(unsigned mask, int value) {
  return reduce_lanes(mask, value, [](int a, int b) { return a + b; }) - value;
}
inline int __reduce_max_sync(unsigned mask, int value) {
  return reduce_lanes(mask, value, [](int a, int b) { return a > b ? a : b; });
}
inline int __reduce_min_sync(unsigned mask, int value) {
  return reduce_lanes(mask, value, [](int a, int b) { return a < b ? a : b; });
}
