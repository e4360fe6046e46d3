// SPDX-License-Identifier: Apache-2.0
// CUDA only: names a cooperative group where gpufs wants one of its own. as_group(g) where every thread of g calls.
#pragma once
#include "gpufs/simt/config.hpp"
#include "gpufs/simt/group.hpp"
#if GPUFS_ON_CUDA
#include <cooperative_groups.h>

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

GPUFS_DEVICE block as_group(const cooperative_groups::thread_block&) { return {}; }

// Tiles made by tiled_partition of a block lie in it as ours do: N consecutive lanes, aligned to N.
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
