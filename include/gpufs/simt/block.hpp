// SPDX-License-Identifier: Apache-2.0
// The threads of a block as a group; group.hpp says what holds for all groups.
#pragma once
#include "gpufs/simt/tile.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// All threads of the block.
class block {
 public:
  GPUFS_DEVICE static unsigned size() { return block_size(); }
  GPUFS_DEVICE static unsigned rank() { return thread_rank(); }
  GPUFS_DEVICE static bool leader() { return rank() == 0; }
  // True in exactly one thread. Not a collective.
  GPUFS_DEVICE static bool elect() { return leader(); }
  GPUFS_DEVICE static unsigned nwarps() { return size() / warp_lanes; }
  // The calling thread's warp.
  GPUFS_DEVICE static tile<warp_lanes> warp() { return {}; }

  // Collective.
  GPUFS_DEVICE void sync() const { detail::block_sync(); }
  // Collective.
  GPUFS_DEVICE bool any(bool predicate) const { return detail::block_any(predicate); }
  // Collective.
  GPUFS_DEVICE bool all(bool predicate) const { return detail::block_all(predicate); }
  // Collective. Lane i of each warp gets the votes of warp i, bit j = its lane j; 0 if the block has no warp i. Two barriers.
  GPUFS_DEVICE std::uint32_t ballot(bool predicate) const { return of_each_warp(warp().ballot(predicate), 0u); }
  // Collective. For how many threads the predicate is true.
  GPUFS_DEVICE unsigned count(bool predicate) const { return detail::block_count(predicate); }
  // Collective. The value of rank src_rank, the same for all callers. Two barriers on CUDA.
  template <exchangeable T>
  GPUFS_DEVICE T broadcast(const T& value, unsigned src_rank = 0) const {
    T result(value);
    detail::block_broadcast(&result, src_rank);
    return result;
  }
  // Collective. Integers of up to 8 bytes, whose sums wrap around, float and double. Each warp adds its own values first. Then the
  // warps' sums are added like a warp's 32 values, with 0 for each missing warp. The order is the same each time, and on both
  // machines. Two barriers.
  template <class T>
  requires(std::is_integral_v<T> || std::is_same_v<T, float> || std::is_same_v<T, double>) GPUFS_DEVICE T reduce_add(T value)
  const {
    value = warp().reduce_add(value);
    return warp().reduce_add(of_each_warp(value, T{}));
  }
  // Collective. Like a tile's: each warp scans its own values, then adds the sum of the warps below it in front. Two barriers.
  template <summable T>
  GPUFS_DEVICE T inclusive_scan_add(T value) const {
    const T of_mine = warp().inclusive_scan_add(value);
    return detail::sum_of(below_my_warp(of_mine), of_mine);
  }
  template <summable T>
  GPUFS_DEVICE T exclusive_scan_add(T value) const {
    const T up_to_me = warp().inclusive_scan_add(value);
    const T below = warp().shfl(up_to_me, lane_id() == 0 ? 0 : lane_id() - 1);
    return detail::sum_of(below_my_warp(up_to_me), lane_id() == 0 ? T{} : below);
  }
  // Collective. Two barriers.
  template <class T>
  requires std::is_integral_v<T> GPUFS_DEVICE T reduce_min(T value)
  const {
    value = warp().reduce_min(value);
    return warp().reduce_min(of_each_warp(value, value));
  }
  // Collective. Two barriers.
  template <class T>
  requires std::is_integral_v<T> GPUFS_DEVICE T reduce_max(T value)
  const {
    value = warp().reduce_max(value);
    return warp().reduce_max(of_each_warp(value, value));
  }

 private:
  // The sum of the warps below the caller's; up_to_me: the inclusive scan of the caller's warp.
  template <class T>
  GPUFS_DEVICE T below_my_warp(T up_to_me) const {
    const T of_warps = of_each_warp(warp().broadcast(up_to_me, warp_lanes - 1), T{});
    return warp().shfl(warp().exclusive_scan_add(of_warps), warp_rank());
  }
  // Through shared memory: lane i of each warp gets warp i's value, and `other` if there is none.
  template <class T>
  GPUFS_DEVICE T of_each_warp(T value, T other) const {
    static_assert(sizeof(T) <= sizeof(std::uint64_t));
    std::uint64_t* slots = detail::block_slots();
    sync();  // all threads have read the values of the previous reduction
    if (warp().leader()) std::memcpy(slots + warp_rank(), &value, sizeof value);
    sync();
    if (lane_id() < nwarps()) std::memcpy(&other, slots + lane_id(), sizeof other);
    return other;
  }
};

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
