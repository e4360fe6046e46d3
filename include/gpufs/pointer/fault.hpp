// SPDX-License-Identifier: Apache-2.0
// The page faults of active pointers: a position in a file becomes an address in the page cache, pinned. After ActivePointers
// (ISCA'16), sections III and IV-C: lanes of a warp that fault together on one page of one mapping share one look-up and one pin
// update. Unlike there, look-ups of different pages go in parallel; only pages that must be brought in take turns, as all lanes
// help to copy each.
//
// On CUDA lanes share as a full warp only, and fault alone otherwise (simt::lanes_together).
//
// A fault is two calls, so that a hit pays for little: pin_hit, of a full warp, finds pages that are in the cache, and calls
// nothing else; pin_rest does all else, in which each lane looks for itself.
#pragma once
#include "gpufs/pointer/past_cache.hpp"
#include "gpufs/pointer/stores.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

namespace detail {

inline constexpr std::uint32_t no_page = ~0u;  // files have fewer pages

// The pages that a pointer is linked to: those of these addresses, which lie in frames side by side. span 0: none.
struct held_pages {
  std::uint64_t address = 0;
  std::uint32_t span = 0;
};

GPUFS_DEVICE cache::page_key key_of(const mapping_entry& from, std::uint64_t page_number) {
  return cache::make_key(from.cache_id, page_number);
}

// Of the lanes, those whose value is the caller's: exactly, as long as there are few values; with many, lanes that are left are
// taken to be alone, since nobody then gains by more (and match.any takes its time for each value). All lanes call.
template <class T>
GPUFS_DEVICE std::uint32_t sharing_lanes(simt::some_lanes lanes, const T& value) {
  std::uint32_t left = lanes.mask();
  std::uint32_t mine = 1u << simt::lane_id();
  for (int tries = 0; left != 0 && tries < 4; ++tries) {
    const bool equal = lanes.shfl_from_lane(value, simt::lowest_lane(left)) == value;
    const std::uint32_t same = lanes.ballot_lanes(equal) & left;
    if ((same >> simt::lane_id() & 1) != 0) mine = same;
    left &= ~same;
  }
  return mine;
}

// A page that is pinned once for the lane that asked, unless error != 0.
struct pinned_page {
  cache::frame_index frame;
  std::int32_t error;
};

// Brings one page in, or waits for who does. All lanes call with equal arguments; the pin is the group's.
template <class Handler>
GPUFS_DEVICE pinned_page bring_in(simt::some_lanes lanes, const mapping_entry& from, const Handler& handler,
                                  std::uint64_t page_number, bool only_reads) {
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
    const auto npages = (static_cast<std::uint64_t>(view.nbytes) + pages.pages().page_nbytes() - 1) >> pages.pages().page_shift();
    if (view.cache_id != (id & cache::max_cache_id)) return {cache::frame_index{}, role::error, -EBADF};
    if (page_number >= npages) return {cache::frame_index{}, role::error, -ENXIO};  // the file was cut
    const patience wait(mount, only_reads);
    const std::uint32_t ring = simt::processor_id() * 29 + static_cast<std::uint32_t>(page_number);
    const auto acquired = acquire_among_operations(mount, pages, key, ring, {2 * mount.io_timeout_ns, wait.frame_ns()});
    if (acquired.error == -ENOMEM) wait.note_none();
    if (acquired.what == role::hit) count(file_table(mount).hits(view.slot).hits, 1);
    call_counters& counters = file_table(mount).counters(view.slot);
    if (acquired.what == role::waited) count(counters.waits, 1);
    const bool served_past_cache = only_reads && is_unpinnable(acquired.error);  // or counted there
    if (acquired.what == role::error && !served_past_cache) count(counters.errors, 1);
    return acquired;
  };
  auto got = by_leader(lanes, look_up);
  const bool other_view = from.cache_id >> cache::view_shift != cache::file_view_number;
  if (got.what >= role::fill && !other_view) read_ahead(lanes, mount, view, page_number);
  if (got.what == role::under_way) {
    got = finish_or_look_anew(lanes, mount, view.slot, got, look_up);
    if (got.error == -ETIMEDOUT && lanes.leader()) count(file_table(mount).counters(view.slot).errors, 1);
  }
  if (got.what != role::fill) return {got.frame, got.error};
  view = lanes.broadcast(view);
  std::byte* frame = pages.pages().data(got.frame);
  int error = other_view && !has_version(view.kind)
                  ? simt::call_cold(&fill_from_cache<simt::some_lanes>, lanes, &mount, view, page_number, frame)
                  : fill(lanes, mount, view, page_number, frame);
  lanes.sync();
  if (error == 0) {
    const std::uint64_t offset = page_number << mount.cache.frames.page_shift;
    const std::uint64_t left = static_cast<std::uint64_t>(view.nbytes) - offset;
    const std::uint32_t page_nbytes = pages.pages().page_nbytes();
    error = handler.filled(lanes, frame, offset, left < page_nbytes ? static_cast<std::uint32_t>(left) : page_nbytes);
    // All lanes go by one answer, as they share the page.
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
                                           std::uint32_t page_number, std::uint32_t missing, bool only_reads) {
  pinned_page mine{cache::frame_index{}, 0};
  while (missing != 0) {
    const unsigned first = simt::lowest_lane(missing);
    const mapping_entry* theirs = lanes.shfl_from_lane(from, first);
    Handler how = handler;
    if constexpr (!std::is_empty_v<Handler>) how = lanes.shfl_from_lane(handler, first);
    const std::uint32_t page = lanes.shfl_from_lane(page_number, first);
    const std::uint32_t sharing = lanes.ballot_lanes(theirs == from && page == page_number) & missing;
    const pinned_page got = bring_in(lanes, *theirs, how, page, only_reads);
    const std::uint32_t npins = simt::count_lanes(sharing);
    if (got.error == 0 && npins > 1 && lanes.leader()) cache::frames(theirs->hit.frames).pin_more(got.frame, npins - 1);
    if ((sharing >> simt::lane_id() & 1) != 0) mine = got;
    missing &= ~sharing;
  }
  lanes.sync();  // the pins are there before a lane gives one back
  return mine;
}

// Gives back pins of who has read a page, or may have written it.
template <bool Wrote>
GPUFS_DEVICE void give_back(std::uint64_t& state, std::uint32_t npins) {
  if constexpr (Wrote) {
    cache::frames::unpin_after_writes(state, npins);
  } else {
    cache::frames::unpin<cache::kept_ref>(state, npins);
  }
}

// The frames of linked pages: n of them from `first` on.
struct frame_run {
  std::uint32_t first, n;
};
GPUFS_DEVICE frame_run frames_of(const cache::frame_storage& frames, const held_pages& held) {
  const std::uint64_t begin = held.address - reinterpret_cast<std::uint64_t>(frames.data);
  const auto first = static_cast<std::uint32_t>(begin >> frames.page_shift);
  if (held.span == 0) return {0, 0};
  return {first, static_cast<std::uint32_t>((begin + held.span - 1) >> frames.page_shift) - first + 1};
}

// Gives back pins on the frames of each lane's run, at once for lanes whose key_of(frame) is the same. All lanes call.
template <bool Wrote, class KeyOf>
GPUFS_DEVICE void unpin_runs(simt::some_lanes lanes, std::uint64_t* states, const frame_run& run, KeyOf key_of) {
  for (std::uint32_t i = 0; lanes.ballot_lanes(i < run.n) != 0; ++i) {
    const std::uint32_t frame = i < run.n ? run.first + i : no_page;
    const std::uint32_t same = sharing_lanes(lanes, key_of(frame));
    if (frame != no_page && simt::lane_id() == simt::lowest_lane(same)) give_back<Wrote>(states[frame], simt::count_lanes(same));
  }
}

// Gives back the pins on linked pages. All lanes call; what they have read or (Wrote) written is done with.
template <bool Wrote>
GPUFS_DEVICE void unpin_pages(simt::some_lanes lanes, const mapping_entry* from, const held_pages& held) {
  const frame_run run = held.span != 0 ? frames_of(from->hit.frames, held) : frame_run{0, 0};
  std::uint64_t* states = run.n != 0 ? from->hit.frames.states : nullptr;
  unpin_runs<Wrote>(lanes, states, run, [&](std::uint32_t frame) { return frame == no_page ? nullptr : states + frame; });
}

// The page that an element of nbytes lies in; no_page: it is beyond the bounds, or does not lie in one page.
template <bool MayStraddle>
GPUFS_DEVICE std::uint32_t page_of(std::uint32_t page_shift, const bounds& within, std::uint64_t position, std::uint32_t nbytes) {
  if (!within.have(position, nbytes)) return no_page;  // no mapping has no page shift either
  if constexpr (MayStraddle) {
    const auto in_page = static_cast<std::uint32_t>(position) & ((1u << page_shift) - 1);
    if (in_page + nbytes > 1u << page_shift) return no_page;
  }
  return static_cast<std::uint32_t>(position >> page_shift);
}

inline constexpr std::uint32_t most_linked = 4 * simt::warp_lanes;  // pages, by one pointer

// What pin_hit gives: the page's address, with what is not done in its low bits (0: all is), and what is linked in its high ones:
// how many pages, side by side, and how many of them lie before that page.
inline constexpr std::uint64_t pin_again = 1;   // it has not even looked, and `held` is held still
inline constexpr std::uint64_t pin_missed = 2;  // a lane's page was not found; all lanes of the warp have this
GPUFS_DEVICE bool is_done(std::uint64_t pinned) { return (pinned & (pin_again | pin_missed)) == 0; }
inline constexpr unsigned pin_count_bit = 48, pin_before_bit = 56;
static_assert(most_linked <= 128);  // 8 bits for their number; 7 for those before, and the sign
inline constexpr std::uint64_t one_page_pinned = std::uint64_t{1} << pin_count_bit;
GPUFS_DEVICE std::uint64_t address_in(std::uint64_t pinned) { return pinned & (one_page_pinned - 1) & ~(pin_again | pin_missed); }
GPUFS_DEVICE std::uint32_t count_of(std::uint64_t pinned) { return static_cast<std::uint32_t>(pinned >> pin_count_bit) & 255; }
GPUFS_DEVICE std::uint32_t before_of(std::uint64_t pinned) { return static_cast<std::uint32_t>(pinned >> pin_before_bit); }

// The pages that a lane's pointer may link to, the one that it wants among them, and the last that will be walked through
// (walking::surely). Unspecified for a lane that wants no page: a warp that has such a lane links to no runs.
struct room {
  std::uint32_t first, last, walk;
};

// An access by a full warp whose lanes' pointers have one mapping: its entry is loaded once, a word a lane.
class warp_access {
 public:
  GPUFS_DEVICE explicit warp_access(mapping_name name) : entry_(entry_of(name) + simt::processor_id() % mapping_copies) {}

