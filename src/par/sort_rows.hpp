// SPDX-License-Identifier: Apache-2.0
// The order in which a batch of rows is best read: by address (docs/design/batches.md).
#pragma once
#include <cstddef>
#include <cstdint>

namespace gpufs::par {

// n rows' words, and each row's place in the batch; in and out, all in memory of the stream's device. A word is the row's number,
// or, where numbers have 32 bits at most, that one above the place, in 32 bits each: a third less is sorted.
struct row_order {
  const std::uint64_t* words;
  const std::uint32_t* places;  // null, as sorted_places: they are in the words
  std::uint64_t* sorted_words;
  std::uint32_t* sorted_places;
  std::uint32_t n;
  unsigned first_bit, end_bit;  // words whose bits between the two are the same count as equal; none has a bit from end_bit on
};

// Each machine's, in its row_batch_*:
//   std::size_t sort_space_nbytes(std::uint32_t most);  // device memory that sort_rows needs for up to `most` rows
//   // Sorts by the words' bits, and equal ones by place if the places came in ascending order; in the queue's turn.
//   void sort_rows(const row_order&, void* space, std::size_t space_nbytes, queue);

}  // namespace gpufs::par
