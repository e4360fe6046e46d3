// SPDX-License-Identifier: Apache-2.0
// Sends elements of an array to places of another one, where several may meet: they are combined, one of them stays, or it is an
// error. In kernels. (Hillis and Steele, "Data parallel algorithms", CACM 1986: general communication; what happens where messages
// meet is the sender's to say.) docs/design/data-parallel.md
#pragma once
#include "gpufs/par/detail/meetings.hpp"
#include "gpufs/par/scan_space.hpp"
#include "gpufs/simt/group_call.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

// Of elements that meet the one with the greatest number stays, whichever threads send them.
struct keep_last {};
// That elements meet is an error, and then none is sent.
struct refuse_to_meet {};
template <class Mode>
concept delivery = std::same_as<Mode, keep_last> || std::same_as<Mode, refuse_to_meet>;

// What combines elements that meet with what is in their place: operators of operators.hpp or one's own, of values of 4 or 8 bytes
// (integers, float, double, or structs aligned to their size and without padding), that are associative and commute: nobody says
// who comes first. (Values of other sizes are sorted by their places, and summed by segments: example 22.)
template <class Op>
concept meeting_operator = scan_operator<Op> &&(sizeof(typename Op::value) == 4 || sizeof(typename Op::value) == 8) &&
                           alignof(typename Op::value) == sizeof(typename Op::value) &&
                           (std::is_floating_point_v<typename Op::value> ||
                            std::has_unique_object_representations_v<typename Op::value>);

namespace detail {

GPUFS_DEVICE bool is_room_to_send(const scan_space& space, std::uint64_t nout, unsigned nblocks) {
  return nout <= space.nbytes / 8 && space.nbytes >= scan_space::nbytes_to_send(nout, nblocks);
}

template <class Group, class T, place_number Place, class Op>
GPUFS_DEVICE int send_and_combine(const team<Group>& all, const T* in, const Place* to, std::uint64_t n, T* out, std::uint64_t nout,
                                  const Op& op) {
  all.begin();
  const int error = check_places(all, to, n, nout);
  if (error != 0) return error;
  all.each(n, [&](std::uint64_t i) {
    if (to[i] != no_place<Place>) combine_at<simt::scope::device>(out[to[i]], in[i], op);
  });
  all.end();
  return 0;
}

template <delivery Mode, class Group, class T, place_number Place>
GPUFS_DEVICE int send_and_keep(const team<Group>& all, const comers& of, const T* in, const Place* to, std::uint64_t n, T* out,
                               std::uint64_t nout) {
  all.begin();
  const int error = check_places(all, to, n, nout);
  if (error != 0) return error;
  const auto each_sent = [&](auto sent) {
    all.each(n, [&](std::uint64_t i) {
      if (to[i] != no_place<Place>) sent(i);
    });
  };
  each_sent([&](std::uint64_t i) { of.clear(to[i]); });
  all.sync();
  bool meets = false;
  each_sent([&](std::uint64_t i) { meets = of.come(to[i], i) || meets; });
  if constexpr (std::is_same_v<Mode, refuse_to_meet>) {
    if (all.least(meets ? -EEXIST : 0) != 0) return -EEXIST;
  } else {
    all.sync();
  }
  each_sent([&](std::uint64_t i) {
    if (of.is_last(to[i], i)) out[to[i]] = in[i];
  });
  all.end();
  return 0;
}

}  // namespace detail

