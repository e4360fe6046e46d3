// SPDX-License-Identifier: Apache-2.0
// Writing at the end of a file: append, of a record of the whole group, and append_each, of a record of each of its lanes. Called
// as what file.hpp has. docs/design/writing.md, "Appends", says what limits them.
#pragma once
#include "gpufs/file/write.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

namespace detail {

// Where bytes that are appended begin.
struct taken_place {
  std::int64_t offset;
  int error;
};

// The rest of take_place, for what is large or lies far out: looks at the limit before each try.
inline GPUFS_DEVICE_COLD taken_place take_place_with_care(const file_mount* mount, std::uint32_t slot, std::uint64_t nbytes,
                                                          std::uint32_t gate) {
  simt::atomic_ref<std::int64_t> end(file_table(*mount).slot(slot).bytes.nbytes);
  std::int64_t seen = end.load(std::memory_order_relaxed);
  for (;;) {
    const int error = check_write(*mount, mount, nbytes, seen);
    if (error != 0) {
      end_changes(*mount, slot);
      return {seen, error};
    }
    if ((gate & may_end_far) == 0 && ends_far(*mount, static_cast<std::uint64_t>(seen) + nbytes)) {
      end_changes(*mount, slot);
      if (!let_it_end_far(mount, slot)) return {seen, -ETIMEDOUT};
      gate = pass_gate(*mount, slot);
      if ((gate & truncating) != 0) return {seen, -ETIMEDOUT};
      seen = end.load(std::memory_order_relaxed);
    } else if (end.compare_exchange(seen, seen + static_cast<std::int64_t>(nbytes), std::memory_order_acq_rel)) {
      return {seen, 0};
    }
  }
}

// Moves the file's end on by nbytes, which are not 0. One lane calls, which is inside the gate afterwards if there is no error.
//
// Each caller makes one addition, however many call. (With a compare-exchange, each caller that succeeds makes all others try
// again.) An addition cannot look at the limit. It need not while the end lies in the first half of the largest size: as long as no
// lane inside the gate moves the end into the last quarter (let_it_end_far), all the threads that a device can have, 2^20, add no
// more than a quarter if each adds 2^10 pages.
GPUFS_DEVICE taken_place take_place(const file_mount& mount, std::uint32_t slot, std::uint64_t nbytes) {
  const std::uint32_t shift = mount.cache.frames.page_shift;
  const std::uint32_t gate = pass_gate(mount, slot);  // first: the end must not move back once it was moved on
  if ((gate & truncating) != 0) return {0, -ETIMEDOUT};
  simt::atomic_ref<std::int64_t> end(file_table(mount).slot(slot).bytes.nbytes);
  const auto seen = static_cast<std::uint64_t>(end.load(std::memory_order_relaxed));
  if ((gate & may_end_far) == 0 && seen >> shift < 2 * quarter_npages && nbytes >> shift < quarter_npages >> 20) [[likely]]
    return {end.fetch_add(static_cast<std::int64_t>(nbytes), std::memory_order_acq_rel), 0};
  return simt::call_cold(&take_place_with_care, &mount, slot, nbytes, gate);
}

// A place for a group's bytes. One lane calls, with the error of the group's arguments. As take_place; of no bytes it is the end.
GPUFS_DEVICE begun_write begin_append(const file_mount& mount, file_number number, int wrong, std::uint64_t nbytes) {
  const file_view view = file_table(mount).view_to_write(number);
  if (view.error != 0) return {view, 0, view.error};
  if (wrong != 0 || nbytes == 0) return {view, view.nbytes, wrong};
  if (file_table(mount).has_fixed_size(view.slot)) return {view, 0, -ENOSPC};
  const taken_place at = take_place(mount, view.slot, nbytes);
  return {view, at.offset, at.error};
}

// What append and append_each give of a record at [begin, end) of which `done` bytes were written.
GPUFS_DEVICE std::int64_t offset_if_whole(std::uint64_t begin, std::uint64_t end, std::int64_t done) {
  return done == static_cast<std::int64_t>(end - begin) ? static_cast<std::int64_t>(begin) : done < 0 ? done : -EIO;
}

// What is written (write_part is another): records that lie one behind the other, in the order of the lanes. Each lane copies its
// own, so that it may have it on its stack.
struct records_part {
  const std::byte* src;
  std::uint64_t first, last;  // the lane's record, in the file
  std::uint64_t begin, end;   // all of them
  std::uint64_t frame_ns;

