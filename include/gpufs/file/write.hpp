// SPDX-License-Identifier: Apache-2.0
// Writing files, for a group of threads: pwrite, fsync, ftruncate (append.hpp has the rest). Called as what file.hpp has; the
// group's lanes all call with equal arguments. After GPUfs (CACM'14), sections 3 and 4; unlike there, exactly the bytes that were
// written go back, by a mask, so that nobody's are lost. docs/guide/writing.md says what holds between groups, mounts and
// processes.
#pragma once
#include "gpufs/file/detail/sector_write.hpp"
#include "gpufs/file/detail/truncate.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

namespace detail {

struct begun_write {
  file_view view;
  std::int64_t offset;
  int error;
};

// What is written: the group's bytes, in one piece. append.hpp has another, of each lane's own.
struct write_part {
  const std::byte* src;
  std::uint64_t begin, end;  // in the file
  std::uint64_t frame_ns;    // how long to wait for a frame for each page: page_cache::timeouts

  // Copies the nbytes that belong at `at` in the file, all of which are the part's, to `to`. All lanes call.
  template <class Group>
  GPUFS_DEVICE void copy(Group group, std::byte* to, std::uint64_t at, std::uint32_t nbytes) const {
    simt::copy_bytes(group, to, src + (at - begin), nbytes);
  }
};

// Makes a pinned page dirty after bytes of it have been marked. Returns whether the page was clean before. One lane calls, after
// the group's sync.
GPUFS_DEVICE bool enter_dirty(const file_mount& mount, const written_file& file, cache::frame_index frame) {
  const cache::dirty_pages pages(mount.cache);
  if (!pages.set_dirty(frame)) return false;
  simt::atomic_ref<std::uint64_t>(mount.words->dirty_pages).fetch_add(1, std::memory_order_relaxed);
  pages.enter(file_table(mount).list(file.slot, list_of(mount, frame)), frame);
  return true;
}

// Called before a page is written that is not read in; live::find does the same for pages that are. The fence meets store_rows':
// either its rows are in the file before our bytes, or it sees that we have the page. All lanes call, after begin_fill.
template <class Group>
GPUFS_DEVICE void begin_whole_page(Group group) {
  if (group.leader()) simt::fence(std::memory_order_seq_cst, simt::scope::device);
  group.sync();
}

// Writes a whole page of a mapped file that is not in the cache. While no other group can reach the page, its bytes go to the frame
// and to the file at once, and it is never dirty: a later write-back would have to find it through a list. All lanes call, after
// begin_changes. False: the caller must make the page dirty like any other.
template <class Group, class Part>
GPUFS_DEVICE bool store_new_page(Group group, const file_mount& mount, const file_view& view, cache::page_key key,
                                 cache::frame_index frame, const Part& part) {
  const cache::page_cache<> pages(mount.cache);
  const std::uint32_t page_nbytes = pages.pages().page_nbytes();
  const std::uint64_t begin = cache::page_number_of(key) << pages.pages().page_shift();
  const source::piece to = by_leader(group, [&] { return find_to_write(mount, view.slot, begin, page_nbytes); });
  if (to.where != source::place::host_memory) return false;
  std::byte* data = pages.pages().data(frame);
  part.copy(group, data, begin, page_nbytes);
  // Copies from the frame: if somebody changes the caller's bytes meanwhile, frame and file still get the same bytes.
  if (simt::copy_to_host(group, reinterpret_cast<std::byte*>(to.address), data, page_nbytes) != 0) return false;
  if (group.leader()) {
    // As store_page; here end_fill's release is the one that a later fill from the mapping meets.
    file_slot& slot = file_table(mount).slot(view.slot);
    note_written_in_place(slot, begin + page_nbytes);
    note_written(mount, slot, 0, page_nbytes);
    pages.end_fill(key, frame, 0);
    cache::frames::unpin_after_writes(pages.pages().state_word(frame), 1);
  }
  return true;
}

// Writes those bytes of the part that lie in one page. All lanes of a group within a warp call. 0 or a negative errno.
template <class Group, class Part>
GPUFS_DEVICE_COLD int write_in_page(Group group, const file_mount* mount, file_view view, Part part, std::uint64_t page_number) {
  using pages_type = cache::page_cache<>;
  const pages_type pages(mount->cache);
  const std::uint32_t page_nbytes = pages.pages().page_nbytes();
  const std::uint64_t page_begin = page_number << pages.pages().page_shift();
  const auto begin = static_cast<std::uint32_t>(part.begin > page_begin ? part.begin - page_begin : 0);
  const auto end = static_cast<std::uint32_t>(part.end < page_begin + page_nbytes ? part.end - page_begin : page_nbytes);
  const cache::page_key key = cache::make_key(view.cache_id, page_number);
  const auto got = by_leader(group, [&] {
    return acquire_among_operations(*mount, pages, key, simt::processor_id() * 29 + static_cast<std::uint32_t>(page_number),
                                    {2 * mount->io_timeout_ns, part.frame_ns});
  });
  if (got.what == pages_type::role::error) return got.error;
  std::byte* frame = pages.pages().data(got.frame);
  const bool whole = got.what == pages_type::role::fill && end - begin == page_nbytes;
  if (whole) begin_whole_page(group);
  if (whole && store_new_page(group, *mount, view, key, got.frame, part)) return 0;
  if (got.what >= pages_type::role::fill && !whole) {
    const bool is_there = got.what == pages_type::role::part;
    const int error = simt::call_cold(&begin_part_write<Group>, group, mount, view, got.frame, is_there, begin, end);
    if (error != 0) return error;
  }
  part.copy(group, frame + begin, page_begin + begin, end - begin);
  if (got.what >= pages_type::role::fill && group.leader()) {
    if (whole) {
      pages.end_fill(key, got.frame, 0);
    } else {
      simt::call_cold(&end_part_write, mount, got.frame, begin, end);
    }
  }
  cache::dirty_pages(mount->cache).mark(group, got.frame, begin, end);
  group.sync();
  if (group.leader()) {
    // Before the unpin: if the page were written back and evicted first, it would be read in again up to the old size only. A
    // reader that sees the size sees the bytes: the release meets nbytes_now's acquire.
    raise_to(reinterpret_cast<std::uint64_t&>(file_table(*mount).slot(view.slot).bytes.nbytes), page_begin + end);
    enter_dirty(*mount, written(view), got.frame);
    cache::frames::unpin_after_writes(pages.pages().state_word(got.frame), 1);
  }
  limit_dirty(group, mount, written(view), static_cast<std::uint32_t>(got.frame));
  return 0;
}

// Checks a range as pwrite(2) does: 0 or a negative errno.
GPUFS_DEVICE int check_write(const file_mount& mount, const void* src, std::size_t nbytes, std::int64_t offset) {
  constexpr std::uint64_t most = ~std::uint64_t{0} >> 1;
  if (offset < 0) return -EINVAL;
  if (nbytes > most || nbytes > most - static_cast<std::uint64_t>(offset)) return -EOVERFLOW;
  if (nbytes == 0) return 0;
  if (src == nullptr) return -EFAULT;
  const std::uint64_t last_page = (static_cast<std::uint64_t>(offset) + nbytes - 1) >> mount.cache.frames.page_shift;
  return (last_page + 1) >> cache::page_number_bits == 0 ? 0 : -EFBIG;
}

// Called after begin_changes. Writes the pages of a part that is not empty, until one fails. All lanes of a group or block call.
template <class Group, class Part>
GPUFS_DEVICE page_failure write_each_page(Group group, const file_mount* mount, const file_view& view, const Part& part) {
  const std::uint32_t shift = mount->cache.frames.page_shift;
  return each_page(group, part.begin >> shift, (part.end - 1) >> shift, [&](auto of_group, std::uint64_t page) {
    return simt::call_cold(&write_in_page<decltype(of_group), Part>, of_group, mount, view, part, page);
  });
}
// How many of the bytes [begin, end) lie before the page that failed; if none do, that page's error.
GPUFS_DEVICE std::int64_t bytes_written(const file_mount& mount, std::uint64_t begin, std::uint64_t end,
                                        const page_failure& failed) {
  const std::uint32_t shift = mount.cache.frames.page_shift;
  if (failed.error == 0 || end <= failed.page << shift) return static_cast<std::int64_t>(end - begin);
  return bytes_before(static_cast<std::int64_t>(begin), failed.page, shift, failed.error);
}
// One lane calls.
GPUFS_DEVICE void count_written(const file_mount& mount, std::uint32_t slot, std::int64_t done, const page_failure& failed) {
  call_counters& counters = file_table(mount).counters(slot);
  if (done > 0) count(counters.bytes_written, static_cast<std::uint64_t>(done));
  if (failed.error != 0) count(counters.errors, 1);
}

// After begin_changes; the range is checked, and not empty. As bytes_written.
template <class Group>
GPUFS_DEVICE std::int64_t write_pages(Group group, const file_mount* mount, const file_view& view, const void* src,
                                      std::size_t nbytes, std::int64_t offset, std::uint64_t frame_ns) {
  const auto begin = static_cast<std::uint64_t>(offset);
  const write_part part{static_cast<const std::byte*>(src), begin, begin + nbytes, frame_ns};
  const page_failure failed = write_each_page(group, mount, view, part);
  const std::int64_t done = bytes_written(*mount, part.begin, part.end, failed);
  group.sync();
  if (group.leader()) {
    end_changes(*mount, view.slot);
    count_written(*mount, view.slot, done, failed);
  }
  group.sync();
  return done;
}

}  // namespace detail

