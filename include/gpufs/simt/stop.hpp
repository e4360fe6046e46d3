// SPDX-License-Identifier: Apache-2.0
// Ending a kernel that cannot go on.
#pragma once
#include "gpufs/simt/config.hpp"
#if !GPUFS_ON_CUDA
#include <stdexcept>

#include "gpufs/simt/detail/cpu_machine.hpp"
#endif

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// Stops the kernel: its launch fails. On CUDA the context is lost too, so all later calls fail; on the CPU machine the launch's
// error says `why`.
[[noreturn]] GPUFS_DEVICE void stop_kernel([[maybe_unused]] const char* why) {
#if GPUFS_ON_CUDA
#if defined(__CUDA_ARCH__)
  __trap();
#endif
  __builtin_unreachable();  // nvcc's pass over the host code sees this only, and wants it
#else
  throw std::runtime_error(why);
#endif
}

// For mistakes of a kernel that a GPU does not notice. On the CPU machine the launch fails; its error names the caller's lane, and
// then says `what` the lane does. On CUDA nothing happens.
GPUFS_DEVICE void report_misuse([[maybe_unused]] const char* what) {
#if !GPUFS_ON_CUDA
  runtime::cpu_report_misuse(what);
#endif
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
