// SPDX-License-Identifier: Apache-2.0
// Reads through pointers that hold no pin: an element is read between two looks at its frame's state, and counts if the frame has
// had the page all the while (frames::unpinned). For accesses that come back to no page, each of which would add a pin and take it
// away again: two atomics on a word that others use, too. Here that is only read, so that the look-ups of several elements are
// under way at once. (Hits are counted, and a page's first use since the clock's hand came by is noted.)
#pragma once
#include "gpufs/cache/detail/page_uses.hpp"
#include "gpufs/pointer/detail/linked_pages.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

// What read_tile and gather give.
template <class T, unsigned N>
struct elements {
  T values[N];
  GPUFS_DEVICE const T& operator[](unsigned k) const { return values[k]; }
};

namespace detail {

template <class T, unsigned N>
struct read_elements {
  elements<T, N> values;  // anything, where it was not read
  std::uint32_t read;     // a bit each
  std::uint32_t in_part;  // the same: it was read of a page that is there in part
};

// Whether the sectors with these bytes of a page are there, which is there in part.
GPUFS_DEVICE bool has_sectors(const cache::frames& frames, cache::frame_index at, std::uint32_t in_page, std::uint32_t nbytes) {
  simt::fence_loads();  // with the state's load it meets the release of sectors::begin: the word is this page's
  return cache::sectors(frames, at).missing(cache::sectors::of_bytes(frames.page_shift(), in_page, in_page + nbytes)) == 0;
}

// Reads N elements at these positions that are in the cache. Each lane for itself; waits for nobody. Without branches but for what
// is rare, as loads behind a branch wait for those before it. The caller calls count_unpinned.
template <bool MayStraddle, class T, unsigned N>
GPUFS_DEVICE read_elements<T, N> read_unpinned(mapping_name name, const bounds& within,
                                               const elements<std::uint64_t, N>& positions) {
  if (!is_mapping(name)) return {};
  if (MayStraddle && sizeof(T) > std::size_t{1} << page_shift_of(name)) return {};  // none lies in one page
  mapping_entry& from = entry_of(name)[simt::processor_id() % mapping_copies];
  // All that is wanted of the entry, asked for at once.
  const std::uint32_t id = simt::atomic_ref<std::uint32_t>(from.cache_id).load(std::memory_order_relaxed);
  const cache::hash_table table(from.hit.table);
  const cache::frames frames(from.hit.frames);
  const std::uint32_t page_shift = page_shift_of(name);
  constexpr std::uint32_t no_frame = cache::hash_table::no_frame;

  std::uint32_t page[N], at[N], read = 0, in_part = 0;
  for (unsigned k = 0; k < N; ++k) page[k] = page_of<MayStraddle>(page_shift, within, positions[k], sizeof(T));
  const auto key = [&](unsigned k) { return cache::make_key(id, page[k]); };
  const auto in_page = [&](unsigned k) { return static_cast<std::uint32_t>(positions[k]) & ((1u << page_shift) - 1); };
  cache::frames::unpinned seen[N];
  for (unsigned k = 0; k < N; ++k) at[k] = static_cast<std::uint32_t>(frames.preferred(key(k)));
  for (unsigned k = 0; k < N; ++k) seen[k] = frames.look(cache::frame_index{at[k]});
  for (unsigned k = 0; k < N; ++k) {
    bool there = cache::frames::has(seen[k], key(k));
    if (!there) [[unlikely]] {
      bool is_part = cache::frames::has_in_part(seen[k], key(k));
      // Not where it would be: the table knows, mostly.
      const std::uint32_t other = is_part ? no_frame : table.first(key(k));
      if (other != no_frame) {
        at[k] = other;
        seen[k] = frames.look(cache::frame_index{other});
        there = cache::frames::has(seen[k], key(k));
        is_part = cache::frames::has_in_part(seen[k], key(k));
      }
      if (page[k] != no_page && is_part) {
        there = has_sectors(frames, cache::frame_index{at[k]}, in_page(k), sizeof(T));
        in_part |= std::uint32_t{there} << k;
      }
    }
    read |= std::uint32_t{there && page[k] != no_page} << k;
  }
  simt::fence_loads();
  elements<T, N> values;
  for (unsigned k = 0; k < N; ++k) {
    // Where an element straddles pages, one that does not.
    const std::uint32_t safe = MayStraddle && page[k] == no_page ? 0 : in_page(k);
    values.values[k] = simt::load_changing(reinterpret_cast<const T*>(frames.data(cache::frame_index{at[k]}) + safe));
  }
  simt::fence_loads();
  std::uint64_t now[N];
  for (unsigned k = 0; k < N; ++k) now[k] = frames.state(cache::frame_index{at[k]}).load(std::memory_order_relaxed);
  const std::uint64_t generation = simt::atomic_ref<std::uint64_t>(from.word).load(std::memory_order_relaxed) >> 2;
  for (unsigned k = 0; k < N; ++k) {
    read &= ~(std::uint32_t{!cache::frames::has_stayed(seen[k], now[k])} << k);
    const bool unused = (now[k] & cache::frame_state::referenced) == 0;
    if (unused && (read >> k & 1) != 0) [[unlikely]]
      frames.note_use(cache::frame_index{at[k]});
  }
  // The entry may have become another mapping's, and the id so.
  if (generation != static_cast<std::uint64_t>(name) >> mapping_address_bits) read = 0;
  return {values, read, in_part & read};
}
GPUFS_DEVICE void count_unpinned(mapping_name name, std::uint32_t nread) {
  if (is_mapping(name))
    simt::count_each(file_table::hits_of(entry_of(name)[simt::processor_id() % mapping_copies].hit.hits).hits, nread);
}

// Where an access goes from the pointer's last one, and whether it had better be read without a link: from linked pages to another
// page than the next one; on from a page that was read without a link; or after one that could not be linked.
struct jump {
  static constexpr std::uint64_t unlinkable = 1;
  bool jumps;
  bool again;          // to the page of the last access, which could not be linked
  std::uint64_t page;  // what a pointer remembers that has read it without a link; with `unlinkable`, if it could not be linked

