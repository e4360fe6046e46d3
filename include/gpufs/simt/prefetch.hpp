// SPDX-License-Identifier: Apache-2.0
// A request to the second-level cache.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gpufs/simt/address_space.hpp"
#include "gpufs/simt/config.hpp"

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

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
