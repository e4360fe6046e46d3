// SPDX-License-Identifier: Apache-2.0
// Writing parts of pages that are there in part (advise(random)): docs/design/part-pages.md, "Writing"
#pragma once
#include "gpufs/file/detail/sector_fill.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// The sectors in which bytes [begin, end) of a page lie.
struct written_sectors {
  std::uint32_t whole, in_part;
};
GPUFS_DEVICE written_sectors sectors_written(std::uint32_t page_shift, std::uint32_t begin, std::uint32_t end) {
  const std::uint32_t sector = 1u << cache::sectors::shift(page_shift);
  std::uint32_t in_part = 0;
  if (begin % sector != 0) in_part |= cache::sectors::of_bytes(page_shift, begin, begin + 1);
  if (end % sector != 0) in_part |= cache::sectors::of_bytes(page_shift, end - 1, end);
  return {cache::sectors::of_bytes(page_shift, begin, end) & ~in_part, in_part};
}

// Called before bytes [begin, end) of a page are written that is not there, or only in part (is_there). If it is not, the caller
// holds its fill. Sectors of which the write keeps some bytes are brought in first, so that an error has changed nothing.
// Those that it writes whole are not read, but claimed: until the caller calls end_part_write, nobody else takes the file's bytes
// for theirs. Meanwhile it waits for nobody. All lanes call; the group has pinned the page. 0, or the negative errno after which
// nothing is pinned.
template <class Group>
GPUFS_DEVICE_COLD int begin_part_write(Group group, const file_mount* mount, file_view view, cache::frame_index frame,
                                       bool is_there, std::uint32_t begin, std::uint32_t end) {
  const cache::frames frames(mount->cache);
  if (!is_there && !by_leader(group, [&] { return simt::call_cold(&begin_sectors, mount, view, frame); })) {
    const std::uint64_t page_number = by_leader(group, [&] { return cache::page_number_of(frames.load_key(frame)); });
    return simt::call_cold(&fill_page<Group>, group, mount, view, page_number, frame);
  }
  const written_sectors wanted = sectors_written(frames.page_shift(), begin, end);
  int error = 0;
  if (wanted.in_part != 0)
    error = simt::call_cold(&bring_sectors<Group>, group, mount, view, frame, wanted.in_part, wanted.whole).error;
  if (error == 0 && wanted.whole != 0) {
    error = by_leader(group, [&] {
      // Nothing is claimed while we wait for others.
      const simt::deadline until(2 * mount->io_timeout_ns);
      const cache::sectors at(frames, frame);
      for (simt::backoff pause; !at.begin_write(wanted.whole); pause()) {
        if (until.expired()) return -ETIMEDOUT;
      }
      cache::frames::fence_claim();
      return 0;
    });
  }
  if (error != 0 && group.leader()) frames.unpin(frame);
  group.sync();
  return error;
}

// After the bytes, and the group's sync: the claimed sectors are there. Of the sectors that the write covers, those on
// their way are the caller's: the others were there when it claimed. Also of a page that came whole. One lane calls.
inline GPUFS_DEVICE_COLD void end_part_write(const file_mount* mount, cache::frame_index frame, std::uint32_t begin,
                                             std::uint32_t end) {
  const cache::frames frames(mount->cache);
  if (!frames.is_partial(frame)) return;  // it is whole, and nothing was claimed
  const cache::sectors at(frames, frame);
  const std::uint32_t claimed = at.busy() & sectors_written(frames.page_shift(), begin, end).whole;
  if (claimed == 0) return;
  simt::fence(std::memory_order_acq_rel, cache::cache_layout::scope);  // as in pull_sectors
  at.end_fill(claimed);
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
