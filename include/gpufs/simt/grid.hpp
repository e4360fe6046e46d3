// SPDX-License-Identifier: Apache-2.0
// All threads of a launch that is cooperative (launch_config::cooperative), and what they do together. Not a group that calls on
// files take: that would make a whole grid wait for one answer.
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

// Members that say "collective" are called by all threads of all blocks, the same one by all. Where the launch is not cooperative,
// or a block has ended, the CPU machine's launch fails and says so; on CUDA the kernel is lost, or waits for ever. `words`: memory
// of this device, an element a block, whatever is in it; no two collectives that may be under way at once share it, which those of
// one grid never are. A kernel that uses it otherwise after a collective calls sync() first: other blocks may be reading it still.
class grid {
 public:
  GPUFS_DEVICE static std::uint64_t size() { return std::uint64_t{grid_size()} * block_size(); }
  GPUFS_DEVICE static std::uint64_t rank() { return std::uint64_t{block_rank()} * block_size() + thread_rank(); }
  GPUFS_DEVICE static bool leader() { return rank() == 0; }
  GPUFS_DEVICE static block this_block() { return {}; }

  // Collective. What was written to device memory before it is seen by all after it.
  GPUFS_DEVICE void sync() const {
#if GPUFS_ON_CUDA
#ifdef __CUDA_ARCH__
    cooperative_groups::this_grid().sync();
#endif
#else
    runtime::cpu_grid_sync();
#endif
  }

  // Collectives; two barriers of the grid each. Each block adds its own, then all blocks the blocks' sums: in the same order each
  // time.
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
  // The sum of the values of the ranks up to the caller's, and of those below it.
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
  // Each block's leader gives a value. The first barrier: all have read what the collective before this one left.
  template <class T>
  GPUFS_DEVICE void exchange(T value, T* words) const {
    sync();
    if (this_block().leader()) words[block_rank()] = value;
    sync();
  }
  // This thread's share of the first n.
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
