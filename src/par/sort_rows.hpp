// SPDX-License-Identifier: Apache-2.0
// The order in which a batch of rows is best read: by address (docs/design/batches.md).
#pragma once
#include <cstddef>
#include <cstdint>

namespace gpufs::par {

// n rows' numbers, and each one's place in the batch; in and out, all in memory of the stream's device.
struct row_order {
  const std::uint64_t* numbers;
  const std::uint32_t* places;
  std::uint64_t* sorted_numbers;
  std::uint32_t* sorted_places;
  std::uint32_t n;
  unsigned number_nbits;   // no number has a bit from this one on
  unsigned first_bit = 0;  // numbers that are the same from this bit on count as equal
};

// Each machine's, in its row_batch_*:
//   std::size_t sort_space_nbytes(std::uint32_t most);  // device memory that sort_rows needs for up to `most` rows
//   // Sorts by number, and equal ones by place if the places came in ascending order; in the queue's turn.
//   void sort_rows(const row_order&, void* space, std::size_t space_nbytes, queue);

}  // namespace gpufs::par
