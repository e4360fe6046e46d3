// SPDX-License-Identifier: Apache-2.0
// What pread does.
#pragma once
#include "gpufs/file/detail/read_window.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Reads the pages of the run. Its first page was looked up: got.what is fill or under_way. All lanes of a group within a warp call.
// Returns which page failed, and why; or error == 0; or not_by_host, and then it has done nothing.
template <class Group>
GPUFS_DEVICE_COLD page_failure read_run(Group group, file_pages of, byte_range range, page_run run,
                                        file_pages::cache_type::acquired got) {
  const file_mount& mount = *of.mount();
  const file_pages::cache_type pages(*of.cache());
  const file_view view = by_leader(group, [&] {
    file_view v = of.view();
    v.cache_id = cache::cache_id_of(pages.pages().load_key(got.frame));  // as in complete_missed
    return v;
  });
  const bringer by = by_leader(
      group, [&] { return view.error == 0 ? who_brings(mount, view, run.first << pages.pages().page_shift()) : bringer::group; });
  if (by == bringer::group) return {run.first, not_by_host};
  const page_failure failed = read_window<Group>(group, of, view, by, run, range).read(got);
  if (failed.error == 0) read_ahead(group, mount, view, run.last);
  simt::rejoin(group);
  return failed;
}

// A group's leader looks the page up; one lane calls. `frames` are the mount's, from the entry; after a call out of line they are
// loaded anew, so that none of them need be kept meanwhile. ReadsPart: as acquire_elsewhere; wanted() gives the sectors.
template <bool ReadsPart, class Group, class Pages, class Wanted>
GPUFS_DEVICE typename Pages::cache_type::acquired acquire_page(Group group, const Pages& of, cache::frame_storage& frames,
                                                               const file_view& view, std::uint64_t page_number, Wanted wanted) {
  using Cache = typename Pages::cache_type;
  const cache::page_key key = cache::make_key(view.cache_id, page_number);
  constexpr bool takes_part = ReadsPart && Pages::has_operations;
  cache::frame_index at{};
  bool is_part = false;
  if (Cache::template pin_in_choice<takes_part>(cache::frames(frames), key, at, is_part)) [[likely]] {
    simt::count_one(group, of.hits().hits);
    return {at, Cache::role::hit, 0};
  }
  if constexpr (takes_part) {
    if (is_part) return {at, Cache::role::part, 0};
  }
  const auto got = simt::call_cold(&acquire_elsewhere<ReadsPart, Pages>, of, key, wanted());
  frames = of.frames();
  return got;
}
// Of a page that is wanted whole.
template <class Group, class Pages>
GPUFS_DEVICE typename Pages::cache_type::acquired acquire_page(Group group, const Pages& of, cache::frame_storage& frames,
                                                               const file_view& view, std::uint64_t page_number) {
  return acquire_page<false>(group, of, frames, view, page_number, [] { return 0u; });
}

// Completes the leader's acquire_page, whose result all lanes have: brings the page in if it is missing. All lanes call. In the
// result, `what` is hit or waited, and the page is pinned, perhaps in another frame; or it is error.
template <class Group, class Pages, class Acquired>
GPUFS_DEVICE Acquired complete_page(Group group, const Pages& of, const Acquired& got) {
  if (got.what < decltype(got.what)::fill) [[likely]]
    return got;
  const auto completed = simt::call_cold(&complete_missed<Group, Pages>, group, of, got);
  simt::rejoin(group);
  return completed;
}

// Reads the wanted bytes of a page past the cache, as acquire_page has told the caller to. All lanes call. 0 or a negative errno.
template <class Group, class Pages>
GPUFS_DEVICE_COLD int read_page_once(Group group, Pages of, byte_range range, std::uint64_t page_number) {
  const file_view view = by_leader(group, [&] { return of.view(); });
  if (view.error != 0) return view.error;
  const byte_range part = range.in_page(page_number, cache::frames(of.frames()).page_nbytes());
  return fill_part(group, *of.mount(), view, part.begin, part.dst, static_cast<std::uint32_t>(part.end - part.begin));
}

