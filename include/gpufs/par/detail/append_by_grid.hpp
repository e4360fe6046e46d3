// SPDX-License-Identifier: Apache-2.0
// Appends bytes that lie side by side by all blocks of a cooperative launch: one place in the file, whose pages all blocks write.
#pragma once
#include "gpufs/file/append.hpp"
#include "gpufs/par/rows.hpp"
#include "gpufs/simt/grid.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// The bytes from `begin` to `end` in the file, of which the caller's block writes whole pages: those of its turn. A failure as
// row_failure's word, of a page in the place of a row.
GPUFS_DEVICE std::uint64_t write_share(simt::block block, const file_mount* mount, const file_view& view, const std::byte* src,
                                       std::uint64_t begin, std::uint64_t end) {
  const std::uint32_t shift = mount->cache.frames.page_shift;
  const std::uint64_t first = begin >> shift, npages = ((end - 1) >> shift) - first + 1;
  const std::uint64_t share = (npages + simt::grid_size() - 1) / simt::grid_size(), skipped = share * simt::block_rank();
  if (skipped >= npages) return row_failure::none;
  const std::uint64_t my_begin = skipped == 0 ? begin : (first + skipped) << shift;
  const std::uint64_t my_end = npages - skipped <= share ? end : (first + skipped + share) << shift;
  const write_part part{src + (my_begin - begin), my_begin, my_end, mount->frame_timeout_ns};
  const page_failure failed = write_each_page(block, mount, view, part);
  if (block.leader()) count_written(*mount, view.slot, bytes_written(*mount, my_begin, my_end, failed), failed);
  return failed.error == 0 ? row_failure::none : row_failure::word(failed.page, failed.error);
}

// As append; src: global memory, which all have written before they met last. begun, words: global memory, a word for each block.
// All threads of the grid call, and get the same.
GPUFS_DEVICE std::int64_t append_by_grid(simt::grid grid, const file& opened, const void* src, std::uint64_t nbytes,
                                         begun_write* begun, std::uint64_t* words) {
  const simt::block block = grid.this_block();
  if (opened.error() != 0) return simt::call_cold(&refuse<simt::block>, block, opened);
  const file_mount* mount = opened.mount().get();
  if (grid.leader()) *begun = begin_append(*mount, opened.number(), check_write(*mount, src, nbytes, 0), nbytes);
  grid.sync();
  const begun_write at = *begun;
  if (at.error != 0) return at.error;
  if (nbytes == 0) return at.offset;
  const auto begin = static_cast<std::uint64_t>(at.offset), end = begin + nbytes;
  const std::uint64_t mine = write_share(block, mount, at.view, static_cast<const std::byte*>(src), begin, end);
  const row_failure failed = row_failure::of(grid.reduce_min(mine, words));  // all have written theirs
  if (grid.leader()) end_changes(*mount, at.view.slot);
  grid.sync();
  return offset_if_whole(begin, end, bytes_written(*mount, begin, end, {failed.place, failed.error}));
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
