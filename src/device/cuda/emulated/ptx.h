// The instructions of ptx.h on the CPU. A product step is an exact sum rounded once to FP32, which the tensor cores'
// sums differ from in the last bits; exponentials and reciprocals are those of libm.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "device/cuda/emulated/barrier.h"
#include "device/cuda/emulated/block.h"
#include "device/cuda/tensor_map.h"
#include "device/cuda/wgmma_descriptor.h"

namespace weir::cuda::ptx {

// Shared addresses are offsets from the dynamic shared memory; static arrays lie at others.
inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(static_cast<const std::byte*>(p) - emulated::dynamic_shared());
}

inline std::byte* hidden_shared(std::byte* p) { return p; }

namespace detail {
inline std::byte* at_shared(uint32_t address, unsigned alignment) {
  if (address % alignment != 0) {
    emulated::fail_kernel("a shared address is not a multiple of " + std::to_string(alignment));
  }
  return emulated::dynamic_shared() + static_cast<int32_t>(address);
}
inline void require_aligned(const void* p, unsigned alignment, const char* what) {
  if (reinterpret_cast<uintptr_t>(p) % alignment != 0) {
    emulated::fail_kernel(std::string(what) + " is not aligned to " + std::to_string(alignment) + " bytes");
  }
}
inline float flush_denormal(float x) { return std::fabs(x) < 1.17549435e-38f ? std::copysign(0.f, x) : x; }
}  // namespace detail

// --- arithmetic -----------------------------------------------------------------------------------------------------
inline float exp2_approx(float x) { return detail::flush_denormal(std::exp2(detail::flush_denormal(x))); }
inline float reciprocal_approx(float x) { return detail::flush_denormal(1.f / detail::flush_denormal(x)); }
inline float inverse_root_approx(float x) { return detail::flush_denormal(1.f / std::sqrt(detail::flush_denormal(x))); }
inline uint32_t add_bf16x2(uint32_t a, uint32_t b) {
  return pack_bf16(low_bf16(a) + low_bf16(b), high_bf16(a) + high_bf16(b));
}
inline uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
  return pack_bf16(low_bf16(a) * low_bf16(b), high_bf16(a) * high_bf16(b));
}

template <int kHalf>
uint32_t both_halves(uint32_t pair) {
  return (pair >> (16 * kHalf) & 0xffff) * 0x10001u;
}

inline uint32_t and_or(uint32_t a, uint32_t mask, uint32_t bits) { return (a & mask) | bits; }

// --- global memory --------------------------------------------------------------------------------------------------
template <class T>
T load_stream(const T* p) {
  detail::require_aligned(p, sizeof(T), "a streaming load's address");
  return *p;
}
inline uint2 load_stream_if(bool live, const uint2* p) { return live ? *p : uint2{0, 0}; }
template <class T>
void store_stream(T* p, T value) {
  detail::require_aligned(p, sizeof(T), "a streaming store's address");
  *p = value;
}
inline uint32_t load_acquire(const uint32_t* p) {
  emulated::yield();
  return *p;
}
inline uint4 load_relaxed(const uint4* p) {
  detail::require_aligned(p, sizeof(uint4), "a relaxed load's address");
  emulated::yield();
  return *p;
}
inline void store_relaxed(uint4* p, uint4 value) {
  detail::require_aligned(p, sizeof(uint4), "a relaxed store's address");
  *p = value;
  emulated::progress();
}
inline void store_release(uint32_t* p, uint32_t value) {
  *p = value;
  emulated::progress();
}

// --- order ----------------------------------------------------------------------------------------------------------
inline void wait_for_previous() {}
inline void let_next_start() {}
inline void named_barrier_sync(int barrier, int threads) { emulated::meet_block(barrier, threads, 0); }
inline void named_barrier_arrive(int barrier, int threads) { emulated::arrive_block(barrier, threads); }
inline bool elect_one() {
  __syncwarp();
  return emulated::current->lane == 0;
}
inline void fence_async_shared() {}
inline void fence_async_global() {}
template <int kRegisters>
void raise_registers() {}
template <int kRegisters>
void lower_registers() {}

