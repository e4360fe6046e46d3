// SPDX-License-Identifier: Apache-2.0
// Pages that a group's look-up does not find at once: room for one is made, and it is brought in by the group, or by others whom
// the group waits for.
#pragma once
#include "gpufs/file/detail/finish_operation.hpp"
#include "gpufs/file/detail/sector_fill.hpp"

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

// Does what pages.acquire does, or acquire_missed if the caller is a pointer that has looked for the page. A frame that an
// operation fills has no owner that gives it back, so a caller that finds no other frame ends operations. One lane calls. Most
// callers find a frame at once, and need not know whether there are operations.
template <class Cache>
GPUFS_DEVICE typename Cache::acquired acquire_among_operations(const file_mount& mount, const Cache& pages, cache::page_key key,
                                                               std::uint32_t ring, const typename Cache::timeouts& limits,
                                                               bool is_elsewhere = false) {
  const typename Cache::timeouts glance{limits.fill_ns, Cache::at_hand};
  const auto got =
      is_elsewhere ? simt::call_cold(&Cache::acquire_missed, &mount.cache, key, ring, glance) : pages.acquire(key, ring, glance);
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

// The error of a look-up that makes no room for a page: the caller is to read the bytes that it wants past the cache.
inline constexpr int read_past_page = -(1 << 30);

// Looks up a page of a file whose readers read each byte once: pins it if it is cached; gives the error read_past_page if the
// device can read its bytes itself; or error 0: it is read as any page. Waits for nobody. One lane calls. (Not with the parameters
// of its caller: see simt/cold.hpp.)
template <class Pages>
GPUFS_DEVICE_COLD typename Pages::cache_type::acquired look_to_read_once(cache::page_key key, Pages of) {
  using role = typename Pages::cache_type::role;
  const file_view view = of.view();
  const typename Pages::cache_type pages(*of.cache());
  if (!is_read_by_device(*of.mount(), view, cache::page_number_of(key) << pages.pages().page_shift())) return {{}, role::error, 0};
  cache::frame_index frame{};
  if (pages.pin_cached(key, frame)) {
    if (pages.pages().is_filled(frame)) {
      count(of.hits().hits, 1);
      return {frame, role::hit, 0};
    }
    pages.unpin(frame);
  }
  return {{}, role::error, read_past_page};
}

// Whether a page that is not there should come in part, of a file whose readers have said nothing. The caller wants these sectors
// of it, and has got the frame. One lane calls. In a very small cache pages leave before their readers come back, and show nothing.
inline constexpr std::uint32_t least_to_learn_from = 128;
GPUFS_DEVICE bool comes_in_part(const cache::cache_layout& cache, cache::page_key key, cache::frame_index frame,
                                std::uint32_t wanted) {
  using way = cache::page_uses::way;
  if (cache.frames.nframes < least_to_learn_from || !cache::sectors::is_little(wanted, cache.frames.page_shift)) return false;
  const way found = cache::page_uses(cache.table, cache::cache_id_of(key)).of(key, (wanted & 1) != 0);
  // Nothing is learnt from a page that is not evicted.
  return found == way::part || (found == way::tried && cache::clock_rings(cache).is_full(frame));
}

// begin_sectors of a file's page, with few arguments.
template <class Pages>
GPUFS_DEVICE_COLD bool begin_sectors_of(cache::frame_index frame, Pages of) {
  return simt::call_cold(&begin_sectors, of.mount(), of.view(), frame);
}

// Pins a page that is not in the frame of its choice, or makes room for it. ReadsPart: the caller reads these sectors of the page.
// Then it may get the error read_past_page or, for a page that was not there, the role part. One lane calls.
template <bool ReadsPart, class Pages>
GPUFS_DEVICE_COLD typename Pages::cache_type::acquired acquire_elsewhere(Pages of, cache::page_key key, std::uint32_t wanted) {
  using Cache = typename Pages::cache_type;
  read_habit habit = read_habit::unknown;
  if constexpr (ReadsPart && Pages::has_operations) {
    const std::uint32_t slot = file_slots::index_of(of.number());
    habit = file_slots::habit_of(file_slots::block_of(of.entry(), slot), slot).load_relaxed();
    if (habit == read_habit::once) [[unlikely]] {
      const auto found = simt::call_cold(&look_to_read_once<Pages>, key, of);
      if (found.what == Cache::role::hit || found.error != 0) return found;
    }
  }
  const std::uint32_t ring = simt::processor_id() * 29 + static_cast<std::uint32_t>(cache::page_number_of(key));
  const auto limits = of.timeouts();
  const Cache pages(*of.cache());
  auto got = pages.acquire_elsewhere(key, ring, {limits.fill_ns, Pages::has_operations ? Cache::at_hand : limits.frame_ns});
  if constexpr (Pages::has_operations) {
    if (got.error == -ENOMEM) [[unlikely]]
      got = simt::call_cold(&wait_among_operations<Cache>, of.mount(), of.cache(), key, ring, limits.fill_ns, limits.frame_ns);
  }
  if constexpr (ReadsPart && Pages::has_operations) {
    const bool in_part =
        got.what == Cache::role::fill &&
        (habit == read_habit::apart || (habit == read_habit::unknown && comes_in_part(*of.cache(), key, got.frame, wanted)));
    if (in_part) [[unlikely]] {
      if (simt::call_cold(&begin_sectors_of<Pages>, got.frame, of)) got.what = Cache::role::part;
    }
  }
  if (got.what == Cache::role::hit) count(of.hits().hits, 1);
  if (got.what == Cache::role::waited) count(file_table(*of.mount()).counters(file_slots::index_of(of.number())).waits, 1);
  return got;
}

// Has the copy engine bring in a page whose fill the caller holds, if the engine brings in such pages. One lane calls. It waits for
// a slot while the engine moves: then all of the engine's slots are in use because it is busy, and a group that pulled meanwhile
// would take the bus from it. False: the caller fills the page.
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
          group, *mount, page.view.slot, got, [&] { return acquire_elsewhere<false>(of, page.key, 0); }, ours);
    }
  }
  if (got.what == role::part) {
    const std::uint32_t whole = cache::sectors::all(pages.pages().page_shift());
    const sectors_brought brought = simt::call_cold(&bring_sectors<Group>, group, mount, page.view, got.frame, whole, 0);
    if (group.leader() && brought.error != 0) pages.unpin(got.frame);
    if (group.leader()) note_sectors(*mount, page.view.slot, brought);
    return {got.frame, brought.error == 0 ? role::waited : role::error, brought.error};
  }
  if (got.what != role::fill) return got;
  const int error = fill_frame(group, *mount, pages, page.view, page_number, got.frame);
  return {got.frame, error == 0 ? role::waited : role::error, error};
}

