// SPDX-License-Identifier: Apache-2.0
// Pages that pointers want and the cache does not have: brought in one after the other, by all lanes that are together.
#pragma once
#include "gpufs/pointer/detail/past_cache.hpp"
#include "gpufs/pointer/detail/patience.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

GPUFS_DEVICE cache::page_key key_of(const mapping_entry& from, std::uint64_t page_number) {
  return cache::make_key(from.cache_id, page_number);
}

// A page that is pinned once for the lane that asked, unless error != 0.
struct pinned_page {
  cache::frame_index frame;
  std::int32_t error;
};

// How lanes wait for what others have. In the call: reads and writes for a frame as patience says, for a page's fill until its
// time is over. Or between calls: then the call returns one of the codes below, which are no errnos, and the caller holds nothing.
enum class page_wait : std::int32_t { of_reads, of_writes, between_calls };
enum page_later : std::int32_t {
  all_pinned = -(1 << 29),  // frames were looked at for a time, or all of them, and each was pinned
  none_at_hand,             // others have waited in vain just now, so that few frames were looked at
  not_filled,               // another group fills the page, or groups fill all frames that were looked at
};
GPUFS_DEVICE constexpr bool comes_later(std::int64_t error) { return error >= all_pinned && error <= not_filled; }
inline constexpr std::uint64_t longest_in_call_ns = 1'000'000;  // enough for most fills, and to look at some hundreds of frames

// acquire_missed, for who waits between calls. frame_ns: as patience says. One lane calls.
inline GPUFS_DEVICE_COLD cache::page_cache<>::acquired acquire_for_a_moment(const cache::cache_layout* cache, cache::page_key key,
                                                                            std::uint32_t ring, std::uint64_t frame_ns) {
  using pages_type = cache::page_cache<>;
  const bool glances = frame_ns == pages_type::at_hand;
  const std::uint64_t begin = simt::clock_ns();
  ring += static_cast<std::uint32_t>(begin >> 20) * 16;  // each millisecond at other frames
  auto got = pages_type::acquire_missed(cache, key, ring, {longest_in_call_ns, glances ? frame_ns : pages_type::a_look});
  if (got.error == -ENOMEM) got.error = glances ? none_at_hand : all_pinned;
  if (got.error == -EBUSY) got.error = not_filled;
  // Sooner, it is the error of a fill of others.
  if (got.error == -ETIMEDOUT && simt::clock_ns() - begin >= longest_in_call_ns) got.error = not_filled;
  return got;
}

