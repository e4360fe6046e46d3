// SPDX-License-Identifier: Apache-2.0
// Finds the first k keys of an array: digit by digit from the highest on, how many keys begin as the k-th one does, until all its
// bits are known; then those before it, and as many that are equal to it as are missing, are sorted. (Alabi, Blanchard, Gordon,
// Steinbach, "Fast k-selection algorithms for graphics processing units", JEA 2012, "radix select".)
#pragma once
#include <cerrno>
#include <cstdint>

#include "gpufs/par/choices.hpp"
#include "gpufs/par/compact.hpp"
#include "gpufs/par/detail/count_bins.hpp"
#include "gpufs/par/detail/radix_pass.hpp"
#include "gpufs/par/places.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

namespace detail {

inline constexpr unsigned nselect_bins = 256;

// A key's bits so that those that come first are the least.
template <sort_key Key>
struct rank_of_key {
  using bits = decltype(ordered_bits(Key{}));
  bits flip;

  GPUFS_DEVICE explicit rank_of_key(top which) : flip(which == top::largest ? static_cast<bits>(~bits{0}) : bits{0}) {}
  GPUFS_DEVICE bits operator()(Key key) const { return static_cast<bits>(ordered_bits(key) ^ flip); }
};

// Of keys whose higher bits are those of `begin` the next digit.
template <sort_key Key>
struct digit_bin {
  rank_of_key<Key> rank;
  typename rank_of_key<Key>::bits begin;
  unsigned shift;

  GPUFS_DEVICE unsigned operator()(const Key& key) const {
    const std::uint64_t bits = rank(key);
    const bool begins_so = shift + 8 == 8 * sizeof(Key) || bits >> (shift + 8) == std::uint64_t{begin};
    return begins_so ? static_cast<unsigned>(bits >> shift) % nselect_bins : nselect_bins;
  }
};

// The bin in which the number-th element is, from 1 on, and how many are in those before it. All lanes of a warp call.
struct found_bin {
  unsigned bin;
  std::uint64_t before;
};
GPUFS_DEVICE found_bin find_bin(simt::warp warp, const std::uint64_t* counts, std::uint64_t number) {
  constexpr unsigned n = nselect_bins / simt::warp_lanes;
  std::uint64_t mine = 0;
  for (unsigned k = 0; k < n; ++k) mine += counts[warp.rank() * n + k];
  found_bin found{warp.rank() * n, warp.exclusive_scan_add(mine)};
  const bool is_here = found.before < number && number <= found.before + mine;
  while (is_here && found.before + counts[found.bin] < number) found.before += counts[found.bin++];
  return warp.shfl(found, simt::lowest_lane(warp.ballot(is_here)));
}

template <sort_key Key>
struct selected {
  typename rank_of_key<Key>::bits last;  // the k-th key's rank
  std::uint64_t nbefore;                 // how many come before all that are equal to it
};
// count(bin): counts all keys by that, for all of the caller's team, who have met then. number: 1 at least.
template <sort_key Key, class Count>
GPUFS_DEVICE selected<Key> select_rank(top which, std::uint64_t number, const std::uint64_t* counts, Count count) {
  digit_bin<Key> bin{rank_of_key<Key>(which), 0, 8 * (sizeof(Key) - 1)};
  std::uint64_t nbefore = 0;
  for (;; bin.shift -= 8) {
    count(bin);
    const found_bin found = find_bin(simt::this_warp(), counts, number - nbefore);
    nbefore += found.before;
    bin.begin =
        static_cast<typename rank_of_key<Key>::bits>(bin.shift + 8 == 8 * sizeof(Key) ? found.bin : bin.begin << 8 | found.bin);
    if (bin.shift == 0) return {bin.begin, nbefore};
  }
}

// Whether a key comes before the last one, or is equal to it.
template <sort_key Key, bool IsEqual>
struct is_selected {
  rank_of_key<Key> rank;
  typename rank_of_key<Key>::bits last;
  GPUFS_DEVICE bool operator()(const Key& key) const { return IsEqual ? rank(key) == last : rank(key) < last; }
};

// Writes the ranks and places of the first `most` of them.
template <sort_key Key, place_number Place>
struct put_selected {
  rank_of_key<Key> rank;
  typename rank_of_key<Key>::bits* ranks;
  Place* places;
  std::uint64_t most;