// A page that the device reads itself, and whose frame the group holds for filling. `from` is a multiple of 16.
struct pulled_page {
  const std::byte* from;  // null where the file's source has no bytes
  std::byte* to;
  std::uint32_t nbytes;  // what the file has of it
  cache::frame_index frame;
  std::uint32_t handle;
  bool is_one, is_whole;
};

// One lane calls.
template <class Pages>
GPUFS_DEVICE_COLD pulled_page find_pulled(Pages of, cache::frame_index frame) {
  const open_entry entry = of.look_with_source();
  const file_view& view = entry.view;
  const cache::frames frames(cache::unpack(entry.frames));
  pulled_page found{nullptr, frames.data(frame), 0, frame, view.handle, false, false};
  // The long way is for files without a version, in device memory, or read sequentially, and for pages that the engine may copy.
  if (view.error != 0 || !has_version(view.kind)) return found;
  const bool may_be_copied = frames.page_nbytes() >= least_copied_nbytes && gpufs::may_be_copied(view.kind);
  if (may_be_copied && of.mount()->copy_timeout_ns != 0) return found;
  file_block& block = file_slots::block_of(of.entry(), view.slot);
  if (gpufs::may_ask_ahead(view.kind) && file_slots::habit_of(block, view.slot).load_relaxed() == read_habit::on) return found;
  const std::uint64_t offset = cache::page_number_of(frames.load_key(frame)) << frames.page_shift();
  const source::piece there = source::find_version(view.kind, file_slots::as_opened(view, block), offset, frames.page_nbytes());
  const bool is_pulled = there.where == source::place::host_memory && there.address % sizeof(simt::vec16) == 0;
  found.is_one = is_pulled || there.where == source::place::nowhere;
  if (!is_pulled) return found;
  found.from = reinterpret_cast<const std::byte*>(there.address);
  found.nbytes = there.nbytes;
  found.is_whole = there.nbytes == frames.page_nbytes();
  return found;
}

// Copies the page in which the file ends. All lanes call. False: the copy failed, and the host says why.
template <class Group, class Pages>
GPUFS_DEVICE_COLD bool pull_last(Group group, Pages of, std::byte* to, const std::byte* from, std::uint32_t nbytes) {
  if (simt::copy_from_host(group, to, from, nbytes) != 0) return false;
  zero_rest(group, to, nbytes, cache::frames(of.frames()).page_nbytes());
  return true;
}

// Ends the page's fill once its bytes are there. One lane calls, after the group's sync. 0 or a negative errno: nothing is pinned.
template <class Pages>
GPUFS_DEVICE_COLD int end_pulled(Pages of, cache::frame_index frame, std::uint32_t handle, bool has_bytes) {
  const std::uint32_t slot = file_slots::index_of(of.number());
  const cache::frames frames(of.frames());
  // One fence for two: it releases the bytes to end_fill's readers, and the version is looked at after they were read. A reader
  // that sees a byte that a writer of this mount has written sees that the version ended before.
  simt::fence(std::memory_order_acq_rel, cache::cache_layout::scope);
  if (has_bytes && file_slots::is_stale_after_fence(file_slots::slot_of(of.entry(), slot), handle)) [[unlikely]] {
    typename Pages::cache_type(*of.cache()).end_fill(frames.load_key(frame), frame, -ESTALE);
    return -ESTALE;
  }
  frames.end_fill_after_fence(frame);
  count_filled(file_slots::counters_of(of.entry(), slot), frames.page_nbytes());
  return 0;
}

// A miss, out of line, with few arguments: its registers would cost every hit occupancy. All lanes call; what the look-up gave,
// which is the leader's, says which page is wanted. what: hit or waited, and the page is pinned; or error.
// What is pulled takes the short way, by calls that make none themselves. A call out of line keeps its caller's registers on the
// stack, and a full GPU's stacks lie in the second-level cache, which they fill (docs/journal/misses.md).
template <class Group, class Pages>
GPUFS_DEVICE_COLD typename Pages::cache_type::acquired complete_missed(Group group, Pages of,
                                                                       typename Pages::cache_type::acquired got) {
  using role = typename Pages::cache_type::role;
  if constexpr (Pages::has_operations) {
    const pulled_page page = by_leader(
        group, [&] { return got.what == role::fill ? simt::call_cold(&find_pulled<Pages>, of, got.frame) : pulled_page{}; });
    bool there = page.is_one;
    if (page.from != nullptr) {
      there = page.is_whole ? simt::copy_aligned_from_host(group, page.to, page.from, page.nbytes) == 0
                            : simt::call_cold(&pull_last<Group, Pages>, group, of, page.to, page.from, page.nbytes);
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
