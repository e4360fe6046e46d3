// SPDX-License-Identifier: Apache-2.0
// How many elements of an array are in each of some bins. In kernels, by a block or by all blocks of a cooperative launch.
// docs/design/data-parallel.md
#pragma once
#include "gpufs/par/choices.hpp"
#include "gpufs/par/detail/count_bins.hpp"
#include "gpufs/simt/group_call.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

// counts[b]: of n elements those with bin(element) == b, for b below nbins; whatever was there. Elements of other bins are counted
// nowhere. bin is asked once for each element, by any thread. counts: 4 or 8 bytes each, of global memory, in none of which `in`
// lies. Up to 1,024 bins are counted in 4 KiB of a block's shared memory first.
//
// By a block, all threads of which call with equal arguments. in: memory that they reach. A thread reads its own share alone: if
// others have written that, the block syncs before the call, as it does after it, before a thread reads counts.
template <scannable T, bins_of<T> Bin, bin_count Count>
GPUFS_DEVICE void histogram(simt::block block, const T* in, std::uint64_t n, const Bin& bin, Count* counts, std::uint64_t nbins) {
  const simt::group_call call(block, "par::histogram(in, n, counts, nbins)", simt::memory_of_all{in, n}, n,
                              simt::memory_of_all{counts, nbins}, nbins);
  for (std::uint64_t b = block.rank(); b < nbins; b += block.size()) counts[b] = 0;
  block.sync();
  detail::count_bins(block, in, 0, n, bin, counts, nbins);
}

// By all threads of all blocks of a cooperative launch, which call with equal arguments. in: global memory. What any of them has
// written before, all see in the call, and what the call has written, all see after it.
template <scannable T, bins_of<T> Bin, bin_count Count>
GPUFS_DEVICE void histogram(simt::grid grid, const T* in, std::uint64_t n, const Bin& bin, Count* counts, std::uint64_t nbins) {
  const simt::group_call call(grid.this_block(), "par::histogram(in, n, counts, nbins)", simt::memory_of_all{in, n}, n,
                              simt::memory_of_all{counts, nbins}, nbins);
  detail::count_bins_by_grid(grid, in, n, bin, counts, nbins);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
