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

template <class Kernel>
void cuda_launch(const launch_config& config, const Kernel& kernel) {
  check_launch_config(config);
  const cuda_stream_lease lease;
  kernel_entry<Kernel><<<config.grid, config.block, 0, lease.stream()>>>(kernel);
  lease.check_launched();
  lease.wait();
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
