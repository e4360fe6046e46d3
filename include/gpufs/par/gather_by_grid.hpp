// SPDX-License-Identifier: Apache-2.0
// gather for all blocks of a cooperative launch: the grid brings the batch's rows into an order that is roughly that of their
// addresses before it reads, so that all of it reads one narrow window of the file at a time. docs/design/batches.md, "From inside
// a kernel"
#pragma once
#include "gpufs/par/gather.hpp"
#include "gpufs/simt/grid.hpp"

namespace gpufs {

// What a grid's gather needs of device memory, as words of 4 bytes: one a row, and a few thousand. Whatever is in it; kernels that
// use it by turns, or one grid whose calls follow each other, may share it.
struct grid_space {
  std::uint32_t* words;
  std::uint64_t nwords;  // at least nwords_for(n)

  static constexpr std::uint32_t nwindows = 1024;
  GPUFS_HOST_DEVICE static constexpr std::uint64_t nwords_for(std::uint64_t n) { return n + nwindows + 9; }
};

inline namespace GPUFS_MACHINE {

namespace detail {

// How grid_space is used, from its first multiple of 8 bytes on: by the row that failed, how many of the sorted places blocks have
// taken, the call's piece; where each window's places end; and the places.
class places_by_window {
 public:
  GPUFS_DEVICE places_by_window(const grid_space& space, const rows_of_file& rows)
      : words_(space.words + reinterpret_cast<std::uint64_t>(space.words) / sizeof(std::uint32_t) % 2), shift_(0) {
    while ((rows.layout.nrows >> shift_) >= grid_space::nwindows) ++shift_;
  }

  // Sorts the places 0 to n - 1 by the window that the row(place) lies in. One thread's begin() is piece() for all. All threads of
  // the grid call.
  template <class Row, class Begin>
  GPUFS_DEVICE void sort(simt::grid grid, std::uint32_t n, Row row, Begin begin) const {
    const std::uint64_t me = grid.rank(), all = grid.size();
    grid.sync();  // the last call's readers are done
    for (std::uint64_t i = me; i < grid_space::nwindows; i += all) ends()[i] = 0;
    if (grid.leader()) {
      simt::atomic_ref<std::uint64_t>(failed()).store(row_failure::none, std::memory_order_relaxed);
      words_[2] = 0;
      words_[3] = begin();
    }
    grid.sync();
    for (std::uint64_t i = me; i < n; i += all) simt::atomic_ref<std::uint32_t>(ends()[window(row(i))]).add_relaxed(1);
    grid.sync();
    if (simt::block_rank() == 0) sum_up(grid.this_block());
    grid.sync();
    for (std::uint64_t i = me; i < n; i += all) {
      const std::uint32_t at = simt::atomic_ref<std::uint32_t>(ends()[window(row(i))]).fetch_add(1, std::memory_order_relaxed);
      places()[at] = static_cast<std::uint32_t>(i);
    }
    grid.sync();
  }
  // The first of `most` places that the calling block is to read, or n or more. All threads of a block call.
  GPUFS_DEVICE std::uint32_t take(simt::block block, std::uint32_t most) const {
    return by_leader(block, [&] { return simt::atomic_ref<std::uint32_t>(words_[2]).fetch_add(most, std::memory_order_relaxed); });
  }
  GPUFS_DEVICE std::uint32_t piece() const { return words_[3]; }
  GPUFS_DEVICE std::uint32_t place(std::uint32_t i) const { return places()[i]; }
  // The least of all blocks' words. All threads of the grid call.
  GPUFS_DEVICE std::uint64_t least(simt::grid grid, std::uint64_t of_block) const {
    const simt::atomic_ref<std::uint64_t> word(failed());
    if (of_block != row_failure::none && grid.this_block().leader()) word.fetch_min(of_block, std::memory_order_relaxed);
    grid.sync();
    return word.load(std::memory_order_relaxed);
  }

 private:
  GPUFS_DEVICE std::uint64_t& failed() const { return *reinterpret_cast<std::uint64_t*>(words_); }
  GPUFS_DEVICE std::uint32_t* ends() const { return words_ + 8; }
  GPUFS_DEVICE std::uint32_t* places() const { return ends() + grid_space::nwindows; }
  GPUFS_DEVICE std::uint32_t window(std::uint64_t row) const { return static_cast<std::uint32_t>(row >> shift_); }
  // How many places each window has becomes where they begin. All threads of a block call.
  GPUFS_DEVICE void sum_up(simt::block block) const {
    std::uint32_t before = 0;
    for (std::uint32_t first = 0; first < grid_space::nwindows; first += block.size()) {
      const std::uint32_t i = first + block.rank(), mine = i < grid_space::nwindows ? ends()[i] : 0;
      const std::uint32_t up_to_me = before + block.inclusive_scan_add(mine);
      if (i < grid_space::nwindows) ends()[i] = up_to_me - mine;
      before = block.broadcast(up_to_me, block.size() - 1);
    }
  }

  std::uint32_t* words_;
  unsigned shift_;
};

}  // namespace detail

// Reads rows as gather(group, ...) does, by all threads of all blocks of a cooperative launch, which call with equal arguments and
// get equal results. Rows are read a window after the other, of 1,024 that the file has (16 MiB of one of 16 GiB); blocks take
// their shares by turns, and each sorts its own. Rows that are the same are read once if the same block comes by them. -EINVAL, of
// place 0, also if there are 2^32 - 2^24 rows or more, or the space is too small. dst, numbers and the space's words: in global
// memory, else -EFAULT. Waits for all blocks.
template <row_number Number>
GPUFS_DEVICE row_failure gather(simt::grid grid, const file& from, const row_layout& layout, const Number* numbers, std::uint64_t n,
                                void* dst, const grid_space& space) {
  const bool is_any = n != 0 && layout.row_nbytes != 0;
  const simt::block block = grid.this_block();
  const simt::group_call call(
      block, "gather(file, mount, row_nbytes, nrows, begin, stride_nbytes, from_end, numbers, n, dst, words, nwords)",
      from.number(), from.entry(), layout.row_nbytes, layout.nrows, layout.begin, layout.stride_nbytes, layout.from_end,
      simt::memory_of_all{numbers, is_any}, n, simt::memory_of_all{dst, is_any}, simt::memory_of_all{space.words, is_any},
      space.nwords);
  if (detail::why_not_rows(layout, n) != nullptr || n >= 0xff000000u || space.nwords < grid_space::nwords_for(n))
    return {-EINVAL, 0};
  if (!is_any) return {};
  if (!detail::is_of_grid(numbers) || !detail::is_of_grid(dst) || !detail::is_of_grid(space.words)) return {-EFAULT, 0};
  auto* const to = static_cast<std::byte*>(dst);
  using detail::order_in_block;
  const detail::rows_of_file rows{detail::rows_of_file::with_stride(layout)};
  const auto of_all = detail::numbers_of_rows::make(numbers);
  const auto row = [&](std::uint64_t i) { return detail::row_of(of_all, i, rows.layout); };
  const detail::places_by_window order(space, rows);
  order.sort(grid, static_cast<std::uint32_t>(n), row, [&] {
    return from.error() != 0 ? 0 : detail::touched_pages::begin_call(detail::file_pages(from).mount()->touched, 0);
  });
  if (from.error() != 0) [[unlikely]] {
    const std::uint64_t nbytes = n * layout.row_nbytes;
    for (std::uint64_t i = grid.rank(); i < nbytes; i += grid.size()) to[i] = std::byte{0};
    if (simt::block_rank() == 0) simt::call_cold(&detail::refuse<simt::block>, block, from);
    grid.sync();
    return {from.error(), 0};
  }
  const detail::file_pages of(from);
  // All of the grid is one piece: that blocks come by a page at one time proves no second use of it.
  const detail::touched_pages touched(of.mount()->touched, order.piece());
  const std::uint64_t fair = n / (4 * std::uint64_t{simt::grid_size()});  // so that blocks which are faster take more
  const auto most = static_cast<std::uint32_t>(fair > order_in_block::most ? order_in_block::most : fair < 64 ? 64 : fair);
  std::uint64_t failed = row_failure::none;
  auto& mine = simt::shared<order_in_block>();
  detail::reader_of_call<detail::rows_in_order> reader{{{rows, 0, &failed}, nullptr, 0}, from, to, touched, {}};
  for (;;) {
    const std::uint32_t first = order.take(block, most);
    if (first >= n) break;
    const auto here = static_cast<std::uint32_t>(n - first < most ? n - first : most);
    detail::read_by_block(block, reader, mine, of, here, [&](std::uint32_t i) -> order_in_block::row_and_place {
      const std::uint32_t place = order.place(first + i);
      return {row(place), place};
    });
  }
  return row_failure::of(order.least(grid, block.reduce_min(failed)));
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
