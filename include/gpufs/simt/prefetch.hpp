// SPDX-License-Identifier: Apache-2.0
// What a kernel tells the second-level cache: what to fetch, and what it need not keep.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gpufs/simt/address_space.hpp"
#include "gpufs/simt/config.hpp"
#include "gpufs/simt/types.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// By one thread: that nbytes from p on, which are there, come from memory to the second-level cache. Returns at once. Nothing
// unless they are in global memory, on GPUs before sm_90, and on the CPU machine.
GPUFS_DEVICE void prefetch([[maybe_unused]] const void* p, [[maybe_unused]] std::uint32_t nbytes) {
#ifdef __CUDA_ARCH__
#if __CUDA_ARCH__ >= 900
  if (nbytes == 0 || !is_global(p)) return;
  // Whole pieces of 16 bytes, each of which has some of them.
  const std::size_t begin = __cvta_generic_to_global(p) & ~std::size_t{15};
  const std::size_t end = (__cvta_generic_to_global(p) + nbytes + 15) & ~std::size_t{15};
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(begin), "r"(static_cast<std::uint32_t>(end - begin)));
#endif
#endif
}

#ifdef __CUDA_ARCH__
namespace detail {
__device__ inline std::uint64_t evict_first() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
}  // namespace detail
#endif

// Load and store 16 bytes of global memory, aligned to 16, as load_device and store_device_16 do: each by one instruction. The
// bytes are not used again soon, so the second-level cache evicts them before others; the first-level one does not get what is
// loaded. (A scan's elements and results; what it has asked for ahead stays. Of arrays that fit into the cache all stays.)
GPUFS_DEVICE vec16 load_once_16(const vec16* p) {
#ifdef __CUDA_ARCH__
  vec16 value;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(value.word[0]), "=r"(value.word[1]), "=r"(value.word[2]), "=r"(value.word[3])
               : "l"(__cvta_generic_to_global(p)), "l"(detail::evict_first())
               : "memory");
  return value;
#else
  return *p;
#endif
}
GPUFS_DEVICE void store_once_16(vec16* p, const vec16& value) {
#ifdef __CUDA_ARCH__
  asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(__cvta_generic_to_global(p)), "r"(value.word[0]),
               "r"(value.word[1]), "r"(value.word[2]), "r"(value.word[3]), "l"(detail::evict_first())
               : "memory");
#else
  *p = value;
#endif
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