  template <class Group>
  GPUFS_DEVICE void copy(Group group, std::byte* to, std::uint64_t at, std::uint32_t nbytes) const {
    const std::uint64_t from = first > at ? first : at, until = last < at + nbytes ? last : at + nbytes;
    if (from < until) simt::copy_bytes(simt::this_thread(), to + (from - at), src + (from - first), until - from);
    group.sync();
  }
};

// The lanes that write pages together.
template <class Group>
GPUFS_DEVICE Group within_warp(Group group) {
  return group;
}
GPUFS_DEVICE simt::warp within_warp(simt::block group) { return group.warp(); }

}  // namespace detail

// Writes nbytes at the end of the file, which it moves on first, so that no two appends of this mount overlap: the offset at which
// they lie, or a negative errno as pwrite's. If a page could not be had, zeros stay in its place if others append behind it; else
// the file may end before it when it is closed. Until it returns, readers may see zeros where its bytes will be.
template <simt::group Group>
GPUFS_DEVICE std::int64_t append(Group group, const file& opened, const void* src, std::size_t nbytes) {
  const simt::group_call call(group, "append(file, mount, src, nbytes)", opened.number(), opened.entry(),
                              simt::memory_of_all{src, nbytes}, nbytes);
  if (opened.error() != 0) return simt::call_cold(&detail::refuse<Group>, group, opened);
  const file_mount* mount = opened.mount().get();
  const detail::begun_write at = detail::by_leader(
      group, [&] { return detail::begin_append(*mount, opened.number(), detail::check_write(*mount, src, nbytes, 0), nbytes); });
  if (at.error != 0) return at.error;
  if (nbytes == 0) return at.offset;
  const std::int64_t done = detail::write_pages(group, mount, at.view, src, nbytes, at.offset, mount->frame_timeout_ns);
  const auto begin = static_cast<std::uint64_t>(at.offset);
  return detail::offset_if_whole(begin, begin + nbytes, done);
}

// The same of a record of each lane, for records of a few bytes: the group takes one place in the file for all of them, where they
// lie in the order of its ranks, each whole, with nothing between them. All lanes call, each with a src (any memory of the device,
// also the lane's stack) and an nbytes of its own, which may be 0. Each gets the offset of its own record, or the negative errno
// for which it is not there: of its own arguments; -EBADF, -ETIMEDOUT, -EFBIG, -EOVERFLOW (as append; then all lanes get it, and
// nothing is written); or of a page that could not be had, behind which the lanes of that warp write nothing. Each lane copies its
// record alone: append is the faster one for records of some hundred bytes.
template <simt::group Group>
GPUFS_DEVICE std::int64_t append_each(Group group, const file& opened, const void* src, std::size_t nbytes) {
  const simt::group_call call(group, "append_each(file, mount)", opened.number(), opened.entry());
  if (opened.error() != 0) return simt::call_cold(&detail::refuse<Group>, group, opened);
  const file_mount* mount = opened.mount().get();
  const int wrong = detail::check_write(*mount, src, nbytes, 0);
  const std::uint64_t mine = wrong == 0 ? nbytes : 0, before = group.exclusive_scan_add(mine);
  // By the last one, which knows how many bytes they are.
  const unsigned last_rank = group.size() - 1;
  const bool takes = group.rank() == last_rank;
  detail::begun_write at{};
  if (takes) at = detail::begin_append(*mount, opened.number(), 0, before + mine);
  at = group.broadcast(at, last_rank);
  if (at.error != 0) return at.error;
  const auto lanes = detail::within_warp(group);
  const std::uint64_t first = static_cast<std::uint64_t>(at.offset) + before, last = first + mine;
  const std::uint64_t begin = lanes.broadcast(first), end = lanes.broadcast(last, lanes.size() - 1);
  detail::page_failure failed{0, 0};
  if (begin != end) {
    const detail::records_part part{static_cast<const std::byte*>(src), first, last, begin, end, mount->frame_timeout_ns};
    failed = detail::write_each_page(lanes, mount, at.view, part);
    const std::int64_t done = detail::bytes_written(*mount, begin, end, failed);
    if (lanes.leader()) detail::count_written(*mount, at.view.slot, done, failed);
  }
  group.sync();
  if (takes && before + mine != 0) detail::end_changes(*mount, at.view.slot);
  group.sync();
  if (wrong != 0) return wrong;
  if (mine == 0) return static_cast<std::int64_t>(first);
  return detail::offset_if_whole(first, last, detail::bytes_written(*mount, first, last, failed));
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
