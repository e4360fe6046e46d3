// SPDX-License-Identifier: Apache-2.0
// Pages that are brought in sector by sector, as their readers want a little of each (advise(random)). docs/design/part-pages.md
#pragma once
#include "gpufs/cache/detail/page_uses.hpp"
#include "gpufs/file/detail/fill.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// Whether the page at this offset may come sector by sector, as the device can read its bytes itself. Not where they come by
// commands, which take as long for a sector as for the page. Of a file that is open for writing, where its users have said that
// they want it so (advise(random)); pages that reach beyond the mapping come whole. One lane calls.
GPUFS_DEVICE bool may_come_apart(const file_mount& mount, const file_view& view, std::uint64_t offset) {
  if (view.error == 0 && view.kind == source_kind::nvme) return false;
  if (view.error != 0 || has_version(view.kind)) return is_read_by_device(mount, view, offset);
  return file_slots::habit_of(mount, view.slot).load_relaxed() == read_habit::apart &&
         find_piece(mount, view, offset, 1u << mount.cache.frames.page_shift).where == source::place::host_memory;
}

// Begins to bring a page in sector by sector, if that is possible. The caller holds its fill. False: not begun. One lane calls. Of
// a file that is open for writing the fence in live::find comes after the page's entry in the table, also for sectors that are
// written whole (begin_whole_page).
inline GPUFS_DEVICE_COLD bool begin_sectors(const file_mount* mount, file_view view, cache::frame_index frame) {
  const cache::frames frames(mount->cache);
  const std::uint64_t offset = cache::page_number_of(frames.load_key(frame)) << frames.page_shift();
  if (cache::sectors::all(frames.page_shift()) == 1 || !may_come_apart(*mount, view, offset)) return false;
  cache::sectors(frames, frame).begin();
  return true;
}

// Which sectors come along with those that a group brings in, of a file in this slot: the rest of the page, once its readers want
// whole pages, or as many as there are of a run that goes on.
GPUFS_DEVICE std::uint32_t sectors_along(file_block& block, std::uint32_t slot, std::uint64_t seen, std::uint32_t wanted,
                                         std::uint32_t page_shift) {
  const read_habit habit = file_slots::habit_of(block, slot).load_relaxed();
  using want = cache::sectors::want;
  const want what = habit == read_habit::unknown ? want::learnt : habit >= read_habit::once ? want::part : want::whole;
  return cache::sectors::along(seen, wanted, page_shift, what);
}

// Brings in sectors of a page that the caller has claimed, run by run. All lanes call. 0 or a negative errno: -ETIMEDOUT where
// runs that the host brings in leave no io_timeout of `until` for the next, as others wait for all of them. until: two from before
// the claim.
template <class Group>
GPUFS_DEVICE int pull_sectors(Group group, const file_mount& mount, const file_view& view, std::uint64_t page_offset,
                              cache::frame_index frame, std::uint32_t mine, const simt::deadline& until) {
  const cache::frames frames(mount.cache);
  const std::uint32_t shift = cache::sectors::shift(frames.page_shift());
  int error = 0;
  bool pulled = false;
  for (std::uint32_t left = mine; left != 0 && error == 0;) {
    const unsigned first = simt::lowest_lane(left);
    const std::uint32_t behind_run = ~(left >> first);
    const unsigned n = behind_run == 0 ? cache::sectors::most : simt::lowest_lane(behind_run);
    const std::uint32_t begin = first << shift, nbytes = n << shift;
    // Of a file that is open for writing the view may be older than the pin, and the file longer by now: its source knows.
    if (!has_version(view.kind) || page_offset + begin < static_cast<std::uint64_t>(view.nbytes)) {
      const part_taken taken = take_part(group, mount, view, page_offset + begin, frames.data(frame) + begin, nbytes);
      error = taken.error;
      pulled |= taken.pulled;
    } else {
      zero_rest(group, frames.data(frame) + begin, 0, nbytes);
    }
    left &= ~(~0u >> (cache::sectors::most - n) << first);
    if (left != 0 && error == 0) error = by_leader(group, [&] { return until.nearer_than(mount.io_timeout_ns) ? -ETIMEDOUT : 0; });
  }
  group.sync();  // the bytes of all lanes happen before the leader's release
  return by_leader(group, [&] {
    const cache::sectors at(frames, frame);
    // As in end_pulled: it publishes the bytes, and the version is looked at after they were read.
    simt::fence(std::memory_order_acq_rel, cache::cache_layout::scope);
    if (error == 0 && pulled && file_slots::is_stale_after_fence(*view.opened, view.handle)) error = -ESTALE;
    if (error != 0) {
      at.give_up(mine);
      return error;
    }
    if (at.end_fill(mine)) cache::page_uses(mount.cache.table, view.cache_id).note_whole();
    count_filled(file_table(mount).counters(view.slot), simt::count_lanes(mine) << shift);
    return 0;
  });
}

