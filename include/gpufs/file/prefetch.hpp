// SPDX-License-Identifier: Apache-2.0
// Reads that do not wait: prefetch, read_async with ready and wait, and advise. Called as what file.hpp has: all lanes of a group
// call together with equal arguments.
//
// They are for files that host threads read (file_status::source says staged, or windows): such a page is asked for, and whoever
// wants it, or comes by, puts it into its frame once the host has answered; nothing is lost when a group, or the kernel, ends
// before. The pages of files that kernels pull, and of those that are open for writing, are brought in at once, before the call
// returns: nothing of them moves while lanes compute. After POSIX.1, posix_fadvise, and Linux, readahead(2).
#pragma once
#include "gpufs/file/file.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Brings in a page that no host thread reads, if it is not there. Waits for no frame. All lanes of a group within a warp call.
// False: it could not be read.
template <class Group>
GPUFS_DEVICE bool bring_in_now(Group group, const file_mount& mount, const file_view& view, std::uint64_t page) {
  using pages_type = file_pages::cache_type;
  const pages_type pages(mount.cache);
  const cache::page_key key = cache::make_key(view.cache_id, page);
  const auto got = by_leader(group, [&]() -> pages_type::acquired {
    const bool is_left = pages.has(key) || is_read_by_host(mount, view, page << pages.pages().page_shift());
    if (is_left) return {{}, pages_type::role::error, 0};
    return pages.acquire(key, simt::processor_id() * 29 + static_cast<std::uint32_t>(page), {0, pages_type::at_hand});
  });
  if (got.what == pages_type::role::error) return true;
  if (got.what == pages_type::role::fill && fill_frame(group, mount, pages, view, page, got.frame) != 0) return false;
  if (group.leader()) pages.unpin(got.frame);
  return true;
}

// All lanes call; what lies behind half of the cache's frames is left out.
template <class Group>
GPUFS_DEVICE_COLD void prefetch_pages(Group group, const file_mount* mount, file_view view, std::uint64_t first,
                                      std::uint64_t last) {
  const cache::frames frames(mount->cache);
  const std::uint64_t most = frames.count() / 2 + 1;
  if (last - first >= most) last = first + most - 1;
  each_run(group, first, last, [&](auto part, std::uint64_t begin, std::uint64_t end, std::uint32_t step) -> page_failure {
    for (std::uint64_t page = begin + std::uint64_t{part.rank()} * step; page <= end; page += std::uint64_t{part.size()} * step) {
      cache::frame_index unused;
      if (is_read_by_host(*mount, view, page << frames.page_shift())) begin_operation(*mount, view, page, false, unused);
    }
    part.sync();
    if (reader_of(view.kind) == page_reader::host) return {0, 0};
    for (std::uint64_t page = begin; page <= end; page += step) {
      if (!bring_in_now(part, *mount, view, page)) break;  // nor can the next ones, maybe after as long
    }
    return {0, 0};
  });
}

// Whether a read of these pages waits for no host thread. Ends what the host has answered, and begins anew what is not there. All
// lanes call.
template <class Group>
GPUFS_DEVICE_COLD bool are_pages_there(Group group, const file_mount* mount, file_view view, std::uint64_t first,
                                       std::uint64_t last) {
  const file_pages::cache_type pages(mount->cache);
  bool there = true;  // those that this lane has looked at
  each_run(group, first, last, [&](auto part, std::uint64_t begin, std::uint64_t end, std::uint32_t step) -> page_failure {
    const std::uint64_t n = (end - begin) / step + 1;
    for (std::uint64_t place = part.rank(); place - part.rank() < n; place += part.size()) {
      operation_step found{};
      found.what = operation_step::state::ready;
      cache::frame_index frame{};
      bool pinned = false;
      if (place < n) {
        const std::uint64_t page = begin + place * step;
        pinned = pages.pin_cached(cache::make_key(view.cache_id, page), frame);
        if (pinned) {
          found = look_at_operation(*mount, frame);
        } else if (is_read_by_host(*mount, view, page << pages.pages().page_shift())) {
          begin_operation(*mount, view, page, false, frame);
          found.what = operation_step::state::waits;
        }
      }
      end_operations(part, *mount, frame, found);
      there &= found.what != operation_step::state::waits;  // what has failed, wait tells
      if (pinned) pages.unpin(frame);
    }
    return {0, 0};
  });
  return group.all(there);
}