// Called when all lanes have read. Each warp of a block waits for its own loads, because the fence of the leader's unpin waits only
// for the loads of the leader's warp.
template <class Group>
GPUFS_DEVICE void finish_reads(Group group) {
  if constexpr (std::is_same_v<Group, simt::block>) simt::fence(std::memory_order_acq_rel, simt::scope::block);
  group.sync();
}

// Sectors of a page that the group is to pull by one copy, as find_pulled has pages.
struct pulled_sectors {
  const std::byte* from;  // null: one copy cannot bring them
  std::byte* to;
  std::uint32_t missing, nbytes, handle;
};

// Claims the wanted sectors that are missing, and those that should come along, if they are one run of bytes that the device reads
// itself. One lane calls.
template <class Pages>
GPUFS_DEVICE_COLD pulled_sectors claim_sectors(Pages of, cache::frame_index frame, std::uint32_t wanted) {
  const cache::frames frames(of.frames());
  const cache::sectors at(frames, frame);
  const std::uint64_t seen = at.look();
  pulled_sectors found{nullptr, frames.data(frame), wanted & ~static_cast<std::uint32_t>(seen), 0, 0};
  if (found.missing == 0) return found;
  const file_view view = of.look_with_source().view;
  const cache::page_key key = frames.load_key(frame);
  if (view.error != 0 || !has_version(view.kind) || view.cache_id != cache::cache_id_of(key)) return found;
  file_block& files = file_slots::block_of(of.entry(), view.slot);
  found.missing |= sectors_along(files, view.slot, seen, wanted, frames.page_shift());
  const unsigned first = simt::lowest_lane(found.missing), shift = cache::sectors::shift(frames.page_shift());
  const std::uint32_t behind_run = ~(found.missing >> first);
  const unsigned n = behind_run == 0 ? cache::sectors::most : simt::lowest_lane(behind_run);
  const std::uint64_t page_begin = cache::page_number_of(key) << frames.page_shift();
  // The zeros behind the file's last byte come with that byte: bring_sectors does that.
  const bool is_all_files = page_begin + frames.page_nbytes() <= static_cast<std::uint64_t>(view.nbytes);
  if (!is_all_files || simt::count_lanes(found.missing) != n) return found;
  const source::piece there =
      source::find_version(view.kind, file_slots::as_opened(view, files), page_begin + (std::uint64_t{first} << shift), n << shift);
  if (there.where != source::place::host_memory || there.address % sizeof(simt::vec16) != 0 || there.nbytes != n << shift)
    return found;
  const std::uint32_t mine = at.begin_fill(found.missing);
  if (mine != found.missing) {  // others bring some of them in
    at.give_up(mine);
    return found;
  }
  cache::frames::fence_claim();
  found.from = reinterpret_cast<const std::byte*>(there.address);
  found.to += first << shift;
  found.nbytes = there.nbytes;
  found.handle = view.handle;
  return found;
}

// Does for claimed sectors what end_pulled does for a page. One lane calls, after the group's sync. is_copied: the copy succeeded.
// False: the sectors are given up, and bring_sectors finds out why.
template <class Pages>
GPUFS_DEVICE_COLD bool end_sectors(Pages of, cache::frame_index frame, std::uint32_t mine, std::uint32_t handle, bool is_copied) {
  const std::uint32_t slot = file_slots::index_of(of.number());
  const cache::frames frames(of.frames());
  const cache::sectors at(frames, frame);
  simt::fence(std::memory_order_acq_rel, cache::cache_layout::scope);  // as in pull_sectors
  if (!is_copied || file_slots::is_stale_after_fence(file_slots::slot_of(of.entry(), slot), handle)) [[unlikely]] {
    at.give_up(mine);
    return false;
  }
  if (at.end_fill(mine)) cache::page_uses(of.cache()->table, cache::cache_id_of(frames.load_key(frame))).note_whole();
  count_filled(file_slots::counters_of(of.entry(), slot), simt::count_lanes(mine) << cache::sectors::shift(frames.page_shift()));
  return true;
}

