// SPDX-License-Identifier: Apache-2.0
// The calling thread's place. Blocks and grids are linear here: rank = x + y * nx + z * nx * ny.
#pragma once
#include <cstdint>

#include "gpufs/simt/config.hpp"
#include "gpufs/simt/detail/cpu_machine.hpp"
#include "gpufs/simt/types.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

#if GPUFS_ON_CUDA
GPUFS_DEVICE std::uint32_t lane_id() {
  std::uint32_t lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
GPUFS_DEVICE std::uint32_t thread_rank() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
GPUFS_DEVICE std::uint32_t warp_rank() { return thread_rank() / warp_lanes; }
GPUFS_DEVICE std::uint32_t block_size() { return blockDim.x * blockDim.y * blockDim.z; }
GPUFS_DEVICE std::uint32_t block_rank() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }
GPUFS_DEVICE std::uint32_t grid_size() { return gridDim.x * gridDim.y * gridDim.z; }
GPUFS_DEVICE std::uint32_t processor_id() {
  std::uint32_t sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  return sm;
}
#else
GPUFS_DEVICE std::uint32_t lane_id() { return runtime::cpu_current->lane_id; }          // 0 .. 31
GPUFS_DEVICE std::uint32_t thread_rank() { return runtime::cpu_current->thread_rank; }  // in the block
GPUFS_DEVICE std::uint32_t warp_rank() { return runtime::cpu_current->warp_rank; }      // in the block
GPUFS_DEVICE std::uint32_t block_size() { return runtime::cpu_current->block_size; }    // threads
GPUFS_DEVICE std::uint32_t block_rank() { return runtime::cpu_current->block_rank; }    // in the grid
GPUFS_DEVICE std::uint32_t grid_size() { return runtime::cpu_current->grid_size; }      // blocks
// SM number, or number of the launch's OS thread; may change between calls on CUDA: only for spreading load.
GPUFS_DEVICE std::uint32_t processor_id() { return runtime::cpu_current->processor; }
#endif

// How many warps the grid has, and the calling warp's rank among them.
GPUFS_DEVICE std::uint64_t global_warp_count() {
  return std::uint64_t{grid_size()} * ((block_size() + warp_lanes - 1) / warp_lanes);
}
GPUFS_DEVICE std::uint64_t global_warp_rank() {
  return std::uint64_t{block_rank()} * ((block_size() + warp_lanes - 1) / warp_lanes) + warp_rank();
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
