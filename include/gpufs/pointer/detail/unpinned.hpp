// SPDX-License-Identifier: Apache-2.0
// Reads through pointers that hold no pin: an element is read between two looks at its frame's state, and counts if the frame has
// had the page all the while (frames::unpinned), whole or with the element's sectors. For accesses that come back to no page, each
// of which would add a pin and take it away again: two atomics on a word that others use, too. Here that is only read, so that the
// look-ups of several elements are under way at once. (Hits are counted, and a page's first use since the clock's hand came by is
// noted.)
#pragma once
#include "gpufs/cache/detail/sectors.hpp"
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
};

// Whether the sectors with these bytes of a page are there, which is there in part.
GPUFS_DEVICE bool has_sectors(const cache::frames& frames, cache::frame_index at, std::uint32_t in_page, std::uint32_t nbytes) {
  simt::fence_loads();  // with the state's load it meets the release of sectors::begin: the word is this page's
  return cache::sectors(frames, at).missing(cache::sectors::of_bytes(frames.page_shift(), in_page, in_page + nbytes)) == 0;
}

// Reads N elements at these positions that are in the cache. Each lane for itself; waits for nobody. Without branches but for what
// is rare, as loads behind a branch wait for those before it.
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

  std::uint32_t page[N], at[N], read = 0;
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
      if (page[k] != no_page && is_part) there = has_sectors(frames, cache::frame_index{at[k]}, in_page(k), sizeof(T));
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
  simt::count_each(file_table::hits_of(from.hit.hits).hits, simt::count_lanes(read));
  return {values, read};
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
