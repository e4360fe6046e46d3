// SPDX-License-Identifier: Apache-2.0
// Pages that a group's look-up does not find at once: room for one is made, and it is brought in by the group, or by others whom
// the group waits for.
#pragma once
#include "gpufs/file/finish_operation.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// The rest of acquire_among_operations, where no frame was at hand.
template <class Cache>
GPUFS_DEVICE_COLD typename Cache::acquired wait_among_operations(const file_mount* mount, const cache::cache_layout* cache,
                                                                 cache::page_key key, std::uint32_t ring, std::uint64_t fill_ns,
                                                                 std::uint64_t frame_ns) {
  constexpr int glances = 8;
  const Cache pages(*cache);
  const simt::deadline until(frame_ns);
  simt::backoff pause;
  for (int glance = 0; operation::are_there(*mount); ++glance) {
    if (glance >= glances) mount_requests(*mount).end_ahead(ring, 4);
    if (until.expired()) return pages.acquire(key, ring, {fill_ns, 0});
    pause();
    const auto got = pages.acquire(key, ring + static_cast<std::uint32_t>(glance) + 1, {fill_ns, Cache::at_hand});
    if (got.error != -ENOMEM) return got;
  }
  return pages.acquire(key, ring, {fill_ns, frame_ns});
}

// As pages.acquire. A frame whose page is on its way has no owner that gives it back: a caller that finds no other frame ends
// operations. One lane calls. Most find a frame at once, and need not know whether there are operations.
template <class Cache>
GPUFS_DEVICE typename Cache::acquired acquire_among_operations(const file_mount& mount, const Cache& pages, cache::page_key key,
                                                               std::uint32_t ring, const typename Cache::timeouts& limits) {
  const auto got = pages.acquire(key, ring, {limits.fill_ns, Cache::at_hand});
  if (got.error != -ENOMEM || limits.frame_ns == Cache::at_hand) [[likely]]
    return got;
  return simt::call_cold(&wait_among_operations<Cache>, &mount, &mount.cache, key, ring, limits.fill_ns, limits.frame_ns);
}

// Counts a page that was in the cache, or that others have brought in meanwhile. One lane calls.
GPUFS_DEVICE void note_found(const file_pages& of, std::uint32_t slot, bool waited) {
  if (waited) {
    count(file_table(*of.mount()).counters(slot).waits, 1);
  } else {
    count(of.hits().hits, 1);
  }
}

// Pins a page that is not in the frame of its choice, or makes room for it. One lane calls.
template <class Pages>
GPUFS_DEVICE_COLD typename Pages::cache_type::acquired acquire_elsewhere(Pages of, cache::page_key key) {
  using Cache = typename Pages::cache_type;
  const std::uint32_t ring = simt::processor_id() * 29 + static_cast<std::uint32_t>(cache::page_number_of(key));
  const auto limits = of.timeouts();
  const Cache pages(*of.cache());
  const typename Cache::timeouts both{limits.fill_ns, limits.frame_ns};
  typename Cache::acquired got{};
  if constexpr (Pages::has_operations) {
    got = acquire_among_operations(*of.mount(), pages, key, ring, both);
  } else {
    got = pages.acquire(key, ring, both);
  }
  if (got.what == Cache::role::hit) count(of.hits().hits, 1);
  if (got.what == Cache::role::waited) count(file_table(*of.mount()).counters(file_slots::index_of(of.number())).waits, 1);
  return got;
}

