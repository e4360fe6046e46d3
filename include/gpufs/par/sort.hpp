// SPDX-License-Identifier: Apache-2.0
// Sorting arrays in memory, in kernels, by a block or by all blocks of a cooperative launch: by keys, with a value each or alone.
// Stable. docs/design/scans.md, "Sorting"
#pragma once
#include "gpufs/par/detail/radix_pass.hpp"
#include "gpufs/simt/group_call.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

// Sorts n keys in ascending order, and moves a value with each; equal keys stay in their order. Keys: integers of 1 to 8 bytes,
// float, double. Of real numbers -0 comes before 0; NaNs without a sign come last, those with one first, by their bits. keys_space,
// values_space: room for n of each, where anything may be; the result is in keys and values. None of the four overlap. Two passes a
// byte of the keys, each of which reads all twice and writes it.
//
// By a block, all threads of which call with equal arguments. Memory that they reach; what they have written before is seen, and
// a thread that reads the result of others calls block.sync().
template <sort_key Key, scannable Value>
GPUFS_DEVICE void sort(simt::block block, Key* keys, Value* values, std::uint64_t n, Key* keys_space, Value* values_space) {
  const simt::group_call call(block, "par::sort(keys, values, n, keys_space, values_space)", simt::memory_of_all{keys, n},
                              simt::memory_of_all{values, n}, n, simt::memory_of_all{keys_space, n},
                              simt::memory_of_all{values_space, n});
  detail::sort_by_block(block, keys, detail::moved_values<Value>{values, values_space}, n, keys_space);
}
// Keys alone.
template <sort_key Key>
GPUFS_DEVICE void sort(simt::block block, Key* keys, std::uint64_t n, Key* keys_space) {
  const simt::group_call call(block, "par::sort(keys, n, keys_space)", simt::memory_of_all{keys, n}, n,
                              simt::memory_of_all{keys_space, n});
  detail::sort_by_block(block, keys, detail::no_values{}, n, keys_space);
}

// By all threads of all blocks of a cooperative launch, which call with equal arguments and get equal results: 0, or -EINVAL and
// nothing is done, if the space has fewer than scan_space::nbytes_to_sort bytes. Global memory. What any of them has written before
// is seen, and all see the result.
template <sort_key Key, scannable Value>
GPUFS_DEVICE int sort(simt::grid grid, Key* keys, Value* values, std::uint64_t n, Key* keys_space, Value* values_space,
                      const scan_space& space) {
  const simt::group_call call(grid.this_block(), "par::sort(keys, values, n, keys_space, values_space, space, nbytes)",
                              simt::memory_of_all{keys, n}, simt::memory_of_all{values, n}, n, simt::memory_of_all{keys_space, n},
                              simt::memory_of_all{values_space, n}, simt::memory_of_all{space.data}, space.nbytes);
  return detail::sort_by_grid(grid, keys, detail::moved_values<Value>{values, values_space}, n, keys_space, space);
}
// Keys alone.
template <sort_key Key>
GPUFS_DEVICE int sort(simt::grid grid, Key* keys, std::uint64_t n, Key* keys_space, const scan_space& space) {
  const simt::group_call call(grid.this_block(), "par::sort(keys, n, keys_space, space, nbytes)", simt::memory_of_all{keys, n}, n,
                              simt::memory_of_all{keys_space, n}, simt::memory_of_all{space.data}, space.nbytes);
  return detail::sort_by_grid(grid, keys, detail::no_values{}, n, keys_space, space);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
