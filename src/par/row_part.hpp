// SPDX-License-Identifier: Apache-2.0
// What the kernels of batches share: a piece of a batch, and its rows that fail.
#pragma once
#include "gpufs/file/fill.hpp"
#include "gpufs/par/row_batch.hpp"
#include "gpufs/simt/launch.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// The row that place i names, or layout.nrows: there is no such row.
GPUFS_DEVICE std::uint64_t row_of(const numbers_of_rows& numbers, std::uint64_t i, const row_layout& layout) {
  std::int64_t number = 0;
  if (numbers.wide) {
    number = static_cast<const std::int64_t*>(numbers.of)[i];
  } else {
    const std::uint32_t bits = static_cast<const std::uint32_t*>(numbers.of)[i];
    number = numbers.is_signed ? static_cast<std::int32_t>(bits) : static_cast<std::int64_t>(bits);
  }
  if (number < 0 && layout.from_end) number += static_cast<std::int64_t>(layout.nrows);
  return number >= 0 && static_cast<std::uint64_t>(number) < layout.nrows ? static_cast<std::uint64_t>(number) : layout.nrows;
}

// The part of a batch that is sorted at once, as its kernels take it.
struct row_part_of_batch {
  row_layout layout;  // a number of layout.nrows: no row
  numbers_of_rows numbers;
  std::uint64_t* rows;    // sorted; null: in the order of `numbers`
  std::uint32_t* places;  // of each, within this part
  std::uint64_t first;    // of this part in the batch
  std::uint32_t n;
  std::uint32_t rows_a_block;
  std::uint32_t rows_a_warp;  // at once, of gather_rows
  std::uint64_t* failed;      // of row_failure

  GPUFS_DEVICE std::uint64_t row(std::uint32_t i) const { return rows != nullptr ? rows[i] : row_of(numbers, i, layout); }
  GPUFS_DEVICE std::uint32_t place(std::uint32_t i) const { return rows != nullptr ? places[i] : i; }
  GPUFS_DEVICE bool is_row(std::uint64_t row) const { return row < layout.nrows; }
  GPUFS_DEVICE bool repeats(std::uint32_t i) const { return rows != nullptr && i > 0 && rows[i - 1] == rows[i]; }
  GPUFS_DEVICE bool is_repeated(std::uint32_t i) const { return rows != nullptr && i + 1 < n && rows[i + 1] == rows[i]; }
  GPUFS_DEVICE std::uint64_t offset(std::uint64_t row) const { return layout.begin + row * layout.stride_nbytes; }
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
};

// A row becomes zeros, and its error is noted. All lanes call.
GPUFS_DEVICE void lose_row(simt::warp warp, const row_part_of_batch& part, const file_pages& of, const file& from, std::byte* to,
                           std::uint32_t i, int error) {
  std::byte* const here = to + part.in_memory(i);
  warp.sync();  // what lanes have read of it
  for (std::uint64_t k = warp.rank(); k < part.layout.row_nbytes; k += warp.size()) here[k] = std::byte{0};
  if (!warp.leader()) return;
  part.fail(i, error);
  if (part.is_row(part.row(i)) && from.error() == 0) simt::call_cold(&count_error, of.mount(), file_slots::index_of(from.number()));
}

// The rows of a piece that host threads are to gather: gather_rows lists them, gather_rows_by_host asks for them.
struct rows_for_host {
  transport::row_buffers buffers;  // none: host threads gather no rows
  std::uint32_t* places;           // of the rows, in the piece's order
  row_counts* counts;
  row_counts* next_counts;  // of the next piece

  GPUFS_HOST_DEVICE bool may_be() const { return buffers.memory != nullptr; }
};

// Enters the rows of those lanes, out of line. All lanes call.
GPUFS_DEVICE_COLD inline void add_rows_for_host(rows_for_host left, std::uint32_t mine, std::uint32_t lanes) {
  const simt::warp warp = simt::this_warp();
  const std::uint32_t first = by_leader(warp, [&] {
    return simt::atomic_ref<std::uint32_t>(left.counts->n).fetch_add(simt::count_lanes(lanes), std::memory_order_relaxed);
  });
  if ((lanes >> warp.rank() & 1) != 0) left.places[first + simt::count_lanes(lanes & ((1u << warp.rank()) - 1))] = mine;
}

constexpr unsigned rows_block = GPUFS_ON_CUDA ? 256 : 64, least_row_blocks = 4;  // launch bounds

template <class Kernel>
void load_row_kernel() {
  simt::load<Kernel, rows_block, least_row_blocks>();
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
