// SPDX-License-Identifier: Apache-2.0
// Reading one row of a batch, whose neighbours in the file other groups read at that moment: a row that is in the cache comes from
// there; one that is not goes from a registered mapping straight to where it is wanted, and its page gets a frame only where the
// row is a good part of it and the frame costs no other page its own, or where the page is wanted again (docs/design/batches.md).
#pragma once
#include "gpufs/file/file.hpp"
#include "gpufs/par/detail/touched_pages.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// A row that has less than this share of a page takes no frame for it at first: bringing the page in would cost too many rows.
constexpr std::uint32_t fair_share = 8;

// What is left of a row, and where it goes.
struct row_rest {
  std::byte* to;
  std::uint64_t offset, nbytes;  // in the file
};
// How much of it was read, if error is 0. pulled: as part_taken's.
struct row_progress {
  std::uint64_t nbytes;
  int error;
  bool pulled;
};
struct row_read {
  int error;            // 0 or a negative errno
  bool pulled;          // the row counts if end_of_version says 0 after that
  std::uint32_t nhits;  // pages that were in the cache
};

// How to get the part of a row that lies in a page, if the page is not in the frame of its choice.
struct missed_row {
  enum class way : std::uint32_t {
    past_cache,  // from where its source has it
    cached,      // in `frame`, which is pinned
    admitted,    // in a frame that it is to get
    fill,        // in `frame`, which we are to fill
    by_pages,    // as pread reads, with all that is left of the row: by host threads, or because the cache may have newer bytes
    by_host,     // past the cache, by host threads that gather many rows at once
  };
  file_view view;
  way what;
  cache::frame_index frame;
};
struct looked_up_row : missed_row {
  source::piece there;
  bool seen;  // an earlier piece of the batch, or batch, read the page past the cache: so it is admitted
};

// What a batch says of a row: that it has it more than once, and whether host threads may gather it.
struct row_wish {
  bool again, by_host;
};

// Whether these bytes of a pinned page are there: all of it is, or their sectors. An acquire, which meets the fill's release.
GPUFS_DEVICE bool has_row(const cache::frames& frames, cache::frame_index f, std::uint64_t offset, std::uint32_t nbytes) {
  if (frames.is_filled(f)) return true;
  if (!frames.is_partial(f)) return false;
  const std::uint32_t begin = static_cast<std::uint32_t>(offset) & (frames.page_nbytes() - 1);
  return cache::sectors(frames, f).missing(cache::sectors::of_bytes(frames.page_shift(), begin, begin + nbytes)) == 0;
}

// Waits for nobody. One lane calls, or many at once. nbytes: of the row, in the page.
GPUFS_DEVICE_COLD inline looked_up_row look_for_missed_row(file_pages of, std::uint64_t offset, std::uint32_t nbytes,
                                                           touched_pages touched, row_wish wish) {
  using way = missed_row::way;
  looked_up_row found{{of.view(), way::past_cache, {}}, {}, false};
  const file_view& view = found.view;
  if (view.error != 0) return found;
  if (has_version(view.kind)) found.there = find_piece(*of.mount(), view, offset, nbytes);
  const bool asks = has_version(view.kind) && found.there.where == source::place::host;
  if (!has_version(view.kind) || (asks && !wish.by_host)) {
    found.what = way::by_pages;
    return found;
  }
  const cache::page_cache<> pages(*of.cache());
  const cache::frames& frames = pages.pages();
  const cache::page_key key = cache::make_key(view.cache_id, offset >> frames.page_shift());
  if (pages.pin_cached(key, found.frame)) {
    if (has_row(frames, found.frame, offset, nbytes)) {
      found.what = way::cached;
    } else {
      pages.unpin(found.frame);
      if (asks) found.what = way::by_host;
    }
    return found;
  }
  if (file_slots::habit_of(*of.mount(), view.slot).load_relaxed() == read_habit::once) {
    if (asks) found.what = way::by_host;
    return found;
  }
  found.seen = touched.note(key);
  if (asks) {  // a page takes the host as long as several rows, so it must be wanted again
    found.what = found.seen || wish.again ? way::by_pages : way::by_host;
    return found;
  }
  const auto choice_is_free = [&] {
    return (frames.state(frames.preferred(key)).load(std::memory_order_relaxed) & cache::frame_state::free) != 0;
  };
  if (found.seen || wish.again || (nbytes >= frames.page_nbytes() / fair_share && choice_is_free())) found.what = way::admitted;
  return found;
}

// The same, and gets a frame for a row that is admitted. One lane calls.
GPUFS_DEVICE_COLD inline missed_row find_missed_row(const file_pages* of, std::uint64_t offset, std::uint32_t nbytes,
                                                    touched_pages touched, bool again) {
  using way = missed_row::way;
  using cache_type = cache::page_cache<>;
  missed_row found = look_for_missed_row(*of, offset, nbytes, touched, {again, false});
  if (found.view.error != 0 || found.what != way::admitted) return found;
  found.what = way::past_cache;
  const cache_type pages(*of->cache());
  const cache::page_key key = cache::make_key(found.view.cache_id, offset >> pages.pages().page_shift());
  // The row need not have a frame: if none is at hand, it goes past the cache.
  const auto got = pages.acquire(key, ring_hint(), {of->timeouts().fill_ns, cache_type::at_hand});
  found.frame = got.frame;
  if (got.what == cache_type::role::fill) found.what = way::fill;
  if (got.what == cache_type::role::hit || got.what == cache_type::role::waited) found.what = way::cached;
  if (got.what == cache_type::role::under_way || got.what == cache_type::role::part) pages.unpin(got.frame);
  return found;
}

