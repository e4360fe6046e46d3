// SPDX-License-Identifier: Apache-2.0
// Reads that do not wait: prefetch, read_async with ready and wait, and advise. They follow the rules of file.hpp: all lanes of a
// group call together, with equal arguments.
//
// They are made for files that host threads read (file_status::source says staged or windows), and for pages of 64 KiB and more
// that the copy engine brings in (mount_options::copy_engine). For such a page, a call only sends a request. Once the host has
// answered, the next group that needs the page, or passes by, puts it into its frame. Nothing is lost if the group that asked, or
// its kernel, ends before. Other pages of files that kernels pull, and pages of files that are open for writing, are different: the
// call itself brings them in before it returns, so their transfer does not overlap with computing. Modelled on posix_fadvise of
// POSIX.1 and on readahead(2) of Linux.
#pragma once
#include "gpufs/cache/detail/page_drops.hpp"
#include "gpufs/file/file.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Brings a page that the group itself is to bring into the cache, unless the page is there. Does not wait for a frame. All lanes of
// a group within a warp call. False: the page could not be read.
template <class Group>
GPUFS_DEVICE bool bring_in_now(Group group, const file_mount& mount, const file_view& view, std::uint64_t page) {
  using pages_type = file_pages::cache_type;
  const pages_type pages(mount.cache);
  const cache::page_key key = cache::make_key(view.cache_id, page);
  const auto got = by_leader(group, [&]() -> pages_type::acquired {
    const bool is_left = pages.has(key) || who_brings(mount, view, page << pages.pages().page_shift()) != bringer::group;
    if (is_left) return {{}, pages_type::role::error, 0};
    return pages.acquire(key, simt::processor_id() * 29 + static_cast<std::uint32_t>(page), {0, pages_type::at_hand});
  });
  if (got.what == pages_type::role::error) return true;
  if (got.what == pages_type::role::fill && fill_frame(group, mount, pages, view, page, got.frame) != 0) return false;
  if (group.leader()) pages.unpin(got.frame);
  return true;
}

// Begins to bring in the pages `first` to `last`, but no more pages than half of the cache's frames. All lanes call.
template <class Group>
GPUFS_DEVICE_COLD void prefetch_pages(Group group, const file_mount* mount, file_view view, std::uint64_t first,
                                      std::uint64_t last) {
  const cache::frames frames(mount->cache);
  const std::uint64_t most = frames.count() / 2 + 1;
  if (last - first >= most) last = first + most - 1;
  each_run(group, first, last, [&](auto part, std::uint64_t begin, std::uint64_t end, std::uint32_t step) -> page_failure {
    for (std::uint64_t page = begin + std::uint64_t{part.rank()} * step; page <= end; page += std::uint64_t{part.size()} * step) {
      begin_ahead(*mount, view, page);
    }
    part.sync();
    if (reader_of(view.kind) == page_reader::host) return {0, 0};
    for (std::uint64_t page = begin; page <= end; page += step) {
      if (!bring_in_now(part, *mount, view, page)) break;  // the next pages would fail too, perhaps after as long a wait
    }
    return {0, 0};
  });
}