  GPUFS_DEVICE static std::uint64_t page_of(std::uint32_t page_shift, std::uint64_t position) {
    return ((position >> page_shift) + 1) << 1;
  }
  // in_link: how far from the first linked element it lies.
  GPUFS_DEVICE static jump from_link(std::uint32_t page_shift, std::uint64_t position, std::uint64_t in_link, std::uint32_t span) {
    const std::uint64_t page_nbytes = std::uint64_t{1} << page_shift;
    return {in_link + page_nbytes >= span + 2 * page_nbytes, false, page_of(page_shift, position)};
  }
  // last: the page that the pointer remembers; 0: none.
  GPUFS_DEVICE static jump from_page(std::uint32_t page_shift, std::uint64_t position, std::uint64_t last) {
    const std::uint64_t page = page_of(page_shift, position);
    return {last != 0 && last != page, last == (page | unlinkable), page};
  }
};

// An element that was read without a link.
template <class T>
struct unlinked_element {
  T value;
  enum : std::uint32_t { not_read, whole, in_part } of;  // how its page is there
};

// Reads an element of another page than the pointer's last one, if it is in the cache, and if the lanes that are here together go
// to different pages. Where each lane would pin a page of its own, this takes a third of the atomics, and none that others wait
// for. Lanes that go to one page together share a pin, unless that page could not be linked (again: the last access was to it). And
// if one of them has to wait for its page, none has read: all go on together, as they help each other.
template <class T>
GPUFS_DEVICE_COLD unlinked_element<T> read_jump(mapping_name name, bounds within, std::uint64_t position, bool again) {
  struct site;
  const auto lanes = simt::lanes_together<site>();
  const std::uint64_t page = position >> page_shift_of(name);
  if (lanes.size() > 1) {
    const bool goes_apart = page != lanes.broadcast(page) || again;
    if (lanes.ballot_lanes(goes_apart) == 0) return {{}, unlinked_element<T>::not_read};
  }
  const auto got = read_unpinned<false, T, 1>(name, within, {{position}});
  if (lanes.ballot_lanes(got.read == 0) != 0) return {{}, unlinked_element<T>::not_read};
  count_unpinned(name, 1);
  // Had the page been whole, the pointer would be linked to it by now.
  const bool would_be_linked = got.in_part != 0 && again;
  if (const std::uint32_t would = lanes.ballot_lanes(would_be_linked);
      would_be_linked && simt::lane_id() == simt::lowest_lane(would)) [[unlikely]] {
    const mapping_entry& from = *entry_of(name);
    const std::uint32_t id =
        simt::atomic_ref<std::uint32_t>(const_cast<mapping_entry&>(from).cache_id).load(std::memory_order_relaxed);
    cache::page_uses(from.hit.table, id).note_unlinked();
  }
  return {got.values[0], got.in_part != 0 ? unlinked_element<T>::in_part : unlinked_element<T>::whole};
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
