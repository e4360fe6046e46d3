// SPDX-License-Identifier: Apache-2.0
// Lists by pointer jumping: in each round each element looks as far again along its list as it has looked before, so all have seen
// theirs after ceil(log2 n) rounds (Hillis and Steele, "Data parallel algorithms", CACM 1986, "Parallel processing of pointers").
// Their lock step is a barrier a round here, and two arrays by turns where a round must read what the last one has left. What the
// paper prints of two lists goes on for ever where one is longer; here each round jumps, matched or not.
#pragma once
#include <cerrno>
#include <cstdint>

#include "gpufs/par/choices.hpp"
#include "gpufs/par/detail/meetings.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

namespace detail {

// ceil(log2 n); 0 of n == 0.
GPUFS_DEVICE unsigned rounds_for(std::uint64_t n) {
  unsigned rounds = 0;
  while (rounds < 64 && (std::uint64_t{1} << rounds) < n) ++rounds;
  return rounds;
}

template <place_number Place, class T>
GPUFS_DEVICE bool is_room_to_sum(const scan_space& space, std::uint64_t n, unsigned nblocks) {
  return n <= no_place<Place> && n <= space.nbytes && space.nbytes >= scan_space::nbytes_to_sum_lists<T>(n, sizeof(Place), nblocks);
}
template <place_number Place>
GPUFS_DEVICE bool is_room_to_match(const scan_space& space, std::uint64_t n, unsigned nblocks) {
  return n <= no_place<Place> && n <= space.nbytes && space.nbytes >= scan_space::nbytes_to_match_lists(n, sizeof(Place), nblocks);
}

// round() -> whether the caller has farther to go; until nobody has, `most` rounds if there is a list that long. -ELOOP: there is a
// list that goes on.
template <class Group, class Round>
GPUFS_DEVICE list_result jump(const team<Group>& all, unsigned most, Round round) {
  for (unsigned nrounds = 1;; ++nrounds) {
    const bool goes_on = all.least(round() ? -1 : 0) != 0;
    if (!goes_on || nrounds >= most) return {goes_on ? -ELOOP : 0, nrounds};
  }
}

// In one array: a thread that reads what another has written in this round only sees farther.
template <class Group, place_number Place>
GPUFS_DEVICE list_result find_ends(const team<Group>& all, const Place* next, std::uint64_t n, Place* ends) {
  all.begin();
  const int error = check_places(all, next, n, n);
  if (error != 0) return {error, 0};
  all.each(n, [&](std::uint64_t i) { ends[i] = next[i] == no_place<Place> ? static_cast<Place>(i) : next[i]; });
  all.sync();
  // One more, in which nothing changes any more.
  list_result done = jump(all, rounds_for(n) + 1, [&] {
    bool has_moved = false;
    all.each(n, [&](std::uint64_t i) {
      const simt::atomic_ref end(ends[i]);
      const Place here = end.load_relaxed(), there = simt::atomic_ref(ends[here]).load_relaxed();
      if (there == here) return;
      end.store(there, std::memory_order_relaxed);
      has_moved = true;
    });
    return has_moved;
  });
  // On a circle of 2^k elements all stand still where they began.
  bool is_end = true;
  all.each(n, [&](std::uint64_t i) { is_end = is_end && next[ends[i]] == no_place<Place>; });
  done.error = all.least(is_end ? 0 : -ELOOP);
  all.end();
  return done;
}

// Two arrays by turns.
template <class T>
struct by_turns {
  T *now, *then;

