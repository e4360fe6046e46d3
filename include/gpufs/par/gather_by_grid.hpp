// SPDX-License-Identifier: Apache-2.0
// gather for all blocks of a cooperative launch: the grid brings the batch's rows into an order that is roughly that of their
// addresses before it reads, so that all of it reads one narrow window of the file at a time. docs/design/batches.md, "From inside
// a kernel"
#pragma once
#include "gpufs/par/detail/windows_of_grid.hpp"
#include "gpufs/par/gather.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

namespace detail {

// The batch's places by window, a word each, and the call's piece.
class places_by_window : public windows_of_grid {
 public:
  using windows_of_grid::windows_of_grid;

  // Sorts the places 0 to n - 1 by the window that the row(place) lies in. One thread's begin() is piece() for all. All threads of
  // the grid call.
  template <class Row, class Begin>
  GPUFS_DEVICE void sort(simt::grid grid, std::uint32_t n, Row row, Begin begin) const {
    count(grid, n, row, [&](std::uint64_t thread, std::uint64_t) {
      if (thread == 0) word_of_call() = begin();
    });
    for (std::uint64_t i = grid.rank(); i < n; i += grid.size()) {
      const std::uint32_t at = simt::atomic_ref<std::uint32_t>(begins()[window(row(i))]).fetch_add(1, std::memory_order_relaxed);
      places()[at] = static_cast<std::uint32_t>(i);
    }
    grid.sync();
  }
  GPUFS_DEVICE std::uint32_t piece() const { return word_of_call(); }
  GPUFS_DEVICE std::uint32_t place(std::uint32_t i) const { return places()[i]; }

 private:
  GPUFS_DEVICE std::uint32_t* places() const { return behind(); }
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
  const detail::call_of_grid what{layout, numbers, dst, n, space};
  const bool is_any = what.is_any();
  const simt::block block = grid.this_block();
  const simt::group_call call(
      block, "gather(file, mount, row_nbytes, nrows, begin, stride_nbytes, from_end, numbers, n, dst, words, nwords)",
      from.number(), from.entry(), layout.row_nbytes, layout.nrows, layout.begin, layout.stride_nbytes, layout.from_end,
      simt::memory_of_all{numbers, is_any}, n, simt::memory_of_all{dst, is_any}, simt::memory_of_all{space.words, is_any},
      space.nwords);
  if (const int error = what.why_not(grid_space::nwords_for(n)); error != 0) return {error, 0};
  if (!is_any) return {};
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
    return detail::refuse_grid(grid, from);
  }
  const detail::file_pages of(from);
  // All of the grid is one piece: that blocks come by a page at one time proves no second use of it.
  const detail::touched_pages touched(of.mount()->touched, order.piece());
  const std::uint32_t most = detail::share_of_block(n, 64, order_in_block::most);
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
