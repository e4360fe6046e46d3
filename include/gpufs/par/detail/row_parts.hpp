// SPDX-License-Identifier: Apache-2.0
// Of the rows of a batch: what becomes of one that is lost, what a lane looks for of one, and where the first of equal ones is.
#pragma once
#include "gpufs/par/detail/read_row.hpp"
#include "gpufs/par/rows.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// A row becomes zeros, and its error is noted. All lanes call.
template <class Group, class Rows>
GPUFS_DEVICE void lose_row(Group group, const Rows& part, const file_pages& of, const file& from, std::byte* to, std::uint32_t i,
                           int error) {
  std::byte* const here = to + part.in_memory(i);
  group.sync();  // what lanes have read of it
  for (std::uint64_t k = group.rank(); k < part.layout.row_nbytes; k += group.size()) here[k] = std::byte{0};
  if (!group.leader()) return;
  part.fail(i, error);
  if (part.is_row(part.row(i)) && from.error() == 0) simt::call_cold(&count_error, of.mount(), file_slots::index_of(from.number()));
}

// In the place of rows_for_host: host threads gather none.
struct no_rows_for_host {
  GPUFS_DEVICE static constexpr bool may_be() { return false; }
  GPUFS_DEVICE static void add(std::uint32_t, std::uint32_t) {}
};

// The bytes of a row that a lane looks for.
struct row_span {
  std::uint32_t begin, nbytes;
};

// Of sorted rows, the first one that is equal to row i.
template <class Rows>
GPUFS_DEVICE std::uint32_t first_of_equal(const Rows& part, std::uint32_t i) {
  const std::uint64_t row = part.row(i);
  std::uint32_t low = 0, high = i;  // it is in [low, high]
  while (low < high) {
    const std::uint32_t middle = low + (high - low) / 2;
    if (part.row(middle) < row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
