// SPDX-License-Identifier: Apache-2.0
// Running a kernel from the host.
#pragma once
#include <type_traits>

#include "gpufs/simt/config.hpp"
#include "gpufs/simt/schedule.hpp"
#include "gpufs/simt/stream.hpp"
#if GPUFS_ON_CUDA
#include "gpufs/simt/detail/cuda_launch.hpp"
#else
#include "gpufs/simt/detail/cpu_machine.hpp"
#endif

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

#if !GPUFS_ON_CUDA
namespace detail {
// gpufs::cuda defines GPUFS_FOR_CUDA for C++ sources: such a program wants the GPU, and would get the CPU machine.
#if defined(GPUFS_FOR_CUDA) && !defined(GPUFS_CPU_KERNELS)
template <class Kernel>
inline constexpr bool is_for_this_machine = false;
#else
template <class Kernel>
inline constexpr bool is_for_this_machine = true;
#endif

template <class Kernel>
void cpu_run(const launch_config& config, const Kernel& kernel) {
  static_assert(is_for_this_machine<Kernel>,
                "this source links gpufs::cuda, but is not compiled by nvcc, so its kernels would run on the CPU machine: name it "
                "*.cu (or set its LANGUAGE to CUDA), or link gpufs::gpufs alone; where both machines are meant, define "
                "GPUFS_CPU_KERNELS for it");
  runtime::cpu_launch(
      config, [](const void* k) { (*static_cast<const Kernel*>(k))(); }, &kernel);
}
}  // namespace detail
#endif

// Runs kernel() in every thread of config.grid blocks of config.block threads, on the calling thread's current device
// (simt::on_device chooses another), and waits until all have ended. Several host threads may launch at once. Throws launch_error
// when the geometry is refused or the launch fails; on CUDA a kernel that died leaves the device's context unusable. Kernel: a
// trivially copyable functor with `GPUFS_DEVICE void operator()() const`.
//
// launch<MaxThreads, MinBlocks>(...) sets launch bounds, like CUDA's __launch_bounds__: the kernel is compiled for blocks of at
// most MaxThreads threads, and larger blocks are refused. If MinBlocks is not 0, it is compiled so that MinBlocks of them fit on a
// multiprocessor at once.
template <unsigned MaxThreads = 0, unsigned MinBlocks = 0, class Kernel>
void launch(const launch_config& config, const Kernel& kernel) {
  static_assert(std::is_trivially_copyable_v<Kernel>);
#if GPUFS_ON_CUDA
  detail::cuda_launch<MaxThreads, MinBlocks>(config, kernel);
#else
  runtime::check_launch_config(config, MaxThreads);
  detail::cpu_run(config, kernel);
#endif
}

// Loads the kernel, with these launch bounds, onto the current device. Without this call, CUDA loads it at the first launch, and
// from then on no copy in any stream goes on until all running kernels have ended (docs/guide/getting-started.md, "Kernels beside
// kernels"). So if a program launches a kernel beside one that waits for the host, it must load the former before the latter runs.
// The CPU machine loads nothing.
template <class Kernel, unsigned MaxThreads = 0, unsigned MinBlocks = 0>
void load() {
#if GPUFS_ON_CUDA
  runtime::cuda_load(detail::cuda_entry<MaxThreads, MinBlocks, Kernel>());
#endif
}

// How many blocks of config.block threads a cooperative launch of this kernel, with the same launch bounds, may have on the current
// device (CPU machine: with the same schedule). Fewer while other kernels run: a launch then waits for them.
template <unsigned MaxThreads = 0, unsigned MinBlocks = 0, class Kernel>
unsigned max_cooperative_grid(const launch_config& config, [[maybe_unused]] const Kernel& kernel) {
  runtime::check_launch_config(config, MaxThreads);
#if GPUFS_ON_CUDA
  return runtime::cuda_max_cooperative_grid(detail::cuda_entry<MaxThreads, MinBlocks, Kernel>(), config.block);
#else
  return runtime::cpu_max_cooperative_grid(config);
#endif
}

// Launches as launch(config, kernel) does, but on the stream's device, after the stream's earlier work, and without waiting. The
// call copies the kernel object. Whatever the kernel points to must stay valid until the kernel ends; so must a mount that it uses.
template <unsigned MaxThreads = 0, unsigned MinBlocks = 0, class Kernel>
void launch(const launch_config& config, const Kernel& kernel, const stream& on) {
  static_assert(std::is_trivially_copyable_v<Kernel>);
#if GPUFS_ON_CUDA
  const on_device here(on.device());
  detail::cuda_enqueue<MaxThreads, MinBlocks>(config, kernel, on.get());
#else
  runtime::check_launch_config(config, MaxThreads);
  on.get().enqueue([config, kernel] { detail::cpu_run(config, kernel); });
#endif
}

#if GPUFS_ON_CUDA
// CUDA only: in any stream of the current device. cudaStreamSynchronize reports errors of the running kernel.
template <unsigned MaxThreads = 0, unsigned MinBlocks = 0, class Kernel>
void launch(const launch_config& config, const Kernel& kernel, CUstream_st* on) {
  static_assert(std::is_trivially_copyable_v<Kernel>);
  detail::cuda_enqueue<MaxThreads, MinBlocks>(config, kernel, on);
}
#endif

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
