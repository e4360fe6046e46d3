// SPDX-License-Identifier: Apache-2.0
// Pages that come sector by sector (advise(random), or learnt), for pointers that only read: a pointer links the run of sectors
// around its address. docs/design/part-pages.md, "Who reads how"
#pragma once
#include "gpufs/pointer/detail/bring_in.hpp"
#include "gpufs/pointer/detail/linked_pages.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// A page that was looked for: its address; 0: it is not there, or none was asked for; or a negative errno. And which of its sectors
// are there (whole_page: all).
struct found_page {
  std::int64_t address;
  std::uint32_t there;
};

// A page whose sectors lanes want.
struct part_page {
  file_view view;
  cache::frame_index frame;
  bool is_pinned, is_part;
};
// Whether a page of a file that is not there should come in part, for what pointers read of it.
GPUFS_DEVICE bool comes_apart(const file_mount& mount, const file_view& view, cache::page_key key) {
  const read_habit habit = file_slots::habit_of(mount, view.slot).load_relaxed();
  if (habit != read_habit::unknown || !has_version(view.kind)) return habit == read_habit::apart;
  constexpr std::uint32_t any_sector = 2;  // little is wanted, and is not taken to be the page's begin
  return comes_in_part(mount.cache, key, cache::frames(mount.cache).preferred(key), any_sector);
}
// How lanes that only read get a page of a mapping that is not in the cache, or of which they lack sectors: whole, as any; past the
// cache (advise(noreuse)); or by sectors (advise(random), or learnt). One lane calls, for itself. The entry may belong to another
// mapping by then: pin_part and read_past_cache check that.
enum class way_of_page : std::int32_t { whole, past_cache, by_sectors };
inline GPUFS_DEVICE_COLD way_of_page how_it_is_read(mapping_entry* from, std::uint32_t page_number) {
  const mount_layout& mount = *mount_of(*from);
  const file_view view =
      file_table(mount).view(file_number{simt::atomic_ref<std::int32_t>(from->number).load(std::memory_order_relaxed)});
  const std::uint32_t id = simt::atomic_ref<std::uint32_t>(from->cache_id).load(std::memory_order_relaxed);
  const bool is_files = id >> cache::form_shift == cache::file_form;
  if (!is_files || view.error != 0) return way_of_page::whole;
  const bool once = file_slots::habit_of(mount, view.slot).load_relaxed() == read_habit::once;
  if (!once && !comes_apart(mount, view, key_of(*from, page_number))) return way_of_page::whole;
  const std::uint64_t offset = std::uint64_t{page_number} << mount.cache.frames.page_shift;
  if (once) return is_read_by_device(mount, view, offset) ? way_of_page::past_cache : way_of_page::whole;
  return may_come_apart(mount, view, offset) ? way_of_page::by_sectors : way_of_page::whole;
}

// Pins a page of such a mapping, if a frame is at hand. Who waits between calls does not wait here for a page that others bring in
// whole. One lane calls.
inline GPUFS_DEVICE_COLD part_page pin_part(mapping_name name, std::uint64_t page_number, page_wait waits) {
  using pages_type = cache::page_cache<>;
  using role = pages_type::role;
  mapping_entry& from = *entry_of(name);
  const mount_layout* mount = mount_of(from);
  const std::uint32_t id = simt::atomic_ref<std::uint32_t>(from.cache_id).load(std::memory_order_relaxed);
  const file_number number{simt::atomic_ref<std::int32_t>(from.number).load(std::memory_order_relaxed)};
  simt::fence_loads();  // as in read_past_cache
  part_page found{{}, {}, false, false};
  if (!is_current(name)) return found;
  found.view = file_table(*mount).view(number);
  // Another id: a private page, or the number has come round to another file.
  if (found.view.error != 0 || found.view.cache_id != id) return found;
  const cache::frames frames(mount->cache);
  if (page_number << frames.page_shift() >= static_cast<std::uint64_t>(found.view.nbytes)) return found;
  const cache::page_key key = cache::make_key(id, page_number);
  if (!comes_apart(*mount, found.view, key)) return found;
  pages_type::acquired got{{}, role::hit, 0};
  if (!pages_type::pin_in_choice<true>(frames, key, got.frame, found.is_part)) {
    if (found.is_part) {
      got.what = role::part;
    } else {
      const std::uint64_t fill_ns = waits == page_wait::between_calls ? longest_in_call_ns : 2 * mount->io_timeout_ns;
      got = simt::call_cold(&pages_type::acquire_missed, &mount->cache, key, ring_hint(),
                            pages_type::timeouts{fill_ns, pages_type::at_hand});
    }
  }
  if (got.what == role::error) return found;
  if (got.what == role::fill) {
    if (simt::call_cold(&begin_sectors, mount, found.view, got.frame)) {
      got.what = role::part;
    } else if (fill_frame(simt::this_thread(), *mount, pages_type(mount->cache), found.view, page_number, got.frame) != 0) {
      return found;  // with an error nothing is pinned
    }
  }
  found.frame = got.frame;
  found.is_part = got.what == role::part;
  found.is_pinned = got.what != role::under_way;
  if (!found.is_pinned) frames.unpin(got.frame);
  if (got.what == role::hit || got.what == role::waited)
    note_sectors(*mount, found.view.slot, {0, false, got.what == role::waited});
  return found;
}

