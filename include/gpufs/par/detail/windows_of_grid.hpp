// SPDX-License-Identifier: Apache-2.0
// How a grid divides a batch by windows of the file, in memory of the caller's, and hands shares of it out to blocks; and what its
// calls check. docs/design/batches.md, "From inside a kernel"
#pragma once
#include "gpufs/file/file.hpp"
#include "gpufs/par/detail/rows_of_call.hpp"
#include "gpufs/par/grid_space.hpp"
#include "gpufs/simt/grid.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// How grid_space is used, from its first multiple of 8 bytes on: by the row that failed, how much of the batch blocks have taken, a
// word for the call; where each window's places begin; and what else the call keeps.
class windows_of_grid {
 public:
  GPUFS_DEVICE windows_of_grid(const grid_space& space, const rows_of_file& rows)
      : words_(space.words + reinterpret_cast<std::uint64_t>(space.words) / sizeof(std::uint32_t) % 2), shift_(0) {
    while ((rows.layout.nrows >> shift_) >= grid_space::nwindows) ++shift_;
  }

  // The first of `most` that the calling block is to do, of n; or n or more. All threads of a block call.
  GPUFS_DEVICE std::uint32_t take(simt::block block, std::uint32_t most) const {
    return by_leader(block, [&] { return simt::atomic_ref<std::uint32_t>(words_[2]).fetch_add(most, std::memory_order_relaxed); });
  }
  // The least of all blocks' words. All threads of the grid call.
  GPUFS_DEVICE std::uint64_t least(simt::grid grid, std::uint64_t of_block) const {
    const simt::atomic_ref<std::uint64_t> word(failed());
    if (of_block != row_failure::none && grid.this_block().leader()) word.fetch_min(of_block, std::memory_order_relaxed);
    grid.sync();
    return word.load(std::memory_order_relaxed);
  }

 protected:
  // Finds where the places of each window begin, of n places that name row(place). begin(thread, nthreads): what else is to be set
  // before that. All threads of the grid call.
  template <class Row, class Begin>
  GPUFS_DEVICE void count(simt::grid grid, std::uint32_t n, Row row, Begin begin) const {
    const std::uint64_t me = grid.rank(), all = grid.size();
    grid.sync();  // the last call's readers are done
    for (std::uint64_t i = me; i < grid_space::nwindows; i += all) begins()[i] = 0;
    if (grid.leader()) {
      simt::atomic_ref<std::uint64_t>(failed()).store(row_failure::none, std::memory_order_relaxed);
      words_[2] = 0;
    }
    begin(me, all);
    grid.sync();
    for (std::uint64_t i = me; i < n; i += all) simt::atomic_ref<std::uint32_t>(begins()[window(row(i))]).add_relaxed(1);
    grid.sync();
    if (simt::block_rank() == 0) sum_up(grid.this_block());
    grid.sync();
  }
  GPUFS_DEVICE std::uint32_t& word_of_call() const { return words_[3]; }
  GPUFS_DEVICE std::uint32_t* begins() const { return words_ + 8; }
  GPUFS_DEVICE std::uint32_t* behind() const { return begins() + grid_space::nwindows; }
  GPUFS_DEVICE std::uint32_t window(std::uint64_t row) const { return static_cast<std::uint32_t>(row >> shift_); }

 private:
  GPUFS_DEVICE std::uint64_t& failed() const { return *reinterpret_cast<std::uint64_t*>(words_); }
  // How many places each window has becomes where they begin. All threads of a block call.
  GPUFS_DEVICE void sum_up(simt::block block) const {
    std::uint32_t before = 0;
    for (std::uint32_t first = 0; first < grid_space::nwindows; first += block.size()) {
      const std::uint32_t i = first + block.rank(), mine = i < grid_space::nwindows ? begins()[i] : 0;
      const std::uint32_t up_to_me = before + block.inclusive_scan_add(mine);
      if (i < grid_space::nwindows) begins()[i] = up_to_me - mine;
      before = block.broadcast(up_to_me, block.size() - 1);
    }
  }

  std::uint32_t* words_;
  unsigned shift_;
};

// How much of n a block takes at a time, `least` to `most`: so that blocks which are faster take more.
GPUFS_DEVICE std::uint32_t share_of_block(std::uint64_t n, std::uint32_t least, std::uint32_t most) {
  const std::uint64_t fair = n / (4 * std::uint64_t{simt::grid_size()});
  return static_cast<std::uint32_t>(fair > most ? most : fair < least ? least : fair);
}

// A call's arguments, but for the file. memory: of the rows; nwords: what the space needs.
struct call_of_grid {
  const row_layout& layout;
  const void *numbers, *memory;
  std::uint64_t n;
  const grid_space& space;

  GPUFS_DEVICE bool is_any() const { return n != 0 && layout.row_nbytes != 0; }
  // 0, or the errno of why nothing can be done.
  GPUFS_DEVICE int why_not(std::uint64_t nwords) const {
    if (why_not_rows(layout, n) != nullptr || n >= 0xff000000u || space.nwords < nwords) return -EINVAL;
    if (!is_any()) return 0;
    return is_of_grid(numbers) && is_of_grid(memory) && is_of_grid(space.words) ? 0 : -EFAULT;
  }
};

// Of a file that did not open. All threads of the grid call.
GPUFS_DEVICE row_failure refuse_grid(simt::grid grid, const file& of) {
  if (simt::block_rank() == 0) simt::call_cold(&refuse<simt::block>, grid.this_block(), of);
  grid.sync();
  return {of.error(), 0};
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
