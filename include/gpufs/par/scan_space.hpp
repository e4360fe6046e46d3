// SPDX-License-Identifier: Apache-2.0
// The memory that scans, reductions, compactions, sorts and other calls by a grid need, and some of a group. For host code,
// which allocates it, and kernels.
#pragma once
#include <cstddef>
#include <cstdint>

#include "gpufs/simt/config.hpp"

namespace gpufs::par {

// Device memory, whatever is in it and however it is aligned; kernels that use it by turns, or one grid whose calls follow each
// other, may share it. A kernel that uses it otherwise after a call calls grid.sync() first: other blocks may still be reading it.
struct scan_space {
  void* data;
  std::uint64_t nbytes;  // at least nbytes_for<T>(...)

  // What a thread takes of an array at a time: rows of as many elements side by side as fill 16 bytes, eight at most. A warp's row
  // is one access of 16 bytes a lane to memory without gaps, and all rows are under way at once.
  GPUFS_HOST_DEVICE static constexpr unsigned items_a_row(std::uint64_t value_nbytes) {
    if (value_nbytes <= 2) return 8;
    if (value_nbytes <= 4) return 4;
    return value_nbytes <= 8 ? 2 : 1;
  }
  // (An H200 scans 4-byte elements at 0.97 to 0.99 of CUB's speed by six rows, at 0.96 by five.)
  GPUFS_HOST_DEVICE static constexpr unsigned rows_a_thread(std::uint64_t value_nbytes) {
    return value_nbytes > 2 && value_nbytes <= 4 ? 6 : rows_beside(value_nbytes);
  }
  // (By segments, with the heads in registers beside them, at 1.35 to 1.39 times CUB's speed by five rows, at 1.32 by four.)
  GPUFS_HOST_DEVICE static constexpr unsigned rows_by_segments(std::uint64_t value_nbytes) {
    return value_nbytes > 2 && value_nbytes <= 4 ? 5 : rows_beside(value_nbytes);
  }
  // Rows of elements that are counted or not.
  GPUFS_HOST_DEVICE static constexpr unsigned rows_beside(std::uint64_t value_nbytes) {
    return value_nbytes <= 2 || value_nbytes > 16 ? 2 : 4;
  }
  GPUFS_HOST_DEVICE static constexpr unsigned items_a_thread(std::uint64_t value_nbytes) {
    return items_a_row(value_nbytes) * rows_a_thread(value_nbytes);
  }

  // False: a scan of n elements by a grid needs more, whatever they are. Asked first, as the formulas below wrap around for lengths
  // that no memory has.
  GPUFS_HOST_DEVICE constexpr bool may_be_enough_for(std::uint64_t n) const { return n >> 15 <= nbytes; }

  // Those left of an array's first tile, which a scan by a grid has too.
  static constexpr unsigned ntiles_before = 128;

  // For n elements of type T, and a launch of so many blocks of so many threads.
  template <class T>
  GPUFS_HOST_DEVICE static constexpr std::uint64_t nbytes_for(std::uint64_t n, unsigned nblocks, unsigned nthreads) {
    struct with_head {
      T of;
      bool is_head;
    };
    const std::uint64_t value = sizeof(with_head) < 8 ? 8 : sizeof(with_head);
    const unsigned items = items_a_row(sizeof(T)) * rows_beside(sizeof(T));  // of a thread's, the fewest: the most tiles
    const std::uint64_t tile = std::uint64_t{nthreads} * items, ntiles = n / tile + 1;
    return 64 + (value + 3) / 4 * 8 * (ntiles_before + (ntiles < nblocks ? nblocks : ntiles));
  }
  // Of a send to nout places whose elements keep_last or refuse_to_meet; of one by a grid that combines them nout is 0.
  GPUFS_HOST_DEVICE static constexpr std::uint64_t nbytes_to_send(std::uint64_t nout, unsigned nblocks = 1) {
    return 32 + 4 * std::uint64_t{nblocks} + 8 * nout;
  }
  // Of sums of values T along lists of n elements in all, and of lists that are matched; place_nbytes: 4 or 8, as links have.
  template <class T>
  GPUFS_HOST_DEVICE static constexpr std::uint64_t nbytes_to_sum_lists(std::uint64_t n, unsigned place_nbytes,
                                                                       unsigned nblocks = 1) {
    return nbytes_to_match_lists(n, place_nbytes, nblocks) + sizeof(T) * n + 16;
  }
  GPUFS_HOST_DEVICE static constexpr std::uint64_t nbytes_to_match_lists(std::uint64_t n, unsigned place_nbytes,
                                                                         unsigned nblocks = 1) {
    return 64 + 4 * std::uint64_t{nblocks} + 2 * place_nbytes * n;
  }
  // Of the regions of an image of n pixels.
  GPUFS_HOST_DEVICE static constexpr std::uint64_t nbytes_to_label(std::uint64_t n, unsigned nblocks = 1) {
    return 64 + 4 * std::uint64_t{nblocks} + 36 * n;
  }
  // Of the first k of n keys, by a block; or for a launch of so many blocks of so many threads.
  template <class Key>
  GPUFS_HOST_DEVICE static constexpr std::uint64_t nbytes_for_top(std::uint64_t n, std::uint64_t k) {
    return 2112 + (2 * sizeof(Key) + 8) * (n < k ? n : k);
  }
  template <class Key>
  GPUFS_HOST_DEVICE static constexpr std::uint64_t nbytes_for_top(std::uint64_t n, std::uint64_t k, unsigned nblocks,
                                                                  unsigned nthreads) {
    return nbytes_for_top<Key>(n, k) + nbytes_to_sort(nblocks) + nbytes_for<Key>(n, nblocks, nthreads);
  }
  // Of a rendezvous of n that may want items with nitems that may be free; place_nbytes: 4 or 8, as their numbers have.
  GPUFS_HOST_DEVICE static constexpr std::uint64_t nbytes_to_meet(std::uint64_t n, std::uint64_t nitems, unsigned place_nbytes) {
    return 32 + place_nbytes * (n < nitems ? n : nitems);
  }
  GPUFS_HOST_DEVICE static constexpr std::uint64_t nbytes_to_meet(std::uint64_t n, std::uint64_t nitems, unsigned place_nbytes,
                                                                  unsigned nblocks, unsigned nthreads) {
    return nbytes_to_meet(n, nitems, place_nbytes) + nbytes_for<std::uint8_t>(n < nitems ? nitems : n, nblocks, nthreads);
  }
  // Of an append of n records.
  GPUFS_HOST_DEVICE static constexpr std::uint64_t nbytes_to_append(std::uint64_t n, unsigned nblocks, unsigned nthreads) {
    return 128 + 8 * std::uint64_t{nblocks} + nbytes_for<std::uint64_t>(n, nblocks, nthreads);
  }
  // Of a sort, besides room for keys and values: for a launch of so many blocks.
  GPUFS_HOST_DEVICE static constexpr std::uint64_t nbytes_to_sort(unsigned nblocks) { return 16 + 128 * std::uint64_t{nblocks}; }
};
static_assert(sizeof(scan_space) == 16 && offsetof(scan_space, data) == 0 && offsetof(scan_space, nbytes) == 8);

}  // namespace gpufs::par
