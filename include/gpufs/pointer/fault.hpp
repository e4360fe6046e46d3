// The page faults of active pointers: a position in a file becomes an address in the page cache, pinned. After ActivePointers
// (ISCA'16), sections III and IV-C: lanes that fault together on one page share one look-up and one pin update. Unlike there,
// look-ups of different pages go in parallel; only pages that must be brought in take turns, as all lanes help to copy each.
#pragma once
#include "gpufs/file/file.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

// Part of a file that pointers point into; each pointer carries it, and needs it to fault only.
struct mapping {
  static constexpr std::uint64_t stop_on_error = std::uint64_t{1} << 63;

  const mount_layout* mount;  // in device memory; nullptr: no mapping
  std::uint32_t cache_id;     // of the file's version, in the mapping's view
  std::int32_t number;        // of the open file; or a negative errno: why there is no mapping
  std::uint64_t begin;        // bytes of the file; `end` with stop_on_error
  std::uint64_t end;

  GPUFS_DEVICE std::uint64_t limit() const { return end & ~stop_on_error; }
};

// Where a pointer's elements are while it is linked: it holds one pin on their page.
struct translation {
  std::uint64_t delta;  // address - position in the file; as `link` gives it when not linked, why: a negative errno, or 0
  std::uint64_t last;   // the last position at which an element of the page begins
  std::uint32_t span;   // how many positions, up to `last`, elements may begin at; 0: not linked

  GPUFS_DEVICE bool reaches(std::uint64_t position) const { return last - position < span; }
};

// A pointer without a fault handler of its own: pages are as the file has them.
struct no_handler {
  GPUFS_DEVICE static std::uint32_t view() { return cache::file_view_number; }
  template <class Group>
  GPUFS_DEVICE static int filled(Group, std::byte*, std::uint64_t, std::uint32_t) {
    return 0;
  }
};

