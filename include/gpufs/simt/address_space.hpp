// SPDX-License-Identifier: Apache-2.0
// Which memory an address is of, for calls that take one kind only.
#pragma once
#include "gpufs/simt/config.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// Whether it is of global memory, where all threads of the device find the same at one address; shared and local memory are not.
// The CPU machine has one address space, and says so of all of it.
GPUFS_DEVICE bool is_global([[maybe_unused]] const void* address) {
#ifdef __CUDA_ARCH__
  return __isGlobal(address) != 0;
#else
  return true;
#endif
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