// The short way of bring_sectors: makes sure that the wanted sectors of a page are there. All lanes call.
template <class Group, class Pages>
GPUFS_DEVICE sectors_brought bring_sectors_of(Group group, const Pages& of, cache::frame_index frame, std::uint32_t wanted) {
  const pulled_sectors found = by_leader(group, [&] { return simt::call_cold(&claim_sectors<Pages>, of, frame, wanted); });
  if (found.missing == 0) return {0, false, false};
  if (found.from != nullptr) {
    const bool is_copied = simt::copy_aligned_from_host(group, found.to, found.from, found.nbytes) == 0;
    group.sync();  // the bytes of all lanes happen before the leader's fence
    const bool is_there =
        by_leader(group, [&] { return simt::call_cold(&end_sectors<Pages>, of, frame, found.missing, found.handle, is_copied); });
    if (is_there) return {0, true, false};
  }
  const file_view view = by_leader(group, [&] {
    file_view now = of.view();
    // The number may have come round to another file.
    if (now.error == 0 && now.cache_id != cache::cache_id_of(cache::frames(of.frames()).load_key(frame))) now.error = -EBADF;
    return now;
  });
  return simt::call_cold(&bring_sectors<Group>, group, of.mount(), view, frame, wanted, 0);
}

// The sectors in which the wanted bytes of a page lie.
GPUFS_DEVICE std::uint32_t sectors_of(const byte_range& range, std::uint64_t page_number, const cache::frames& frames) {
  const byte_range part = range.in_page(page_number, frames.page_nbytes());
  const std::uint64_t page_begin = page_number << frames.page_shift();
  return cache::sectors::of_bytes(frames.page_shift(), static_cast<std::uint32_t>(part.begin - page_begin),
                                  static_cast<std::uint32_t>(part.end - page_begin));
}

// Reads the wanted bytes of a page that is there in part, and gives the page back. The group has pinned the page. All lanes call;
// the frame is the leader's. 0 or a negative errno.
template <class Group, class Pages>
GPUFS_DEVICE_COLD int read_sectors(Group group, Pages of, byte_range range, std::uint64_t page_number, cache::frame_index frame) {
  const cache::frames frames(of.frames());
  frame = group.broadcast(frame);
  const sectors_brought got = bring_sectors_of(group, of, frame, sectors_of(range, page_number, frames));
  if (got.error == 0) copy_part(group, range, page_number, frames.page_nbytes(), frames.data(frame));
  finish_reads(group);
  if (group.leader()) {
    frames.unpin(frame);
    if (got.error == 0 && !got.by_us) note_found(of, file_slots::index_of(of.number()), got.waited);
  }
  return got.error;
}

// Checks a range as pread(2) does and clips it to the file: the bytes to read, 0 at or beyond the end, or a negative errno.
GPUFS_DEVICE std::int64_t clip(const file_view& view, const void* dst, std::size_t nbytes, std::int64_t offset) {
  constexpr std::uint64_t most = ~std::uint64_t{0} >> 1;
  if (offset < 0) return -EINVAL;
  if (nbytes > most || nbytes > most - static_cast<std::uint64_t>(offset)) return -EOVERFLOW;
  if (nbytes == 0 || offset >= view.nbytes) return 0;
  if (dst == nullptr) return -EFAULT;
  const auto left = static_cast<std::uint64_t>(view.nbytes - offset);
  return static_cast<std::int64_t>(nbytes < left ? nbytes : left);
}

