// SPDX-License-Identifier: Apache-2.0
// Who goes through an array together, a group or a grid: each thread stands for as many of its elements as it takes ("virtual
// processors": Hillis and Steele, "Data parallel algorithms", CACM 1986). What has several steps is written once for both.
#pragma once
#include <cstdint>

#include "gpufs/par/detail/look_back.hpp"
#include "gpufs/par/scan_space.hpp"
#include "gpufs/simt/grid.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {
namespace detail {

template <class Group>
class team {
 public:
  GPUFS_DEVICE explicit team(Group group) : group_(group) {}
  GPUFS_DEVICE team(Group group, pieces_of_space&) : group_(group) {}

  // A call's beginning and end: a group's threads sync before and after it, where they must.
  GPUFS_DEVICE void begin() const {}
  GPUFS_DEVICE void end() const {}
  // Collective.
  GPUFS_DEVICE void sync() const { group_.sync(); }
  // Collective, in which all meet.
  GPUFS_DEVICE int least(int value) const { return group_.reduce_min(value); }
  // element(i) for each i below n, by one thread each.
  template <class Element>
  GPUFS_DEVICE void each(std::uint64_t n, Element element) const {
    for (std::uint64_t i = group_.rank(); i < n; i += group_.size()) element(i);
  }

 private:
  Group group_;
};

template <>
class team<simt::grid> {
 public:
  // Takes 4 bytes a block.
  GPUFS_DEVICE team(simt::grid grid, pieces_of_space& pieces) : grid_(grid), words_(pieces.take<int>(simt::grid_size())) {}

  GPUFS_DEVICE void begin() const { grid_.sync(); }
  GPUFS_DEVICE void end() const { grid_.sync(); }
  GPUFS_DEVICE void sync() const { grid_.sync(); }
  GPUFS_DEVICE int least(int value) const { return grid_.reduce_min(value, words_); }
  template <class Element>
  GPUFS_DEVICE void each(std::uint64_t n, Element element) const {
    for (std::uint64_t i = grid_.rank(); i < n; i += grid_.size()) element(i);
  }

 private:
  simt::grid grid_;
  int* words_;
};

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