  GPUFS_DEVICE by_turns(T* first, T* second) : now(first), then(second) {}
  GPUFS_DEVICE by_turns(pieces_of_space& pieces, std::uint64_t n) : now(pieces.take<T>(n)), then(pieces.take<T>(n)) {}
  GPUFS_DEVICE void turn() {
    T* const was = now;
    now = then;
    then = was;
  }
};

// comer[place]: who comes there. Whether somebody else has come before.
template <place_number Place>
GPUFS_DEVICE bool comes_second(Place* comer, std::uint64_t place, std::uint64_t i) {
  return simt::atomic_ref(comer[place]).exchange(static_cast<Place>(i), std::memory_order_relaxed) != no_place<Place>;
}

template <class Group, place_number Place, scan_operator Op>
GPUFS_DEVICE list_result sum_lists(const team<Group>& all, const Place* next, const typename Op::value* in, std::uint64_t n,
                                   typename Op::value* out, const Op& op, pieces_of_space& pieces) {
  using T = typename Op::value;
  by_turns<Place> before(pieces, n);
  by_turns<T> sum(out, pieces.take<T>(n));
  all.begin();
  const int error = check_places(all, next, n, n);
  if (error != 0) return {error, 0};
  all.each(n, [&](std::uint64_t i) { before.now[i] = no_place<Place>; });
  all.sync();
  bool meets = false;
  all.each(n, [&](std::uint64_t i) {
    if (next[i] != no_place<Place>) meets = comes_second(before.now, next[i], i) || meets;
  });
  if (all.least(meets ? -EEXIST : 0) != 0) return {-EEXIST, 0};
  all.each(n, [&](std::uint64_t i) { out[i] = in[i]; });
  all.sync();
  const list_result done = jump(all, rounds_for(n), [&] {
    bool goes_on = false;
    all.each(n, [&](std::uint64_t i) {
      const Place left = before.now[i];
      const bool is_first = left == no_place<Place>;
      sum.then[i] = is_first ? sum.now[i] : op(sum.now[left], sum.now[i]);
      before.then[i] = is_first ? left : before.now[left];
      goes_on = goes_on || before.then[i] != no_place<Place>;
    });
    sum.turn();
    before.turn();
    return goes_on;
  });
  if (sum.now != out) all.each(n, [&](std::uint64_t i) { out[i] = sum.now[i]; });
  all.end();
  return done;
}

template <class Group, place_number Place>
GPUFS_DEVICE list_result match_pairs(const team<Group>& all, const Place* next, std::uint64_t n, const Place* firsts,
                                     const Place* seconds, std::uint64_t npairs, Place* mates, pieces_of_space& pieces) {
  by_turns<Place> chum(pieces, n);
  all.begin();
  const int of_links = check_places(all, next, n, n), of_firsts = check_places(all, firsts, npairs, n);
  const int of_seconds = check_places(all, seconds, npairs, n);
  if (of_links != 0 || of_firsts != 0 || of_seconds != 0) return {-EDOM, 0};
  // Each element is next to one other, or the first of one list that is matched.
  all.each(n, [&](std::uint64_t i) {
    chum.then[i] = no_place<Place>;
    chum.now[i] = next[i];
  });
  all.sync();
  bool meets = false;
  const auto come = [&](Place place, std::uint64_t i) {
    if (place != no_place<Place>) meets = comes_second(chum.then, place, i) || meets;
  };
  all.each(n, [&](std::uint64_t i) { come(next[i], i); });
  all.each(npairs, [&](std::uint64_t i) {
    come(firsts[i], i);
    come(seconds[i], i);
  });
  if (all.least(meets ? -EEXIST : 0) != 0) return {-EEXIST, 0};
  all.each(n, [&](std::uint64_t i) { mates[i] = no_place<Place>; });
  all.sync();
  all.each(npairs, [&](std::uint64_t i) {
    if (firsts[i] == no_place<Place> || seconds[i] == no_place<Place>) return;
    mates[firsts[i]] = seconds[i];
    mates[seconds[i]] = firsts[i];
  });
  all.sync();
  const list_result done = jump(all, rounds_for(n), [&] {
    bool goes_on = false;
    all.each(n, [&](std::uint64_t i) {
      const Place there = chum.now[i];
      // A mate that another has found in this round is right, too.
      const Place mate = simt::atomic_ref(mates[i]).load_relaxed();
      if (there != no_place<Place> && mate != no_place<Place>) {
        simt::atomic_ref(mates[there]).store(chum.now[mate], std::memory_order_relaxed);
      }
      chum.then[i] = there == no_place<Place> ? there : chum.now[there];
      goes_on = goes_on || chum.then[i] != no_place<Place>;
    });
    chum.turn();
    return goes_on;
  });
  all.end();
  return done;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