// --- mbarrier -------------------------------------------------------------------------------------------------------
inline void mbarrier_init(uint64_t* barrier, int arrivals) { emulated::barrier_init(barrier, arrivals); }
inline void mbarrier_fence_init() {}
inline void mbarrier_arrive(uint64_t* barrier) { emulated::barrier_arrive(barrier); }
inline void mbarrier_arrive_expect(uint64_t* barrier, int bytes) {
  emulated::barrier_expect_bytes(barrier, static_cast<size_t>(bytes));
  emulated::barrier_arrive(barrier);
}
inline bool mbarrier_try_wait(uint64_t* barrier, int parity) {
  if (emulated::barrier_passed(barrier, parity)) return true;
  emulated::yield();
  return false;
}
inline void mbarrier_wait(uint64_t* barrier, int parity) {
  while (!mbarrier_try_wait(barrier, parity)) {}
}

// --- clusters: an address and the block's rank, above the bits of an address
// --------------------------------------------
namespace detail {
inline constexpr uint32_t kRankShift = 20;
inline uint32_t own_rank() { return emulated::current_block->rank; }
inline std::byte* at_cluster(uint32_t address, unsigned alignment) {
  const uint32_t offset = address % (1u << kRankShift);
  if (offset % alignment != 0) {
    emulated::fail_kernel("a cluster address is not a multiple of " + std::to_string(alignment));
  }
  return emulated::shared_of_rank(address >> kRankShift) + offset;
}
inline uint64_t* barrier_at_cluster(uint32_t address) { return reinterpret_cast<uint64_t*>(at_cluster(address, 8)); }
}  // namespace detail
inline uint32_t cluster_rank() { return detail::own_rank(); }
inline void cluster_arrive() { emulated::arrive_cluster(); }
inline void cluster_arrive_relaxed() { cluster_arrive(); }
inline void cluster_wait() { emulated::wait_cluster(); }
inline void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
inline uint32_t shared_of_rank(uint32_t address, uint32_t rank) { return rank << detail::kRankShift | address; }
inline float4 cluster_load16(uint32_t from) {
  float4 value;
  std::memcpy(&value, detail::at_cluster(from, 16), 16);
  return value;
}
inline void cluster_store16(uint32_t to, float4 value) { std::memcpy(detail::at_cluster(to, 16), &value, 16); }
inline void cluster_store16_async(uint32_t to, float4 value, uint32_t barrier) {
  if (emulated::current_block->cluster->blocks.size() < 2) {
    emulated::fail_kernel("an asynchronous store needs a cluster of at least two blocks");
  }
  cluster_store16(to, value);
  emulated::barrier_complete_bytes(detail::barrier_at_cluster(barrier), 16);
}
inline void mbarrier_arrive_cluster(uint32_t barrier) { emulated::barrier_arrive(detail::barrier_at_cluster(barrier)); }
inline void mbarrier_wait_cluster(uint64_t* barrier, int parity) { mbarrier_wait(barrier, parity); }

