// SPDX-License-Identifier: Apache-2.0
// Bits of words.
#pragma once
#include <cstdint>

#include "gpufs/simt/config.hpp"
#if !GPUFS_ON_CUDA || !defined(__CUDA_ARCH__)
#include <bit>
#endif

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// How many bits below the lowest one that is set; 32 if none is.
GPUFS_HOST_DEVICE unsigned trailing_zeros(std::uint32_t x) {
#ifdef __CUDA_ARCH__
  return x == 0 ? 32 : static_cast<unsigned>(__ffs(static_cast<int>(x)) - 1);
#else
  return static_cast<unsigned>(std::countr_zero(x));
#endif
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