  // Whether lanes of a warp, all here together, may use one. All of them call.
  GPUFS_DEVICE static bool possible(simt::some_lanes lanes, mapping_name name) {
    if (lanes.mask() != ~0u) return false;
    return simt::this_warp().all(simt::this_warp().broadcast(name) == name && is_mapping(name));
  }

  // The frames of linked pages.
  GPUFS_DEVICE frame_run frames_held(const held_pages& held) const {
    cache::frame_storage frames{};
    frames.data = entry_.get<std::byte*>(frames_at + offsetof(cache::frame_storage, data));
    frames.page_shift = entry_.get<std::uint32_t>(frames_at + offsetof(cache::frame_storage, page_shift));
    return frames_of(frames, held);
  }

  // Gives back the pins on the pages in these frames. A page a lane where all lanes have the same ones.
  template <bool Wrote>
  GPUFS_DEVICE void unpin(const frame_run& held) const {
    const auto warp = simt::this_warp();
    auto* states = entry_.get<std::uint64_t*>(frames_at + offsetof(cache::frame_storage, states));
    const std::uint32_t first = warp.broadcast(held.first), n = warp.broadcast(held.n);
    if (warp.all(held.first == first && held.n == n)) {
      for (std::uint32_t i = simt::lane_id(); i < held.n; i += simt::warp_lanes)
        give_back<Wrote>(states[held.first + i], simt::warp_lanes);
      return;
    }
    unpin_runs<Wrote>(simt::some_lanes(~0u), states, held, [](std::uint32_t frame) { return frame; });
  }