// The pages of a range of an open file.
struct pages_of_range {
  file_view view;
  std::uint64_t first, last;
  std::int64_t result;  // of clip: 0, and there are none; or a negative errno
};
template <class Group>
GPUFS_DEVICE pages_of_range find_pages(Group group, const file_pages& of, std::size_t nbytes, std::int64_t offset) {
  const file_view view = by_leader(group, [&] { return of.view(); });
  if (view.error != 0) return {view, 0, 0, view.error};
  const std::int64_t there = clip(view, &view, nbytes, offset);
  if (there <= 0) return {view, 0, 0, there};
  const std::uint32_t shift = of.frames().page_shift;
  const auto begin = static_cast<std::uint64_t>(offset);
  return {view, begin >> shift, (begin + static_cast<std::uint64_t>(there) - 1) >> shift, there};
}

// Takes the pages that lie in the range whole out of the cache, if nobody uses them. All lanes call.
template <class Group>
GPUFS_DEVICE_COLD void drop_pages(Group group, const file_mount* mount, file_view view, std::uint64_t begin, std::uint64_t end) {
  const file_pages::cache_type pages(mount->cache);
  const std::uint32_t shift = pages.pages().page_shift();
  const bool to_the_end = end >= static_cast<std::uint64_t>(view.nbytes);
  const std::uint64_t first = (begin + pages.pages().page_nbytes() - 1) >> shift;
  const std::uint64_t last =
      to_the_end ? (static_cast<std::uint64_t>(view.nbytes) + pages.pages().page_nbytes() - 1) >> shift : end >> shift;
  for (std::uint64_t page = first + group.rank(); page < last; page += group.size())
    pages.drop_clean(cache::make_key(view.cache_id, page));
  group.sync();
}

}  // namespace detail

// Begins to bring in the pages that hold nbytes at `offset`, and returns at once; 0 bytes are none. How much of it happens is not
// promised: a page for which no request slot or frame is at hand is left out. A quarter of the slots (512 by default) and a quarter
// of the cache's frames may be used for pages that nobody waits for, and what lies behind half of the cache is left out. Somebody
// must have the file open until the host has read the pages (a gpufs::host_file, where a kernel prefetches for the next one): those
// that it has not are dropped by the last close. A read of any of them is right in any case. 0, or a negative errno: -EBADF and
// what the open of a file that did not open gave, -EINVAL (offset < 0), -EOVERFLOW. That a page could not be read, a later read
// tells, which asks anew.
template <simt::group Group>
GPUFS_DEVICE int prefetch(Group group, const file& opened, std::int64_t offset, std::size_t nbytes) {
  const simt::group_call call(group, "prefetch(file, offset, nbytes)", opened.number(), opened.entry(), offset, nbytes);
  if (opened.error() != 0) return simt::call_cold(&detail::refuse<Group>, group, opened);
  const detail::file_pages of(opened);
  const auto pages = detail::find_pages(group, of, nbytes, offset);
  if (pages.result <= 0) return static_cast<int>(pages.result);
  simt::call_cold(&detail::prefetch_pages<Group>, group, of.mount(), pages.view, pages.first, pages.last);
  return 0;
}

// A read that was begun: by read_async, for ready and wait, by any group, also of a later kernel. Trivially copyable; one that is
// dropped costs nothing, as its pages are in the cache like others.
struct pending_read {
  file from;
  void* dst;
  std::size_t nbytes;
  std::int64_t offset;
};

