// SPDX-License-Identifier: Apache-2.0
// Updates of elements that no pointer links, and stores to them: the page is pinned for one atomic operation, and its bytes are
// noted as pwrite notes them. A lane that updates elements all over a file so maps no page for writing and makes no twin, which a
// pointer that links the page must. Lanes of a warp that meet on an element are one operation (ActivePointers shares faults so;
// ISCA'16, section IV-C).
#pragma once
#include "gpufs/pointer/detail/update_kind.hpp"
#include "gpufs/pointer/ptr.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Where updates may go: to the file's slot, or into private copies.
struct update_place {
  file_view view;        // error: the negative errno of why not
  std::uint64_t nbytes;  // of the file now
  bool is_private;
};
// One lane calls. It counts among the slot's writers from then on, if the place is good and not private.
GPUFS_DEVICE update_place begin_updates(mapping_name name) {
  update_place at{};
  at.view.error = check_name(name);
  if (at.view.error != 0) return at;
  mapping_entry& from = *entry_of(name);
  at.is_private = is_private(simt::atomic_ref<std::uint32_t>(from.cache_id).load(std::memory_order_relaxed));
  if (!at.is_private && !stores_to_file(from)) at.view.error = -EACCES;
  if (!at.is_private && at.view.error == 0) at.view = file_table(*mount_of(from)).view_to_write(file_number{from.number});
  // The entry may have been given to another mapping meanwhile; if it is ours after this fence, what was read is of our file
  // (meets mapping_table's, before it fills an entry).
  simt::fence(std::memory_order_acquire, simt::scope::device);
  if (at.view.error == 0 && !is_current(name)) at.view.error = -EBADF;
  if (at.view.error != 0 || at.is_private) return at;
  const mount_layout& mount = *mount_of(from);
  if (!begin_changes(mount, at.view.slot)) {
    at.view.error = -ETIMEDOUT;
  } else {
    at.nbytes = static_cast<std::uint64_t>(file_table(mount).nbytes_now(at.view.slot));  // it may have been cut since it was mapped
  }
  return at;
}

// Notes that bytes of pinned pages were updated, each lane its own (address 0: none), and gives the pins back. All lanes call: true
// for one lane of each page that is dirty now and was not.
GPUFS_DEVICE bool note_updates(simt::some_lanes lanes, const mapping_entry* from, const update_place& at, std::uint64_t address,
                               std::uint32_t nbytes) {
  const bool did = address != 0;
  if (did && !at.is_private) {
    const std::uint32_t in_page = static_cast<std::uint32_t>(address - reinterpret_cast<std::uint64_t>(from->hit.frames.data)) &
                                  ((1u << from->hit.frames.page_shift) - 1);
    cache::dirty_pages(mount_of(*from)->cache).mark(simt::this_thread(), frame_at(*from, address), in_page, in_page + nbytes);
  }
  std::uint64_t* const state = did ? &state_at(*from, address) : nullptr;
  const std::uint32_t same = sharing_lanes(lanes, state);  // and a sync: all bytes are marked before a page is made dirty
  if (!did || simt::lane_id() != simt::lowest_lane(same)) return false;
  bool was_clean = false;
  if (at.is_private) {
    keep_private_copy(from, address);
  } else {
    was_clean = enter_dirty(*mount_of(*from), written(at.view), frame_at(*from, address));
  }
  cache::frames::unpin_after_writes(*state, simt::count_lanes(same));
  return was_clean;
}

// For each page that was made dirty, one at least is written back if too many are dirty. All lanes call, and hold no pins.
GPUFS_DEVICE void limit_updates(simt::some_lanes lanes, const mapping_entry* from, const update_place& at, std::uint32_t page,
                                bool was_clean) {
  for (std::uint32_t left = lanes.ballot_lanes(was_clean); left != 0; left &= left - 1) {
    const unsigned lane = simt::lowest_lane(left);
    const std::uint32_t start = lanes.shfl_from_lane(page, lane);
    if (lanes.mask() == ~0u) {
      limit_dirty(simt::this_warp(), mount_of(*from), written(at.view), start);
    } else if (simt::lane_id() == lane) {
      limit_dirty(simt::this_thread(), mount_of(*from), written(at.view), start);
    }
  }
}

