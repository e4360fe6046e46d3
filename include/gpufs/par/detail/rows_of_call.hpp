// SPDX-License-Identifier: Apache-2.0
// The rows of a call that a kernel makes, as row_reader and row_writer take them.
#pragma once
#include "gpufs/par/detail/order_in_block.hpp"
#include "gpufs/par/rows.hpp"
#include "gpufs/simt/address_space.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Whether a call's numbers or rows can be there: all of the group find the same at the address.
template <class Group>
GPUFS_DEVICE bool is_of_all(Group group, const void* address) {
  return address != nullptr && (group.size() == 1 || !simt::is_local(address));
}
GPUFS_DEVICE bool is_of_grid(const void* address) { return address != nullptr && simt::is_global(address); }

// The lane that is told of a failed row notes it in a word of its own.
struct rows_of_call : rows_of_file {
  std::uint64_t first;    // the place in the call from which on places are counted here
  std::uint64_t* failed;  // of row_failure

  GPUFS_DEVICE void fail_at(std::uint64_t place, int error) const {
    const std::uint64_t word = row_failure::word(place, error);
    if (word < *failed) *failed = word;
  }
};

// In the caller's order. A row that comes again is read again.
struct rows_as_given : rows_of_call {
  numbers_of_rows numbers;

  GPUFS_DEVICE std::uint64_t row(std::uint32_t i) const { return row_of(numbers, first + i, layout); }
  GPUFS_DEVICE static bool repeats(std::uint32_t) { return false; }
  GPUFS_DEVICE static bool is_repeated(std::uint32_t) { return false; }
  GPUFS_DEVICE std::uint64_t in_memory(std::uint32_t i) const { return (first + i) * layout.row_nbytes; }
  GPUFS_DEVICE void fail(std::uint32_t i, int error) const { fail_at(first + i, error); }
};

// As a group's lanes have them, a row each, to be written.
struct rows_of_lanes : rows_as_given {
  bool again;  // a later lane has the caller's row, too

  GPUFS_DEVICE bool is_repeated(std::uint32_t) const { return again; }
};

// As a block has sorted them.
struct rows_in_order : rows_of_call {
  const order_in_block* order;
  std::uint32_t n;

  GPUFS_DEVICE std::uint64_t row(std::uint32_t i) const { return order->rows[i]; }
  GPUFS_DEVICE bool repeats(std::uint32_t i) const { return i > 0 && order->rows[i - 1] == order->rows[i]; }
  GPUFS_DEVICE bool is_repeated(std::uint32_t i) const { return i + 1 < n && order->rows[i + 1] == order->rows[i]; }
  GPUFS_DEVICE std::uint64_t in_memory(std::uint32_t i) const { return (first + order->places[i]) * layout.row_nbytes; }
  GPUFS_DEVICE void fail(std::uint32_t i, int error) const { fail_at(first + order->places[i], error); }
};

// Each of the block's warps calls work(warp, i) for rows [i, i + at_once) of n, its share of them; then all meet. All threads call.
template <class Work>
GPUFS_DEVICE void each_warp_some(simt::block block, std::uint32_t n, std::uint32_t at_once, Work work) {
  for (std::uint32_t i = simt::warp_rank() * at_once; i < n; i += block.nwarps() * at_once) work(block.warp(), i);
  block.sync();
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