// Writes nbytes from src (any device memory, any alignment) at `offset`; the file grows as it must. Later calls of any group that
// opened the path since the first open for writing see the bytes; the file has them after fsync or close, or earlier. Reads a page
// in when it writes a part of it; after advise(random), the sectors that it writes a part of. Bytes written: fewer only before a
// page that could not be had; or -EBADF (not open for writing), -EINVAL (offset < 0), -EOVERFLOW, -EFBIG (2^32 pages; what
// RLIMIT_FSIZE forbids comes with fsync), -EFAULT, -ENOSPC (a file that keeps its size ends before; nothing is written), and of a
// page's reading in what pread gives. Errors of writing back come with the next fsync or close. With O_APPEND, too, it writes at
// `offset`, as POSIX has it: see append.
template <simt::group Group>
GPUFS_DEVICE std::int64_t pwrite(Group group, const file& opened, const void* src, std::size_t nbytes, std::int64_t offset) {
  const simt::group_call call(group, "pwrite(file, mount, src, nbytes, offset)", opened.number(), opened.entry(),
                              simt::memory_of_all{src, nbytes}, nbytes, offset);
  if (opened.error() != 0) return simt::call_cold(&detail::refuse<Group>, group, opened);
  const file_mount* mount = opened.mount().get();
  const detail::begun_write at = detail::by_leader(group, [&]() -> detail::begun_write {
    const file_view view = file_table(*mount).view_to_write(opened.number());
    if (view.error != 0) return {view, 0, view.error};
    const int error = detail::check_write(*mount, src, nbytes, offset);
    if (error != 0 || nbytes == 0) return {view, 0, error};
    if (offset + static_cast<std::int64_t>(nbytes) > view.nbytes && file_table(*mount).has_fixed_size(view.slot))
      return {view, 0, -ENOSPC};
    const bool is_far = detail::ends_far(*mount, static_cast<std::uint64_t>(offset) + nbytes);
    if (is_far && !simt::call_cold(&detail::let_it_end_far, mount, view.slot)) return {view, 0, -ETIMEDOUT};
    return {view, offset, detail::begin_changes(*mount, view.slot) ? 0 : -ETIMEDOUT};
  });
  if (at.error != 0 || nbytes == 0) return at.error;
  return detail::write_pages(group, mount, at.view, src, nbytes, offset, mount->frame_timeout_ns);
}

