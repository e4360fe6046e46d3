// SPDX-License-Identifier: Apache-2.0
// Counters that many lanes raise at once.
#pragma once
#include <cstdint>
#include <type_traits>

#include "gpufs/simt/atomic.hpp"
#include "gpufs/simt/group.hpp"
#include "gpufs/simt/thread.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// Adds 1, relaxed, device scope; a group's leader calls. On CUDA the leaders of a warp that arrive together at one counter make one
// addition for all of them: 32 lanes that each look a page up would otherwise meet the limit of one word's atomics (1.4 G/s). The
// sum is the same whichever lanes arrive together, so the active mask is enough here.
template <class Group>
GPUFS_DEVICE void count_one([[maybe_unused]] Group group, std::uint64_t& counter) {
#if GPUFS_ON_CUDA && defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<Group, warp> || std::is_same_v<Group, block>) {
    atomic_ref<std::uint64_t>(counter).add_relaxed(1);
    return;
  }
  const std::uint32_t active = __activemask();
  const std::uint32_t same = __match_any_sync(active, reinterpret_cast<std::uintptr_t>(&counter));
  if (lane_id() == static_cast<std::uint32_t>(__ffs(static_cast<int>(same)) - 1)) {
    atomic_ref<std::uint64_t>(counter).add_relaxed(static_cast<std::uint64_t>(__popc(same)));
  }
#else
  atomic_ref<std::uint64_t>(counter).add_relaxed(1);
#endif
}

// Adds n, in the same way. Each lane calls, and n may differ between lanes.
GPUFS_DEVICE void count_each(std::uint64_t& counter, std::uint32_t n) {
#if GPUFS_ON_CUDA && defined(__CUDA_ARCH__)
  const std::uint32_t same = __match_any_sync(__activemask(), reinterpret_cast<std::uintptr_t>(&counter));
  const std::uint32_t sum = __reduce_add_sync(same, n);
  if (sum != 0 && lane_id() == static_cast<std::uint32_t>(__ffs(static_cast<int>(same)) - 1)) {
    atomic_ref<std::uint64_t>(counter).add_relaxed(sum);
  }
#else
  if (n != 0) atomic_ref<std::uint64_t>(counter).add_relaxed(n);
#endif
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
