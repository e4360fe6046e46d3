// SPDX-License-Identifier: Apache-2.0
// Ending a kernel that cannot go on.
#pragma once
#include "gpufs/simt/config.hpp"
#if !GPUFS_ON_CUDA
#include <stdexcept>
#endif

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// Stops the kernel: its launch fails. On CUDA the context is lost with it, so all later calls fail; the CPU machine's launch error
// says `why`.
[[noreturn]] GPUFS_DEVICE void stop_kernel([[maybe_unused]] const char* why) {
#if GPUFS_ON_CUDA
  __trap();
  __builtin_unreachable();
#else
  throw std::runtime_error(why);
#endif
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
