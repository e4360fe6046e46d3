// A hint for sequential walks: the pages after the one that is accessed are looked up and pinned before they are needed, up to 32
// at once, a lane each. A warp that walks together then crosses into the next page at the price of a few instructions, and asks the
// page table once for many pages. ActivePointers (ISCA'16) has no such thing; what it saves is the latency that section VI-B
// leaves to other warps to hide.
#pragma once
#include "gpufs/pointer/map.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Pages that each lane of a warp has one pin on: page `front` + i for each bit i of `found`. Lane i knows where page `front` + i
// is, which the others ask for while they are together; a lane that is alone, or that took the pointer over from another lane,
// looks it up, by the cache id that the mapping had then. Either there are none, and a linked pointer holds its page by itself, or
// its page is one of them.
struct pages_ahead {
  GPUFS_DEVICE bool any() const { return found != 0; }
  GPUFS_DEVICE bool have(std::uint32_t page) const { return page - front < simt::warp_lanes && (found >> (page - front) & 1) != 0; }
  GPUFS_DEVICE std::uint64_t address() const { return mine & ~lane_mask; }
  GPUFS_DEVICE bool is_of_lane() const { return (mine & lane_mask) == simt::lane_id(); }

  static constexpr std::uint64_t lane_mask = simt::warp_lanes - 1;
  std::uint64_t mine = 0;  // the address of page front + lane, with the lane in its low bits
  std::uint32_t front = 0, found = 0;
  std::uint32_t cache_id = 0;
};

// As a pointer keeps them, which links, and so changes them, where it is const.
class kept_ahead {
 public:
  GPUFS_DEVICE bool any() const { return found_ != 0; }
  // All but the cache id: what find_ahead needs, as each of these words is 128 or 256 bytes from the stack of a warp.
  GPUFS_DEVICE pages_ahead to_find() const { return {mine_, front_, found_, 0}; }
  GPUFS_DEVICE void set(const pages_ahead& pages) const {
    mine_ = pages.mine;
    front_ = pages.front;
    found_ = pages.found;
    cache_id_ = pages.cache_id;
  }
  // Its pages, which it has no more.
  GPUFS_DEVICE pages_ahead give() const {
    const pages_ahead given{mine_, front_, found_, cache_id_};
    found_ = 0;
    return given;
  }
  GPUFS_DEVICE void take(const kept_ahead& other) { set(other.give()); }

 private:
  mutable simt::rarely_used<std::uint64_t> mine_;
  mutable simt::rarely_used<std::uint32_t> front_, found_, cache_id_;
};

// Whether all lanes of a warp are here, and have the same pages ahead. All lanes that are here call.
GPUFS_DEVICE bool is_warp_ahead(simt::some_lanes lanes, mapping_name name, const pages_ahead& ahead) {
  if (!warp_access::possible(lanes, name)) return false;
  const auto warp = simt::this_warp();
  const std::uint32_t front = warp.broadcast(ahead.front), found = warp.broadcast(ahead.found);
  return warp.all(front == ahead.front && found == ahead.found && ahead.is_of_lane());
}

// The address of one of the pages ahead, if all lanes of the warp are together, and each wants one of them; else 0.
GPUFS_DEVICE std::uint64_t find_ahead(mapping_name name, std::uint32_t page, const pages_ahead& ahead) {
  struct site;
  if (!is_warp_ahead(simt::lanes_together<site>(), name, ahead)) return 0;
  const auto warp = simt::this_warp();
  const std::uint64_t address = warp.shfl(ahead.address(), (page - ahead.front) % simt::warp_lanes);
  return warp.all(ahead.have(page)) ? address : 0;
}

// The frame of a page that the caller has a pin on.
GPUFS_DEVICE cache::frame_index frame_of_pinned(const mapping_entry& from, std::uint32_t cache_id, std::uint32_t page) {
  const cache::page_key key = cache::make_key(cache_id, page);
  const cache::frames frames(from.frames);
  cache::frame_index at{};
  cache::hash_table(from.table).find(key, [&](cache::frame_index f) {
    at = f;
    return frames.holds(f, key, frames.state(f).load(std::memory_order_relaxed));
  });
  return at;
}

// Gives all pages ahead back. The lanes of a warp do so together, a page each, or each lane for itself.
template <bool Wrote>
GPUFS_DEVICE_COLD void leave_ahead(mapping_name name, pages_ahead ahead) {
  struct site;
  const mapping_entry& from = *entry_of(name);
  if (is_warp_ahead(simt::lanes_together<site>(), name, ahead)) {
    simt::this_warp().sync();  // all have done with all pages
    if ((ahead.found >> simt::lane_id() & 1) == 0) return;
    give_back<Wrote>(state_at(from, ahead.address()), simt::warp_lanes);
    return;
  }
  for (std::uint32_t left = ahead.found; left != 0; left &= left - 1) {
    const cache::frame_index f = frame_of_pinned(from, ahead.cache_id, ahead.front + simt::lowest_lane(left));
    give_back<Wrote>(from.frames.states[static_cast<std::uint32_t>(f)], 1);
  }
}

// How many pages a pointer may hold ahead: with those of one pointer of each warp of the grid, an eighth of the cache's frames.
GPUFS_DEVICE std::uint32_t most_ahead(const mapping_entry& from) {
  const std::uint64_t warps = std::uint64_t{simt::grid_size()} * (simt::block_size() / simt::warp_lanes);
  const std::uint64_t share = from.mount->cache.frames.nframes / 8 / warps;
  return share < simt::warp_lanes ? static_cast<std::uint32_t>(share) : simt::warp_lanes;
}