  // The frame of the page's choice, in which it may be.
  GPUFS_DEVICE std::uint32_t look_up(std::uint32_t page) const {
    cache::frame_storage frames{};
    frames.nframes = nframes();
    frames.reciprocal = entry_.get<std::uint32_t>(frames_at + offsetof(cache::frame_storage, reciprocal));
    const std::uint32_t id = cache_id();
    return page == no_page ? cache::hash_table::no_frame
                           : static_cast<std::uint32_t>(cache::frames(frames).preferred(cache::make_key(id, page)));
  }

  // Pins the lane's page in the frame that look_up gave, if it is there: as pin_hit. What is needed of the entry is asked for where
  // it is needed, each time: that is an instruction, and a register that need not be kept.
  GPUFS_DEVICE std::uint64_t pin(std::uint32_t frame, std::uint32_t page) const {
    const auto warp = simt::this_warp();
    const std::uint32_t same = sharing_lanes(simt::some_lanes(~0u), page);
    const bool pins = simt::lane_id() == simt::lowest_lane(same);
    frame = pin_alone(pins ? frame : cache::hash_table::no_frame, page, simt::count_lanes(same));
    const std::uint32_t hits = warp.ballot(frame != cache::hash_table::no_frame);
    if (hits != 0) count_hits(simt::count_lanes(hits));
    const std::uint64_t at = address_of(warp.shfl(frame, simt::lowest_lane(same)));
    const std::uint64_t pinned = at != 0 ? at | one_page_pinned : 0;
    return warp.any(at == 0 && page != no_page) ? pinned | pin_missed : pinned;
  }