// Pins pages that are in the cache, for the lanes that want one: the page's address, 0: it is not there, or a negative errno. All
// lanes call.
GPUFS_DEVICE std::int64_t pin_cached_pages(simt::some_lanes lanes, mapping_name name, std::uint32_t page) {
  const std::uint32_t same = sharing_lanes(lanes, page);
  const unsigned leader = simt::lowest_lane(same);
  std::int64_t mine = 0;
  if (page != no_page && simt::lane_id() == leader) {
    mine = simt::call_cold(&pin_found, name, page, simt::count_lanes(same), whole_page).address;
  }
  return lanes.shfl_from_lane(mine, leader);
}
// Brings one page in that a lane wants, and pins it for all lanes that want it: so no lane holds a pin while it waits for a frame.
// All lanes call; 0 for those that want another page, or none; or a page_later.
GPUFS_DEVICE std::int64_t pin_missing_page(simt::some_lanes lanes, mapping_name name, std::uint32_t page) {
  const unsigned first = simt::lowest_lane(lanes.ballot_lanes(page != no_page));
  const bool wants = lanes.shfl_from_lane(page, first) == page;
  const std::uint32_t missing = lanes.ballot_lanes(wants);
  const pinned_page got =
      simt::call_cold(&bring_in_all<no_handler>, lanes, entry_of(name), no_handler{}, page, missing, page_wait::between_calls);
  return wants ? address_of(name, got) : 0;
}

// For how long a page was asked for in vain.
struct vain_asks {
  std::uint64_t since_ns = 0;  // 0: not yet
  std::uint64_t no_frame_since_ns = 0, frame_wait_ns = 0;
  std::int32_t error = 0;  // 0: ask again
};
// Decides whether lanes that got no page, for this reason, ask again. They wait between their calls, and hold nothing there: of
// lanes of one warp that are apart, one may hold the frame, or the fill, that another waits for, and stand where the compiler has
// both meet after the call. One lane calls.
inline GPUFS_DEVICE_COLD vain_asks ask_again(mapping_name name, std::int64_t why, vain_asks asked) {
  mapping_entry& from = *entry_of(name);
  const mount_layout& mount = *mount_of(from);
  const patience wait(mount, false);
  const std::uint64_t now = simt::clock_ns();
  if (asked.since_ns == 0) asked.since_ns = now;
  if (why == not_filled) {
    asked.no_frame_since_ns = 0;
  } else if (asked.no_frame_since_ns == 0) {
    asked.no_frame_since_ns = now;
    asked.frame_wait_ns = why == none_at_hand ? 0 : wait.wait_ns();
  }
  const bool no_frame = why != not_filled && now - asked.no_frame_since_ns >= asked.frame_wait_ns;
  if (!no_frame && now - asked.since_ns < 2 * mount.io_timeout_ns) {
    // Frames that nobody else gives back.
    if (why != not_filled && operation::are_there(mount)) mount_requests(mount).end_ahead(ring_hint(), 4);
    return asked;
  }
  asked.error = no_frame ? -ENOMEM : -ETIMEDOUT;
  if (why == all_pinned && no_frame) wait.note_none();
  const file_view view =
      file_table(mount).view(file_number{simt::atomic_ref<std::int32_t>(from.number).load(std::memory_order_relaxed)});
  simt::fence_loads();  // the entry may be given to another mapping until its name is looked at
  if (view.error == 0 && is_current(name)) count(file_table(mount).counters(view.slot).errors, 1);
  return asked;
}

// Pins pages that come sector by sector (advise(random)), with the sectors of each lane's element: 0, where a page does not come
// so, or no frame is at hand. All lanes call.
GPUFS_DEVICE std::int64_t pin_updated_sectors(simt::some_lanes lanes, mapping_name name, std::uint32_t page, std::uint32_t first,
                                              std::uint32_t nbytes) {
  const std::uint32_t wanted = cache::sectors::of_bytes(page_shift_of(name), first, first + nbytes);
  const std::int64_t got = simt::call_cold(&pin_sectors_together, lanes, name, page, wanted, page_wait::between_calls).address;
  return got == -ENOMEM ? 0 : got;
}

