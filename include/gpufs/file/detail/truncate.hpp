// SPDX-License-Identifier: Apache-2.0
// What ftruncate does: cached pages are cut, then the file.
#pragma once
#include "gpufs/file/sync.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// The sectors of a page that are there, once nobody brings in one that has bytes from `begin` on.
struct sectors_there {
  std::uint32_t valid;
  bool in_time;
};
// The caller has pinned the page. One lane calls, after the fence that follows the new size.
inline GPUFS_DEVICE_COLD sectors_there wait_for_sectors(const file_mount* mount, cache::frame_index frame, std::uint32_t begin) {
  const cache::frames frames(mount->cache);
  if (!frames.is_partial(frame)) return {~0u, true};
  const cache::sectors at(frames, frame);
  const std::uint32_t cut = cache::sectors::of_bytes(frames.page_shift(), begin, frames.page_nbytes());
  const simt::deadline until(2 * mount->io_timeout_ns);
  simt::backoff pause;
  for (;;) {
    const std::uint64_t seen = at.look();
    const bool is_busy = (static_cast<std::uint32_t>(seen >> cache::sectors::most) & cut) != 0;
    if (!is_busy || until.expired()) return {static_cast<std::uint32_t>(seen), !is_busy};
    pause();
  }
}

// Cuts a cached page at the new end of its file, which is at byte `begin` of the page. Bytes from there on become zeros, also in
// the page's twin if the page is mapped for writing, and are not written back. Of a page in part, so become those that are there:
// who claims a sector later sees the new size (the fence in live::find meets truncate's). All lanes call; the leader has pinned the
// frame. False: -ETIMEDOUT.
template <class Group>
GPUFS_DEVICE bool cut_page(Group group, const file_mount& mount, cache::frame_index frame, std::uint32_t begin) {
  const cache::frames frames(mount.cache);
  const cache::dirty_pages pages(mount.cache);
  const sectors_there there = by_leader(group, [&] { return simt::call_cold(&wait_for_sectors, &mount, frame, begin); });
  const std::uint32_t shift = cache::sectors::shift(frames.page_shift());
  const auto zero = [&](std::byte* data) {
    for (std::uint32_t i = begin + group.rank(); i < frames.page_nbytes(); i += group.size()) {
      if ((there.valid >> (i >> shift) & 1) != 0) data[i] = std::byte{0};
    }
    group.sync();
  };
  zero(frames.data(frame));
  pages.unmark(group, frame, begin);
  cache::twin_state& twin = pages.twin(frame);
  // Also where there is no twin: a mapper that makes one has the lock after us, and copies the zeros.
  const bool locked =
      by_leader(group, [&] { return cache::dirty_pages::lock_twin(twin, simt::deadline(2 * mount.io_timeout_ns)); });
  if (locked) {
    if (by_leader(group, [&] { return cache::dirty_pages::is_mapped(twin); })) zero(frames.data(cache::frame_index{twin.twin}));
    if (group.leader()) cache::dirty_pages::unlock_twin(twin);
  }
  group.sync();
  if (group.leader()) cache::frames::unpin_after_writes(frames.state_word(frame), 1);
  return locked && there.in_time;
}

// Looks at the frames first, first + step, ... x the group's size. Pins each frame whose page is the file's and reaches beyond
// nbytes, and cuts that page. All lanes of a group within a warp call. 0, or -ETIMEDOUT when a fill takes too long.
template <class Group>
GPUFS_DEVICE int cut_pages(Group group, const file_mount& mount, std::uint32_t cache_id, std::uint64_t nbytes, std::uint32_t first,
                           std::uint32_t step) {
  const cache::frames frames(mount.cache);
  const std::uint32_t shift = frames.page_shift();
  int error = 0;
  for (std::uint64_t base = std::uint64_t{first} * group.size(); base < frames.count();
       base += std::uint64_t{step} * group.size()) {
    const auto mine = static_cast<std::uint32_t>(base + group.rank());
    std::uint64_t number = 0;
    bool cut = false;
    if (mine < frames.count()) {
      const cache::frame_index f{mine};
      const cache::page_key key = frames.load_key(f);
      number = cache::page_number_of(key);
      if (cache::cache_id_of(key) == cache_id && (number + 1) << shift > nbytes) {
        const auto pinned = frames.pin(f, key);  // looks at the key again
        cut = pinned.held;
        if (cut && frames.wait_filled(f, simt::deadline(2 * mount.io_timeout_ns)) != 0) {
          // Its fill failed, or takes too long.
          if ((frames.state(f).load(std::memory_order_relaxed) & cache::frame_state::filling) != 0) error = -ETIMEDOUT;
          frames.unpin(f);
          cut = false;
        }
      }
    }
    for (std::uint64_t left = group.ballot(cut); left != 0; left &= left - 1) {
      const unsigned rank = simt::lowest_lane(static_cast<std::uint32_t>(left));
      const std::uint64_t page_begin = group.shfl(number, rank) << shift;
      const bool done = cut_page(group, mount, cache::frame_index{static_cast<std::uint32_t>(base + rank)},
                                 nbytes > page_begin ? static_cast<std::uint32_t>(nbytes - page_begin) : 0);
      if (!done) error = -ETIMEDOUT;
    }
  }
  return group.ballot(error != 0) != 0 ? -ETIMEDOUT : 0;
}
template <class Group>
GPUFS_DEVICE int cut_all(Group group, const file_mount& mount, std::uint32_t cache_id, std::uint64_t nbytes) {
  return cut_pages(group, mount, cache_id, nbytes, 0, 1);
}
GPUFS_DEVICE int cut_all(simt::block group, const file_mount& mount, std::uint32_t cache_id, std::uint64_t nbytes) {
  const int error = cut_pages(group.warp(), mount, cache_id, nbytes, simt::warp_rank(), group.nwarps());
  return group.any(error != 0) ? -ETIMEDOUT : 0;
}

template <class Group>
GPUFS_DEVICE_COLD int truncate(Group group, const file_mount* mount, file_view view, std::int64_t nbytes) {
  const file_table files(*mount);
  view = group.broadcast(view);
  simt::atomic_ref<std::int64_t> size(files.slot(view.slot).bytes.nbytes);
  simt::atomic_ref<std::uint64_t> mapped(files.slot(view.slot).bytes.mapped_nbytes);
  std::int64_t before = 0;  // the leader's
  if (files.has_fixed_size(view.slot)) return nbytes == size.load(std::memory_order_relaxed) ? 0 : -EINVAL;
  int error = by_leader(group, [&]() -> int {
    if (!begin_truncation(*mount, view.slot)) return -ETIMEDOUT;
    before = size.exchange(nbytes, std::memory_order_acq_rel);
    if (mapped.load(std::memory_order_relaxed) > static_cast<std::uint64_t>(nbytes)) {
      mapped.store(static_cast<std::uint64_t>(nbytes), std::memory_order_relaxed);
    }
    simt::fence(std::memory_order_seq_cst, simt::scope::device);  // meets source::live's
    return 0;
  });
  if (error != 0) return error;
  error = cut_all(group, *mount, view.cache_id, static_cast<std::uint64_t>(nbytes));
  group.sync();
  return by_leader(group, [&]() -> int {
    if (error == 0) error = wait_for_write_backs(mount, view.slot);  // of bytes that are cut now
    if (error == 0) error = mount_names(*mount, ring_hint()).set_size(view.handle, nbytes);
    if (error != 0 && nbytes > before) size.store(before, std::memory_order_release);  // it has not grown
    end_truncation(*mount, view.slot);
    return error;
  });
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
