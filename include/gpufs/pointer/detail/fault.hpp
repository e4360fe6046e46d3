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
#include "gpufs/pointer/detail/pin_sectors.hpp"
#include "gpufs/pointer/detail/warp_access.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

namespace detail {

// How many pages a pointer may hold, so that one of each warp of the grid holds no more than that part of the cache's frames.
GPUFS_DEVICE std::uint32_t most_pages(std::uint32_t nframes, std::uint32_t part) {
  const std::uint64_t warps = std::uint64_t{simt::grid_size()} * (simt::block_size() / simt::warp_lanes);
  const std::uint32_t share = warps < 1u << 26 ? nframes / (static_cast<std::uint32_t>(warps) * part) : 0;
  return share == 0 ? 1 : share < most_linked ? share : most_linked;
}

// Whether a warp walks through a file, page after page. as_seen: if its accesses show it. surely: its pointers were made for it.
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

// Pins the page npins times if it is in the cache, and at least the wanted sectors of it. One lane calls, in as little code as that
// takes: some lane of many scattered accesses of a warp needs it, as its page is not in the frame of its choice, and the others
// wait.
GPUFS_DEVICE_COLD inline found_page pin_found(mapping_name name, std::uint32_t page, std::uint32_t npins, std::uint32_t wanted) {
  if (!is_mapping(name)) return {check_name(name), 0};
  mapping_entry& from = *entry_of(name);
  const std::uint32_t id = simt::atomic_ref<std::uint32_t>(from.cache_id).load(std::memory_order_relaxed);
  simt::fence_loads();  // as mapping_table::is: the id is that of the name's mapping
  const int error = check_name(name);
  if (error != 0 || page == no_page) return {error, 0};
  const cache::page_key key = cache::make_key(id, page);
  const cache::frames frames(from.hit.frames);
  cache::frame_index at = frames.preferred(key);
  cache::frames::pin_result pinned = frames.pin(at, key, npins);
  const bool found = pinned.held || cache::hash_table(from.hit.table).find(key, [&](cache::frame_index f) {
    at = f;
    pinned = frames.pin(f, key, npins);
    return pinned.held;
  });
  if (!found) return {0, 0};
  found_page result{reinterpret_cast<std::int64_t>(frames.data(at)), whole_page};
  if (pinned.busy()) [[unlikely]] {
    const bool is_part = pinned.partial() && !pinned.filling() && !pinned.crowded();
    // The pin's acquire meets the release of sectors::begin, and look's the fence of who brought the sectors in.
    result.there = is_part ? static_cast<std::uint32_t>(cache::sectors(frames, at).look()) : 0;
    if (!is_part || (wanted & ~result.there) != 0) {
      cache::frames::unpin(frames.state_word(at), npins);
      return {pinned.crowded() ? -EMFILE : 0, 0};
    }
    cache::page_uses(from.hit.table, id).note_unlinked();
  }
  simt::count_one(simt::this_thread(), file_table::hits_of(from.hit.hits).hits);
  return result;
}

// Completes pin_hit, which returned `pinned`: waits for pages, and brings pages in. If the warp was together, it stays together,
// even the lanes that have their page already, because all lanes of a group help to bring pages in. wanted: the sectors of the page
// that have to be there (whole_page: all). Returns as pin_hit does what is pinned now, 0 if the lane asked for no page, or a
// negative errno.
template <class Handler, bool Wrote>
GPUFS_DEVICE_COLD std::int64_t pin_rest(mapping_name name, Handler handler, std::uint32_t page, std::uint32_t wanted,
                                        std::uint64_t pinned, held_pages held) {
  struct site;
  const auto lanes = simt::lanes_together<site>();
  auto mine = static_cast<std::int64_t>(pinned & ~(pin_again | pin_missed));
  if (pinned != pin_again) held = {};  // it has been given back
  const bool looks = pinned == pin_again || (mine == 0 && page != no_page);
  found_page found{};
  if (lanes.size() == 1) {
    if (held.span != 0) unpin_pages<Wrote>(lanes, entry_of(name), held);
    if (looks) found = simt::call_cold(&pin_found, name, page, 1, wanted);
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
    if (looks && simt::lane_id() == leader) found = simt::call_cold(&pin_found, name, page, simt::count_lanes(same), wanted);
    found = lanes.shfl_from_lane(found, leader);
    if constexpr (!Wrote) {
      // The leader's sectors are there, and ours may not be.
      const bool lacks = looks && found.address > 0 && (wanted & ~found.there) != 0;
      if (lanes.ballot_lanes(lacks) != 0) {
        unpin_pages<false>(lanes, entry_of(name), {static_cast<std::uint64_t>(found.address), lacks ? 1u : 0u});
        if (lacks) found.address = 0;
      }
    }
  }
  const auto run = [&](std::int64_t address, std::uint32_t there) {
    if (address <= 0) return address;
    return static_cast<std::int64_t>(pinned_run(static_cast<std::uint64_t>(address), there, wanted, page_shift_of(name)));
  };
  if (looks) mine = run(found.address, found.there);
  std::uint32_t missing = lanes.ballot_lanes(mine == 0 && page != no_page);
  if (missing == 0) return mine;
  const bool is_missing = (missing >> simt::lane_id() & 1) != 0;
  if constexpr (!Wrote && std::is_same_v<Handler, no_handler>) {
    found = simt::call_cold(&pin_sectors_together, lanes, name, is_missing ? page : no_page, wanted, page_wait::of_reads);
    if (is_missing) mine = run(found.address, found.there);
    missing = lanes.ballot_lanes(is_missing && mine == 0);
  }
  const mapping_entry* from = entry_of(name);
  pinned_page got{};
  if (missing != 0)
    got = simt::call_cold(&bring_in_all<Handler>, lanes, from, handler, page, missing,
                          Wrote ? page_wait::of_writes : page_wait::of_reads);
  simt::rejoin(lanes);
  return (missing >> simt::lane_id() & 1) == 0 ? mine : run(address_of(name, got), whole_page);
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