template <class What>
struct updated {
  typename What::answer before;
  std::int32_t error;  // 0, or the negative errno of why nothing was changed
};
// For the lanes in `turn`, whose mapping is this one. What: update or one_store. All lanes call.
template <class What>
GPUFS_DEVICE updated<What> update_mapping(simt::some_lanes lanes, mapping_name name, std::uint32_t turn, const What& what) {
  constexpr std::uint32_t nbytes = sizeof what.value;
  // One lane counts among the file's writers for all.
  const bool begins = simt::lane_id() == simt::lowest_lane(turn);
  update_place at{};
  if (begins) at = begin_updates(name);
  at = lanes.shfl_from_lane(at, simt::lowest_lane(turn));
  updated<What> mine{{}, at.view.error};
  if (at.view.error != 0) return mine;
  const std::uint64_t end = what.position + nbytes;
  if (!what.within.have(what.position, nbytes) || (!at.is_private && end > at.nbytes)) mine.error = -ENXIO;
  const mapping_entry* from = entry_of(name);
  const std::uint32_t shift = page_shift_of(name);
  const auto page = static_cast<std::uint32_t>(what.position >> shift);
  const std::uint32_t in_page = static_cast<std::uint32_t>(what.position) & ((1u << shift) - 1);
  bool wanted = (turn >> simt::lane_id() & 1) != 0 && mine.error == 0;
  vain_asks asked;
  simt::backoff pause;
  for (unsigned tries = 0; lanes.ballot_lanes(wanted) != 0; ++tries) {
    const std::uint32_t mine_now = wanted ? page : no_page;
    std::int64_t got = tries == 0   ? pin_cached_pages(lanes, name, mine_now)
                       : tries == 1 ? pin_updated_sectors(lanes, name, mine_now, in_page, nbytes)
                                    : pin_missing_page(lanes, name, mine_now);
    const std::uint32_t in_vain = lanes.ballot_lanes(comes_later(got));
    if (in_vain != 0) {
      const unsigned leader = simt::lowest_lane(in_vain);
      if (simt::lane_id() == leader) asked = simt::call_cold(&ask_again, name, got, asked);
      const std::int32_t error = lanes.shfl_from_lane(asked.error, leader);
      if (comes_later(got)) got = error;
      if (error == 0) {
        pause();
        continue;
      }
    }
    asked = {};
    const bool served = wanted && got > 0;
    const std::uint64_t address = served ? static_cast<std::uint64_t>(got) + in_page : 0;
    const typename What::answer before = what.make(lanes, address);
    if (served) mine.before = before;
    const bool was_clean = note_updates(lanes, from, at, address, nbytes);
    limit_updates(lanes, from, at, page, was_clean);
    const std::uint32_t nserved = simt::count_lanes(lanes.ballot_lanes(served));
    if (begins && nserved != 0 && !at.is_private)
      count(file_table(*mount_of(*from)).counters(at.view.slot).bytes_written, nserved * nbytes);
    if (wanted && got < 0) mine.error = static_cast<int>(got);
    wanted = wanted && got == 0;
  }
  if (begins && !at.is_private) end_changes(*mount_of(*from), at.view.slot);
  return mine;
}

// Updates each lane's element. Lanes that are together should all call, as they share the work. Waits as pwrite does. What fails is
// recorded.
template <class What>
GPUFS_DEVICE_COLD updated<What> update_elsewhere(mapping_name name, What what) {
  struct site;
  const auto lanes = simt::lanes_together<site>();
  updated<What> mine{};
  // One mapping after the other, so that a lane that waits at a file's gate is not counted among the writers of another.
  for (std::uint32_t left = lanes.mask(); left != 0;) {
    const mapping_name theirs = lanes.shfl_from_lane(name, simt::lowest_lane(left));
    const std::uint32_t turn = lanes.ballot_lanes(name == theirs) & left;
    const updated<What> got = update_mapping(lanes, theirs, turn, what);
    if (name == theirs) mine = got;
    left &= ~turn;
  }
  simt::rejoin(lanes);  // else the next updates of these lanes are each its own, and a lane may hold a frame that another waits for
  if (mine.error != 0) note_failed_write(name, {what.within, what.position, sizeof what.value}, mine.error);
  return mine;
}

