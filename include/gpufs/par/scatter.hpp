// SPDX-License-Identifier: Apache-2.0
// Rows of a file that a group of threads writes, whose numbers the kernel has found itself. For host code there is
// gpufs/par/row_batch.hpp, and for all blocks of a cooperative launch gpufs/par/scatter_by_grid.hpp. docs/design/batches.md, "From
// inside a kernel"
#pragma once
#include "gpufs/par/detail/rows_of_call.hpp"
#include "gpufs/par/detail/store_rows.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

namespace detail {

template <class Rows>
using writer_of_call = row_writer<by_size, Rows>;

GPUFS_DEVICE bool rows_overlap(const row_layout& layout) {
  return layout.stride_nbytes != 0 && layout.stride_nbytes < layout.row_nbytes;
}

// The first n rows of the order that the block has sorted, of equal ones the last. All threads of the block call.
GPUFS_DEVICE void write_by_block(simt::block block, writer_of_call<rows_in_order>& writer, std::uint32_t n) {
  writer.part.n = n;
  const std::uint32_t at_once = stored_at_once(writer.part.layout.row_nbytes, fair_at_once(n, block.nwarps()));
  each_warp_some(block, n, at_once, [&](simt::warp warp, std::uint32_t i) { writer.write_some(warp, i, n, at_once); });
}

// The word of the row that failed, or none. All lanes call.
template <class Group>
GPUFS_DEVICE std::uint64_t scatter_rows_by(Group group, const file& to, const rows_of_file& rows, const numbers_of_rows& numbers,
                                           std::uint64_t n, const std::byte* src) {
  std::uint64_t failed = row_failure::none;
  if constexpr (std::is_same_v<Group, simt::block>) {
    order_in_block& order = simt::shared<order_in_block>();
    writer_of_call<rows_in_order> writer{{{rows, 0, &failed}, &order, 0}, to, src};
    for (std::uint64_t& first = writer.part.first; first < n; first += order.most) {
      const auto here = static_cast<std::uint32_t>(n - first < order.most ? n - first : order.most);
      order.sort(group, here, [&](std::uint32_t i) -> order_in_block::row_and_place {
        return {row_of(numbers, first + i, rows.layout), i};
      });
      write_by_block(group, writer, here);
    }
  } else {
    writer_of_call<rows_of_lanes> writer{{{{rows, 0, &failed}, numbers}, false}, to, src};
    const std::uint32_t most = stored_at_once(rows.layout.row_nbytes, simt::warp_lanes),
                        at_once = most < group.size() ? most : group.size();
    for (std::uint64_t& first = writer.part.first; first < n; first += at_once) {
      const std::uint64_t left = n - first < at_once ? n - first : at_once;
      const std::uint64_t mine = group.rank() < left ? writer.part.row(group.rank()) : rows.layout.nrows;
      writer.part.again = (std::uint64_t{group.match_any(mine)} >> (group.rank() + 1)) != 0;
      writer.write_some(group, 0, left, at_once);
    }
  }
  group.sync();
  return group.reduce_min(failed);
}

}  // namespace detail

// Writes row numbers[i] of a file that is open for writing from src + i * layout.row_nbytes, for i below n; numbers: in global or
// shared memory; src: in global memory (else -EFAULT, of place 0, and nothing is written; numbers: as gather's). Of a row that
// comes repeatedly the last one is written. The row that failed, as gather's, or error == 0: -EDOM, else as pwrite; the others are
// written. -EINVAL, of place 0: no file can have such a layout, or its rows overlap, or no call so many of them; nothing is
// written. Rows of a file in memory that the device writes in place and whose pages are not cached go straight there, others as by
// pwrite; when the file has them, row_batch::scatter says. Blocks sort as gather does.
template <simt::group Group, row_number Number>
GPUFS_DEVICE row_failure scatter(Group group, const file& to, const row_layout& layout, const Number* numbers, std::uint64_t n,
                                 const void* src) {
  const bool is_any = n != 0 && layout.row_nbytes != 0;
  const simt::group_call call(group, "scatter(file, mount, row_nbytes, nrows, begin, stride_nbytes, from_end, numbers, n, src)",
                              to.number(), to.entry(), layout.row_nbytes, layout.nrows, layout.begin, layout.stride_nbytes,
                              layout.from_end, simt::memory_of_all{numbers, is_any}, n, simt::memory_of_all{src, is_any});
  if (detail::rows_overlap(layout) || detail::why_not_rows(layout, n) != nullptr) return {-EINVAL, 0};
  if (!is_any) return {};
  // src may go straight to the file's mapping.
  if (!detail::is_of_all(group, numbers) || !detail::is_of_grid(src)) return {-EFAULT, 0};
  if (to.error() != 0) [[unlikely]]
    return {simt::call_cold(&detail::refuse<Group>, group, to), 0};
  return row_failure::of(detail::scatter_rows_by(group, to, {detail::rows_of_file::with_stride(layout)},
                                                 detail::numbers_of_rows::make(numbers), n, static_cast<const std::byte*>(src)));
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
