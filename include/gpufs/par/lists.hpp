// SPDX-License-Identifier: Apache-2.0
// Linked lists, all of an array's at once: where each ends, sums along them, and which elements of two lists belong together. In
// kernels, by pointer jumping (Hillis and Steele, "Data parallel algorithms", CACM 1986). docs/design/data-parallel.md
#pragma once
#include "gpufs/par/choices.hpp"
#include "gpufs/par/detail/pointer_jumping.hpp"
#include "gpufs/simt/group_call.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

// Element i of an array of n is in a list, and next[i] is the number of the one behind it, or no_place: it is the last one. By a
// thread, a tile, a warp or a block, all threads of which call with equal arguments. Arrays: n elements of global memory, of which
// those that are written are no others'. In ceil(log2 n) + 1 rounds at most, 1 of n == 0, of which each goes through all elements
// and has a barrier; and fewer, if no list is that long. Nothing is waited for but the group. A thread reads its own elements
// alone before the first barrier: if others have written them, the group syncs before the call, as it does after it, before a
// thread reads others' results.
//
// Errors: -EINVAL (the space is too small, or a Place cannot number n elements), -EDOM (a link, or a first element, is neither
// below n nor no_place), -EEXIST (list_sums and match_lists: an element is behind two others; or is the first one of two lists that
// are matched, or of one, and behind another): nothing is written. -ELOOP: a list has no end; results are any.

// ends[i]: the last element of the list that i is in; its own number if that is i. Lists may join: then they have one end.
template <simt::group Group, place_number Place>
GPUFS_DEVICE list_result list_ends(Group group, const Place* next, std::uint64_t n, Place* ends) {
  const simt::group_call call(group, "par::list_ends(next, n, ends)", simt::memory_of_all{next, n}, n,
                              simt::memory_of_all{ends, n});
  if (n > no_place<Place>) return {-EINVAL, 0};
  return detail::find_ends(detail::team<Group>(group), next, n, ends);
}

// out[i]: the elements of i's list from its first one up to and with i, combined, left operand first; out may be `in`. space:
// scan_space::nbytes_to_sum_lists<T>(n, sizeof(Place)) bytes of global memory.
template <simt::group Group, place_number Place, scan_operator Op>
GPUFS_DEVICE list_result list_sums(Group group, const Place* next, const typename Op::value* in, std::uint64_t n,
                                   typename Op::value* out, const Op& op, const scan_space& space) {
  const simt::group_call call(group, "par::list_sums(next, in, n, out, space, nbytes)", simt::memory_of_all{next, n},
                              simt::memory_of_all{in, n}, n, simt::memory_of_all{out, n}, simt::memory_of_all{space.data, n},
                              space.nbytes);
  if (!detail::is_room_to_sum<Place, typename Op::value>(space, n, 1)) return {-EINVAL, 0};
  detail::pieces_of_space pieces(space);
  return detail::sum_lists(detail::team<Group>(group), next, in, n, out, op, pieces);
}

// For each of npairs pairs of lists, which begin with elements firsts[i] and seconds[i] (no_place: an empty list): mates[j] is of
// each of their elements j the one that stands where j does in the other list, or no_place, where that is shorter; of elements of
// other lists no_place. space: scan_space::nbytes_to_match_lists(n, sizeof(Place)) bytes of global memory.
template <simt::group Group, place_number Place>
GPUFS_DEVICE list_result match_lists(Group group, const Place* next, std::uint64_t n, const Place* firsts, const Place* seconds,
                                     std::uint64_t npairs, Place* mates, const scan_space& space) {
  const simt::group_call call(group, "par::match_lists(next, n, firsts, seconds, npairs, mates, space, nbytes)",
                              simt::memory_of_all{next, n}, n, simt::memory_of_all{firsts, npairs},
                              simt::memory_of_all{seconds, npairs}, npairs, simt::memory_of_all{mates, n},
                              simt::memory_of_all{space.data, n}, space.nbytes);
  if (!detail::is_room_to_match<Place>(space, n, 1)) return {-EINVAL, 0};
  detail::pieces_of_space pieces(space);
  return detail::match_pairs(detail::team<Group>(group), next, n, firsts, seconds, npairs, mates, pieces);
}

// The same by all threads of all blocks of a cooperative launch, which call with equal arguments and get equal results. What any of
// them has written before, all see in the call, and what the call has written, all see after it. space: as above, for so many
// blocks; of list_ends nbytes_to_send(0, blocks).
template <place_number Place>
GPUFS_DEVICE list_result list_ends(simt::grid grid, const Place* next, std::uint64_t n, Place* ends, const scan_space& space) {
  const simt::group_call call(grid.this_block(), "par::list_ends(next, n, ends, space, nbytes)", simt::memory_of_all{next, n}, n,
                              simt::memory_of_all{ends, n}, simt::memory_of_all{space.data}, space.nbytes);
  if (n > no_place<Place> || space.nbytes < scan_space::nbytes_to_send(0, simt::grid_size())) return {-EINVAL, 0};
  detail::pieces_of_space pieces(space);
  return detail::find_ends(detail::team<simt::grid>(grid, pieces), next, n, ends);
}
template <place_number Place, scan_operator Op>
GPUFS_DEVICE list_result list_sums(simt::grid grid, const Place* next, const typename Op::value* in, std::uint64_t n,
                                   typename Op::value* out, const Op& op, const scan_space& space) {
  const simt::group_call call(grid.this_block(), "par::list_sums(next, in, n, out, space, nbytes)", simt::memory_of_all{next, n},
                              simt::memory_of_all{in, n}, n, simt::memory_of_all{out, n}, simt::memory_of_all{space.data},
                              space.nbytes);
  if (!detail::is_room_to_sum<Place, typename Op::value>(space, n, simt::grid_size())) return {-EINVAL, 0};
  detail::pieces_of_space pieces(space);
  const detail::team<simt::grid> all(grid, pieces);
  return detail::sum_lists(all, next, in, n, out, op, pieces);
}
template <place_number Place>
GPUFS_DEVICE list_result match_lists(simt::grid grid, const Place* next, std::uint64_t n, const Place* firsts, const Place* seconds,
                                     std::uint64_t npairs, Place* mates, const scan_space& space) {
  const simt::group_call call(grid.this_block(), "par::match_lists(next, n, firsts, seconds, npairs, mates, space, nbytes)",
                              simt::memory_of_all{next, n}, n, simt::memory_of_all{firsts, npairs},
                              simt::memory_of_all{seconds, npairs}, npairs, simt::memory_of_all{mates, n},
                              simt::memory_of_all{space.data}, space.nbytes);
  if (!detail::is_room_to_match<Place>(space, n, simt::grid_size())) return {-EINVAL, 0};
  detail::pieces_of_space pieces(space);
  const detail::team<simt::grid> all(grid, pieces);
  return detail::match_pairs(all, next, n, firsts, seconds, npairs, mates, pieces);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