// What the functions below ask of a pointer.
struct updates {
  template <class Word, class Pointer, class T>
  GPUFS_DEVICE static T at(const Pointer& p, std::ptrdiff_t i, update_kind kind, const T& value) {
    static_assert(sizeof(T) == sizeof(Word) && alignof(T) == sizeof(T), "gpufs: updates are of aligned elements of 4 or 8 bytes");
    return same_bits<T>(make(p, update<Word>{p.within(), position(p, i), kind, same_bits<Word>(value)}));
  }
  template <class T>
  GPUFS_DEVICE static void store(const ptr<T>& p, std::ptrdiff_t i, const T& value) {
    static_assert((sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16) && alignof(T) == sizeof(T),
                  "gpufs: stores are of aligned elements of 4, 8 or 16 bytes");
    make(p, one_store<stored_as<T>>{p.within(), position(p, i), same_bits<stored_as<T>>(value)});
  }
  template <class T>
  static constexpr update_kind add = std::is_integral_v<T> ? update_kind::add : update_kind::add_real;
  template <class T>
  static constexpr update_kind least = std::is_signed_v<T> ? update_kind::min_signed : update_kind::min_unsigned;
  template <class T>
  static constexpr update_kind most = std::is_signed_v<T> ? update_kind::max_signed : update_kind::max_unsigned;
  template <class T>
  using word = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

 private:
  template <class Pointer, class What>
  GPUFS_DEVICE static typename What::answer make(const Pointer& p, const What& what) {
    p.unlink();  // a lane that waits for another page holds none
    const updated<What> got = simt::call_cold(&update_elsewhere<What>, p.mapped(), what);
    p.keep(got.error);
    return got.before;
  }
  template <class T>
  GPUFS_DEVICE static std::uint64_t position(const ptr<T>& p, std::ptrdiff_t i) {
    return static_cast<std::uint64_t>(p.offset()) + static_cast<std::uint64_t>(i) * sizeof(T);
  }
};

}  // namespace detail

// Atomic updates of the element p[i], wherever in the mapping it lies, for accesses that come back to no page (counters, ranks,
// histograms): relaxed, of device scope. They give what was there before; of floats, lanes that meet add in any order. Each lane
// calls with a pointer of its own; those of a full warp that are together share pages and elements. The pointer gives its page up,
// and stays unlinked. Waits as pwrite does, also for the pages that are brought in. An update that fails (the pointer's errors, or
// -ENXIO: the file was cut) gives 0, changes nothing, and is counted, logged and kept as any failed write.
template <class T>
requires std::is_arithmetic_v<T> GPUFS_DEVICE T fetch_add_at(const ptr<T>& p, std::ptrdiff_t i, T value) {
  return detail::updates::at<detail::updates::word<T>>(p, i, detail::updates::add<T>, value);
}
template <class T>
requires std::is_integral_v<T> GPUFS_DEVICE T fetch_min_at(const ptr<T>& p, std::ptrdiff_t i, T value) {
  return detail::updates::at<detail::updates::word<T>>(p, i, detail::updates::least<T>, value);
}
template <class T>
requires std::is_integral_v<T> GPUFS_DEVICE T fetch_max_at(const ptr<T>& p, std::ptrdiff_t i, T value) {
  return detail::updates::at<detail::updates::word<T>>(p, i, detail::updates::most<T>, value);
}
template <class T>
GPUFS_DEVICE T exchange_at(const ptr<T>& p, std::ptrdiff_t i, T value) {
  return detail::updates::at<detail::updates::word<T>>(p, i, detail::update_kind::exchange, value);
}
// Stores to the element p[i], of 4, 8 or 16 bytes, as the functions above update one, for scattered writes that ask for nothing
// that was there. Of lanes that are together and meet on an element through one mapping, the highest lane's value is stored; that
// of any of them, if their page comes into the cache meanwhile and the lanes want more than four pages. Each word of 4 or 8 bytes
// is stored whole. One of 16 bytes a GPU stores by one instruction, and the CPU machine by halves: of two that lanes which are not
// together store at one time, it may then have a half of each. A read meanwhile may find halves of two, on both.
template <class T>
requires std::is_trivially_copyable_v<T> GPUFS_DEVICE void store_at(const ptr<T>& p, std::ptrdiff_t i, const T& value) {
  detail::updates::store(p, i, value);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
