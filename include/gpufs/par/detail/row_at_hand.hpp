// SPDX-License-Identifier: Apache-2.0
// Where the lanes of a group, each looking for a row of a batch, have its bytes at hand; and the pages that get frames on the way,
// side by side. docs/design/batches.md, "Where a row comes from"
#pragma once
#include "gpufs/par/detail/read_row.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// For a row that lies in several pages: whether host threads are to gather it, because the host must read a part of it, and none of
// its pages is wanted again. Waits for nobody. One lane calls, or many at once.
GPUFS_DEVICE_COLD inline bool is_gathered_by_host(file_pages of, std::uint64_t offset, std::uint32_t nbytes, touched_pages touched,
                                                  bool again) {
  const file_view view = of.view();
  if (view.error != 0 || !may_ask_host(view.kind) || !has_version(view.kind)) return false;
  const cache::page_cache<> pages(*of.cache());
  const cache::frames& frames = pages.pages();
  bool asks = false;
  for (std::uint64_t at = offset; at < offset + nbytes; at = ((at >> frames.page_shift()) + 1) << frames.page_shift()) {
    const cache::page_key key = cache::make_key(view.cache_id, at >> frames.page_shift());
    cache::frame_index frame{};
    if (pages.pin_cached(key, frame)) {
      pages.unpin(frame);
      continue;
    }
    asks |= find_piece(*of.mount(), view, at, 1).where == source::place::host;
    again |= touched.note(key);
  }
  return asks && !again;
}

// A row in one page whose bytes are at hand; or a row in any number of pages that host threads are to gather.
struct row_at_hand {
  // fill: in host_memory, and `frame` is to get the page from there, by fill_pages_of_rows.
  enum class place : std::uint32_t { nowhere, frame, device, host_memory, host, fill };
  std::uint64_t address;
  cache::frame_index frame;  // of place::frame and fill, pinned
  place where;
  bool seen;  // as looked_up_row's, who is asked but once
};

// Gets a frame for the page of a row that is admitted, if the device can read the whole page itself. A lane that holds a fill waits
// for no other one (two warps might wait for each other): if the page is on its way to a frame, the row goes past the cache. One
// lane calls, or many at once.
GPUFS_DEVICE_COLD inline row_at_hand begin_fill_of_row(file_pages of, std::uint64_t offset) {
  using place = row_at_hand::place;
  using cache_type = cache::page_cache<>;
  row_at_hand found{};
  const file_view view = of.view();
  const cache_type pages(*of.cache());
  const std::uint32_t page_nbytes = pages.pages().page_nbytes(), in_page = static_cast<std::uint32_t>(offset) & (page_nbytes - 1);
  if (view.error != 0) return found;
  const source::piece page = find_piece(*of.mount(), view, offset - in_page, page_nbytes);
  if (page.where != source::place::host_memory || page.nbytes != page_nbytes) return found;
  const cache::page_key key = cache::make_key(view.cache_id, offset >> pages.pages().page_shift());
  const auto got = pages.acquire(key, ring_hint(), {0, cache_type::at_hand});
  found.frame = got.frame;
  found.address = page.address + in_page;
  found.where = got.what == cache_type::role::fill ? place::fill : place::host_memory;
  if (got.what == cache_type::role::under_way || got.what == cache_type::role::part) pages.unpin(got.frame);
  if (got.what == cache_type::role::hit || got.what == cache_type::role::waited) {
    found.where = place::frame;
    found.address = reinterpret_cast<std::uint64_t>(pages.pages().data(got.frame) + in_page);
  }
  return found;
}

// Brings in the pages of those lanes that hold a fill: their rows are in frames afterwards; where that fails, nowhere. In `at`,
// each lane's row, and where in its page it lies. All lanes call.
template <class Group>
GPUFS_DEVICE_COLD row_at_hand fill_pages_of_rows(Group group, file_pages of, row_at_hand at, std::uint32_t in_page) {
  using place = row_at_hand::place;
  const cache::page_cache<> pages(*of.cache());
  const cache::frames& frames = pages.pages();
  const bool fills = at.where == place::fill;
  std::uint32_t cut = 0;
  for (std::uint32_t left = group.ballot(fills); left != 0; left &= left - 1) {
    const unsigned i = simt::lowest_lane(left);
    const auto* const there = reinterpret_cast<const std::byte*>(group.shfl(at.address - in_page, i));
    std::byte* const here = frames.data(cache::frame_index{group.shfl(static_cast<std::uint32_t>(at.frame), i)});
    if (group.any(simt::copy_from_host(group, here, there, frames.page_nbytes()) != 0)) cut |= left & (0 - left);
  }
  group.sync();  // the bytes of all lanes happen before the releases in end_fill
  const int stale = by_leader(group, [&] { return end_of_version(of); });
  if (!fills) return at;
  const file_view view = of.view();
  const int error = stale != 0                       ? stale
                    : view.error != 0                ? view.error
                    : (cut >> group.rank() & 1) != 0 ? cache::frames::nobodys_error
                                                     : 0;
  end_fill(*of.mount(), pages, frames.load_key(at.frame), at.frame, view.slot, error);
  at.where = error == 0 ? place::frame : place::nowhere;
  at.address = reinterpret_cast<std::uint64_t>(frames.data(at.frame) + in_page);
  return at;
}

// Of a row that is not in the frame of its page's choice. Waits for nobody: the lanes of a warp look for a row each. `view` is an
// entry's.
GPUFS_DEVICE row_at_hand look_for_row(const file_pages& of, const file_view& view, const cache::frames& frames,
                                      std::uint64_t offset, std::uint64_t nbytes, const touched_pages& touched, row_wish wish) {
  using place = row_at_hand::place;
  using way = missed_row::way;
  row_at_hand found{};
  const auto file_nbytes = static_cast<std::uint64_t>(view.nbytes);
  const std::uint64_t in_page = offset & (frames.page_nbytes() - 1);
  if (view.error != 0 || nbytes > file_nbytes || offset > file_nbytes - nbytes) return found;
  if (in_page + nbytes > frames.page_nbytes()) {
    if (wish.by_host && simt::call_cold(&is_gathered_by_host, of, offset, static_cast<std::uint32_t>(nbytes), touched, wish.again))
      found.where = place::host;
    return found;
  }
  const looked_up_row missed = simt::call_cold(&look_for_missed_row, of, offset, static_cast<std::uint32_t>(nbytes), touched, wish);
  if (missed.view.error != 0) return found;
  found.seen = missed.seen;
  found.frame = missed.frame;
  if (missed.what == way::admitted) {
    found = simt::call_cold(&begin_fill_of_row, of, offset);
    found.seen = missed.seen;
    return found;
  }
  if (missed.what == way::by_host) found.where = place::host;
  const source::place there = missed.there.where;
  const bool is_at_hand = there == source::place::host_memory || there == source::place::device;  // else the group reads it
  if (missed.what == way::past_cache && missed.there.nbytes == nbytes && is_at_hand) {
    found.where = there == source::place::host_memory ? place::host_memory : place::device;
    found.address = missed.there.address;
  }
  if (missed.what == way::cached) {
    found.where = place::frame;
    found.address = reinterpret_cast<std::uint64_t>(frames.data(found.frame) + in_page);
  }
  return found;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