struct looked_ahead {
  std::int64_t at;  // the address of the lane's page; or as pin_rest, and nothing is ahead
  pages_ahead ahead;
};

// Looks up the pages from the first on that a lane wants, up to `last`, and pins those that are in the cache, if all that lanes
// want are. Full warps only; at: 0 where it did not.
GPUFS_DEVICE looked_ahead look_ahead(mapping_name name, std::uint32_t page, std::uint32_t last) {
  struct site;
  looked_ahead made{0, {}};
  if (!warp_access::possible(simt::lanes_together<site>(), name)) return made;
  const auto warp = simt::this_warp();
  const warp_access access(name);
  const std::uint32_t first = warp.reduce_min(page);
  last = warp.reduce_max(last);
  const std::uint32_t most = most_ahead(*entry_of(name));
  if (!access.is(name) || first == no_page || most < 2) return made;
  const std::uint32_t mine = first + simt::lane_id();
  const bool wanted = simt::lane_id() < most && mine >= first && mine <= last;
  const std::uint32_t frame = access.pin_alone(access.look_up(wanted ? mine : no_page), mine, simt::warp_lanes);
  const std::uint32_t found = warp.ballot(frame != cache::hash_table::no_frame);
  made.ahead.front = first;
  made.ahead.found = found;
  made.ahead.mine = access.address_of(frame) | simt::lane_id();
  made.ahead.cache_id = access.cache_id();
  if (!warp.all(made.ahead.have(page))) {
    leave_ahead<false>(name, made.ahead);
    return {0, {}};
  }
  access.count_hits(simt::count_lanes(found));
  made.at = static_cast<std::int64_t>(warp.shfl(made.ahead.address(), (page - first) % simt::warp_lanes));
  return made;
}

// A page that is not found at once, in place of those ahead, or the page at `held` (0: none).
template <bool Wrote>
GPUFS_DEVICE_COLD looked_ahead renew_ahead(pages_ahead ahead, mapping_name name, std::uint32_t page, std::uint32_t last,
                                           std::uint64_t held) {
  if (ahead.any()) {
    struct site;
    const bool together = is_warp_ahead(simt::lanes_together<site>(), name, ahead);
    if (together ? simt::this_warp().all(ahead.have(page)) : ahead.have(page)) {
      const mapping_entry& from = *entry_of(name);
      std::byte* data = cache::frames(from.frames).data(frame_of_pinned(from, ahead.cache_id, page));
      return {reinterpret_cast<std::int64_t>(data), ahead};
    }
    leave_ahead<Wrote>(name, ahead);
  } else if (held != 0) {
    leave<Wrote>(name, held);
  }
  const looked_ahead made = look_ahead(name, page, last);
  if (made.at != 0) return made;
  const std::uint64_t at = pin_hit_inline<Wrote>(name, page, 0);
  if (is_done(at)) return {static_cast<std::int64_t>(at), {}};
  return {simt::call_cold(&pin_rest<no_handler, Wrote>, name, {}, page, at, 0), {}};
}

}  // namespace detail

// What a sequential pointer is compiled with. See handled_by.
struct sequential_access : plain_access {
  using pages = detail::kept_ahead;

  template <bool Wrote>
  GPUFS_DEVICE static std::uint64_t pin_hit(const pages& ahead, mapping_name from, std::uint32_t page, std::uint64_t) {
    const std::uint64_t at = ahead.any() ? detail::find_ahead(from, page, ahead.to_find()) : 0;
    return at != 0 ? at : detail::pin_again;
  }
  template <bool Wrote>
  GPUFS_DEVICE static std::int64_t pin_rest(const pages& ahead, mapping_name from, no_handler, std::uint32_t page,
                                            std::uint32_t last, std::uint64_t /*pinned*/, std::uint64_t held) {
    // Given up first, as a lane that is unwound meanwhile (CPU machine) does not give them up twice.
    const detail::looked_ahead made = simt::call_cold(&detail::renew_ahead<Wrote>, ahead.give(), from, page, last, held);
    ahead.set(made.ahead);
    return made.at;
  }
  template <bool Wrote>
  GPUFS_DEVICE static void leave(const pages& ahead, mapping_name from, std::uint64_t held) {
    if (!ahead.any()) return plain_access::leave<Wrote>({}, from, held);
    simt::call_cold(&detail::leave_ahead<Wrote>, from, ahead.give());
  }
};

template <class T>
using sequential_ptr = ptr<T, sequential_access>;

// As gpufs::map, for walks in order: the pointers of a warp hold the pages after the one that they are linked to as well, as many
// as are in the cache, up to 32, and for one pointer of each warp of the grid no more than an eighth of the cache. It is for warps
// whose lanes walk together, and cross into the next page together: each warp through pages of its own, 32 elements side by side in
// one page. For others it is as gpufs::map, with some more registers and look-ups.
template <class T, class Group, class Mount>
GPUFS_DEVICE sequential_ptr<T> map_sequential(Group group, const basic_file<Mount>& opened, std::int64_t offset = 0,
                                              std::int64_t count = to_the_end, map_flags flags = map_flags::none) {
  return detail::map_with<T, sequential_access>(group, opened, offset, count, flags, no_handler{});
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