// Reads the pages of the run, in place while they hit. All lanes call.
template <class Group, class Pages>
GPUFS_DEVICE page_failure read_pages_of(Group group, const Pages& of, const open_entry& entry, const byte_range& range,
                                        std::uint64_t page_number, std::uint64_t last, std::uint32_t step) {
  cache::frame_storage storage = cache::unpack(entry.frames);
  const cache::frames frames(storage);
  const std::uint32_t page_nbytes = frames.page_nbytes();
  // Pages that groups pull are read one by one, because there is no answer of the host to wait for.
  const source_kind kind = entry.view.kind;
  const bool may_be_asked = gpufs::may_ask_ahead(kind) || (page_nbytes >= least_copied_nbytes && may_be_copied(kind));
  std::uint64_t look_again = 0;  // windows are large: after a page that is pulled, so are the next ones, mostly
  for (; page_number <= last; page_number += step) {
    auto got = by_leader(group, [&] {
      const auto wanted = [&] { return sectors_of(range, page_number, frames); };
      auto found = acquire_page<true>(group, of, storage, entry.view, page_number, wanted);
      if constexpr (Pages::has_operations) {
        // Inline, as of a page in part all that is wanted is often there.
        if (found.what == decltype(found.what)::part && cache::sectors(frames, found.frame).missing(wanted()) == 0) [[unlikely]] {
          simt::count_one(group, of.hits().hits);
          found.what = decltype(found.what)::hit;
        }
      }
      return found;
    });
    if constexpr (Pages::has_operations) {
      if (got.what == decltype(got.what)::part) [[unlikely]] {
        const int error = simt::call_cold(&read_sectors<Group, Pages>, group, of, range, page_number, got.frame);
        if (error != 0) return {page_number, error};
        continue;
      }
      if (got.what >= decltype(got.what)::fill && may_be_asked && last - page_number >= step && page_number >= look_again)
          [[unlikely]] {
        const page_run rest{page_number, last, step};
        const page_failure failed = simt::call_cold(&read_run<Group>, group, of, range, rest, got);
        if (failed.error != not_by_host) return failed;
        look_again = page_number + 64;
      }
    }
    got = complete_page(group, of, got);
    if (got.error != 0) [[unlikely]] {
      int error = got.error;
      if (error == read_past_page) error = simt::call_cold(&read_page_once<Group, Pages>, group, of, range, page_number);
      if (error != 0) return {page_number, error};
      continue;
    }
    copy_part(group, range, page_number, page_nbytes, frames.data(got.frame));
    finish_reads(group);
    if (group.leader()) frames.unpin(got.frame);
  }
  return {0, 0};
}

// Bytes read before the page that failed, or the error when there are none.
GPUFS_DEVICE std::int64_t bytes_before(std::int64_t offset, std::uint64_t failed_page, std::uint32_t page_shift, int error) {
  const auto end = static_cast<std::int64_t>(failed_page << page_shift);
  return end > offset ? end - offset : error;
}

template <class Group, class Pages>
GPUFS_DEVICE std::int64_t read_pages(Group group, const Pages& of, const open_entry& entry, std::byte* dst, std::uint64_t total,
                                     std::int64_t offset) {
  const std::uint32_t shift = cache::unpack(entry.frames).page_shift;
  const auto begin = static_cast<std::uint64_t>(offset);
  const byte_range range{dst, begin, begin + total};
  const page_failure failed = each_run(group, begin >> shift, (range.end - 1) >> shift,
                                       [&](auto part, std::uint64_t first, std::uint64_t last, std::uint32_t step) {
                                         return read_pages_of(part, of, entry, range, first, last, step);
                                       });
  return failed.error == 0 ? static_cast<std::int64_t>(total) : failed.error;
}

// What pread does, of a file that is open, or was.
template <class Group, class Pages>
GPUFS_DEVICE std::int64_t pread_by(Group group, const Pages& of, void* dst, std::size_t nbytes, std::int64_t offset) {
  const open_entry entry = by_leader(group, [&] { return of.look(); });
  const file_view& view = entry.view;
  if (view.error != 0) return view.error;
  std::int64_t result = clip(view, dst, nbytes, offset);
  if (result > 0) result = read_pages(group, of, entry, static_cast<std::byte*>(dst), static_cast<std::uint64_t>(result), offset);
  if (group.leader()) {
    if (result < 0) [[unlikely]] {
      simt::call_cold(&count_error, of.mount(), view.slot);
    } else {
      count(of.hits().bytes_read, static_cast<std::uint64_t>(result));
    }
  }
  group.sync();
  return result;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
