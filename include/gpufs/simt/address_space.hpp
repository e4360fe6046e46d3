// SPDX-License-Identifier: Apache-2.0
// Which kind of memory an address is in, for calls that take one kind only.
#pragma once
#include "gpufs/simt/config.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// Whether the address is in global memory, where it means the same to all threads of the device; shared and local memory are not
// global. The CPU machine has one address space: there, every address is.
GPUFS_DEVICE bool is_global([[maybe_unused]] const void* address) {
#ifdef __CUDA_ARCH__
  return __isGlobal(address) != 0;
#else
  return true;
#endif
}

// Whether it is a thread's own, on its stack, where each thread finds something else at one address. The CPU machine says so of
// none.
GPUFS_DEVICE bool is_local([[maybe_unused]] const void* address) {
#ifdef __CUDA_ARCH__
  return __isLocal(address) != 0;
#else
  return false;
#endif
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
