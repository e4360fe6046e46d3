// SPDX-License-Identifier: Apache-2.0
// Gives free items to those who want one, each another, without locks: both are numbered, and who has the same number meets. In
// kernels. (Hillis and Steele, "Data parallel algorithms", CACM 1986: processor-cons, the allocation of processors by a
// rendezvous.) docs/design/data-parallel.md
#pragma once
#include "gpufs/par/detail/meeting_place.hpp"
#include "gpufs/simt/group_call.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

// What came of a rendezvous. Who wanted an item and got one: the first `nfree` of them, or all.
struct rendezvous_result {
  int error;              // 0; -EINVAL: the space is too small, or a Place cannot number nitems items; nothing is done
  std::uint64_t nwanted;  // how many wanted one
  std::uint64_t nfree;    // how many were free
};

// got[i], for i below n: the item that i has now, or no_place, if wants[i] is 0 or none was left. Who wants comes by number, and so
// do items: the first one who wants gets the first free item, the second one the second, and so on, as far as both go; so where
// items are too few, those with the greatest numbers get none, and none is given back. is_free[j], of nitems items: a byte each,
// which becomes 0 if j was free and is given to somebody. By a thread, a tile, a warp or a block, all threads of which call with
// equal arguments. Arrays: memory that all threads reach, none of which overlap; nobody else allocates meanwhile. space:
// scan_space::nbytes_to_meet(n, nitems, sizeof(Place)) bytes. The result is the same on each run. Nothing is waited for but the
// group. A thread reads its own share of wants and is_free alone: if others have written that, the group syncs before the call, as
// it does after it, before a thread reads what others have written.
template <simt::group Group, place_number Place>
GPUFS_DEVICE rendezvous_result rendezvous(Group group, const std::uint8_t* wants, std::uint64_t n, std::uint8_t* is_free,
                                          std::uint64_t nitems, Place* got, const scan_space& space) {
  const simt::group_call call(group, "par::rendezvous(wants, n, is_free, nitems, got, space, nbytes)",
                              simt::memory_of_all{wants, n}, n, simt::memory_of_all{is_free, nitems}, nitems,
                              simt::memory_of_all{got, n}, simt::memory_of_all{space.data, space.nbytes}, space.nbytes);
  const std::uint64_t most = n < nitems ? n : nitems;
  if (nitems > no_place<Place> || most > space.nbytes || space.nbytes < scan_space::nbytes_to_meet(n, nitems, sizeof(Place))) {
    return {-EINVAL, 0, 0};
  }
  detail::pieces_of_space pieces(space);
  const detail::meeting_place<Place> here{wants, n, is_free, nitems, got, pieces.take<Place>(most)};
  const auto scan = [&](const auto& items, std::uint64_t nof, const auto& put, std::uint64_t& all) {
    all = detail::scan_by_group(group, items, nof, plus<std::uint64_t>{}, put);
    group.sync();
    return 0;
  };
  return here.template meet<rendezvous_result, detail::memory::any>(scan);
}

// The same by all threads of all blocks of a cooperative launch, which call with equal arguments and get equal results. Arrays and
// space: global memory; nbytes_to_meet(n, nitems, sizeof(Place), blocks, threads a block). What any of them has written before, all
// see in the call, and what the call has written, all see after it. Also -ETIMEDOUT, as a scan: `got` is incomplete.
template <place_number Place>
GPUFS_DEVICE rendezvous_result rendezvous(simt::grid grid, const std::uint8_t* wants, std::uint64_t n, std::uint8_t* is_free,
                                          std::uint64_t nitems, Place* got, const scan_space& space) {
  const simt::group_call call(grid.this_block(), "par::rendezvous(wants, n, is_free, nitems, got, space, nbytes)",
                              simt::memory_of_all{wants, n}, n, simt::memory_of_all{is_free, nitems}, nitems,
                              simt::memory_of_all{got, n}, simt::memory_of_all{space.data}, space.nbytes);
  const std::uint64_t most = n < nitems ? n : nitems;
  if (nitems > no_place<Place> || most > space.nbytes || !space.may_be_enough_for(n) || !space.may_be_enough_for(nitems) ||
      space.nbytes < scan_space::nbytes_to_meet(n, nitems, sizeof(Place), simt::grid_size(), simt::block_size())) {
    return {-EINVAL, 0, 0};
  }
  detail::pieces_of_space pieces(space);
  const detail::meeting_place<Place> here{wants, n, is_free, nitems, got, pieces.take<Place>(most)};
  const scan_space rest = pieces.rest(space);
  const auto scan = [&](const auto& items, std::uint64_t nof, const auto& put, std::uint64_t& all) {
    return detail::scan_by_look_back(grid, items, nof, plus<std::uint64_t>{}, rest, put, all);
  };
  return here.template meet<rendezvous_result, detail::memory::global>(scan);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