  // Pins pages side by side for all lanes, a page a lane, and again: from the first that lanes want on, in frames from `first` on,
  // up to `most`. Their number; or 0, if that has not `least`.
  GPUFS_DEVICE std::uint32_t pin_run(std::uint32_t first, std::uint32_t page, std::uint32_t least, std::uint32_t most) const {
    const auto warp = simt::this_warp();
    auto* states = entry_.get<std::uint64_t*>(frames_at + offsetof(cache::frame_storage, states));
    const std::uint32_t all = nframes();
    std::uint32_t n = 0, more = simt::warp_lanes;
    for (; more == simt::warp_lanes && n < most; n += more) {
      const std::uint32_t mine = n + simt::lane_id();
      const bool wanted = mine < most && first + mine < all;
      const std::uint32_t frame = pin_alone(wanted ? first + mine : cache::hash_table::no_frame, page + mine, simt::warp_lanes);
      const bool held = frame != cache::hash_table::no_frame;
      const std::uint32_t missing = warp.ballot(!held);
      more = missing == 0 ? simt::warp_lanes : simt::lowest_lane(missing);
      if (held && simt::lane_id() >= more) give_back<false>(states[frame], simt::warp_lanes);  // behind one that is not there
    }
    if (n < least) {
      unpin<false>({first, n});
      return 0;
    }
    count_hits(n);
    return n;
  }

  // The address of a frame's page; no_frame: 0.
  GPUFS_DEVICE std::uint64_t address_of(std::uint32_t frame) const {
    const std::uint64_t data = entry_.get<std::uint64_t>(frames_at + offsetof(cache::frame_storage, data));
    const std::uint32_t shift = entry_.get<std::uint32_t>(frames_at + offsetof(cache::frame_storage, page_shift));
    return frame == cache::hash_table::no_frame ? 0 : data + (static_cast<std::uint64_t>(frame) << shift);
  }

  GPUFS_DEVICE void count_hits(std::uint32_t hits) const {
    auto* first = entry_.get<hit_counters*>(offsetof(mapping_entry, hit.hits));
    if (simt::this_warp().leader()) count(file_table::hits_of(first).hits, hits);
  }

  GPUFS_DEVICE std::uint32_t cache_id() const { return entry_.get<std::uint32_t>(offsetof(mapping_entry, cache_id)); }
  // Whether the entry is still that of the name's mapping.
  GPUFS_DEVICE bool is(mapping_name name) const {
    return entry_.get<std::uint64_t>(offsetof(mapping_entry, word)) >> 2 ==
           static_cast<std::uint64_t>(name) >> mapping_address_bits;
  }

  GPUFS_DEVICE std::uint32_t nframes() const {
    return entry_.get<std::uint32_t>(frames_at + offsetof(cache::frame_storage, nframes));
  }

