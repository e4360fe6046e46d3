// SPDX-License-Identifier: Apache-2.0
// The pages that pointers are linked to, or a part of one: which frames these are, and how lanes give their pins back together.
#pragma once
#include "gpufs/cache/detail/sectors.hpp"
#include "gpufs/pointer/detail/mapping.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

inline constexpr std::uint32_t no_page = ~0u;  // files have fewer pages

// The pages that a pointer is linked to. They have these addresses, and lie in frames side by side. span 0: no page.
struct held_pages {
  std::uint64_t address = 0;
  std::uint32_t span = 0;
};

// Returns the lanes that have the same value as the caller. The result is exact if there are few different values. If there are
// many, each of the remaining lanes counts as alone: sharing would gain little then, and match.any takes its time for each value.
// All lanes call.
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

// Gives back pins of lanes that have read a page, or may have written it.
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

// Gives back the pins on each lane's frames; lanes whose key_of(frame) is the same give theirs back at once. All lanes call.
template <bool Wrote, class KeyOf>
GPUFS_DEVICE void unpin_runs(simt::some_lanes lanes, std::uint64_t* states, const frame_run& run, KeyOf key_of) {
  for (std::uint32_t i = 0; lanes.ballot_lanes(i < run.n) != 0; ++i) {
    const std::uint32_t frame = i < run.n ? run.first + i : no_page;
    const std::uint32_t same = sharing_lanes(lanes, key_of(frame));
    if (frame != no_page && simt::lane_id() == simt::lowest_lane(same)) give_back<Wrote>(states[frame], simt::count_lanes(same));
  }
}

// Gives back the pins on linked pages, after the lanes have finished reading or (Wrote) writing them. All lanes call.
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

// The result of pin_hit: the page's address; in its low bits what is still to be done (0: nothing); and in its high bits how many
// pages are linked, side by side, and how many of these lie before the page. pin_rest's is the same, or an error below 0.
inline constexpr std::uint64_t pin_again = 1;   // pin_hit has not even looked, and `held` is still pinned
inline constexpr std::uint64_t pin_missed = 2;  // a lane's page was not found; all lanes of the warp have this
GPUFS_DEVICE bool is_done(std::uint64_t pinned) { return (pinned & (pin_again | pin_missed)) == 0; }
inline constexpr std::uint64_t pinned_in_part = 4;  // of one page, sectors: it is their address and their numbers that it has
inline constexpr unsigned pin_count_bit = 48, pin_before_bit = 56;
static_assert(most_linked <= 128);  // 8 bits for their number; 7 for those before, and the sign
inline constexpr std::uint64_t one_page_pinned = std::uint64_t{1} << pin_count_bit;
GPUFS_DEVICE std::uint64_t address_in(std::uint64_t pinned) {
  return pinned & (one_page_pinned - 1) & ~(pin_again | pin_missed | pinned_in_part);
}
GPUFS_DEVICE std::uint32_t count_of(std::uint64_t pinned) { return static_cast<std::uint32_t>(pinned >> pin_count_bit) & 255; }
GPUFS_DEVICE std::uint32_t before_of(std::uint64_t pinned) { return static_cast<std::uint32_t>(pinned >> pin_before_bit); }

// Of what it counts, and has the address: pages, or sectors.
GPUFS_DEVICE std::uint32_t unit_shift(std::uint64_t pinned, std::uint32_t page_shift) {
  return (pinned & pinned_in_part) == 0 ? page_shift : cache::sectors::shift(page_shift);
}

// The sectors that a pointer wants of a page which it has to have whole.
inline constexpr std::uint32_t whole_page = ~0u;
// A page that is pinned, of which these sectors are there, the wanted ones among them (whole_page: all). If some are not, it is the
// run around the first that is wanted: sectors that are there stay, as long as the page is pinned, and others may come.
GPUFS_DEVICE std::uint64_t pinned_run(std::uint64_t page, std::uint32_t there, std::uint32_t wanted, std::uint32_t page_shift) {
  if (there == whole_page) return page | one_page_pinned;
  const unsigned first = simt::lowest_lane(wanted);
  const std::uint32_t gaps = ~there & ((1u << first) - 1);
  const std::uint32_t before = gaps == 0 ? first : first - 1 - simt::highest_lane(gaps);
  const std::uint32_t behind = simt::lowest_lane(~(there >> first));
  return (page + (std::uint64_t{first} << cache::sectors::shift(page_shift))) | pinned_in_part |
         (before + behind) * one_page_pinned | std::uint64_t{before} << pin_before_bit;
}

// The first and the last page that a lane's pointer may link to, and the last page of its walk (walking::surely). Unspecified for a
// lane that wants no page: a warp that has such a lane links to no runs.
struct room {
  std::uint32_t first, last, walk;
};

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