// Brings all that was written to the file, by any group and before the call, to the host, as far as `how` says, and tells of what
// went wrong since the last fsync or close: 0 or the first error (-ENOSPC, -EDQUOT, -EIO, -EROFS, ...), once. What could not be
// written is not tried again. -EBADF: not open for writing.
template <simt::group Group>
GPUFS_DEVICE int fsync(Group group, const file& opened, durability how = durability::stable) {
  const simt::group_call call(group, "fsync(file, mount, how)", opened.number(), opened.entry(), how);
  if (opened.error() != 0) return simt::call_cold(&detail::refuse<Group>, group, opened);
  return detail::sync_file(group, opened.mount().get(), opened.number(), how);
}

// Cuts the file to nbytes, or makes it longer by zeros, here and on the host. Looks at all frames of the cache. 0, or -EBADF (not
// open for writing), -EINVAL (also of a file that keeps its size, of which nothing is cut then), -EFBIG, -ETIMEDOUT, and what
// ftruncate(2) gives; then what was to be cut is gone here, and the file may have it still. Waits for writes that go on, and later
// ones wait for it. What was stored into mapped pages beyond nbytes, and neither synced nor unmapped, is lost.
template <simt::group Group>
GPUFS_DEVICE int ftruncate(Group group, const file& opened, std::int64_t nbytes) {
  const simt::group_call call(group, "ftruncate(file, mount, nbytes)", opened.number(), opened.entry(), nbytes);
  group.sync();
  if (opened.error() != 0) return simt::call_cold(&detail::refuse<Group>, group, opened);
  const file_mount* mount = opened.mount().get();
  const file_view view = detail::by_leader(group, [&] { return file_table(*mount).view_to_write(opened.number()); });
  if (view.error != 0) return view.error;
  if (nbytes < 0) return -EINVAL;
  const std::uint64_t npages = nbytes == 0 ? 0 : (static_cast<std::uint64_t>(nbytes - 1) >> mount->cache.frames.page_shift) + 1;
  if (npages >> cache::page_number_bits != 0) return -EFBIG;
  return simt::call_cold(&detail::truncate<Group>, group, mount, view, nbytes);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