// Begins a read of up to nbytes at `offset` into dst: a prefetch, and the arguments of the pread that `wait` makes. Nothing is
// written to dst before `wait`, and errors are told there. The file must stay open until then; and before a `wait` that writes
// where lanes have read, they sync, as before any call.
template <simt::group Group>
GPUFS_DEVICE pending_read read_async(Group group, const file& opened, void* dst, std::size_t nbytes, std::int64_t offset) {
  const simt::group_call call(group, "read_async(file, dst, nbytes, offset)", opened.number(), opened.entry(),
                              simt::memory_of_all{dst, nbytes}, nbytes, offset);
  if (opened.error() == 0) prefetch(group, opened, offset, nbytes);
  return {opened, dst, nbytes, offset};
}

// Whether `wait` would wait for no host thread, as far as can be seen now. Waits for nobody, and moves the read on: it enters what
// the host has answered, and asks for what could not be asked for before, or was evicted. A page whose read has failed counts as
// there, as `wait` will tell why; and so do pages that no host thread reads, and those of files that are open for writing. What all
// groups read so must fit into the cache together: else their pages push each other out, and a loop that only asks may not end. So
// do not ask for ever: `wait` comes to an end.
template <simt::group Group>
GPUFS_DEVICE bool ready(Group group, const pending_read& pending) {
  const simt::group_call call(group, "ready(pending)", pending.from.number(), pending.dst, pending.nbytes, pending.offset);
  if (pending.from.error() != 0) return true;
  const detail::file_pages of(pending.from);
  const auto pages = detail::find_pages(group, of, pending.nbytes, pending.offset);
  if (pages.result <= 0) return true;
  return simt::call_cold(&detail::are_pages_there<Group>, group, of.mount(), pages.view, pages.first, pages.last);
}

// Reads: what pread(group, file, dst, nbytes, offset) gives, with all of its errors.
template <simt::group Group>
GPUFS_DEVICE std::int64_t wait(Group group, const pending_read& pending) {
  return pread(group, pending.from, pending.dst, pending.nbytes, pending.offset);
}

// What a file's readers will do, in the words of posix_fadvise.
enum class advice : std::uint32_t {
  normal,      // nothing is known
  random,      // the same
  sequential,  // they read on: a miss, or a page that was begun ahead, begins the next 32 pages (a sixteenth of a small cache)
  willneed,    // they will read this range soon: prefetch
  dontneed,    // they will not read this range again: pages that lie in it whole leave the cache, but for those that are pinned, on
               // their way, or not written back
};

// Tells what readers of the file will do with nbytes at `offset`; 0 bytes: up to the end of the file. normal, random and sequential
// are of the whole file, whatever the range is (which must be one), and of all who have opened it by this path for reading in this
// mount, until the last of them closes it. No advice changes what reads give. 0 or as prefetch, and -EINVAL: no such advice.
template <simt::group Group>
GPUFS_DEVICE int advise(Group group, const file& opened, std::int64_t offset, std::size_t nbytes, advice what) {
  const simt::group_call call(group, "advise(file, offset, nbytes, advice)", opened.number(), opened.entry(), offset, nbytes, what);
  if (opened.error() != 0) return simt::call_cold(&detail::refuse<Group>, group, opened);
  constexpr std::uint64_t most = ~std::uint64_t{0} >> 1;
  if (offset >= 0 && nbytes == 0) nbytes = most - static_cast<std::uint64_t>(offset);
  if (what == advice::willneed) return prefetch(group, opened, offset, nbytes);
  if (what > advice::dontneed) return -EINVAL;
  const detail::file_pages of(opened);
  const auto pages = detail::find_pages(group, of, nbytes, offset);
  if (pages.result < 0) return static_cast<int>(pages.result);
  if (what == advice::dontneed) {
    if (pages.result > 0) {
      const auto begin = static_cast<std::uint64_t>(offset);
      simt::call_cold(&detail::drop_pages<Group>, group, of.mount(), pages.view, begin,
                      begin + static_cast<std::uint64_t>(pages.result));
    }
  } else if (group.leader()) {
    file_slots::reads_on(*of.mount(), pages.view.slot).store(what == advice::sequential, std::memory_order_relaxed);
  }
  group.sync();
  return 0;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
