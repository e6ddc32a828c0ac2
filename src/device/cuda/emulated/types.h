// The vector types and keywords of CUDA C++ for a plain C++ compiler.
#pragma once

#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline
#define __shared__ static thread_local
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__

#define WEIR_VECTOR_TYPES(base, type)                                         \
  struct base##2 {                                                            \
    type x, y;                                                                \
  }                                                                           \
  __attribute__((aligned(2 * sizeof(type))));                                 \
  struct base##3 {                                                            \
    type x, y, z;                                                             \
  };                                                                          \
  struct base##4 {                                                            \
    type x, y, z, w;                                                          \
  }                                                                           \
  __attribute__((aligned(4 * sizeof(type) > 16 ? 16 : 4 * sizeof(type))));    \
  inline base##2 make_##base##2(type x, type y) { return {x, y}; }            \
  inline base##3 make_##base##3(type x, type y, type z) { return {x, y, z}; } \
  inline base##4 make_##base##4(type x, type y, type z, type w) { return {x, y, z, w}; }

WEIR_VECTOR_TYPES(char, signed char)
WEIR_VECTOR_TYPES(uchar, unsigned char)
WEIR_VECTOR_TYPES(short, short)
WEIR_VECTOR_TYPES(ushort, unsigned short)
WEIR_VECTOR_TYPES(int, int)
WEIR_VECTOR_TYPES(uint, unsigned)
WEIR_VECTOR_TYPES(longlong, long long)
WEIR_VECTOR_TYPES(ulonglong, unsigned long long)
WEIR_VECTOR_TYPES(float, float)
WEIR_VECTOR_TYPES(double, double)
#undef WEIR_VECTOR_TYPES

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