  template <class Row>
  GPUFS_DEVICE void put(std::uint64_t i, const Row& row, unsigned k, std::uint64_t below) const {
    if (row[k] == 0 || below >= most) return;
    ranks[below] = rank(row.values[k]);
    places[below] = static_cast<Place>(i);
  }
};

// Of a space, what both have.
template <sort_key Key, place_number Place>
struct space_to_select {
  using bits = typename rank_of_key<Key>::bits;
  std::uint64_t* counts;
  bits *ranks, *other_ranks;
  Place* other_places;

  GPUFS_DEVICE space_to_select(pieces_of_space& pieces, std::uint64_t k)
      : counts(pieces.take<std::uint64_t>(nselect_bins)),
        ranks(pieces.take<bits>(k)),
        other_ranks(pieces.take<bits>(k)),
        other_places(pieces.take<Place>(k)) {}
};

// scan(items, put): of all keys. Those that are selected, not in their order yet.
template <sort_key Key, place_number Place, memory In, class Scan>
GPUFS_DEVICE void put_all_selected(const selected<Key>& of, top which, const Key* in, std::uint64_t k,
                                   const space_to_select<Key, Place>& space, Place* places, Scan scan) {
  using put = put_each<Key, put_selected<Key, Place>>;
  const rank_of_key<Key> rank(which);
  scan(counted_items<Key, is_selected<Key, false>, In>{{in}, {rank, of.last}}, put{{rank, space.ranks, places, of.nbefore}});
  scan(counted_items<Key, is_selected<Key, true>, In>{{in}, {rank, of.last}},
       put{{rank, space.ranks + of.nbefore, places + of.nbefore, k - of.nbefore}});
}

template <sort_key Key, place_number Place>
GPUFS_DEVICE std::uint64_t select_by_block(simt::block block, const Key* in, std::uint64_t n, std::uint64_t most, top which,
                                           Key* keys, Place* places, const scan_space& of) {
  const std::uint64_t k = n < most ? n : most;
  if (k == 0) return 0;
  pieces_of_space pieces(of);
  const space_to_select<Key, Place> space(pieces, k);
  const auto found = select_rank<Key>(which, k, space.counts, [&](const digit_bin<Key>& bin) {
    block.sync();  // all have read what was counted before
    for (unsigned b = block.rank(); b < nselect_bins; b += block.size()) space.counts[b] = 0;
    block.sync();
    count_bins(block, in, 0, n, bin, space.counts, nselect_bins);
    block.sync();
  });
  put_all_selected<Key, Place, memory::any>(found, which, in, k, space, places, [&](const auto& items, const auto& put) {
    scan_by_group(block, items, n, plus<std::uint64_t>{}, put);
  });
  sort_by_block(block, space.ranks, moved_values<Place>{places, space.other_places}, k, space.other_ranks);
  block.sync();
  for (std::uint64_t i = block.rank(); i < k; i += block.size()) keys[i] = in[places[i]];
  return k;
}

template <sort_key Key, place_number Place>
GPUFS_DEVICE scan_result<std::uint64_t> select_by_grid(simt::grid grid, const Key* in, std::uint64_t n, std::uint64_t most,
                                                       top which, Key* keys, Place* places, const scan_space& of) {
  const std::uint64_t k = n < most ? n : most;
  if (k == 0) return {0, 0};
  pieces_of_space pieces(of);
  const space_to_select<Key, Place> space(pieces, k);
  const scan_space rest = pieces.rest(of);
  const auto found = select_rank<Key>(
      which, k, space.counts, [&](const digit_bin<Key>& bin) { count_bins_by_grid(grid, in, n, bin, space.counts, nselect_bins); });
  int error = 0;
  put_all_selected<Key, Place, memory::global>(found, which, in, k, space, places, [&](const auto& items, const auto& put) {
    std::uint64_t all = 0;
    const int failed = scan_by_look_back(grid, items, n, plus<std::uint64_t>{}, rest, put, all);
    error = error != 0 ? error : failed;
  });
  if (error != 0) return {error, 0};
  error = sort_by_grid(grid, space.ranks, moved_values<Place>{places, space.other_places}, k, space.other_ranks, rest);
  for (std::uint64_t i = grid.rank(); i < k; i += grid.size()) keys[i] = in[places[i]];
  grid.sync();
  return {error, k};
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
