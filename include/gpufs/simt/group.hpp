// SPDX-License-Identifier: Apache-2.0
// Groups of threads and what they do together. Every member that says "collective" must be called by every thread of the group, the
// same one by all; they need not have converged before. A collective orders memory among the group: what a member wrote or acquired
// before it is seen by all members after it. The CPU machine names the lanes that break these rules.
#pragma once
#include <concepts>

#include "gpufs/simt/block.hpp"
#include "gpufs/simt/some_lanes.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// Threads that make a call together: this_thread(), this_tile<N>(), this_warp(), this_block(). All of them call, with equal
// arguments.
template <class G>
concept group = std::is_trivially_copyable_v<G> && requires(const G& g) {
  { g.rank() } -> std::convertible_to<unsigned>;
  { g.size() } -> std::convertible_to<unsigned>;
  { g.leader() } -> std::same_as<bool>;
  { g.any(true) } -> std::same_as<bool>;
  { g.broadcast(0) } -> std::same_as<int>;
  g.sync();
};

// Collective. Does what sync does, and brings a warp together again. For the end of what a leader has done for long: while one lane
// waits or loops, the hardware lets the others pass the place where they would meet, and then they go on apart, instruction by
// instruction, until something brings them together. Only speed depends on it.
template <class Group>
GPUFS_DEVICE void rejoin(Group together) {
#if GPUFS_ON_CUDA
  bool is_warp = std::is_same_v<Group, tile<warp_lanes>>;
  if constexpr (std::is_same_v<Group, some_lanes>) is_warp = together.mask() == ~0u;
  if (is_warp) {
    detail::warp_rejoin();
  } else {
    together.sync();
  }
#else
  together.sync();
#endif
}

GPUFS_DEVICE thread this_thread() { return {}; }
GPUFS_DEVICE warp this_warp() { return {}; }
template <unsigned N>
GPUFS_DEVICE tile<N> this_tile() {
  return {};
}
GPUFS_DEVICE block this_block() { return {}; }

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
