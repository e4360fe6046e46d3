// SPDX-License-Identifier: Apache-2.0
// Counts elements by bins: in shared memory first, where there are few bins.
#pragma once
#include <cstdint>

#include "gpufs/par/choices.hpp"
#include "gpufs/par/operators.hpp"
#include "gpufs/simt/atomic.hpp"
#include "gpufs/simt/grid.hpp"
#include "gpufs/simt/memory.hpp"

namespace gpufs::par {
inline namespace GPUFS_MACHINE {

namespace detail {

struct shared_bins {
  static constexpr unsigned n = 1024;
  std::uint32_t of[n];
};

// Adds the elements from `begin` to `end` to counts, as others may meanwhile. All threads of the block call.
template <class T, class Bin, bin_count Count>
GPUFS_DEVICE void count_bins(simt::block block, const T* in, std::uint64_t begin, std::uint64_t end, const Bin& bin, Count* counts,
                             std::uint64_t nbins) {
  constexpr std::uint64_t at_once = std::uint64_t{1} << 31;  // 32 bits count them
  const auto each = [&](std::uint64_t until, auto count) {
    for (std::uint64_t i = begin + block.rank(); i < until; i += block.size()) {
      const std::uint64_t b = bin(in[i]);
      if (b < nbins) count(b);
    }
  };
  if (nbins > shared_bins::n) {
    each(end, [&](std::uint64_t b) { simt::atomic_ref(counts[b]).add_relaxed(1); });
    return;
  }
  shared_bins& bins = simt::shared<shared_bins>();
  for (; begin < end; begin += at_once) {
    for (std::uint64_t b = block.rank(); b < nbins; b += block.size()) bins.of[b] = 0;
    block.sync();
    each(end - begin < at_once ? end : begin + at_once,
         [&](std::uint64_t b) { simt::atomic_ref<std::uint32_t, simt::scope::block>(bins.of[b]).add_relaxed(1); });
    block.sync();
    // By whom it was cleared, and will be again.
    for (std::uint64_t b = block.rank(); b < nbins; b += block.size()) {
      if (bins.of[b] != 0) simt::atomic_ref(counts[b]).add_relaxed(static_cast<Count>(bins.of[b]));
    }
  }
}

// As histogram.
template <class T, class Bin, bin_count Count>
GPUFS_DEVICE void count_bins_by_grid(simt::grid grid, const T* in, std::uint64_t n, const Bin& bin, Count* counts,
                                     std::uint64_t nbins) {
  grid.sync();  // all have written the elements, and read what was counted before
  for (std::uint64_t b = grid.rank(); b < nbins; b += grid.size()) counts[b] = 0;
  grid.sync();
  const std::uint64_t size = simt::block_size(), nblocks = simt::grid_size();
  const std::uint64_t share = ((n + size - 1) / size + nblocks - 1) / nblocks * size;
  const std::uint64_t begin = share * simt::block_rank() < n ? share * simt::block_rank() : n;
  count_bins(grid.this_block(), in, begin, n - begin < share ? n : begin + share, bin, counts, nbins);
  grid.sync();
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs::par
