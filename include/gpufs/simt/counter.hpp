// SPDX-License-Identifier: Apache-2.0
// Counters that many lanes raise at once.
#pragma once
#include <cstdint>

#include "gpufs/simt/atomic.hpp"
#include "gpufs/simt/thread.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// Adds 1, relaxed, device scope. On CUDA the lanes that arrive together at one counter add once for all: 32 lanes that each
// look a page up would otherwise meet the limit of one word's atomics (1.4 G/s). Which lanes arrive together does not
// matter for the sum, so the active mask is enough here.
GPUFS_DEVICE void count_one(std::uint64_t& counter) {
#if GPUFS_ON_CUDA && defined(__CUDA_ARCH__)
  const std::uint32_t active = __activemask();
  if ((active & (active - 1)) == 0) {  // a warp's leader
    atomic_ref<std::uint64_t>(counter).add_relaxed(1);
    return;
  }
  const std::uint32_t same = __match_any_sync(active, reinterpret_cast<std::uintptr_t>(&counter));
  if (lane_id() == static_cast<std::uint32_t>(__ffs(static_cast<int>(same)) - 1)) {
    atomic_ref<std::uint64_t>(counter).add_relaxed(static_cast<std::uint64_t>(__popc(same)));
  }
#else
  atomic_ref<std::uint64_t>(counter).add_relaxed(1);
#endif
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