// What bring_sectors has done.
struct sectors_brought {
  int error;  // 0 or a negative errno
  bool by_us, waited;
};

// Counts a page whose sectors were there, or were brought in by others. One lane calls.
GPUFS_DEVICE void note_sectors(const file_mount& mount, std::uint32_t slot, const sectors_brought& brought) {
  if (brought.error != 0 || brought.by_us) return;
  const file_table table(mount);
  count(brought.waited ? table.counters(slot).waits : table.hits(slot).hits, 1);
}

// Makes sure that these sectors of a page are there. The page is there in part, and the group has pinned it. The group first brings
// in sectors that nobody else does, and then waits for the others. Those of `apart` do not come along: the caller is to write them
// whole. All lanes call; the view is the leader's.
template <class Group>
GPUFS_DEVICE_COLD sectors_brought bring_sectors(Group group, const file_mount* mount, file_view view, cache::frame_index frame,
                                                std::uint32_t wanted, std::uint32_t apart) {
  struct step {
    std::uint32_t missing, mine;
    int error;
  };
  view = group.broadcast(view);
  frame = group.broadcast(frame);
  wanted = group.broadcast(wanted);
  apart = group.broadcast(apart);
  const cache::frames frames(mount->cache);
  const cache::sectors at(frames, frame);
  const std::uint64_t page_offset =
      by_leader(group, [&] { return cache::page_number_of(frames.load_key(frame)) << frames.page_shift(); });
  // The zeros behind the file's last byte come with that byte, so that the file's last page, too, can become whole.
  const std::uint64_t file_nbytes = view.error == 0 ? static_cast<std::uint64_t>(view.nbytes) : 0;
  std::uint32_t rest = 0;
  if (file_nbytes > page_offset && file_nbytes - page_offset < frames.page_nbytes()) {
    const auto end = static_cast<std::uint32_t>(file_nbytes - page_offset);
    rest = cache::sectors::of_bytes(frames.page_shift(), end - 1, frames.page_nbytes());
  }
  const auto with_rest = [&](std::uint32_t some) { return (some & rest & (0 - rest)) != 0 ? some | (rest & ~apart) : some; };
  wanted = with_rest(wanted);
  const simt::deadline until(2 * mount->io_timeout_ns);
  sectors_brought result{view.error, false, false};
  while (result.error == 0) {
    const step now = by_leader(group, [&]() -> step {
      simt::backoff pause;
      for (;;) {
        const std::uint64_t seen = at.look();
        const std::uint32_t missing = wanted & ~static_cast<std::uint32_t>(seen);
        if (missing == 0) return {0, 0, 0};
        file_block& files = file_slots(*mount).block(view.slot);
        const std::uint32_t along = sectors_along(files, view.slot, seen, wanted, frames.page_shift()) & ~apart;
        const std::uint32_t mine = at.begin_fill(missing | with_rest(along));
        if (mine != 0) {
          cache::frames::fence_claim();
          return {missing, mine, 0};
        }
        result.waited = true;
        if (until.expired()) return {missing, 0, -ETIMEDOUT};
        pause();
      }
    });
    result.error = now.error;
    if (now.missing == 0 || now.error != 0) break;
    result.error = pull_sectors(group, *mount, view, page_offset, frame, now.mine, until);
    result.by_us = true;
    if ((now.missing & ~now.mine) == 0) break;
  }
  group.sync();
  return result;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