// --- asynchronous copies: done when waited for
// ------------------------------------------------------------------------
inline void copy_async16(uint32_t to, const void* from, bool live = true) {
  if (live) detail::require_aligned(from, 16, "an asynchronous copy's source");
  emulated::current->copies.add({detail::at_shared(to, 16), live ? from : nullptr, 16});
}
inline uint64_t read_once() { return 0; }
inline void copy_async16(uint32_t to, const void* from, bool live, uint64_t) { copy_async16(to, from, live); }
inline void copy_async4(uint32_t to, const void* from, bool live = true) {
  if (live) detail::require_aligned(from, 4, "an asynchronous copy's source");
  emulated::current->copies.add({detail::at_shared(to, 4), live ? from : nullptr, 4});
}
inline void commit_copies() { emulated::current->copies.commit(); }
template <int kPending>
void wait_copies() {
  emulated::current->copies.wait(kPending);
}
inline void arrive_after_copies(uint64_t* barrier) {
  emulated::current->copies.wait_all();
  emulated::barrier_arrive(barrier);
}
namespace detail {
inline void require_bulk(const void* shared, const void* global, int bytes) {
  require_aligned(shared, 16, "a bulk copy's shared address");
  require_aligned(global, 16, "a bulk copy's global address");
  if (bytes <= 0 || bytes % 16 != 0) emulated::fail_kernel("a bulk copy's bytes are not a positive multiple of 16");
}
}  // namespace detail
inline void bulk_load(void* to_shared, const void* from, int bytes, uint64_t* barrier) {
  detail::require_bulk(to_shared, from, bytes);
  emulated::current_block->cluster->bulk_loads.push_back({to_shared, from, static_cast<size_t>(bytes), barrier});
}
inline void bulk_load(void* to_shared, const void* from, int bytes, uint64_t* barrier, uint64_t) {
  bulk_load(to_shared, from, bytes, barrier);
}
inline void prefetch(const void* from) { static_cast<void>(*static_cast<const volatile char*>(from)); }
inline void bulk_prefetch(const void* from, int bytes) { detail::require_bulk(nullptr, from, bytes); }
inline void prefetch_tensor_map(const TensorMap*) {}
inline void tensor_load(void* to_shared, const TensorMap* map, int column, int row, uint64_t* barrier) {
  detail::require_aligned(to_shared, 1024, "a box's shared address");
  const Matrix& matrix = map->matrix;
  for (int r = 0; r < map->box_rows; ++r) {
    for (int c = 0; c < kBoxColumns; c += 8) {
      const int64_t at_row = row + r, at_column = column + c;
      const int64_t left = at_row < matrix.rows ? std::clamp<int64_t>(matrix.columns - at_column, 0, 8) : 0;
      auto* to = static_cast<std::byte*>(to_shared) + swizzle128(static_cast<uint32_t>(r * 128 + c * 2));
      const size_t bytes = static_cast<size_t>(left) * 2;
      auto& loads = emulated::current_block->cluster->bulk_loads;
      if (left > 0) loads.push_back({to, matrix.elements + at_row * matrix.stride + at_column, bytes, barrier});
      if (left < 8) loads.push_back({to + bytes, nullptr, 16 - bytes, barrier});
    }
  }
}
inline void tensor_load_multicast(void* to_shared, const TensorMap* map, int column, int row, uint64_t* barrier,
                                  uint32_t ranks) {
  for (uint32_t rank = 0; ranks >> rank != 0; ++rank) {
    if (!(ranks >> rank & 1)) continue;
    std::byte* const memory = emulated::shared_of_rank(rank);
    const auto there = [&](void* p) { return memory + (static_cast<std::byte*>(p) - emulated::dynamic_shared()); };
    tensor_load(there(to_shared), map, column, row, reinterpret_cast<uint64_t*>(there(barrier)));
  }
}
inline void bulk_store(void* to, const void* from_shared, int bytes) {
  detail::require_bulk(from_shared, to, bytes);
  emulated::current->bulk_stores.add({to, from_shared, static_cast<size_t>(bytes)});
}
inline void commit_bulk_stores() { emulated::current->bulk_stores.commit(); }
template <int kPending>
void wait_bulk_stores() {
  emulated::current->bulk_stores.wait(kPending);
}
template <int kPending>
void wait_bulk_stores_read() {
  emulated::current->bulk_stores.wait(kPending);
}

// --- fragments from and to shared memory ----------------------------------------------------------------------------
namespace detail {
template <int kMatrices, bool kStore, bool kTransposed>
struct MoveMatrix {
  uint32_t row;
  uint32_t* registers;

