// SPDX-License-Identifier: Apache-2.0
// All threads of a cooperative launch (launch_config::cooperative), and what they do together. The calls on files do not take a
// grid as their group: a whole grid would wait for one answer.
#pragma once
#include <cstdint>
#include <type_traits>

#include "gpufs/simt/config.hpp"
#include "gpufs/simt/group.hpp"
#if GPUFS_ON_CUDA
#include <cooperative_groups.h>
#else
#include "gpufs/simt/detail/cpu_machine.hpp"
#endif

namespace gpufs::simt {
inline namespace GPUFS_MACHINE {

// Members that say "collective" must be called by all threads of all blocks, the same one by all. If the launch is not cooperative,
// or a block has ended, the CPU machine's launch fails with a message; on CUDA the kernel is lost, or waits for ever. `words`:
// memory of this device with one element for each block, whatever it contains. Two collectives that may be under way at once must
// not share it; those of one grid never are. A kernel that uses `words` otherwise after a collective calls sync() first: other
// blocks may still be reading it.
class grid {
 public:
  GPUFS_DEVICE static std::uint64_t size() { return std::uint64_t{grid_size()} * block_size(); }
  GPUFS_DEVICE static std::uint64_t rank() { return std::uint64_t{block_rank()} * block_size() + thread_rank(); }
  GPUFS_DEVICE static bool leader() { return rank() == 0; }
  GPUFS_DEVICE static block this_block() { return {}; }

  // Collective. All threads see after it what was written to device memory before it.
  GPUFS_DEVICE void sync() const {
#if GPUFS_ON_CUDA
#ifdef __CUDA_ARCH__
    cooperative_groups::this_grid().sync();
#endif
#else
    runtime::cpu_grid_sync();
#endif
  }

  // Collectives; each has two barriers of the grid. Each block adds its own values, then all blocks add the blocks' sums, in the
  // same order each time.
  template <summable T>
  GPUFS_DEVICE T reduce_add(T value, T* words) const {
    exchange(this_block().reduce_add(value), words);
    return this_block().reduce_add(sum_of_words(words, grid_size()));
  }
  template <std::integral T>
  GPUFS_DEVICE T reduce_min(T value, T* words) const {
    exchange(this_block().reduce_min(value), words);
    T least = words[0];
    for (std::uint32_t i = thread_rank(); i < grid_size(); i += block_size()) least = words[i] < least ? words[i] : least;
    return this_block().reduce_min(least);
  }
  template <std::integral T>
  GPUFS_DEVICE T reduce_max(T value, T* words) const {
    exchange(this_block().reduce_max(value), words);
    T most = words[0];
    for (std::uint32_t i = thread_rank(); i < grid_size(); i += block_size()) most = most < words[i] ? words[i] : most;
    return this_block().reduce_max(most);
  }
  // The sum of the values of the ranks up to the caller's, or of the ranks below it.
  template <summable T>
  GPUFS_DEVICE T inclusive_scan_add(T value, T* words) const {
    const T up_to_me = this_block().inclusive_scan_add(value);
    return detail::sum_of(of_blocks_below(up_to_me, words), up_to_me);
  }
  template <summable T>
  GPUFS_DEVICE T exclusive_scan_add(T value, T* words) const {
    const T below = this_block().exclusive_scan_add(value);
    return detail::sum_of(of_blocks_below(detail::sum_of(below, value), words), below);
  }

 private:
  // Each block's leader writes a value. After the first barrier, all have read the words of the previous collective.
  template <class T>
  GPUFS_DEVICE void exchange(T value, T* words) const {
    sync();
    if (this_block().leader()) words[block_rank()] = value;
    sync();
  }
  // This thread's share of the sum of the first n words.
  template <class T>
  GPUFS_DEVICE static T sum_of_words(const T* words, std::uint32_t n) {
    T sum{};
    for (std::uint32_t i = thread_rank(); i < n; i += block_size()) sum = detail::sum_of(sum, words[i]);
    return sum;
  }
  template <class T>
  GPUFS_DEVICE T of_blocks_below(T up_to_me, T* words) const {
    exchange(this_block().broadcast(up_to_me, block_size() - 1), words);
    return this_block().reduce_add(sum_of_words(words, block_rank()));
  }
};

GPUFS_DEVICE grid this_grid() { return {}; }

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::simt
