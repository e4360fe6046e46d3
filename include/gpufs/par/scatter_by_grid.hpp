// SPDX-License-Identifier: Apache-2.0
// scatter for all blocks of a cooperative launch, which finds the last place that names each row before it writes, so that each row
// is written once, by whichever block. docs/design/batches.md, "From inside a kernel"
#pragma once
#include "gpufs/par/detail/windows_of_grid.hpp"
#include "gpufs/par/scatter.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

namespace detail {

// The last place that names each row of a batch: a hash table of places in each window (open addressing, linear probing), of twice
// as many slots as the window has places. So a slot is found however the rows lie, and blocks that take slots in their order write
// one window after the other.
class last_places : public windows_of_grid {
 public:
  using windows_of_grid::windows_of_grid;

  static constexpr std::uint32_t none = ~0u;  // what an empty slot has

  // Enters the places 0 to n - 1 that name a row; calls no_row(place) for the others. All threads of the grid call.
  template <class Row, class NoRow>
  GPUFS_DEVICE void find(simt::grid grid, const rows_of_file& rows, std::uint32_t n, Row row, NoRow no_row) const {
    count(grid, n, row, [&](std::uint64_t thread, std::uint64_t nthreads) {
      for (std::uint64_t i = thread; i < 2 * std::uint64_t{n}; i += nthreads) slots()[i] = none;
    });
    for (std::uint64_t i = grid.rank(); i < n; i += grid.size()) {
      const std::uint64_t mine = row(i);
      if (!rows.is_row(mine)) {
        no_row(i);
        continue;
      }
      const std::uint32_t w = window(mine), begin = begins()[w], end = w + 1 < grid_space::nwindows ? begins()[w + 1] : n;
      enter(slots() + 2 * std::uint64_t{begin}, 2 * std::uint64_t{end - begin}, static_cast<std::uint32_t>(i), mine, row);
    }
    grid.sync();
  }
  // The place in one of 2 * n slots, or none.
  GPUFS_DEVICE std::uint32_t place(std::uint64_t slot) const { return slots()[slot]; }

 private:
  GPUFS_DEVICE std::uint32_t* slots() const { return behind(); }
  // A slot is of the row whose place it had first; later places of the row only raise it.
  template <class Row>
  GPUFS_DEVICE static void enter(std::uint32_t* slots, std::uint64_t nslots, std::uint32_t place, std::uint64_t row_of_place,
                                 Row row) {
    std::uint64_t hash = row_of_place * 0x9e3779b97f4a7c15u;  // twice, since rows at even distances are usual
    hash = (hash ^ hash >> 32) * 0xff51afd7ed558ccdu;
    std::uint64_t at = ((hash >> 33) * nslots) >> 31;
    // It would find its slot without an end, but for numbers that others change meanwhile.
    for (std::uint64_t tries = 0; tries < nslots; ++tries, at = at + 1 < nslots ? at + 1 : 0) {
      const simt::atomic_ref<std::uint32_t> slot(slots[at]);
      std::uint32_t there = slot.load(std::memory_order_relaxed);
      if (there == none && slot.compare_exchange(there, place, std::memory_order_relaxed)) return;
      if (row(there) != row_of_place) continue;
      if (there < place) slot.fetch_max(place, std::memory_order_relaxed);
      return;
    }
  }
};

}  // namespace detail

// Writes rows as scatter(group, ...) does, by all threads of all blocks of a cooperative launch, which call with equal arguments
// and get equal results: of a row that comes repeatedly the last one is written, whichever blocks come by it. Rows are written a
// window after the other, as gather(grid, ...) reads them. Whoever of the grid reads them afterwards has the new bytes. Errors as
// scatter(group, ...); -EINVAL, of place 0, also if there are 2^32 - 2^24 rows or more, or the space is less than
// grid_space::nwords_to_scatter(n). src, numbers and the space's words: in global memory, else -EFAULT; numbers must not change
// meanwhile. Waits for all blocks.
template <row_number Number>
GPUFS_DEVICE row_failure scatter(simt::grid grid, const file& to, const row_layout& layout, const Number* numbers, std::uint64_t n,
                                 const void* src, const grid_space& space) {
  const detail::call_of_grid what{layout, numbers, src, n, space};
  const bool is_any = what.is_any();
  const simt::block block = grid.this_block();
  const simt::group_call call(
      block, "scatter(file, mount, row_nbytes, nrows, begin, stride_nbytes, from_end, numbers, n, src, words, nwords)", to.number(),
      to.entry(), layout.row_nbytes, layout.nrows, layout.begin, layout.stride_nbytes, layout.from_end,
      simt::memory_of_all{numbers, is_any}, n, simt::memory_of_all{src, is_any}, simt::memory_of_all{space.words, is_any},
      space.nwords);
  if (detail::rows_overlap(layout)) return {-EINVAL, 0};
  if (const int error = what.why_not(grid_space::nwords_to_scatter(n)); error != 0) return {error, 0};
  if (!is_any) return {};
  if (to.error() != 0) [[unlikely]]
    return detail::refuse_grid(grid, to);
  using detail::order_in_block;
  const detail::rows_of_file rows{detail::rows_of_file::with_stride(layout)};
  const auto of_all = detail::numbers_of_rows::make(numbers);
  const auto row = [&](std::uint64_t i) { return detail::row_of(of_all, i, rows.layout); };
  std::uint64_t failed = row_failure::none;
  detail::writer_of_call<detail::rows_in_order> writer{{{rows, 0, &failed}, nullptr, 0}, to, static_cast<const std::byte*>(src)};
  const detail::last_places last(space, rows);
  last.find(grid, rows, static_cast<std::uint32_t>(n), row, [&](std::uint64_t place) { writer.part.fail_at(place, -EDOM); });
  auto& order = simt::shared<order_in_block>();
  writer.part.order = &order;
  const std::uint32_t most = detail::share_of_block(n, 32, order_in_block::most / 2);  // of pairs of slots
  for (;;) {
    const std::uint32_t first = last.take(block, most);
    if (first >= n) break;
    const auto nslots = static_cast<std::uint32_t>(2 * (n - first < most ? n - first : most));
    std::uint32_t mine = 0;
    order.sort(block, nslots, [&](std::uint32_t i) -> order_in_block::row_and_place {
      const std::uint32_t place = last.place(2 * std::uint64_t{first} + i);
      if (place == detail::last_places::none) return order_in_block::behind_all();
      ++mine;
      return {row(place), place};
    });
    detail::write_by_block(block, writer, block.reduce_add(mine));
  }
  return row_failure::of(last.least(grid, block.reduce_min(failed)));
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