// Whether a read of these pages would wait for no host thread. On the way, it copies pages that the host has answered into their
// frames, and asks for pages that are missing. All lanes call.
template <class Group>
GPUFS_DEVICE_COLD bool are_pages_there(Group group, const file_mount* mount, file_view view, std::uint64_t first,
                                       std::uint64_t last) {
  const file_pages::cache_type pages(mount->cache);
  bool there = true;  // for the pages that this lane has looked at
  each_run(group, first, last, [&](auto part, std::uint64_t begin, std::uint64_t end, std::uint32_t step) -> page_failure {
    const std::uint64_t n = (end - begin) / step + 1;
    for (std::uint64_t place = part.rank(); place - part.rank() < n; place += part.size()) {
      using state = operation_step::state;
      operation_step found{};
      found.what = state::ready;
      cache::frame_index frame{};
      bool pinned = false;
      if (place < n) {
        const std::uint64_t page = begin + place * step;
        pinned = pages.pin_cached(cache::make_key(view.cache_id, page), frame);
        if (pinned) {
          found = look_at_operation(*mount, frame);
        } else {
          const bringer by = begin_ahead(*mount, view, page);
          if (by != bringer::group) found.what = state::waits;
          found.of.to_frame = by == bringer::engine;
        }
        // A copy may wait for this kernel to end. `wait` has the group pull the page.
        const bool is_waited_for = found.what == state::waits && found.of.to_frame;
        if (is_waited_for && operation::is_copy_in_doubt(*mount)) found.what = state::failed;
      }
      end_operations(part, *mount, frame, found);
      there &= found.what != state::waits;  // a page whose read failed counts as there: wait returns the error
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
  std::int64_t result;  // the result of clip: how many bytes; 0: there are no pages; or a negative errno
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

// Takes the pages that lie entirely in the range out of the cache, unless they are in use or dirty. The last page of the file
// counts as entirely in the range if the range reaches the end of the file. All lanes call.
template <class Group>
GPUFS_DEVICE_COLD void drop_pages(Group group, const file_mount* mount, file_view view, std::uint64_t begin, std::uint64_t end) {
  const cache::page_drops pages(mount->cache);
  const std::uint32_t shift = mount->cache.frames.page_shift, page_nbytes = 1u << shift;
  const bool to_the_end = end >= static_cast<std::uint64_t>(view.nbytes);
  const std::uint64_t first = (begin + page_nbytes - 1) >> shift;
  const std::uint64_t last = to_the_end ? (static_cast<std::uint64_t>(view.nbytes) + page_nbytes - 1) >> shift : end >> shift;
  for (std::uint64_t page = first + group.rank(); page < last; page += group.size())
    pages.drop_clean(cache::make_key(view.cache_id, page));
  group.sync();
}

}  // namespace detail

// Begins to bring in the pages that hold nbytes at `offset`, and returns at once. If nbytes is 0, it does nothing.
//
// It does not promise to bring in every page. It leaves a page out if no request slot or frame is free at once. Pages that nobody
// waits for may use a quarter of the request slots (512 by default) and a quarter of the cache's frames. If the range is larger
// than half of the cache, the call leaves out the rest. Somebody must keep the file open until the host has read the pages (for
// instance a gpufs::host_file, if one kernel prefetches for the next): the last close drops the pages that the host has not read
// yet. A later read gives the right bytes in any case.
//
// Returns 0 or a negative errno: -EBADF, -EINVAL (offset < 0), -EOVERFLOW, or the error of the open if `opened` did not open. It
// does not report a page that could not be read: a later read of that page asks the host again, and reports the error.
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

// A read that read_async has begun. Any group may pass it to ready and wait, also in a later kernel. It is trivially copyable and
// owns nothing: a read that nobody waits for costs nothing more, as its pages lie in the cache like others.
struct pending_read {
  file from;
  void* dst;
  std::size_t nbytes;
  std::int64_t offset;
};

// Begins a read of up to nbytes at `offset` into dst. The call prefetches the pages, and keeps the arguments for the pread that
// `wait` makes. Only `wait` writes to dst, and only `wait` returns errors. The file must stay open until then. If lanes have read
// from dst, the group must sync before `wait`, as before any call that writes to memory which its lanes have read.
template <simt::group Group>
GPUFS_DEVICE pending_read read_async(Group group, const file& opened, void* dst, std::size_t nbytes, std::int64_t offset) {
  const simt::group_call call(group, "read_async(file, dst, nbytes, offset)", opened.number(), opened.entry(),
                              simt::memory_of_all{dst, nbytes}, nbytes, offset);
  if (opened.error() == 0) prefetch(group, opened, offset, nbytes);
  return {opened, dst, nbytes, offset};
}

// Whether `wait` would now wait for no host thread, as far as the caller can see. The call waits for nobody, and it moves the read
// on: it copies pages that the host has answered into their frames, and asks for pages that it could not ask for before or that
// were evicted. These pages count as there: a page whose read failed (`wait` returns the error), a page that `wait` will pull (also
// because the copy engine has not moved for 20 ms), a page that is there in part (advise), and a page of a file that is open for
// writing.
//
// The pages of all such reads that are under way must fit into the cache together. Otherwise they evict each other, and a loop that
// only calls `ready` may never end. So limit such a loop, and then call `wait`, which always ends.
template <simt::group Group>
GPUFS_DEVICE bool ready(Group group, const pending_read& pending) {
  const simt::group_call call(group, "ready(pending)", pending.from.number(), pending.dst, pending.nbytes, pending.offset);
  if (pending.from.error() != 0) return true;
  const detail::file_pages of(pending.from);
  const auto pages = detail::find_pages(group, of, pending.nbytes, pending.offset);
  if (pages.result <= 0) return true;
  return simt::call_cold(&detail::are_pages_there<Group>, group, of.mount(), pages.view, pages.first, pages.last);
}

// Ends the read: calls pread(group, file, dst, nbytes, offset) and returns its result. Blocks as pread does.
template <simt::group Group>
GPUFS_DEVICE std::int64_t wait(Group group, const pending_read& pending) {
  return pread(group, pending.from, pending.dst, pending.nbytes, pending.offset);
}

// How the readers of a file will use it. But for `whole`, the names are those of posix_fadvise.
enum class advice : std::uint32_t {
  normal,  // nothing is known: it is learnt from the use of their pages whether they want whole pages, or as `random`; from the
           // beginning, whatever was learnt before (docs/design/part-pages.md, "What is learnt"). Of a file that is open for
           // writing nothing is learnt, and pages are whole
  random,  // they read, or write, a little of a page here and there: where the device can read the file's bytes itself, a miss
           // brings in the sectors that it wants of a page (a 32nd of it, 128 bytes at least), and the others when they are wanted
  sequential,  // they read page after page: a miss, or a read of a page that was asked for ahead, asks for the next 32 pages (in a
               // small cache, for a sixteenth of its frames)
  willneed,    // they will read this range soon: does what prefetch does
  dontneed,    // they will not read this range again: the pages entirely in the range leave the cache, except those that are
               // pinned, on their way, or not yet written back
  noreuse,     // they read each byte once: where the device can read the file's bytes itself (a registered mapping, device memory),
               // pread, accesses through pointers without a handler and row_batch::gather take those that are not cached from
               // there, and only those. They get no frame, so nothing is evicted for them
  whole,       // they read most of each page: a miss brings in the page
};

// Tells the mount how readers will use nbytes of the file at `offset`. If nbytes is 0, the range goes to the end of the file.
// normal, random, sequential, noreuse and whole ignore the range, although it must be valid. They hold for the whole file, and for
// all opens of this path in this mount that share its pages (those for reading; or, once one is for writing, all), until the last
// of them is closed. Advice never changes the bytes that reads give. Returns 0, an error of prefetch, or -EINVAL for an unknown
// advice.
template <simt::group Group>
GPUFS_DEVICE int advise(Group group, const file& opened, std::int64_t offset, std::size_t nbytes, advice what) {
  const simt::group_call call(group, "advise(file, offset, nbytes, advice)", opened.number(), opened.entry(), offset, nbytes, what);
  if (opened.error() != 0) return simt::call_cold(&detail::refuse<Group>, group, opened);
  constexpr std::uint64_t most = ~std::uint64_t{0} >> 1;
  if (offset >= 0 && nbytes == 0) nbytes = most - static_cast<std::uint64_t>(offset);
  if (what == advice::willneed) return prefetch(group, opened, offset, nbytes);
  if (what > advice::whole) return -EINVAL;
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
    read_habit said = read_habit::unknown;
    if (what == advice::sequential) said = read_habit::on;
    if (what == advice::noreuse) said = read_habit::once;
    if (what == advice::random) said = read_habit::apart;
    if (what == advice::whole) said = read_habit::whole;
    if (said == read_habit::unknown) cache::page_uses(of.cache()->table, pages.view.cache_id).forget();
    file_slots::habit_of(*of.mount(), pages.view.slot).store(said, std::memory_order_relaxed);
  }
  group.sync();
  return 0;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
