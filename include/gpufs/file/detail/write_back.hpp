// SPDX-License-Identifier: Apache-2.0
// Bringing written pages back to their files, list by list: docs/design/writing.md. By groups of lanes of one warp; the warps of a
// block take different lists.
#pragma once
#include "gpufs/file/detail/page_write_back.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

inline constexpr std::uint32_t write_batch = 8;  // pages that a group has under way at once

// Writes back up to `most` pages of a list, if its lock is free within lock_ns. All lanes of a group within a warp call. Returns
// how many, or -ETIMEDOUT if no lock or no request slot came in time. Errors of the host go to the slot's write_error.
template <class Group>
GPUFS_DEVICE_COLD int write_back_list(Group group, const file_mount* mount, written_file file, std::uint32_t index,
                                      std::uint32_t most, std::uint64_t lock_ns) {
  cache::dirty_list& list = file_table(*mount).list(file.slot, index);
  const bool locked = by_leader(group, [&] {
    return cache::dirty_pages::try_lock(list) || (lock_ns != 0 && cache::dirty_pages::lock(list, simt::deadline(lock_ns)));
  });
  if (!locked) return lock_ns == 0 ? 0 : -ETIMEDOUT;
  int error = 0;
  std::uint32_t done = 0;
  while (done < most && error == 0) {
    page_under_way batch[write_batch];
    std::uint32_t n = 0;
    while (n < write_batch && done < most) {
      const started_page next = by_leader(group, [&] { return take_dirty(*mount, file, list, batch, n); });
      if (!next.found) {
        error = next.error;
        break;
      }
      ++done;
      if (next.store_at != nullptr) {
        store_page(group, *mount, file, next.page.frame, next.store_at);
        if (n != 0) break;  // requests that are written keep their rings waiting until they are sent
        continue;
      }
      batch[n] = next.page;
      batch[n].nbytes = write_request(group, *mount, file, next.page);
      ++n;
    }
    if (n == 0) break;
    const bool answered = by_leader(group, [&] {
      send_requests(*mount, batch, n);
      const simt::deadline until(mount->io_timeout_ns);  // for all answers
      bool all = true;
      for (std::uint32_t i = 0; i < n; ++i) all &= finish_page(*mount, file, list, batch[i], until);
      return all;
    });
    if (!answered) error = -ETIMEDOUT;
  }
  if (group.leader()) cache::dirty_pages::unlock(list);
  return error != 0 ? error : static_cast<int>(done);
}

inline GPUFS_DEVICE_COLD void end_late_writes(const file_mount* mount) { mount_requests(*mount).end_late(); }

// Writes back the lists start + first, start + first + step, .... When it returns 0, all bytes that were written before the call
// are in the host's page cache, or their loss is noted in the slot. -ETIMEDOUT: a list is lost, since now or before. Lists that
// were lost before do not keep the others from being written. Groups begin at different lists (`start`): where all begin at one,
// they wait for its holder, and nobody writes the others. All lanes call, and look at a list each.
template <class Group>
GPUFS_DEVICE int write_back_lists(Group group, const file_mount* mount, const written_file& file, std::uint32_t start,
                                  std::uint32_t first, std::uint32_t step) {
  int lost = 0, error = 0;
  for (std::uint32_t base = first; base < lists_per_slot && error == 0; base += step * group.size()) {
    const std::uint32_t mine = base + step * group.rank();
    bool is_lost = false, is_busy = false;
    if (mine < lists_per_slot) {
      cache::dirty_list& list = file_table(*mount).list(file.slot, (start + mine) % lists_per_slot);
      if (cache::dirty_pages::is_lost(list)) simt::call_cold(&end_late_writes, mount);
      is_lost = cache::dirty_pages::is_lost(list);
      is_busy = !is_lost && !cache::dirty_pages::is_idle(list);
    }
    if (group.ballot(is_lost) != 0) lost = -ETIMEDOUT;
    for (std::uint32_t busy = group.ballot(is_busy); busy != 0 && error == 0; busy &= busy - 1) {
      const std::uint32_t index = (start + base + step * simt::lowest_lane(busy)) % lists_per_slot;
      const int done = simt::call_cold(&write_back_list<Group>, group, mount, file, index, ~0u, 2 * mount->io_timeout_ns);
      if (done < 0) error = done;
    }
  }
  group.sync();  // every lane now sees what each lane has seen to be done
  return error != 0 ? error : lost;
}
template <class Group>
GPUFS_DEVICE int write_back_all(Group group, const file_mount* mount, const written_file& file) {
  return write_back_lists(group, mount, file, by_leader(group, [] { return ring_hint(); }), 0, 1);
}
GPUFS_DEVICE int write_back_all(simt::block group, const file_mount* mount, const written_file& file) {
  group.sync();  // what other warps have written is listed
  const int error = write_back_lists(group.warp(), mount, file, simt::block_rank() * 29, simt::warp_rank(), group.nwarps());
  return group.any(error != 0) ? -ETIMEDOUT : 0;
}