// Brings one page in, or waits for the group that does. All lanes call with equal arguments; the pin is the group's.
template <class Handler>
GPUFS_DEVICE pinned_page bring_in(simt::some_lanes lanes, const mapping_entry& from, const Handler& handler,
                                  std::uint64_t page_number, page_wait waits) {
  const mount_layout& mount = *mount_of(from);
  const cache::page_cache<> pages(mount.cache);
  const cache::page_key key = key_of(from, page_number);
  file_view view{};  // the leader's
  using role = cache::page_cache<>::role;
  const auto look_up = [&]() -> cache::page_cache<>::acquired {
    view = file_table(mount).view(file_number{from.number});
    if (view.error != 0) return {cache::frame_index{}, role::error, view.error};
    // The entry may have been given to another file since its name was looked at.
    const auto id = static_cast<std::uint32_t>(static_cast<std::uint64_t>(key) >> cache::page_number_bits);
    if (id != cache::id_in_form(view.cache_id, id >> cache::form_shift)) return {cache::frame_index{}, role::error, -EBADF};
    const bool ends_before = page_number << pages.pages().page_shift() >= static_cast<std::uint64_t>(view.nbytes);
    if (ends_before) return {cache::frame_index{}, role::error, -ENXIO};  // the file was cut
    const bool only_reads = waits == page_wait::of_reads;
    const patience wait(mount, only_reads);
    const std::uint32_t ring = simt::processor_id() * 29 + static_cast<std::uint32_t>(page_number);
    const auto acquired = waits == page_wait::between_calls
                              ? simt::call_cold(&acquire_for_a_moment, &mount.cache, key, ring, wait.frame_ns())
                              : acquire_among_operations(mount, pages, key, ring, {2 * mount.io_timeout_ns, wait.frame_ns()}, true);
    if (comes_later(acquired.error)) return acquired;
    if (acquired.error == -ENOMEM) wait.note_none();
    if (acquired.what == role::hit) count(file_table(mount).hits(view.slot).hits, 1);
    call_counters& counters = file_table(mount).counters(view.slot);
    if (acquired.what == role::waited) count(counters.waits, 1);
    const bool served_past_cache = only_reads && is_unpinnable(acquired.error);  // or counted there
    if (acquired.what == role::error && !served_past_cache) count(counters.errors, 1);
    return acquired;
  };
  auto got = by_leader(lanes, look_up);
  const bool other_form = from.cache_id >> cache::form_shift != cache::file_form;
  if (got.what >= role::fill && !other_form) read_ahead(lanes, mount, view, page_number);
  if (got.what == role::under_way) {
    got = finish_or_look_anew(lanes, mount, view.slot, got, look_up);
    if (got.error == -ETIMEDOUT && lanes.leader()) count(file_table(mount).counters(view.slot).errors, 1);
  }
  if (got.what == role::part) {
    const std::uint32_t whole = cache::sectors::all(pages.pages().page_shift());
    const sectors_brought brought = simt::call_cold(&bring_sectors<simt::some_lanes>, lanes, &mount, view, got.frame, whole, 0);
    if (lanes.leader()) note_sectors(mount, view.slot, brought);
    if (lanes.leader() && brought.error != 0) {
      pages.unpin(got.frame);
      count(file_table(mount).counters(view.slot).errors, 1);
    }
    return {got.frame, brought.error};
  }
  if (got.what != role::fill) return {got.frame, got.error};
  view = lanes.broadcast(view);
  std::byte* frame = pages.pages().data(got.frame);
  int error = other_form && !has_version(view.kind)
                  ? simt::call_cold(&fill_from_cache<simt::some_lanes>, lanes, &mount, view, page_number, frame)
                  : fill(lanes, mount, view, page_number, frame);
  lanes.sync();
  if (error == 0) {
    const std::uint64_t offset = page_number << mount.cache.frames.page_shift;
    const std::uint64_t left = static_cast<std::uint64_t>(view.nbytes) - offset;
    const std::uint32_t page_nbytes = pages.pages().page_nbytes();
    error = handler.filled(lanes, frame, offset, left < page_nbytes ? static_cast<std::uint32_t>(left) : page_nbytes);
    // All lanes go by the answer of one lane, as they share the page.
    const std::uint32_t refused = lanes.ballot_lanes(error != 0);
    if (refused != 0) error = lanes.shfl_from_lane(error, simt::lowest_lane(refused));
  }
  if (lanes.leader()) {
    end_fill(mount, pages, key, got.frame, view.slot, error);
    if (error != 0) count(file_table(mount).counters(view.slot).errors, 1);
  }
  lanes.sync();
  return {got.frame, error};
}

// The pages that are not in the cache, one after the other, each for all lanes that want it. While a lane waits for a frame or for
// another group's fill, its warp holds no fill that others wait for. So only waits for pins can form a cycle, and frame_timeout
// breaks it: once one lane of a mount has got no frame in time, others take what is at hand and do not wait (patience).
template <class Handler>
GPUFS_DEVICE_COLD pinned_page bring_in_all(simt::some_lanes lanes, const mapping_entry* from, Handler handler,
                                           std::uint32_t page_number, std::uint32_t missing, page_wait waits) {
  pinned_page mine{cache::frame_index{}, 0};
  while (missing != 0) {
    const unsigned first = simt::lowest_lane(missing);
    const mapping_entry* theirs = lanes.shfl_from_lane(from, first);
    Handler how = handler;
    if constexpr (!std::is_empty_v<Handler>) how = lanes.shfl_from_lane(handler, first);
    const std::uint32_t page = lanes.shfl_from_lane(page_number, first);
    const std::uint32_t sharing = lanes.ballot_lanes(theirs == from && page == page_number) & missing;
    const pinned_page got = bring_in(lanes, *theirs, how, page, waits);
    const std::uint32_t npins = simt::count_lanes(sharing);
    if (got.error == 0 && npins > 1 && lanes.leader()) cache::frames(theirs->hit.frames).pin_more(got.frame, npins - 1);
    if ((sharing >> simt::lane_id() & 1) != 0) mine = got;
    missing &= ~sharing;
  }
  lanes.sync();  // the pins are there before a lane gives one back
  return mine;
}

// The address of a page that bring_in_all gave for this name, or a negative errno.
GPUFS_DEVICE std::int64_t address_of(mapping_name name, const pinned_page& got) {
  const cache::frames frames(entry_of(name)->hit.frames);
  simt::fence_loads();
  if (!is_current(name)) {  // the entry is another mapping's by now, and the page or the error may be, too
    if (got.error == 0) frames.unpin(got.frame);
    return -EBADF;
  }
  return got.error != 0 ? got.error : reinterpret_cast<std::int64_t>(frames.data(got.frame));
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