// out[to[i]] becomes op(out[to[i]], in[i]), for each i below n whose to[i] is not no_place. By a thread, a tile, a warp or a block,
// all threads of which call with equal arguments. in, to: memory that they reach. out: nout elements of global memory, none of them
// `in` or `to`; other groups, and other calls, may send there by the same operator meanwhile. Returns 0; or -EDOM, where some to[i]
// is nout or more: nothing is sent. The result is the same on each run for operators that are exact; sums of real numbers
// depend on who comes first. Nothing is waited for but the group. A thread reads its own share of `in` and `to` alone: if others
// have written that, the group syncs before the call, as it does after it, before a thread reads `out`.
template <simt::group Group, place_number Place, meeting_operator Op>
GPUFS_DEVICE int send(Group group, const typename Op::value* in, const Place* to, std::uint64_t n, typename Op::value* out,
                      std::uint64_t nout, const Op& op) {
  const simt::group_call call(group, "par::send(in, to, n, out, nout)", simt::memory_of_all{in, n}, simt::memory_of_all{to, n}, n,
                              simt::memory_of_all{out, n}, nout);
  return detail::send_and_combine(detail::team<Group>(group), in, to, n, out, nout, op);
}

// out[to[i]] becomes in[i]: mode says what of elements that meet. Of any type that scans take; no value is torn. Nobody else
// writes `out` meanwhile. space: scan_space::nbytes_to_send(nout) bytes of global memory. Else as above; or -EINVAL, the space is
// too small; of refuse_to_meet also -EEXIST, two elements have one place. Of an error nothing is sent.
template <simt::group Group, scannable T, place_number Place, delivery Mode>
GPUFS_DEVICE int send(Group group, const T* in, const Place* to, std::uint64_t n, T* out, std::uint64_t nout, Mode,
                      const scan_space& space) {
  const simt::group_call call(group, "par::send(in, to, n, out, nout, space, nbytes)", simt::memory_of_all{in, n},
                              simt::memory_of_all{to, n}, n, simt::memory_of_all{out, n}, nout, simt::memory_of_all{space.data, n},
                              space.nbytes);
  if (!detail::is_room_to_send(space, nout, 1)) return -EINVAL;
  detail::pieces_of_space pieces(space);
  const detail::comers of(pieces.take<std::uint64_t>(nout));
  return detail::send_and_keep<Mode>(detail::team<Group>(group), of, in, to, n, out, nout);
}

// The same by all threads of all blocks of a cooperative launch, which call with equal arguments and get equal results. What any of
// them has written before, all see in the call, and what the call has written, all see after it. in, to: global memory. space, of
// an operator: scan_space::nbytes_to_send(0, blocks) bytes, else nbytes_to_send(nout, blocks); -EINVAL if it has fewer.
template <place_number Place, meeting_operator Op>
GPUFS_DEVICE int send(simt::grid grid, const typename Op::value* in, const Place* to, std::uint64_t n, typename Op::value* out,
                      std::uint64_t nout, const Op& op, const scan_space& space) {
  const simt::group_call call(grid.this_block(), "par::send(in, to, n, out, nout, space, nbytes)", simt::memory_of_all{in, n},
                              simt::memory_of_all{to, n}, n, simt::memory_of_all{out, n}, nout, simt::memory_of_all{space.data},
                              space.nbytes);
  if (!detail::is_room_to_send(space, 0, simt::grid_size())) return -EINVAL;
  detail::pieces_of_space pieces(space);
  return detail::send_and_combine(detail::team<simt::grid>(grid, pieces), in, to, n, out, nout, op);
}
template <scannable T, place_number Place, delivery Mode>
GPUFS_DEVICE int send(simt::grid grid, const T* in, const Place* to, std::uint64_t n, T* out, std::uint64_t nout, Mode,
                      const scan_space& space) {
  const simt::group_call call(grid.this_block(), "par::send(in, to, n, out, nout, space, nbytes)", simt::memory_of_all{in, n},
                              simt::memory_of_all{to, n}, n, simt::memory_of_all{out, n}, nout, simt::memory_of_all{space.data},
                              space.nbytes);
  if (!detail::is_room_to_send(space, nout, simt::grid_size())) return -EINVAL;
  detail::pieces_of_space pieces(space);
  const detail::team<simt::grid> all(grid, pieces);
  return detail::send_and_keep<Mode>(all, detail::comers(pieces.take<std::uint64_t>(nout)), in, to, n, out, nout);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
