// SPDX-License-Identifier: Apache-2.0
// Accesses by full warps whose lanes' pointers have one mapping.
#pragma once
#include "gpufs/pointer/detail/linked_pages.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// An access by a full warp whose lanes' pointers have one mapping: its entry is loaded once, a word a lane.
class warp_access {
 public:
  GPUFS_DEVICE explicit warp_access(mapping_name name) : entry_(entry_of(name) + simt::processor_id() % mapping_copies) {}

  // Whether these lanes of a warp, which are here together, may use a warp_access. All of them call.
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

  // Gives back the pins on the pages in these frames. If all lanes have the same frames, each lane does it for some pages.
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

  // The frame of the page's choice, in which the page may be.
  GPUFS_DEVICE std::uint32_t look_up(std::uint32_t page) const {
    cache::frame_storage frames{};
    frames.nframes = nframes();
    frames.reciprocal = entry_.get<std::uint32_t>(frames_at + offsetof(cache::frame_storage, reciprocal));
    const std::uint32_t id = cache_id();
    return page == no_page ? cache::hash_table::no_frame
                           : static_cast<std::uint32_t>(cache::frames(frames).preferred(cache::make_key(id, page)));
  }

  // Pins the lane's page if it is in the frame that look_up gave. The result is pin_hit's. It loads words of the entry anew each
  // time it needs them: that costs an instruction, and saves a register.
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

  // Pins up to `most` pages side by side for all lanes, from `page` on, in the frames from `first` on. Each lane pins a page, and
  // then another. Returns how many; if these are fewer than `least`, it unpins them and returns 0.
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
      if (held && simt::lane_id() >= more) give_back<false>(states[frame], simt::warp_lanes);  // a page before this one is missing
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

  // Pins the page npins times if it is in the frame (no_frame: it is not). Returns the frame, or no_frame. All lanes call, each for
  // its own page.
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

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
