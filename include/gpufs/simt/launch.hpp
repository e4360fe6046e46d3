// SPDX-License-Identifier: Apache-2.0
// Running a kernel from the host.
#pragma once
#include <type_traits>

#include "gpufs/simt/config.hpp"
#include "gpufs/simt/schedule.hpp"
#if GPUFS_ON_CUDA
#include "gpufs/simt/detail/cuda_launch.hpp"
#else
#include "gpufs/simt/detail/cpu_machine.hpp"
#endif

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// Runs kernel() in every thread of config.grid blocks of config.block threads and waits until all have ended. Several host
// threads may launch at once. Throws launch_error when the geometry is refused or the launch fails; on CUDA a kernel that died
// leaves the device's context unusable. Kernel: a trivially copyable functor with `GPUFS_DEVICE void operator()() const`.
template <class Kernel>
void launch(const launch_config& config, const Kernel& kernel) {
  static_assert(std::is_trivially_copyable_v<Kernel>);
#if GPUFS_ON_CUDA
  detail::cuda_launch(config, kernel);
#else
  runtime::cpu_launch(
      config, [](const void* k) { (*static_cast<const Kernel*>(k))(); }, &kernel);
#endif
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