// Writes all of the file back, and returns the first error of its writing since a call last returned one. All lanes call.
template <class Group>
GPUFS_DEVICE_COLD int flush(Group group, const file_mount* mount, written_file file) {
  const int error = write_back_all(group, mount, file);
  return by_leader(group, [&]() -> int {
    const int kept =
        simt::atomic_ref<std::int32_t>(file_table(*mount).slot(file.slot).write_error).exchange(0, std::memory_order_relaxed);
    return kept != 0 ? kept : error;
  });
}

// Called after a group has made a page dirty. If the mount has too many dirty pages, writes back pages of this file, at least one,
// so that this group's page makes them no more. Waits only while other groups hold the locks of all lists that have pages. It must
// not rely on these groups to find all pages: they may just have looked, and then nobody would clean pages while all wait for a
// clean frame. Other groups are writing back the pages that are out of the lists. Gives up after the time in which a lock's holder
// must have ended. All lanes of a group within a warp call, and look at a list each.
template <class Group>
GPUFS_DEVICE void limit_dirty(Group group, const file_mount* mount, const written_file& file, std::uint32_t start) {
  const auto too_many = [&] {
    return by_leader(group, [&] {
      return simt::atomic_ref<std::uint64_t>(mount->words->dirty_pages).load(std::memory_order_relaxed) > mount->files.dirty_limit;
    });
  };
  if (!too_many()) return;
  const simt::deadline until(2 * mount->io_timeout_ns);
  simt::backoff pause;
  for (bool listed = true; listed;) {
    listed = false;
    for (std::uint32_t base = 0; base < lists_per_slot; base += group.size()) {
      const std::uint32_t mine = base + group.rank();
      bool has_pages = false, is_free = false;
      if (mine < lists_per_slot) {
        cache::dirty_list& list = file_table(*mount).list(file.slot, (start + mine) % lists_per_slot);
        has_pages = !cache::dirty_pages::is_empty(list) && !cache::dirty_pages::is_lost(list);
        is_free = has_pages && !cache::dirty_pages::is_locked(list);
      }
      listed |= group.ballot(has_pages) != 0;
      for (std::uint32_t free = group.ballot(is_free); free != 0; free &= free - 1) {
        const std::uint32_t index = (start + base + simt::lowest_lane(free)) % lists_per_slot;
        if (simt::call_cold(&write_back_list<Group>, group, mount, file, index, write_batch, 0) != 0) return;
      }
    }
    if (!too_many() || by_leader(group, [&] { return until.expired(); })) return;
    if (listed) pause();
  }
}

GPUFS_DEVICE void limit_dirty(simt::block group, const file_mount* mount, const written_file& file, std::uint32_t start) {
  if (simt::warp_rank() == 0) limit_dirty(group.warp(), mount, file, start);
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
