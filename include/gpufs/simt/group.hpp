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

GPUFS_DEVICE thread this_thread() { return {}; }
GPUFS_DEVICE warp this_warp() { return {}; }
template <unsigned N>
GPUFS_DEVICE tile<N> this_tile() {
  return {};
}
GPUFS_DEVICE block this_block() { return {}; }

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
