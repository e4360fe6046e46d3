// SPDX-License-Identifier: Apache-2.0
// Lanes of a warp that happen to be together: a group that is known at run time only. group.hpp says what holds for all groups.
#pragma once
#include "gpufs/simt/tile.hpp"

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// Some lanes of a warp: those that arrived at lanes_together() together. Ranks count these lanes in the order of the warp. The
// members are like tile's.
class some_lanes {
 public:
  GPUFS_DEVICE explicit some_lanes(std::uint32_t mask) : mask_(mask) {}

  GPUFS_DEVICE std::uint32_t mask() const { return mask_; }
  GPUFS_DEVICE unsigned size() const { return detail::count_lanes(mask_); }
  GPUFS_DEVICE unsigned rank() const { return detail::count_lanes(mask_ & ((1u << lane_id()) - 1)); }
  GPUFS_DEVICE unsigned first_lane() const { return detail::lowest_lane(mask_); }
  GPUFS_DEVICE bool leader() const { return lane_id() == first_lane(); }
  GPUFS_DEVICE bool elect() const { return leader(); }

  // Collective.
  GPUFS_DEVICE void sync() const { detail::warp_sync(mask_); }
  // Collective. Bit i is lane i's predicate (lanes, not ranks: any subset of the lanes is a group again).
  GPUFS_DEVICE std::uint32_t ballot_lanes(bool predicate) const { return detail::warp_ballot(mask_, predicate); }
  // Collective. The lanes whose value has the same bytes; the caller's bit is set.
  template <class T>
  requires(sizeof(T) == 4 || sizeof(T) == 8) GPUFS_DEVICE std::uint32_t match_any_lanes(const T& value)
  const {
    std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t> bits;
    std::memcpy(&bits, &value, sizeof bits);
    return detail::warp_match_any(mask_, bits);
  }
  // Collective. The value of lane `lane` of the group; callers may name different lanes.
  template <exchangeable T>
  GPUFS_DEVICE T shfl_from_lane(const T& value, unsigned lane) const {
    T result(value);
    detail::warp_shfl<warp_lanes>(mask_, 0, &result, lane);
    return result;
  }
  // Collective. The leader's value.
  template <exchangeable T>
  GPUFS_DEVICE T broadcast(const T& value) const {
    T result(value);
    detail::warp_broadcast<warp_lanes>(mask_, 0, &result, first_lane());
    return result;
  }

 private:
  std::uint32_t mask_;
};

// The lanes of the caller's warp that are here together with it: any set that contains the caller, the same for all its lanes. They
// go on as a group. The hardware chooses the lanes (CPU machine: the seed does), so only speed may depend on the choice. Site: a
// type that names this place in the code, because the CPU machine cannot tell where a lane is. After cooperative groups'
// coalesced_threads().
template <class Site>
GPUFS_DEVICE some_lanes lanes_together() {
  return some_lanes(detail::converged_lanes<Site>());
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