namespace detail {

// A page that is pinned once for the lane that asked, unless error != 0.
struct pinned_page {
  cache::frame_index frame;
  std::int32_t error;
};

GPUFS_DEVICE cache::page_key key_of(const mapping& from, std::uint64_t page_number) {
  return cache::make_key(from.cache_id, page_number);
}

// Brings one page in, or waits for who does. All lanes call with equal arguments; the pin is the group's.
template <class Handler>
GPUFS_DEVICE pinned_page bring_in(simt::some_lanes lanes, const mapping& from, const Handler& handler, std::uint64_t page_number) {
  const mount_layout& mount = *from.mount;
  const cache::page_cache<> pages(mount.cache);
  const cache::page_key key = key_of(from, page_number);
  file_view view{};  // the leader's
  const auto got = by_leader(lanes, [&]() -> cache::page_cache<>::acquired {
    constexpr auto none = cache::page_cache<>::role::error;
    view = file_table(mount).view(file_number{from.number});
    if (view.error != 0) return {cache::frame_index{}, none, view.error};
    if (view.cache_id != (from.cache_id & cache::max_cache_id)) return {cache::frame_index{}, none, -EBADF};
    const auto acquired = pages.acquire(key, simt::processor_id() * 29 + static_cast<std::uint32_t>(page_number),
                                        {2 * mount.io_timeout_ns, mount.frame_timeout_ns});
    using role = cache::page_cache<>::role;
    file_counters& counters = file_table(mount).counters(view.place);
    if (acquired.what == role::hit) count(counters.hits, 1);
    if (acquired.what == role::waited) count(counters.waits, 1);
    if (acquired.what == role::error) count(counters.errors, 1);
    return acquired;
  });
  if (got.what != cache::page_cache<>::role::fill) return {got.frame, got.error};
  view = lanes.broadcast(view);
  std::byte* frame = pages.pages().data(got.frame);
  int error = fill(lanes, mount, view, page_number, frame);
  lanes.sync();
  if (error == 0) {
    const std::uint64_t offset = page_number << mount.cache.frames.page_shift;
    const std::uint64_t left = static_cast<std::uint64_t>(view.nbytes) - offset;
    const std::uint32_t page_nbytes = pages.pages().page_nbytes();
    error = handler.filled(lanes, frame, offset, left < page_nbytes ? static_cast<std::uint32_t>(left) : page_nbytes);
    lanes.sync();
  }
  if (lanes.leader()) {
    end_fill(mount, pages, key, got.frame, view.place, error);
    if (error != 0) count(file_table(mount).counters(view.place).errors, 1);
  }
  lanes.sync();
  return {got.frame, error};
}

// The pages that are not in the cache, one after the other, each for all lanes that want it. While a lane waits for a frame or for
// another group's fill, its warp fills nothing that others wait for; so nobody waits in a circle but for pins, and that ends after
// frame_timeout.
template <class Handler>
GPUFS_DEVICE_COLD pinned_page bring_in_all(simt::some_lanes lanes, mapping from, Handler handler, std::uint64_t page_number,
                                           std::uint32_t missing) {
  pinned_page mine{cache::frame_index{}, 0};
  while (missing != 0) {
    const unsigned first = simt::lowest_lane(missing);
    const mapping theirs = lanes.shfl_from_lane(from, first);
    Handler how = handler;
    if constexpr (!std::is_empty_v<Handler>) how = lanes.shfl_from_lane(handler, first);
    const std::uint64_t page = lanes.shfl_from_lane(page_number, first);
    // Of one open file: another number of the same file may be closed.
    const bool same =
        theirs.mount == from.mount && theirs.cache_id == from.cache_id && theirs.number == from.number && page == page_number;
    const std::uint32_t sharing = lanes.ballot_lanes(same) & missing;
    const pinned_page got = bring_in(lanes, theirs, how, page);
    const std::uint32_t npins = simt::count_lanes(sharing);
    if (got.error == 0 && npins > 1 && lanes.leader()) cache::frames(theirs.mount->cache).pin_more(got.frame, npins - 1);
    if ((sharing >> simt::lane_id() & 1) != 0) mine = got;
    missing &= ~sharing;
  }
  lanes.sync();  // the pins are there before a lane gives one back
  return mine;
}

// Pins, for each lane that wants one, the page of its mapping. All lanes call.
template <class Handler>
GPUFS_DEVICE pinned_page pin_pages(simt::some_lanes lanes, const mapping& from, const Handler& handler, std::uint64_t page_number,
                                   bool wanted) {
  struct found {
    cache::frame_index frame;
    std::int32_t state;  // 1: a hit; 0: not in the cache; or a negative errno
  };
  const cache::page_key key = key_of(from, page_number);
  // Lanes of one key and mount; those that want nothing are never leaders.
  std::uint32_t same = lanes.match_any_lanes(wanted ? static_cast<std::uint64_t>(key) : ~std::uint64_t{0});
  same &= lanes.match_any_lanes(reinterpret_cast<std::uint64_t>(from.mount));
  const unsigned leader = simt::lowest_lane(same);
  found at{cache::frame_index{}, 0};
  if (wanted && simt::lane_id() == leader) {
    const cache::page_cache<> pages(from.mount->cache);
    const auto hit = pages.find_filled(key, simt::count_lanes(same));
    at = {hit.frame, hit.error != 0 ? hit.error : hit.found ? 1 : 0};
    if (hit.found) {
      const file_table files(*from.mount);
      simt::count_one(this_thread(), files.counters(files.place_of(files.index_of(file_number{from.number}))).hits);
    }
  }
  at = lanes.shfl_from_lane(at, leader);
  const std::uint32_t missing = lanes.ballot_lanes(wanted && at.state == 0);
  pinned_page mine{at.frame, at.state < 0 ? at.state : 0};
  if (missing != 0) [[unlikely]] {
    const pinned_page brought = simt::call_cold(&bring_in_all<Handler>, lanes, from, handler, page_number, missing);
    if ((missing >> simt::lane_id() & 1) != 0) mine = brought;
  }
  return mine;
}

// Gives back the pins on the pages at these addresses (0: none). All lanes call; what they have read or (Wrote) written is done
// with.
template <bool Wrote>
GPUFS_DEVICE void unpin_pages(simt::some_lanes lanes, const mount_layout* mount, std::uint64_t address) {
  std::uint64_t* state = nullptr;
  if (address != 0) {
    const cache::frames frames(mount->cache);
    const auto base = reinterpret_cast<std::uint64_t>(frames.data(cache::frame_index{0}));
    state = &frames.state_word(cache::frame_index{static_cast<std::uint32_t>((address - base) >> frames.page_shift())});
  }
  const std::uint32_t same = lanes.match_any_lanes(reinterpret_cast<std::uint64_t>(state));
  if (state == nullptr || simt::lane_id() != simt::lowest_lane(same)) return;
  if constexpr (Wrote) {
    cache::frames::unpin_after_writes(*state, simt::count_lanes(same));
  } else {
    cache::frames::unpin(*state, simt::count_lanes(same));
  }
}

// Marks a pinned page as changed.
GPUFS_DEVICE_COLD inline void mark_dirty(const mount_layout* mount, std::uint64_t address) {
  const cache::frames frames(mount->cache);
  const auto base = reinterpret_cast<std::uint64_t>(frames.data(cache::frame_index{0}));
  auto state = frames.state(cache::frame_index{static_cast<std::uint32_t>((address - base) >> frames.page_shift())});
  if ((state.load(std::memory_order_relaxed) & cache::frame_state::dirty) == 0) {
    state.fetch_or(cache::frame_state::dirty, std::memory_order_relaxed);
  }
}

// 0, or why `nbytes` at `position` are not to be had.
GPUFS_DEVICE int check_access(const mapping& from, std::uint64_t position, std::uint32_t nbytes) {
  if (from.mount == nullptr) return from.number < 0 ? from.number : -EFAULT;
  const std::uint64_t size = from.limit() - from.begin;
  return size < nbytes || position - from.begin > size - nbytes ? -ENXIO : 0;
}

// Counts and records an access that failed, and stops the kernel where the mapping says so.
GPUFS_DEVICE_COLD inline void note_fault(const mapping& from, std::uint64_t position, int error) {
  if (from.mount == nullptr) return;  // nobody to tell
  const mount_layout& mount = *from.mount;
  const std::uint64_t n = simt::atomic_ref<std::uint64_t>(mount.words->fault_errors).fetch_add(1, std::memory_order_relaxed);
  if (n < fault_records) {
    const file_view view = file_table(mount).view(file_number{from.number});
    fault_record& record = mount.faults[n];
    record.offset = position;
    record.error = error;
    record.handle = view.error == 0 ? view.handle : 0;
    record.number = from.number;
    // Meets the acquire in host_mount::log.
    simt::atomic_ref<std::uint32_t, simt::scope::system>(record.written).store(1, std::memory_order_release);
  }
  if ((from.end & mapping::stop_on_error) != 0) simt::stop_kernel("an access through a pointer failed; the mount's log says where");
}

// Gives up a pointer's page. Lanes that are here together share the update.
template <bool Wrote>
GPUFS_DEVICE_COLD void leave(const mount_layout* mount, std::uint64_t address) {
  struct site;
  unpin_pages<Wrote>(simt::lanes_together<site>(), mount, address);
}

// Links a pointer to the page of `position`, in place of the page at `held` (an address; 0: none). Not linked afterwards: the page
// is not to be had (its errno is in `delta`), or the element does not lie in one page (0); access_elsewhere then says or does what
// is right.
template <class Handler, bool Wrote>
GPUFS_DEVICE_COLD translation link(mapping from, Handler handler, std::uint64_t position, std::uint32_t nbytes,
                                   std::uint64_t held) {
  struct site;
  const auto lanes = simt::lanes_together<site>();
  if (lanes.ballot_lanes(held != 0) != 0) unpin_pages<Wrote>(lanes, from.mount, held);
  const int refused = check_access(from, position, nbytes);
  bool wanted = refused == 0;
  std::uint32_t shift = 0;
  std::uint64_t page_begin = 0, page_end = 0;
  if (wanted) {
    shift = from.mount->cache.frames.page_shift;
    page_begin = position >> shift << shift;
    page_end = page_begin + (std::uint64_t{1} << shift);
    wanted = page_end - position >= nbytes;
  }
  const pinned_page got = pin_pages(lanes, from, handler, position >> shift, wanted);
  if (!wanted || got.error != 0) {
    return {static_cast<std::uint64_t>(static_cast<std::int64_t>(wanted ? got.error : refused)), 0, 0};
  }
  const std::uint64_t first = page_begin > from.begin ? page_begin : from.begin;
  const std::uint64_t last = (page_end < from.limit() ? page_end : from.limit()) - nbytes;
  const auto data = reinterpret_cast<std::uint64_t>(cache::frames(from.mount->cache).data(got.frame));
  return {data - page_begin, last, static_cast<std::uint32_t>(last - first + 1)};
}

// Copies nbytes at `position` of the file to or from `bytes` (the lane's own), page by page, with a pin for no longer than that. An
// access that fails is recorded: 0 or its errno. Then a read gives zeros, and a write has changed what lies before the page that
// failed.
template <class Handler, bool Write>
GPUFS_DEVICE_COLD int access_elsewhere(mapping from, Handler handler, std::uint64_t position, std::byte* bytes,
                                       std::uint32_t nbytes) {
  struct site;
  const auto lanes = simt::lanes_together<site>();
  int error = check_access(from, position, nbytes);
  const std::uint32_t shift = error == 0 ? from.mount->cache.frames.page_shift : 0;
  std::uint32_t done = 0;
  for (;;) {
    const bool wanted = error == 0 && done < nbytes;
    if (lanes.ballot_lanes(wanted) == 0) break;
    const std::uint64_t at = position + done;
    const pinned_page got = pin_pages(lanes, from, handler, at >> shift, wanted);
    std::uint64_t address = 0;
    if (wanted && got.error == 0) {
      const std::uint64_t in_page = at & ((std::uint64_t{1} << shift) - 1);
      std::byte* data = cache::frames(from.mount->cache).data(got.frame) + in_page;
      address = reinterpret_cast<std::uint64_t>(data);
      if constexpr (Write) mark_dirty(from.mount, address);
      const std::uint64_t left = (std::uint64_t{1} << shift) - in_page;
      for (std::uint64_t i = 0; i < left && done < nbytes; ++i, ++done) {
        if constexpr (Write) {
          data[i] = bytes[done];
        } else {
          bytes[done] = data[i];
        }
      }
    } else if (wanted) {
      error = got.error;
    }
    unpin_pages<Write>(lanes, from.mount, address);
  }
  if (error != 0) {
    if constexpr (!Write) {
      for (std::uint32_t i = 0; i < nbytes; ++i) bytes[i] = std::byte{0};
    }
    note_fault(from, position, error);
  }
  return error;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
