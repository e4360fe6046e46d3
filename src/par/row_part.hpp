// SPDX-License-Identifier: Apache-2.0
// What the kernels of batches share: a piece of a batch, and its rows that fail.
#pragma once
#include <cstddef>

#include "gpufs/par/detail/take_rows.hpp"
#include "gpufs/par/row_batch.hpp"
#include "gpufs/simt/launch.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// The part of a batch that is sorted at once, as its kernels take it.
struct row_part_of_batch : rows_of_file {
  numbers_of_rows numbers;
  std::uint64_t* sorted;  // words as those of row_order; null: the rows are in the order of `numbers`
  std::uint32_t* places;  // of each, within this part; null: in the words
  std::uint64_t first;    // of this part in the batch
  std::uint32_t n;
  std::uint32_t rows_a_block;
  std::uint32_t rows_a_warp;  // at once, of gather_rows
  std::uint64_t* failed;      // of row_failure

  GPUFS_DEVICE bool is_sorted() const { return sorted != nullptr; }
  GPUFS_DEVICE std::uint64_t row(std::uint32_t i) const { return is_sorted() ? sorted_row(i) : row_of(numbers, i, layout); }
  // Where they are sorted.
  GPUFS_DEVICE std::uint64_t sorted_row(std::uint32_t i) const { return places != nullptr ? sorted[i] : sorted[i] >> 32; }
  GPUFS_DEVICE std::uint32_t place(std::uint32_t i) const {
    if (!is_sorted()) return i;
    return places != nullptr ? places[i] : static_cast<std::uint32_t>(sorted[i]);
  }
  GPUFS_DEVICE bool repeats(std::uint32_t i) const { return is_sorted() && i > 0 && sorted_row(i - 1) == sorted_row(i); }
  GPUFS_DEVICE bool is_repeated(std::uint32_t i) const { return is_sorted() && i + 1 < n && sorted_row(i + 1) == sorted_row(i); }
  GPUFS_DEVICE std::uint64_t in_memory(std::uint32_t i) const { return (first + place(i)) * layout.row_nbytes; }
  // One lane calls.
  GPUFS_DEVICE void fail(std::uint32_t i, int error) const {
    const simt::atomic_ref<std::uint64_t> word(*failed);  // kernels alone write it, and the host reads it after them
    word.fetch_min(row_failure::word(first + place(i), error), std::memory_order_relaxed);
  }
  // Calls work(group, i) for the rows of the caller's block, each by one group.
  template <class Group, class Work>
  GPUFS_DEVICE void each(Group group, Work work) const {
    const std::uint32_t ngroups = simt::block_size() / Group::size();
    const std::uint64_t begin = std::uint64_t{simt::block_rank()} * rows_a_block;
    const std::uint64_t end = begin + rows_a_block < n ? begin + rows_a_block : n;
    for (std::uint64_t i = begin + simt::thread_rank() / Group::size(); i < end; i += ngroups) {
      work(group, static_cast<std::uint32_t>(i));
    }
  }
  // Calls work(i, end) for the rows [i, i + at_once) of the caller's warp that are below `end`.
  template <class Work>
  GPUFS_DEVICE void each_some(std::uint32_t at_once, Work work) const {
    const std::uint32_t nwarps = simt::block_size() / simt::warp_lanes;
    const std::uint64_t begin = std::uint64_t{simt::block_rank()} * rows_a_block;
    const std::uint64_t end = begin + rows_a_block < n ? begin + rows_a_block : n;
    for (std::uint64_t i = begin + std::uint64_t{simt::warp_rank()} * at_once; i < end; i += std::uint64_t{nwarps} * at_once) {
      work(i, end);
    }
  }
};
// So that the host's compiler and the device's leave no other gaps: what is derived has no offsetof.
static_assert(sizeof(row_part_of_batch) == 104 && sizeof(rows_of_file) + sizeof(numbers_of_rows) == 56);

// The rows of a piece that host threads are to gather: gather_rows lists them, gather_rows_by_host asks for them.
struct rows_for_host {
  transport::row_buffers buffers;  // none: host threads gather no rows
  std::uint32_t* places;           // of the rows, in the piece's order
  row_counts* counts;
  row_counts* next_counts;  // of the next piece

  GPUFS_HOST_DEVICE bool may_be() const { return buffers.memory != nullptr; }
  // Enters the rows of those lanes. All lanes of a warp call.
  GPUFS_DEVICE void add(std::uint32_t mine, std::uint32_t lanes) const;
};
static_assert(sizeof(rows_for_host) == 56 && offsetof(rows_for_host, buffers) == 0 && offsetof(rows_for_host, places) == 32);
static_assert(offsetof(rows_for_host, counts) == 40 && offsetof(rows_for_host, next_counts) == 48);

// Enters the rows of those lanes, out of line. All lanes call.
GPUFS_DEVICE_COLD inline void add_rows_for_host(rows_for_host left, std::uint32_t mine, std::uint32_t lanes) {
  const simt::warp warp = simt::this_warp();
  const std::uint32_t first = by_leader(warp, [&] {
    return simt::atomic_ref<std::uint32_t>(left.counts->n).fetch_add(simt::count_lanes(lanes), std::memory_order_relaxed);
  });
  if ((lanes >> warp.rank() & 1) != 0) left.places[first + simt::count_lanes(lanes & ((1u << warp.rank()) - 1))] = mine;
}
GPUFS_DEVICE void rows_for_host::add(std::uint32_t mine, std::uint32_t lanes) const {
  simt::call_cold(&add_rows_for_host, *this, mine, lanes);
}

constexpr unsigned rows_block = GPUFS_ON_CUDA ? 256 : 64, least_row_blocks = 4;  // launch bounds

template <class Kernel>
void load_row_kernel() {
  simt::load<Kernel, rows_block, least_row_blocks>();
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
