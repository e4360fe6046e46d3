// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "gpufs/simt/config.hpp"
#include "gpufs/simt/detail/cuda_stream.hpp"
#include "gpufs/simt/schedule.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {
namespace detail {
using namespace simt::runtime;

template <class Kernel>
__global__ void kernel_entry(const __grid_constant__ Kernel kernel) {
  kernel();
}
template <class Kernel, unsigned MaxThreads, unsigned MinBlocks>
__global__ void __launch_bounds__(MaxThreads, MinBlocks) bounded_kernel_entry(const __grid_constant__ Kernel kernel) {
  kernel();
}

template <unsigned MaxThreads, unsigned MinBlocks, class Kernel>
const void* cuda_entry() {
  if constexpr (MaxThreads == 0) {
    return reinterpret_cast<const void*>(&kernel_entry<Kernel>);
  } else {
    return reinterpret_cast<const void*>(&bounded_kernel_entry<Kernel, MaxThreads, MinBlocks>);
  }
}

template <unsigned MaxThreads, unsigned MinBlocks, class Kernel>
void cuda_enqueue(const launch_config& config, const Kernel& kernel, CUstream_st* stream) {
  check_launch_config(config, MaxThreads);
  if (config.cooperative) {
    void* argument = const_cast<Kernel*>(&kernel);
    cuda_launch_cooperatively(cuda_entry<MaxThreads, MinBlocks, Kernel>(), config, &argument, stream);
    return;
  }
  if constexpr (MaxThreads == 0) {
    kernel_entry<Kernel><<<config.grid, config.block, 0, stream>>>(kernel);
  } else {
    bounded_kernel_entry<Kernel, MaxThreads, MinBlocks><<<config.grid, config.block, 0, stream>>>(kernel);
  }
  cuda_check_launched();
}

template <unsigned MaxThreads, unsigned MinBlocks, class Kernel>
void cuda_launch(const launch_config& config, const Kernel& kernel) {
  const cuda_stream_lease lease(cuda_current_device());
  cuda_enqueue<MaxThreads, MinBlocks>(config, kernel, lease.stream());
  lease.wait();
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