// Copies what a pinned page has of a row, and gives the page back. All lanes call.
template <class Group>
GPUFS_DEVICE void take_from_page(Group group, const cache::frames& frames, cache::frame_index frame, const row_rest& part) {
  const std::uint32_t in_page = static_cast<std::uint32_t>(part.offset) & (frames.page_nbytes() - 1);
  simt::copy_bytes(group, part.to, frames.data(frame) + in_page, part.nbytes);
  finish_reads(group);
  if (group.leader()) frames.unpin(frame);
}

// All lanes call.
template <class Group>
GPUFS_DEVICE_COLD row_progress read_missed_row(Group group, file_pages of, row_rest rest, touched_pages touched, bool again) {
  using way = missed_row::way;
  const cache::frames frames(of.frames());
  const std::uint64_t page = rest.offset >> frames.page_shift(), left = ((page + 1) << frames.page_shift()) - rest.offset;
  const auto here = static_cast<std::uint32_t>(rest.nbytes < left ? rest.nbytes : left);
  const missed_row found = by_leader(group, [&] { return find_missed_row(&of, rest.offset, here, touched, again); });
  if (found.view.error != 0) return {0, found.view.error, false};
  if (found.what == way::by_pages) {
    const open_entry entry = by_leader(group, [&] { return of.look(); });
    if (entry.view.error != 0) return {0, entry.view.error, false};
    const std::uint64_t end = rest.offset + rest.nbytes;
    const byte_range range{rest.to, rest.offset, end};
    return {rest.nbytes, read_pages_of(group, of, entry, range, page, (end - 1) >> frames.page_shift(), 1).error, false};
  }
  const file_mount& mount = *of.mount();
  if (found.what == way::past_cache) {
    const part_taken taken = take_part(group, mount, found.view, rest.offset, rest.to, here);
    return {here, taken.error, taken.pulled};
  }
  if (found.what == way::fill) {
    const int error = fill_frame(group, mount, cache::page_cache<>(*of.cache()), found.view, page, found.frame);
    if (error != 0) return {0, error, false};
  } else if (group.leader()) {
    simt::count_one(group, of.hits().hits);
  }
  take_from_page(group, frames, found.frame, {rest.to, rest.offset, here});
  return {here, 0, false};
}

// Returns 0, or the error that rows have which were pulled before. One lane calls, after the group's sync.
inline GPUFS_DEVICE_COLD int end_of_version(file_pages of) {
  const file_view view = of.view();
  return view.error != 0 ? view.error : file_table(*of.mount()).is_stale(view) ? -ESTALE : 0;
}

// Reads a row of nbytes at `offset` to `to`. All lanes call, and count what the caller is told. -ENXIO: the file has no such bytes.
template <class Group>
GPUFS_DEVICE row_read read_row(Group group, const file_pages& of, std::byte* to, std::uint64_t nbytes, std::uint64_t offset,
                               const touched_pages& touched, bool again) {
  const open_entry entry = by_leader(group, [&] { return of.look(); });
  const file_view& view = entry.view;
  if (view.error != 0) return {view.error, false, 0};
  const auto file_nbytes = static_cast<std::uint64_t>(view.nbytes);
  if (nbytes > file_nbytes || offset > file_nbytes - nbytes) return {-ENXIO, false, 0};
  const cache::frames frames(cache::unpack(entry.frames));
  row_read read{};
  for (row_rest rest{to, offset, nbytes}; rest.nbytes != 0;) {
    struct look_up {
      cache::frame_index frame;
      bool hit;
    };
    const auto got = by_leader(group, [&] {
      look_up found{};
      const cache::page_key key = cache::make_key(view.cache_id, rest.offset >> frames.page_shift());
      found.hit = cache::page_cache<>::pin_in_choice(frames, key, found.frame);
      return found;
    });
    row_progress done{};
    if (got.hit) [[likely]] {
      ++read.nhits;
      const std::uint64_t left = frames.page_nbytes() - (rest.offset & (frames.page_nbytes() - 1));
      done.nbytes = rest.nbytes < left ? rest.nbytes : left;
      take_from_page(group, frames, got.frame, {rest.to, rest.offset, done.nbytes});
    } else {
      done = simt::call_cold(&read_missed_row<Group>, group, of, rest, touched, again);
      if (done.error != 0) return {done.error, false, 0};
      read.pulled |= done.pulled;
    }
    rest = {rest.to + done.nbytes, rest.offset + done.nbytes, rest.nbytes - done.nbytes};
  }
  return read;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
