// SPDX-License-Identifier: Apache-2.0
// CUDA only: turns a cooperative group into the gpufs group of the same threads. Every thread of g calls as_group(g).
#pragma once
#include "gpufs/simt/config.hpp"
#include "gpufs/simt/group.hpp"
#if GPUFS_ON_CUDA
#include <cooperative_groups.h>

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

GPUFS_DEVICE block as_group(const cooperative_groups::thread_block&) { return {}; }

// Tiles that tiled_partition makes of a block have the same lanes as ours: N consecutive ones, aligned to N.
template <unsigned N, class Parent>
requires(N <= warp_lanes) GPUFS_DEVICE tile<N> as_group(const cooperative_groups::thread_block_tile<N, Parent>&) { return {}; }

template <unsigned N>
GPUFS_DEVICE tile<N> as_group(tile<N> group) {
  return group;
}
GPUFS_DEVICE block as_group(block group) { return group; }

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
#endif
