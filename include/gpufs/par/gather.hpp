// SPDX-License-Identifier: Apache-2.0
// Rows of a file whose numbers a kernel has found itself, for a group of threads. For host code there is gpufs/par/row_batch.hpp,
// and for all blocks of a cooperative launch gpufs/par/gather_by_grid.hpp. docs/design/batches.md, "From inside a kernel"
#pragma once
#include "gpufs/par/detail/rows_of_call.hpp"
#include "gpufs/par/detail/take_rows.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

namespace detail {

template <class Rows>
using reader_of_call = row_reader<by_size, Rows, no_rows_for_host>;

// Of a file that did not open. Its error. All lanes call.
template <class Group>
GPUFS_DEVICE_COLD int lose_all_rows(Group group, file from, std::byte* to, std::uint64_t nbytes) {
  for (std::uint64_t i = group.rank(); i < nbytes; i += group.size()) to[i] = std::byte{0};
  group.sync();
  return simt::call_cold(&refuse<Group>, group, from);
}

// What of a piece a block reads: the rows that entry(i) -> {row, place} gives for i below n, up to order_in_block::most, in the
// order of their addresses, each once. All threads of the block call; reader.part.order is theirs.
template <class Entry>
GPUFS_DEVICE void read_by_block(simt::block block, reader_of_call<rows_in_order>& reader, order_in_block& order,
                                const file_pages& of, std::uint32_t n, Entry entry) {
  order.sort(block, n, entry);
  rows_in_order& part = reader.part;
  part.order = &order;
  part.n = n;
  const std::uint32_t looked = looked_for_at_once(part.layout.row_nbytes, n, block.nwarps());
  each_warp_some(block, n, looked, [&](simt::warp warp, std::uint32_t i) { reader.read_some(warp, of, i, n, looked); });
  // Rows that repeat others, from where the first one is now.
  const simt::tile<8> eight;
  for (std::uint32_t i = simt::thread_rank() / eight.size(); i < n; i += block.size() / eight.size()) {
    if (!part.is_row(part.row(i)) || !part.repeats(i)) continue;
    simt::copy_bytes(eight, reader.to + part.in_memory(i), reader.to + part.in_memory(first_of_equal(part, i)),
                     part.layout.row_nbytes);
  }
  block.sync();
}

// The word of the row that failed, or none. All lanes call.
template <class Group>
GPUFS_DEVICE std::uint64_t gather_rows_by(Group group, const file& from, const rows_of_file& rows, const numbers_of_rows& numbers,
                                          std::uint64_t n, std::byte* dst, const touched_pages& touched) {
  std::uint64_t failed = row_failure::none;
  const file_pages of(from);
  if constexpr (std::is_same_v<Group, simt::block>) {
    order_in_block& order = simt::shared<order_in_block>();
    reader_of_call<rows_in_order> reader{{{rows, 0, &failed}, nullptr, 0}, from, dst, touched, {}};
    for (std::uint64_t first = 0; first < n; first += order.most) {
      reader.part.first = first;
      const auto here = static_cast<std::uint32_t>(n - first < order.most ? n - first : order.most);
      read_by_block(group, reader, order, of, here, [&](std::uint32_t i) -> order_in_block::row_and_place {
        return {row_of(numbers, first + i, rows.layout), i};
      });
    }
  } else {
    reader_of_call<rows_as_given> reader{{{rows, 0, &failed}, numbers}, from, dst, touched, {}};
    const std::uint32_t looked = group.size();
    for (; reader.part.first < n; reader.part.first += looked) {
      const std::uint64_t left = n - reader.part.first;
      reader.read_some(group, of, 0, left < looked ? left : looked, looked);
    }
  }
  return group.reduce_min(failed);
}

}  // namespace detail

// Reads row numbers[i] to dst + i * layout.row_nbytes, for i below n, rows of any size and alignment; numbers and dst: in global or
// shared memory. The row that failed, the one of the least place, or error == 0: -EDOM (its number names no row), -ENXIO (the file
// ends before the row does), else as pread; such a row becomes zeros, and the others are read. Of place 0, and nothing is read:
// -EINVAL (no file can have such a layout, or no call so many rows), -EFAULT (numbers or dst is null, or on a thread's stack and
// the group has several threads).
//
// Cached rows come from the cache; the others from where the device may read them, past the cache, if it may, and their pages get
// frames as those of a row_batch do: where a frame is free and the row a good part of the page, or when the page is wanted again.
// What host threads must read, and rows of files that are open for writing, come as by pread. A block reads up to 1,024 rows at a
// time in the order of their addresses, rows of them that are the same once; it takes 12 KiB of its shared memory for that. Smaller
// groups read in the order of `numbers`, up to as many rows at once as they have lanes. What a block's own order gives, and what it
// cannot: docs/design/batches.md.
template <simt::group Group, row_number Number>
GPUFS_DEVICE row_failure gather(Group group, const file& from, const row_layout& layout, const Number* numbers, std::uint64_t n,
                                void* dst) {
  const bool is_any = n != 0 && layout.row_nbytes != 0;
  const simt::group_call call(group, "gather(file, mount, row_nbytes, nrows, begin, stride_nbytes, from_end, numbers, n, dst)",
                              from.number(), from.entry(), layout.row_nbytes, layout.nrows, layout.begin, layout.stride_nbytes,
                              layout.from_end, simt::memory_of_all{numbers, is_any}, n, simt::memory_of_all{dst, is_any});
  if (detail::why_not_rows(layout, n) != nullptr) return {-EINVAL, 0};
  if (!is_any) return {};
  if (!detail::is_of_all(group, numbers) || !detail::is_of_all(group, dst)) return {-EFAULT, 0};
  auto* const to = static_cast<std::byte*>(dst);
  if (from.error() != 0) [[unlikely]]
    return {simt::call_cold(&detail::lose_all_rows<Group>, group, from, to, n * layout.row_nbytes), 0};
  const file_mount& mount = *detail::file_pages(from).mount();
  const std::uint32_t piece =
      detail::by_leader(group, [&] { return detail::touched_pages::begin_call(mount.touched, detail::ring_hint()); });
  return row_failure::of(detail::gather_rows_by(group, from, {detail::rows_of_file::with_stride(layout)},
                                                detail::numbers_of_rows::make(numbers), n, to, {mount.touched, piece}));
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
