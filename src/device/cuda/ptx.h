// Instructions without a C++ name. emulated/ptx.h has the same functions for the CPU and says what each one does there.
//
// Addresses in shared memory are the 32-bit numbers that shared_address gives; offsets may be added to them.
// Fragments of m16n8k16, lane = 4 g + c: A: a[0] row g, columns 2c, 2c+1; a[1] row g+8; a[2], a[3] the same, columns
// + 8. B: b0 rows 2c, 2c+1 of column g; b1 rows + 8. D: d[0], d[1] row g, columns 2c, 2c+1; d[2], d[3] row g+8.
#pragma once

#include "device/cuda/kernel.h"
#include "device/cuda/tensor_map.h"

#ifdef WEIR_CUDA_EMULATED
#include "device/cuda/emulated/ptx.h"
#include "device/cuda/emulated/ptx_wgmma.h"
#else

#define WEIR_PTX __device__ __forceinline__

namespace weir::cuda::ptx {

WEIR_PTX uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
// The same place, kept in a register: of what it knows the compiler makes addresses again and again.
WEIR_PTX std::byte* hidden_shared(std::byte* p) {
  uint32_t address = shared_address(p);
  asm volatile("" : "+r"(address));
  return static_cast<std::byte*>(__cvta_shared_to_generic(address));
}

// --- arithmetic -----------------------------------------------------------------------------------------------------

// 2^x to 2 ULP, denormals as zero.
WEIR_PTX float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / x to 1 ULP, denormals as zero.
WEIR_PTX float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / sqrt(x) to 2 ULP, denormals as zero.
WEIR_PTX float inverse_root_approx(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Both halves of packed BF16 numbers, rounded to nearest even; denormals are kept.
WEIR_PTX uint32_t add_bf16x2(uint32_t a, uint32_t b) {
  uint32_t sum;
  asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
}
WEIR_PTX uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// A half of a pair in both halves: an operand of mul_bf16x2, not an instruction.
template <int kHalf>
WEIR_PTX uint32_t both_halves(uint32_t pair) {
  uint32_t d;
  if constexpr (kHalf == 0) {
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l}; }" : "=r"(d) : "r"(pair));
  } else {
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h}; }" : "=r"(d) : "r"(pair));
  }
  return d;
}

// (a & mask) | bits in one instruction; of two constants the compiler makes two.
WEIR_PTX uint32_t and_or(uint32_t a, uint32_t mask, uint32_t bits) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
  return d;
}

// --- global memory --------------------------------------------------------------------------------------------------