  // Pins the page npins times if it is in the frame (no_frame: it is not). The frame if it is; else no_frame. Each lane for itself,
  // but all call.
  GPUFS_DEVICE std::uint32_t pin_alone(std::uint32_t frame, std::uint32_t page, std::uint32_t npins) const {
    cache::frame_storage frames{};
    frames.states = entry_.get<std::uint64_t*>(frames_at + offsetof(cache::frame_storage, states));
    frames.keys = entry_.get<std::uint64_t*>(frames_at + offsetof(cache::frame_storage, keys));
    const std::uint32_t id = cache_id();
    if (frame == cache::hash_table::no_frame) return cache::hash_table::no_frame;
    const auto pinned = cache::frames(frames).pin<cache::kept_ref>(cache::frame_index{frame}, cache::make_key(id, page), npins);
    if (!pinned.held) return cache::hash_table::no_frame;
    if (!pinned.busy()) [[likely]]
      return frame;
    cache::frames::unpin(frames.states[frame], npins);
    return cache::hash_table::no_frame;
  }

 private:
  static constexpr unsigned frames_at = offsetof(mapping_entry, hit.frames);
  simt::warp_line entry_;
};

// How many pages a pointer may hold, so that one of each warp of the grid holds no more than that part of the cache's frames.
GPUFS_DEVICE std::uint32_t most_pages(std::uint32_t nframes, std::uint32_t part) {
  const std::uint64_t warps = std::uint64_t{simt::grid_size()} * (simt::block_size() / simt::warp_lanes);
  const std::uint32_t share = warps < 1u << 26 ? nframes / (static_cast<std::uint32_t>(warps) * part) : 0;
  return share == 0 ? 1 : share < most_linked ? share : most_linked;
}

// Whether a warp walks through a file, page after page: where that shows, or as its pointers were made for it.
enum class walking : bool { as_seen, surely };

// Pins each lane's page (no_page: none) in place of what is held, if that is done at once: a full warp with one mapping, and pages
// in the cache, in the frames of their choice. The page's address, or 0, and what is left to pin_rest. Where lanes go on to the
// page behind those that they hold, they walk: then all get up to eight times as many pages as they had, side by side, as far as
// all have room. Uses few registers: what a call saves on the stack is written by 32 lanes, 128 bytes for each word. What is called
// through a pointer must not call it, as ptxas would then hold it to the calling convention in kernels, too, and each fault would
// save eight registers on the stack.
template <bool Wrote, walking Walks = walking::as_seen>
GPUFS_DEVICE_COLD std::uint64_t pin_hit(mapping_name name, std::uint32_t page, room around, held_pages held) {
  struct site;
  if (!warp_access::possible(simt::lanes_together<site>(), name)) return pin_again;
  const warp_access access(name);
  if (!access.is(name)) return pin_again;
  const auto warp = simt::this_warp();
  const std::uint32_t first = warp.reduce_min(page), last = warp.reduce_max(page);
  const std::uint32_t before = page - first, spread = last - first;
  const std::uint32_t frame = access.look_up(first);
  std::uint32_t most = Walks == walking::surely ? around.walk - first + 1 : 1;
  if (warp.any(held.span != 0)) {
    const frame_run was = access.frames_held(held);
    if (warp.all(was.n != 0 && was.first + was.n == frame + spread) && most < 8 * was.n) most = 8 * was.n;
    access.unpin<Wrote>(was);
  }
  if (warp.any(most > 1)) {
    const std::uint32_t share = most_pages(access.nframes(), Walks == walking::surely ? 8 : 16);
    const std::uint32_t fits = around.first <= first ? around.last - first + 1 : 1;
    most = most < share ? most : share;
    most = warp.reduce_min(fits < most ? fits : most);
  }
  if (spread < most && first != no_page) {
    const std::uint32_t n = access.pin_run(frame, first, spread + 1, most);
    if (n != 0) return access.address_of(frame + before) | n * one_page_pinned | std::uint64_t{before} << pin_before_bit;
    if (spread == 0) return pin_missed;
  }
  return access.pin(access.look_up(page), page);
}

// Gives up a pointer's pages. Lanes that are here together share the update.
template <bool Wrote>
GPUFS_DEVICE_COLD void leave(mapping_name name, held_pages held) {
  struct site;
  const auto lanes = simt::lanes_together<site>();
  if (warp_access::possible(lanes, name)) {
    const warp_access access(name);
    access.unpin<Wrote>(access.frames_held(held));
  } else {
    unpin_pages<Wrote>(lanes, entry_of(name), held);
  }
}

// Pins the page npins times if it is in the cache: its address; 0: it is not, or none was asked for; or a negative errno. One lane
// calls, in as little code as that takes: some lane of many scattered accesses of a warp needs it, as its page is not in the
// frame of its choice, and the others wait.
GPUFS_DEVICE_COLD inline std::int64_t pin_found(mapping_name name, std::uint32_t page, std::uint32_t npins) {
  if (!is_mapping(name)) return check_name(name);
  mapping_entry& from = *entry_of(name);
  const std::uint32_t id = simt::atomic_ref<std::uint32_t>(from.cache_id).load(std::memory_order_relaxed);
  simt::fence_loads();  // as mapping_table::is: the id is that of the name's mapping
  const int error = check_name(name);
  if (error != 0 || page == no_page) return error;
  const cache::page_key key = cache::make_key(id, page);
  const cache::frames frames(from.hit.frames);
  cache::frame_index at = frames.preferred(key);
  cache::frames::pin_result pinned = frames.pin(at, key, npins);
  const bool found = pinned.held || cache::hash_table(from.hit.table).find(key, [&](cache::frame_index f) {
    at = f;
    pinned = frames.pin(f, key, npins);
    return pinned.held;
  });
  if (!found) return 0;
  if (pinned.busy()) [[unlikely]] {
    cache::frames::unpin(frames.state_word(at), npins);
    return pinned.crowded() ? -EMFILE : 0;
  }
  simt::count_one(simt::this_thread(), file_table::hits_of(from.hit.hits).hits);
  return reinterpret_cast<std::int64_t>(frames.data(at));
}

// What is left of pin_hit, which gave `pinned`: waits, and brings pages in. A warp that was together stays together, with lanes
// that have their page, as all lanes of a group help to bring pages in. The page's address, or 0: none was asked for, or a negative
// errno.
template <class Handler, bool Wrote>
GPUFS_DEVICE_COLD std::int64_t pin_rest(mapping_name name, Handler handler, std::uint32_t page, std::uint64_t pinned,
                                        held_pages held) {
  struct site;
  const auto lanes = simt::lanes_together<site>();
  auto mine = static_cast<std::int64_t>(address_in(pinned));
  if (pinned != pin_again) held = {};  // it has been given back
  const bool looks = pinned == pin_again || (mine == 0 && page != no_page);
  if (lanes.size() == 1) {
    if (held.span != 0) unpin_pages<Wrote>(lanes, entry_of(name), held);
    if (looks) mine = simt::call_cold(&pin_found, name, page, 1);
  } else {
    if (lanes.ballot_lanes(held.span != 0) != 0) unpin_pages<Wrote>(lanes, entry_of(name), held);
    // Lanes that look for one page of one mapping.
    struct wanted_page {
      mapping_name name;
      std::uint32_t number, looks;
      GPUFS_DEVICE bool operator==(const wanted_page& other) const {
        return name == other.name && number == other.number && looks == other.looks;
      }
    };
    const std::uint32_t same = sharing_lanes(lanes, wanted_page{name, page, looks});
    const unsigned leader = simt::lowest_lane(same);
    if (looks && simt::lane_id() == leader) mine = simt::call_cold(&pin_found, name, page, simt::count_lanes(same));
    const std::int64_t found = lanes.shfl_from_lane(mine, leader);
    if (looks) mine = found;
  }
  const std::uint32_t missing = lanes.ballot_lanes(mine == 0 && page != no_page);
  if (missing == 0) return mine;
  const mapping_entry* from = entry_of(name);
  const pinned_page got = simt::call_cold(&bring_in_all<Handler>, lanes, from, handler, page, missing, !Wrote);
  if ((missing >> simt::lane_id() & 1) == 0) return mine;
  const cache::frames frames(from->hit.frames);
  simt::fence_loads();
  if (!is_current(name)) {  // the entry is another mapping's by now, and the page or the error may be, too
    if (got.error == 0) frames.unpin(got.frame);
    return -EBADF;
  }
  return got.error != 0 ? got.error : reinterpret_cast<std::int64_t>(frames.data(got.frame));
}

// Copies nbytes at `position` of the file to or from `bytes` (the lane's own), page by page, with a pin for no longer than that;
// what is read and cannot be pinned, past the cache. error: why it was not linked to, if that was tried. An access that fails is
// recorded: 0 or its errno. Then a read gives zeros, and a write has changed what lies before the page that failed.
template <class Handler, bool Write>
GPUFS_DEVICE_COLD int access_elsewhere(mapping_name name, Handler handler, bounds within, std::uint64_t position, std::byte* bytes,
                                       std::uint32_t nbytes, int error) {
  struct site;
  const auto lanes = simt::lanes_together<site>();
  if (!Write && is_unpinnable(error) && !within.have(position, nbytes)) error = -ENXIO;  // a part of it may lie within
  if (error == 0 && nbytes != 0) {                                                       // else there is nothing to do, but to help
    error = check_name(name);
    if (error == 0 && !within.have(position, nbytes)) error = -ENXIO;
  }
  const mapping_entry* from = entry_of(name);
  const std::uint32_t shift = error == 0 && nbytes != 0 ? from->hit.frames.page_shift : 0;
  std::uint32_t done = 0;
  if constexpr (Write) {
    if (error == 0 && !is_private(from->cache_id)) {
      error = simt::call_cold(&store_elsewhere, name, position, bytes, nbytes);
      done = nbytes;
    }
  }
  for (;;) {
    const bool wanted = error == 0 && done < nbytes;
    if (lanes.ballot_lanes(wanted) == 0) break;
    const std::uint64_t at = position + done;
    const auto page = wanted ? static_cast<std::uint32_t>(at >> shift) : no_page;
    const std::int64_t got = simt::call_cold(&pin_rest<Handler, Write>, name, handler, page, pin_again, held_pages{});
    const std::uint32_t served = lanes.ballot_lanes(wanted && got > 0);
    std::uint64_t address = 0;
    if (wanted && got > 0) {
      const std::uint64_t in_page = at & ((std::uint64_t{1} << shift) - 1);
      std::byte* data = reinterpret_cast<std::byte*>(got) + in_page;
      address = reinterpret_cast<std::uint64_t>(data);
      if constexpr (Write) mark_dirty(from, address);
      const std::uint64_t left = (std::uint64_t{1} << shift) - in_page;
      for (std::uint64_t i = 0; i < left && done < nbytes; ++i, ++done) {
        if constexpr (Write) {
          data[i] = bytes[done];
        } else {
          bytes[done] = data[i];
        }
      }
    } else if (wanted && (!Write || got != -ENOMEM || served == 0)) {
      error = static_cast<int>(got);  // else, while others get on, frames come free: try again
    }
    unpin_pages<Write>(lanes, from, {address, address != 0 ? 1u : 0u});
  }
  if (!Write && is_unpinnable(error)) {
    error =
        simt::call_cold(&read_past_cache<Handler>, name, handler, error == -EMFILE, position + done, bytes + done, nbytes - done);
  }
  if (error != 0) {
    if constexpr (Write) {
      note_failed_write(name, {within, position, nbytes}, error);
    } else {
      for (std::uint32_t i = 0; i < nbytes; ++i) bytes[i] = std::byte{0};
      note_failed_read(name, {within, position, nbytes}, error);
    }
  }
  return error;
}

// Reads `count` elements at these positions, each as access_elsewhere does (error: of the first), but for those whose bit in `done`
// is set: 0 or the first errno. Lanes that are together should all call, as they help each other.
template <class Handler>
GPUFS_DEVICE_COLD int gather_elsewhere(mapping_name name, Handler handler, bounds within, const std::uint64_t* positions,
                                       std::byte* bytes, std::uint32_t nbytes, std::uint32_t count, std::uint32_t done, int error) {
  int first = 0;
  for (std::uint32_t k = 0; k < count; ++k) {
    const int failed = access_elsewhere<Handler, false>(name, handler, within, positions[k], bytes + std::size_t{k} * nbytes,
                                                        (done >> k & 1) != 0 ? 0 : nbytes, k == 0 ? error : 0);
    if (first == 0) first = failed;
  }
  return first;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
