// SPDX-License-Identifier: Apache-2.0
// Atomic accesses in PTX. libcu++'s cuda::atomic_ref means the same, but tests at run time whether an address is thread-local
// memory before every read-modify-write. Orders are constants after inlining, so that one instruction remains.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>

#include "gpufs/simt/config.hpp"
#include "gpufs/simt/types.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {
namespace detail {

__device__ inline void ptx_fence(std::memory_order order, scope s) {
  if (order == std::memory_order_relaxed) return;
  const bool total = order == std::memory_order_seq_cst;
  if (s == scope::block) {
    total ? [] { asm volatile("fence.sc.cta;" ::: "memory"); }() : [] { asm volatile("fence.acq_rel.cta;" ::: "memory"); }();
  } else if (s == scope::device) {
    total ? [] { asm volatile("fence.sc.gpu;" ::: "memory"); }() : [] { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }();
  } else {
    total ? [] { asm volatile("fence.sc.sys;" ::: "memory"); }() : [] { asm volatile("fence.acq_rel.sys;" ::: "memory"); }();
  }
}

__device__ inline bool acquires(std::memory_order order) {
  return order == std::memory_order_acquire || order == std::memory_order_consume || order == std::memory_order_acq_rel ||
         order == std::memory_order_seq_cst;
}
__device__ inline bool releases(std::memory_order order) {
  return order == std::memory_order_release || order == std::memory_order_acq_rel || order == std::memory_order_seq_cst;
}

// Words of device or system scope lie in global (or pinned host) memory. An instruction that says so costs half: the compiler turns
// a generic read-modify-write into a test, and a second version for shared memory. Block scope stays generic.
template <scope S>
__device__ inline std::size_t address(const void* p) {
  if constexpr (S == scope::block) {
    return reinterpret_cast<std::size_t>(p);
  } else {
    return __cvta_generic_to_global(p);
  }
}

// GPUFS_PTX_SCOPES picks one of three texts by the scope S.
#define GPUFS_PTX_SCOPES(BEFORE, AFTER, ...)                         \
  if constexpr (S == scope::block)                                   \
    asm volatile(BEFORE ".cta" AFTER __VA_ARGS__ : "memory");        \
  else if constexpr (S == scope::device)                             \
    asm volatile(BEFORE ".gpu.global" AFTER __VA_ARGS__ : "memory"); \
  else                                                               \
    asm volatile(BEFORE ".sys.global" AFTER __VA_ARGS__ : "memory")

#define GPUFS_PTX_ORDERS(NAME, AFTER, ...)                 \
  if (acquires(order) && releases(order)) {                \
    GPUFS_PTX_SCOPES(NAME ".acq_rel", AFTER, __VA_ARGS__); \
  } else if (acquires(order)) {                            \
    GPUFS_PTX_SCOPES(NAME ".acquire", AFTER, __VA_ARGS__); \
  } else if (releases(order)) {                            \
    GPUFS_PTX_SCOPES(NAME ".release", AFTER, __VA_ARGS__); \
  } else {                                                 \
    GPUFS_PTX_SCOPES(NAME ".relaxed", AFTER, __VA_ARGS__); \
  }

// Loads, stores, and read-modify-writes of one width. CON: the register constraint.
#define GPUFS_PTX_WIDTH(BITS, CON, WORD)                                                                                          \
  template <scope S>                                                                                                              \
  __device__ inline WORD ptx_load(const WORD* p, std::memory_order order) {                                                       \
    WORD v;                                                                                                                       \
    if (order == std::memory_order_seq_cst) ptx_fence(order, S);                                                                  \
    if (acquires(order)) {                                                                                                        \
      GPUFS_PTX_SCOPES("ld.acquire", ".b" #BITS " %0, [%1];", : "=" CON(v) : "l"(address<S>(p)));                                 \
    } else {                                                                                                                      \
      GPUFS_PTX_SCOPES("ld.relaxed", ".b" #BITS " %0, [%1];", : "=" CON(v) : "l"(address<S>(p)));                                 \
    }                                                                                                                             \
    return v;                                                                                                                     \
  }                                                                                                                               \
  template <scope S>                                                                                                              \
  __device__ inline void ptx_store(WORD* p, WORD v, std::memory_order order) {                                                    \
    if (order == std::memory_order_seq_cst) {                                                                                     \
      ptx_fence(order, S);                                                                                                        \
      GPUFS_PTX_SCOPES("st.relaxed", ".b" #BITS " [%0], %1;", ::"l"(address<S>(p)), CON(v));                                      \
    } else if (releases(order)) {                                                                                                 \
      GPUFS_PTX_SCOPES("st.release", ".b" #BITS " [%0], %1;", ::"l"(address<S>(p)), CON(v));                                      \
    } else {                                                                                                                      \
      GPUFS_PTX_SCOPES("st.relaxed", ".b" #BITS " [%0], %1;", ::"l"(address<S>(p)), CON(v));                                      \
    }                                                                                                                             \
  }                                                                                                                               \
  template <scope S>                                                                                                              \
  __device__ inline WORD ptx_compare_exchange(WORD* p, WORD expected, WORD desired, std::memory_order order) {                    \
    WORD v;                                                                                                                       \
    if (order == std::memory_order_seq_cst) ptx_fence(order, S);                                                                  \
    GPUFS_PTX_ORDERS("atom", ".cas.b" #BITS " %0, [%1], %2, %3;", : "=" CON(v) : "l"(address<S>(p)), CON(expected), CON(desired)) \
    return v;                                                                                                                     \
  }                                                                                                                               \
  template <scope S>                                                                                                              \
  __device__ inline void ptx_add_relaxed(WORD* p, WORD v) {                                                                       \
    GPUFS_PTX_SCOPES("red.relaxed", ".add.u" #BITS " [%0], %1;", ::"l"(address<S>(p)), CON(v));                                   \
  }

#define GPUFS_PTX_RMW(NAME, OP, BITS, CON, WORD)                                                         \
  template <scope S>                                                                                     \
  __device__ inline WORD NAME(WORD* p, WORD operand, std::memory_order order) {                          \
    WORD v;                                                                                              \
    if (order == std::memory_order_seq_cst) ptx_fence(order, S);                                         \
    GPUFS_PTX_ORDERS("atom", OP #BITS " %0, [%1], %2;", : "=" CON(v) : "l"(address<S>(p)), CON(operand)) \
    return v;                                                                                            \
  }

GPUFS_PTX_WIDTH(32, "r", std::uint32_t)
GPUFS_PTX_WIDTH(64, "l", std::uint64_t)
GPUFS_PTX_RMW(ptx_exchange, ".exch.b", 32, "r", std::uint32_t)
GPUFS_PTX_RMW(ptx_exchange, ".exch.b", 64, "l", std::uint64_t)
GPUFS_PTX_RMW(ptx_fetch_add, ".add.u", 32, "r", std::uint32_t)
GPUFS_PTX_RMW(ptx_fetch_add, ".add.u", 64, "l", std::uint64_t)
GPUFS_PTX_RMW(ptx_fetch_add_real, ".add.f", 32, "f", float)
GPUFS_PTX_RMW(ptx_fetch_add_real, ".add.f", 64, "d", double)
GPUFS_PTX_RMW(ptx_fetch_or, ".or.b", 32, "r", std::uint32_t)
GPUFS_PTX_RMW(ptx_fetch_or, ".or.b", 64, "l", std::uint64_t)
GPUFS_PTX_RMW(ptx_fetch_and, ".and.b", 32, "r", std::uint32_t)
GPUFS_PTX_RMW(ptx_fetch_and, ".and.b", 64, "l", std::uint64_t)
GPUFS_PTX_RMW(ptx_fetch_min_unsigned, ".min.u", 32, "r", std::uint32_t)
GPUFS_PTX_RMW(ptx_fetch_min_unsigned, ".min.u", 64, "l", std::uint64_t)
GPUFS_PTX_RMW(ptx_fetch_min_signed, ".min.s", 32, "r", std::uint32_t)
GPUFS_PTX_RMW(ptx_fetch_min_signed, ".min.s", 64, "l", std::uint64_t)
GPUFS_PTX_RMW(ptx_fetch_max_unsigned, ".max.u", 32, "r", std::uint32_t)
GPUFS_PTX_RMW(ptx_fetch_max_unsigned, ".max.u", 64, "l", std::uint64_t)
GPUFS_PTX_RMW(ptx_fetch_max_signed, ".max.s", 32, "r", std::uint32_t)
GPUFS_PTX_RMW(ptx_fetch_max_signed, ".max.s", 64, "l", std::uint64_t)

// 16 bytes as one word: ld.acquire takes no vector.
__device__ inline vec16 load_published_16(const void* p) {
  std::uint64_t words[2];
  asm volatile("{\n .reg .b128 both;\n ld.acquire.sys.global.b128 both, [%2];\n mov.b128 {%0, %1}, both;\n}"
               : "=l"(words[0]), "=l"(words[1])
               : "l"(__cvta_generic_to_global(p))
               : "memory");
  vec16 v;
  std::memcpy(&v, words, sizeof v);
  return v;
}

// Accesses to words that the second-level cache is to evict last.
__device__ inline std::uint64_t evict_last() {
  std::uint64_t policy;  // volatile: made where it is used, so that no registers hold it
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
template <scope S>
__device__ inline std::uint64_t ptx_load_kept(const std::uint64_t* p) {
  std::uint64_t v;
  GPUFS_PTX_SCOPES("ld.relaxed", ".L2::cache_hint.b64 %0, [%1], %2;", : "=l"(v) : "l"(address<S>(p)), "l"(evict_last()));
  return v;
}
template <scope S>
__device__ inline std::uint64_t ptx_fetch_add_kept(std::uint64_t* p, std::uint64_t operand, std::memory_order order) {
  std::uint64_t v;
  if (order == std::memory_order_seq_cst) ptx_fence(order, S);
  GPUFS_PTX_ORDERS("atom", ".add.L2::cache_hint.u64 %0, [%1], %2, %3;",
                   : "=l"(v)
                   : "l"(address<S>(p)), "l"(operand), "l"(evict_last()))
  return v;
}

#undef GPUFS_PTX_RMW
#undef GPUFS_PTX_WIDTH
#undef GPUFS_PTX_ORDERS
#undef GPUFS_PTX_SCOPES

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