// What is read once: past L1. Only for memory that the kernel doesn't write.
WEIR_PTX uint4 load_stream(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
WEIR_PTX float4 load_stream(const float4* p) {
  float4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p));
  return v;
}
WEIR_PTX uint2 load_stream(const uint2* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
// The same where `live`, else 0: without a selection behind the load, which would wait for it.
WEIR_PTX uint2 load_stream_if(bool live, const uint2* p) {
  uint2 v;
  asm volatile(
      "{ .reg .pred p; setp.ne.u32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0; "
      "@p ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2]; }"
      : "=&r"(v.x), "=&r"(v.y)
      : "l"(p), "r"(live ? 1 : 0));
  return v;
}
// What is not read again soon.
WEIR_PTX void store_stream(uint4* p, uint4 v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
WEIR_PTX void store_stream(float4* p, float4 v) {
  asm volatile("st.global.cs.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}
WEIR_PTX uint32_t load_acquire(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
// From the L2 cache, where other blocks' writes arrive.
WEIR_PTX uint4 load_relaxed(const uint4* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
WEIR_PTX void store_relaxed(uint4* p, uint4 v) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
WEIR_PTX void store_release(uint32_t* p, uint32_t v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// --- order ----------------------------------------------------------------------------------------------------------

// Programmatic dependent launch; without LaunchShape::overlap both do nothing.
WEIR_PTX void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
WEIR_PTX void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Barriers 1 to 15 for part of a block: whole warps, `threads` in all.
WEIR_PTX void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
WEIR_PTX void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// True for one lane of a converged warp.
WEIR_PTX bool elect_one() {
  uint32_t elected;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(elected));
  return elected != 0;
}
// Between ordinary writes of shared memory and reads of it by wgmma or bulk copies; in each writing thread, before the
// barrier.
WEIR_PTX void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// The same for global memory, where one block's kernel hands data to another's bulk copies: by the writer before it
// says so, and by the reader after it has heard.
WEIR_PTX void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Registers of each thread of a warpgroup: a multiple of 8 from 24 to 256. Only with __launch_bounds__(threads, 1).
template <int kRegisters>
WEIR_PTX void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
WEIR_PTX void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// --- mbarrier -------------------------------------------------------------------------------------------------------

WEIR_PTX void mbarrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// By the thread that has initialised, before the block's barrier.
WEIR_PTX void mbarrier_fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
WEIR_PTX void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives and announces bytes of bulk loads that the phase waits for.
WEIR_PTX void mbarrier_arrive_expect(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
WEIR_PTX bool mbarrier_try_wait(uint64_t* barrier, int parity) {
  uint32_t passed;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(passed)
               : "r"(shared_address(barrier)), "r"(parity)
               : "memory");
  return passed != 0;
}
// Until the phase with this parity is over; the first phase has parity 0, and parity 1 passes before it.
WEIR_PTX void mbarrier_wait(uint64_t* barrier, int parity) {
  while (!mbarrier_try_wait(barrier, parity)) {}
}

// --- clusters -------------------------------------------------------------------------------------------------------
// Cluster addresses are 32 bits and lead to the shared memory of any block of the cluster. A block ends only after all
// others have stopped using its memory.

WEIR_PTX uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// A barrier of all threads of the cluster, which orders what they have written to shared memory.
WEIR_PTX void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
// Without order, but for what mbarrier_fence_init has ordered; far cheaper.
WEIR_PTX void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
WEIR_PTX void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
WEIR_PTX void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
// Where a shared address of this block lies in the block with this rank.
WEIR_PTX uint32_t shared_of_rank(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
WEIR_PTX float4 cluster_load16(uint32_t from) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
WEIR_PTX void cluster_store16(uint32_t to, float4 v) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}
// The same; the mbarrier of the block that `to` is in hears of the 16 bytes, when they can be read. Not in a cluster of
// one block.
WEIR_PTX void cluster_store16_async(uint32_t to, float4 v, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
               "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
               : "memory");
}
WEIR_PTX void mbarrier_arrive_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// For a barrier of this block where blocks of the cluster arrive: what they wrote before can be read after it.
WEIR_PTX void mbarrier_wait_cluster(uint64_t* barrier, int parity) {
  uint32_t passed = 0;
  while (passed == 0) {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(passed)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  }
}

// --- asynchronous copies --------------------------------------------------------------------------------------------

// 16 bytes from global to shared memory; zeros instead when not live.
WEIR_PTX void copy_async16(uint32_t to, const void* from, bool live = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(live ? 16 : 0) : "memory");
}
// The same with a policy of the L2 cache: what read_once gives leaves it before other data does.
WEIR_PTX uint64_t read_once() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
WEIR_PTX void copy_async16(uint32_t to, const void* from, bool live, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
               "r"(live ? 16 : 0), "l"(policy)
               : "memory");
}
// 4 bytes, for what isn't aligned to 16.
WEIR_PTX void copy_async4(uint32_t to, const void* from, bool live = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(live ? 4 : 0) : "memory");
}
WEIR_PTX void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most kPending of this thread's committed groups are under way.
template <int kPending>
WEIR_PTX void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// An arrival, counted at the barrier's initialisation, once all copies of this thread so far are done.
WEIR_PTX void arrive_after_copies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Bulk copies: addresses and bytes multiples of 16, by one thread.
WEIR_PTX void bulk_load(void* to_shared, const void* from, int bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to_shared)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
// The same with a policy of the L2 cache: weights leave it (read_once) before what the next kernels read.
WEIR_PTX void bulk_load(void* to_shared, const void* from, int bytes, uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
          shared_address(to_shared)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
// Into the L2 cache alone: the line, or so many bytes.
WEIR_PTX void prefetch(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory"); }
WEIR_PTX void bulk_prefetch(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
// So that the first load by a map need not wait for the map itself.
WEIR_PTX void prefetch_tensor_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// The box of a matrix that begins at (column, row), to a multiple of 1024 bytes; the barrier hears of the whole box.
WEIR_PTX void tensor_load(void* to_shared, const TensorMap* map, int column, int row, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(shared_address(to_shared)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
}
// The same to the same place in each block of the cluster whose rank is a bit of `ranks`, whose barriers hear of it.
WEIR_PTX void tensor_load_multicast(void* to_shared, const TensorMap* map, int column, int row, uint64_t* barrier,
                                    uint32_t ranks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
      "{%2, %3}], [%4], %5;" ::"r"(shared_address(to_shared)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(static_cast<uint16_t>(ranks))
      : "memory");
}
WEIR_PTX void bulk_store(void* to, const void* from_shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from_shared)), "r"(bytes)
               : "memory");
}
WEIR_PTX void commit_bulk_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until at most kPending of this thread's committed groups are under way; ..._read: still have to read shared memory.
template <int kPending>
WEIR_PTX void wait_bulk_stores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}
template <int kPending>
WEIR_PTX void wait_bulk_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// --- fragments from and to shared memory ----------------------------------------------------------------------------
// 8x8 matrices of 16-bit elements: lane 8 m + i gives the address of row i (16 bytes) of matrix m; x1 and x2 use the
// lanes 0-7 and 0-15. Lane 4 g + c holds in register m the elements (g, 2c), (g, 2c+1), transposed (2c, g), (2c+1, g).

WEIR_PTX void load_matrix_x1(uint32_t* r, uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(row) : "memory");
}
WEIR_PTX void load_matrix_x1_transposed(uint32_t* r, uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(row) : "memory");
}
WEIR_PTX void load_matrix_x2(uint32_t* r, uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(row)
               : "memory");
}
WEIR_PTX void load_matrix_x2_transposed(uint32_t* r, uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(row)
               : "memory");
}
WEIR_PTX void load_matrix_x4(uint32_t* r, uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
WEIR_PTX void load_matrix_x4_transposed(uint32_t* r, uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
WEIR_PTX void store_matrix_x4(uint32_t row, const uint32_t* r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}
WEIR_PTX void store_matrix_x4_transposed(uint32_t row, const uint32_t* r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// --- products of a warp ---------------------------------------------------------------------------------------------

// d += A B, m16n8k16, FP32 accumulators.
WEIR_PTX void mma_bf16(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
WEIR_PTX void mma_f16(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace weir::cuda::ptx

#include "device/cuda/ptx_wgmma.h"
#undef WEIR_PTX
#endif
