// SPDX-License-Identifier: Apache-2.0
// The k largest, or smallest, keys of an array in their order, and where they are. In kernels, by a block or by all blocks of a
// cooperative launch. docs/design/data-parallel.md
#pragma once
#include "gpufs/par/choices.hpp"
#include "gpufs/par/detail/radix_select.hpp"
#include "gpufs/simt/group_call.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

// The first k of n keys in descending order (top::largest) or ascending order: keys[i] is the i-th of them, places[i] its number in
// `in`; of equal ones those with lesser numbers come first. The order is sort's: -0 is less than 0; a NaN without a sign is the
// largest of all, and one with a sign the smallest. Keys: integers of 1 to 8 bytes, float, double. in, and keys and places, which
// have room for k elements or, if it is less, n: global memory; none of them overlap. Goes through `in` once a byte of a key, and
// twice more.
//
// `error` is 0, and `all` how many there are, the lesser of k and n; or -EINVAL, the space is too small or a Place cannot number n
// elements, and nothing is done.
//
// By a block, all threads of which call with equal arguments. space: scan_space::nbytes_for_top<Key>(n, k) bytes. A thread reads
// its own share of `in` alone before the first barrier: if others have written that, the block syncs before the call, as it does
// after it, before a thread reads what others have written.
template <sort_key Key, place_number Place>
GPUFS_DEVICE scan_result<std::uint64_t> top_k(simt::block block, const Key* in, std::uint64_t n, std::uint64_t k, top which,
                                              Key* keys, Place* places, const scan_space& space) {
  const simt::group_call call(block, "par::top_k(in, n, k, which, keys, places, space, nbytes)", simt::memory_of_all{in, n}, n, k,
                              which, simt::memory_of_all{keys, n}, simt::memory_of_all{places, n},
                              simt::memory_of_all{space.data, n}, space.nbytes);
  if (n > no_place<Place> || (n < k ? n : k) > space.nbytes || space.nbytes < scan_space::nbytes_for_top<Key>(n, k)) {
    return {-EINVAL, 0};
  }
  return {0, detail::select_by_block(block, in, n, k, which, keys, places, space)};
}

// By all threads of all blocks of a cooperative launch, which call with equal arguments and get equal results. space:
// scan_space::nbytes_for_top<Key>(n, k, blocks, threads a block) bytes. What any of them has written before, all see in the call,
// and what the call has written, all see after it. Also -ETIMEDOUT, as a scan.
template <sort_key Key, place_number Place>
GPUFS_DEVICE scan_result<std::uint64_t> top_k(simt::grid grid, const Key* in, std::uint64_t n, std::uint64_t k, top which,
                                              Key* keys, Place* places, const scan_space& space) {
  const simt::group_call call(grid.this_block(), "par::top_k(in, n, k, which, keys, places, space, nbytes)",
                              simt::memory_of_all{in, n}, n, k, which, simt::memory_of_all{keys, n}, simt::memory_of_all{places, n},
                              simt::memory_of_all{space.data}, space.nbytes);
  if (n > no_place<Place> || (n < k ? n : k) > space.nbytes || !space.may_be_enough_for(n) ||
      space.nbytes < scan_space::nbytes_for_top<Key>(n, k, simt::grid_size(), simt::block_size())) {
    return {-EINVAL, 0};
  }
  return detail::select_by_grid(grid, in, n, k, which, keys, places, space);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
