// SPDX-License-Identifier: Apache-2.0
// The memory that scans, reductions, compactions and sorts by a grid need. For host code, which allocates it, and kernels.
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

  // How many elements a thread takes at a time: as many as fill 32 bytes, eight at most (Sengupta, Harris, Garland, section 4, have
  // eight of 4 bytes).
  GPUFS_HOST_DEVICE static constexpr unsigned items_a_thread(std::uint64_t value_nbytes) {
    if (value_nbytes <= 4) return 8;
    if (value_nbytes <= 8) return 4;
    return value_nbytes <= 16 ? 2 : 1;
  }

  // For n elements of type T, and a launch of so many blocks of so many threads.
  template <class T>
  GPUFS_HOST_DEVICE static constexpr std::uint64_t nbytes_for(std::uint64_t n, unsigned nblocks, unsigned nthreads) {
    struct with_head {
      T of;
      bool is_head;
    };
    const std::uint64_t value = sizeof(with_head) < 8 ? 8 : sizeof(with_head);
    const std::uint64_t tile = std::uint64_t{nthreads} * items_a_thread(sizeof(T)), ntiles = n / tile + 1;
    return 64 + (ntiles + 3) / 4 * 16 + 2 * value * (ntiles < nblocks ? nblocks : ntiles);
  }
  // Of a sort, besides room for keys and values: for a launch of so many blocks.
  GPUFS_HOST_DEVICE static constexpr std::uint64_t nbytes_to_sort(unsigned nblocks) { return 16 + 128 * std::uint64_t{nblocks}; }
};
static_assert(sizeof(scan_space) == 16 && offsetof(scan_space, data) == 0 && offsetof(scan_space, nbytes) == 8);

}  // namespace gpufs::par