// Has the copy engine bring in a page whose fill the caller holds, if it brings in such. One lane calls. It waits for a slot while
// the engine moves: then all of its slots are in use because it is busy, and a group that pulled meanwhile would take the bus from
// it. False: the caller fills the page.
GPUFS_DEVICE_COLD inline bool hand_over_to_engine(const file_mount& mount, const file_view& view, std::uint64_t page_number,
                                                  cache::frame_index frame) {
  if (view.error != 0) return false;
  const simt::deadline until(mount.io_timeout_ns / 2);
  simt::backoff pause(32'768, 1024);  // thousands may wait, and look at few words
  const std::uint64_t offset = page_number << mount.cache.frames.page_shift;
  for (std::uint32_t start = ring_hint(); who_brings(mount, view, offset) == bringer::engine; start += 4) {
    if (hand_over_fill(mount, view, page_number, frame, bringer::engine, start)) return true;
    if (operation::is_copy_in_doubt(mount) || until.expired()) return false;
    end_some_ahead(mount, start);
    pause();
  }
  return false;
}

// A miss of a page that is not, or not only, to be pulled: see complete_missed. (Not with the same parameters, as it would seem to
// call itself: see simt/cold.hpp.)
template <class Group, class Pages>
GPUFS_DEVICE_COLD typename Pages::cache_type::acquired complete_slowly(Group group, typename Pages::cache_type::acquired got,
                                                                       Pages of) {
  using Cache = typename Pages::cache_type;
  using role = typename Cache::role;
  struct missed {
    file_view view;
    cache::page_key key;
  };
  const file_mount* mount = of.mount();
  const Cache pages(*of.cache());
  got = group.broadcast(got);
  const missed page = by_leader(group, [&]() -> missed {
    const cache::page_key key = pages.pages().load_key(got.frame);
    missed what{of.view(), key};
    what.view.cache_id = cache::cache_id_of(key);  // also of a number that was closed just now
    return what;
  });
  const std::uint64_t page_number = cache::page_number_of(page.key);
  if constexpr (Pages::has_operations) {
    read_ahead(group, *mount, page.view, page_number);
    const bool ours =
        got.what == role::fill && by_leader(group, [&] { return hand_over_to_engine(*mount, page.view, page_number, got.frame); });
    if (ours) got.what = role::under_way;
    if (got.what == role::under_way) {
      got = finish_or_look_anew(
          group, *mount, page.view.slot, got, [&] { return acquire_elsewhere(of, page.key); }, ours);
    }
  }
  if (got.what != role::fill) return got;
  const int error = fill_frame(group, *mount, pages, page.view, page_number, got.frame);
  return {got.frame, error == 0 ? role::waited : role::error, error};
}

// A page that the device reads itself, and whose frame the group holds for filling.
struct pulled_page {
  const std::byte* from;  // null where the file's source has no bytes
  std::byte* to;
  std::uint32_t nbytes, page_nbytes;  // what the file has of it
  cache::frame_index frame;
  std::uint32_t handle;
  bool is_one;
};

// One lane calls, out of line, as what it needs is needed once.
template <class Pages>
GPUFS_DEVICE_COLD pulled_page find_pulled(Pages of, cache::frame_index frame) {
  const file_mount& mount = *of.mount();
  const cache::frames frames(mount.cache);
  const file_view view = of.view();
  const std::uint64_t page = cache::page_number_of(frames.load_key(frame)), offset = page << frames.page_shift();
  pulled_page found{nullptr, frames.data(frame), 0, frames.page_nbytes(), frame, view.handle, false};
  // What has no version, begins others behind it, lies in device memory, or is copied by the engine takes the long way.
  if (view.error != 0 || !has_version(view.kind)) return found;
  if (mount.copy_timeout_ns != 0 && may_be_copied(view.kind)) {
    if (!operation::are_copies_held(mount)) return found;
    end_some_ahead(mount, ring_hint());
  }
  if (may_ask_ahead(mount, view.kind) && file_slots::reads_on(mount, view.slot).load_relaxed() != 0) return found;
  const source::piece there = find_piece(mount, view, offset, frames.page_nbytes());
  found.is_one = there.where == source::place::mapping || there.where == source::place::nowhere;
  if (there.where != source::place::mapping) return found;
  found.from = reinterpret_cast<const std::byte*>(there.address);
  found.nbytes = there.nbytes;
  return found;
}

// Ends its fill once it is there. One lane calls, after the group's sync. 0 or a negative errno: then nothing is pinned.
template <class Pages>
GPUFS_DEVICE_COLD int end_pulled(Pages of, cache::frame_index frame, std::uint32_t handle, bool has_bytes) {
  const file_mount& mount = *of.mount();
  const std::uint32_t slot = file_slots::index_of(of.number());
  file_view opened{};
  opened.opened = &file_slots::slot_of(of.entry(), slot);
  opened.handle = handle;
  // Afterwards: a reader that sees a byte that a writer of this mount has written sees that the version ended before.
  const int error = has_bytes && file_table(mount).is_stale(opened) ? -ESTALE : 0;
  const typename Pages::cache_type pages(mount.cache);
  end_fill(mount, pages, pages.pages().load_key(frame), frame, slot, error);
  return error;
}

// A miss, out of line, with few arguments: its registers would cost every hit occupancy. All lanes call; what the look-up gave,
// which is the leader's, says which page is wanted. what: hit or waited, and the page is pinned; or error.
// What is pulled takes the short way, since a call out of line keeps its caller's registers on the stack, and a full GPU's stacks
// lie in the second-level cache: by what ptxas says of sm_90, a miss moves some 18 KB there, and some 48 with all ways in one
// function.
template <class Group, class Pages>
GPUFS_DEVICE_COLD typename Pages::cache_type::acquired complete_missed(Group group, Pages of,
                                                                       typename Pages::cache_type::acquired got) {
  using role = typename Pages::cache_type::role;
  if constexpr (Pages::has_operations) {
    const pulled_page page = by_leader(
        group, [&] { return got.what == role::fill ? simt::call_cold(&find_pulled<Pages>, of, got.frame) : pulled_page{}; });
    bool there = page.is_one;
    if (page.from != nullptr) {
      there = simt::copy_from_host(group, page.to, page.from, page.nbytes) == 0;
      zero_rest(group, page.to, page.nbytes, page.page_nbytes);
      group.sync();  // the bytes of all lanes happen before the leader's release in end_fill
    }
    if (there) {
      const int error =
          by_leader(group, [&] { return simt::call_cold(&end_pulled<Pages>, of, page.frame, page.handle, page.from != nullptr); });
      return {page.frame, error == 0 ? role::waited : role::error, error};
    }
  }
  return simt::call_cold(&complete_slowly<Group, Pages>, group, got, of);
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