// Pins a page npins times, with these sectors: its address and which sectors are there, or a negative errno; -ENOMEM: it is to be
// read past the cache. All lanes call, and get the same.
template <class Group>
GPUFS_DEVICE found_page pin_sectors(Group group, mapping_name name, std::uint32_t page, std::uint32_t wanted, std::uint32_t npins,
                                    page_wait waits) {
  const part_page got = by_leader(group, [&] { return simt::call_cold(&pin_part, name, page, waits); });
  if (!got.is_pinned) return {-ENOMEM, 0};
  const mount_layout& mount = *mount_of(*entry_of(name));
  const cache::frames frames(mount.cache);
  sectors_brought brought{0, false, false};
  if (got.is_part) brought = simt::call_cold(&bring_sectors<Group>, group, &mount, got.view, got.frame, wanted, 0);
  return by_leader(group, [&]() -> found_page {
    if (got.is_part) {
      note_sectors(mount, got.view.slot, brought);
      if (brought.error == 0 && !brought.by_us && !brought.waited)
        cache::page_uses(mount.cache.table, got.view.cache_id).note_unlinked();
    }
    if (brought.error != 0) {
      frames.unpin(got.frame);
      return {brought.error, 0};
    }
    if (npins > 1) frames.pin_more(got.frame, npins - 1);
    const auto address = reinterpret_cast<std::int64_t>(frames.data(got.frame));
    // The acquire of look meets the fences of those who have brought in sectors beside ours.
    return {address, got.is_part ? static_cast<std::uint32_t>(cache::sectors(frames, got.frame).look()) : whole_page};
  });
}

// Pins each lane's page (no_page: none) with the wanted sectors, where the mapping's readers want parts of pages: address 0: it is
// to be brought in whole. Lanes that want the same page look it up once, and bring its sectors in together; the others do it side
// by side. All lanes call.
inline GPUFS_DEVICE_COLD found_page pin_sectors_together(simt::some_lanes lanes, mapping_name name, std::uint32_t page,
                                                         std::uint32_t wanted, page_wait waits) {
  way_of_page way = way_of_page::whole;
  if (page != no_page) way = simt::call_cold(&how_it_is_read, entry_of(name), page);
  found_page mine{way == way_of_page::past_cache ? -ENOMEM : 0, 0};
  std::uint32_t left = lanes.ballot_lanes(way == way_of_page::by_sectors);
  if (left == 0) return mine;
  std::uint32_t alone = 0;
  while (left != 0) {
    const unsigned first = simt::lowest_lane(left);
    const mapping_name theirs = lanes.shfl_from_lane(name, first);
    const std::uint32_t number = lanes.shfl_from_lane(page, first);
    const std::uint32_t same = lanes.ballot_lanes(name == theirs && page == number) & left;
    const std::uint32_t npins = simt::count_lanes(same);
    left &= ~same;
    if (npins == 1) {
      alone |= same;
      continue;
    }
    std::uint32_t all = 0;
    for (std::uint32_t lane = same; lane != 0; lane &= lane - 1) all |= lanes.shfl_from_lane(wanted, simt::lowest_lane(lane));
    const found_page got = pin_sectors(lanes, theirs, number, all, npins, waits);
    if ((same >> simt::lane_id() & 1) != 0) mine = got;
  }
  if ((alone >> simt::lane_id() & 1) != 0) mine = pin_sectors(simt::this_thread(), name, page, wanted, 1, waits);
  lanes.sync();  // the pins are there before a lane gives one back
  return mine;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