  static void run(MoveMatrix* const* lanes, uint32_t mask) {
    if (mask != kAllLanes) emulated::fail_kernel("ldmatrix and stmatrix need all lanes of a warp");
    for (int m = 0; m < kMatrices; ++m) {
      for (int i = 0; i < 8; ++i) {
        uint16_t elements[8];
        std::byte* row = at_shared(lanes[8 * m + i]->row, 16);
        if (!kStore) std::memcpy(elements, row, 16);
        for (int j = 0; j < 8; ++j) move(lanes, m, kTransposed ? j : i, kTransposed ? i : j, elements[j]);
        if (kStore) std::memcpy(row, elements, 16);
      }
    }
  }
  // Element (g, e) of the fragment: half e % 2 of the register of lane 4 g + e / 2.
  static void move(MoveMatrix* const* lanes, int m, int g, int e, uint16_t& element) {
    uint16_t* halves = reinterpret_cast<uint16_t*>(lanes[4 * g + e / 2]->registers + m);
    if (kStore) {
      element = halves[e % 2];
    } else {
      halves[e % 2] = element;
    }
  }
};
template <int kMatrices, bool kStore, bool kTransposed>
void move_matrix(uint32_t row, uint32_t* registers) {
  MoveMatrix<kMatrices, kStore, kTransposed> op{row, registers};
  emulated::meet(kAllLanes, op);
}
}  // namespace detail
inline void load_matrix_x1(uint32_t* r, uint32_t row) { detail::move_matrix<1, false, false>(row, r); }
inline void load_matrix_x1_transposed(uint32_t* r, uint32_t row) { detail::move_matrix<1, false, true>(row, r); }
inline void load_matrix_x2(uint32_t* r, uint32_t row) { detail::move_matrix<2, false, false>(row, r); }
inline void load_matrix_x2_transposed(uint32_t* r, uint32_t row) { detail::move_matrix<2, false, true>(row, r); }
inline void load_matrix_x4(uint32_t* r, uint32_t row) { detail::move_matrix<4, false, false>(row, r); }
inline void load_matrix_x4_transposed(uint32_t* r, uint32_t row) { detail::move_matrix<4, false, true>(row, r); }
inline void store_matrix_x4(uint32_t row, const uint32_t* r) {
  detail::move_matrix<4, true, false>(row, const_cast<uint32_t*>(r));
}
inline void store_matrix_x4_transposed(uint32_t row, const uint32_t* r) {
  detail::move_matrix<4, true, true>(row, const_cast<uint32_t*>(r));
}

// --- products of a warp ---------------------------------------------------------------------------------------------
namespace detail {
inline float low_half(uint32_t packed, bool bf16) { return bf16 ? low_bf16(packed) : low_f16(packed); }
inline float high_half(uint32_t packed, bool bf16) { return bf16 ? high_bf16(packed) : high_f16(packed); }

// The warp's 16 x 16 A from its fragments.
inline void gather_a(double (&a)[16][16], const uint32_t* const* registers, bool bf16) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < 4; ++r) {
      const int row = lane / 4 + r % 2 * 8, k = lane % 4 * 2 + r / 2 * 8;
      a[row][k] = low_half(registers[lane][r], bf16);
      a[row][k + 1] = high_half(registers[lane][r], bf16);
    }
  }
}
inline float product_step(const double* a, const double* b, float start) {
  double sum = start;
  for (int k = 0; k < 16; ++k) sum += a[k] * b[k];
  return static_cast<float>(sum);
}

template <bool kBf16>
struct Mma {
  float* d;
  const uint32_t* a;
  uint32_t b[2];

  static void run(Mma* const* lanes, uint32_t mask) {
    if (mask != kAllLanes) emulated::fail_kernel("mma needs all lanes of a warp");
    const uint32_t* registers[32];
    double a[16][16], b[8][16];
    for (int lane = 0; lane < 32; ++lane) {
      registers[lane] = lanes[lane]->a;
      for (int r = 0; r < 2; ++r) {
        b[lane / 4][lane % 4 * 2 + 8 * r] = low_half(lanes[lane]->b[r], kBf16);
        b[lane / 4][lane % 4 * 2 + 8 * r + 1] = high_half(lanes[lane]->b[r], kBf16);
      }
    }
    gather_a(a, registers, kBf16);
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        float& d = lanes[lane]->d[i];
        d = product_step(a[lane / 4 + i / 2 * 8], b[lane % 4 * 2 + i % 2], d);
      }
    }
  }
};
}  // namespace detail
inline void mma_bf16(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
  detail::Mma<true> op{d, a, {b0, b1}};
  emulated::meet(kAllLanes, op);
}
inline void mma_f16(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
  detail::Mma<false> op{d, a, {b0, b1}};
  emulated::meet(kAllLanes, op);
}

}  // namespace weir::cuda::ptx
