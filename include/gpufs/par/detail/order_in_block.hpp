// SPDX-License-Identifier: Apache-2.0
// Some rows of a batch that a block has sorted by address in its shared memory (docs/design/batches.md, "From inside a kernel").
#pragma once
#include "gpufs/par/rows.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Some places and the row that each of them names, sorted by row; equal rows are sorted by place.
struct order_in_block {
  static constexpr std::uint32_t most = 1024;
  std::uint64_t rows[most];
  std::uint32_t places[most];

  struct row_and_place {
    std::uint64_t row;
    std::uint32_t place;
  };
  // No row.
  GPUFS_DEVICE static row_and_place behind_all() { return {~std::uint64_t{0}, ~0u}; }

  // Takes entry(i) -> {row, place} for i below n, which is 1 to `most`, and sorts them. All threads of the block call; they may
  // read afterwards, and must have met before the next call. Bitonic (Batcher, AFIPS 1968): it needs no memory but this, and 1,024
  // rows take it 55 rounds, beside some milliseconds in which the bus brings them.
  template <class Entry>
  GPUFS_DEVICE void sort(simt::block block, std::uint32_t n, Entry entry) {
    std::uint32_t size = 1;
    while (size < n) size *= 2;
    for (std::uint32_t i = block.rank(); i < size; i += block.size()) {
      const row_and_place here = i < n ? entry(i) : behind_all();
      rows[i] = here.row;
      places[i] = here.place;
    }
    block.sync();
    for (std::uint32_t run = 2; run <= size; run *= 2) {
      for (std::uint32_t apart = run / 2; apart != 0; apart /= 2) {
        for (std::uint32_t i = block.rank(); i < size / 2; i += block.size()) {
          const std::uint32_t a = 2 * i - (i & (apart - 1)), b = a + apart;
          const bool falls = is_before(b, a), wants_to_fall = (a & run) != 0;
          if (falls != wants_to_fall) swap(a, b);
        }
        block.sync();
      }
    }
  }

 private:
  GPUFS_DEVICE bool is_before(std::uint32_t a, std::uint32_t b) const {
    return rows[a] != rows[b] ? rows[a] < rows[b] : places[a] < places[b];
  }
  GPUFS_DEVICE void swap(std::uint32_t a, std::uint32_t b) {
    const row_and_place was{rows[a], places[a]};
    rows[a] = rows[b];
    places[a] = places[b];
    rows[b] = was.row;
    places[b] = was.place;
  }
};

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
