// SPDX-License-Identifier: Apache-2.0
// What fsync and msync do: written pages go to the host, and the host brings them as far as was asked.
#pragma once
#include "gpufs/file/detail/write_back.hpp"
#include "gpufs/file/detail/write_gate.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

// How far fsync brings what was written.
enum class durability : std::uint32_t {
  page_cache,  // to the host's page cache: processes see it; lost if the machine stops
  data,        // to stable storage, as fdatasync(2): the bytes and what is needed to read them
  stable,      // as fsync(2): all of the file
};

namespace detail {

// Waits until all write-backs that were under way have ended: it sees each list's lock free once. One lane calls. 0 or -ETIMEDOUT.
inline GPUFS_DEVICE_COLD int wait_for_write_backs(const file_mount* mount, std::uint32_t slot) {
  for (std::uint32_t i = 0; i < lists_per_slot; ++i) {
    cache::dirty_list& list = file_table(*mount).list(slot, i);
    if (cache::dirty_pages::is_lost(list)) end_late_writes(mount);
    if (!cache::dirty_pages::lock(list, simt::deadline(2 * mount->io_timeout_ns))) return -ETIMEDOUT;
    cache::dirty_pages::unlock(list);
  }
  return 0;
}

// Asks the host to sync a file that has been written back. One lane calls. 0 or a negative errno.
inline GPUFS_DEVICE_COLD int sync_on_host(const file_mount* mount, std::uint32_t slot, std::uint32_t handle, durability how) {
  file_slot& file = file_table(*mount).slot(slot);
  const simt::atomic_ref<std::uint64_t> in_place(file.in_place_nbytes);
  if (how == durability::page_cache && in_place.load(std::memory_order_relaxed) == 0) return 0;
  const simt::atomic_ref<std::uint32_t> unsynced(file.unsynced);
  // Before we look how much was stored, and meets note_written_in_place's release: what was noted before is told to the host now,
  // and what is noted from here on sets the word again, so that the last close tells it.
  unsynced.exchange(0, std::memory_order_acq_rel);
  const std::uint64_t in_place_nbytes = in_place.load(std::memory_order_relaxed);
  const std::uint32_t flags = how == durability::stable ? 0
                              : how == durability::data ? names::sync_data_only
                                                        : names::sync_page_cache;
  const int error = mount_names(*mount, ring_hint()).sync(handle, in_place_nbytes, flags);
  if (error != 0) unsynced.store(1, std::memory_order_relaxed);
  if (error != 0 && in_place_nbytes != 0) {
    // The mapping may not be the file's any more. What is being stored there now is lost, too, and told by this error.
    const bool alone = begin_truncation(*mount, slot);
    simt::atomic_ref<std::uint64_t>(file.bytes.mapped_nbytes).store(0, std::memory_order_relaxed);
    if (wait_for_write_backs(mount, slot) == 0 && alone) {
      simt::atomic_ref<std::uint64_t>(file.in_place_nbytes).store(0, std::memory_order_relaxed);  // told
    }
    if (alone) end_truncation(*mount, slot);
  }
  return error;
}

// Writes all of a file back, and returns its first error; but does not tell the host what was stored in place. All lanes call;
// `view` becomes the leader's.
template <class Group>
GPUFS_DEVICE int flush_file(Group group, const file_mount* mount, file_number number, file_view& view) {
  group.sync();  // what the group has written
  view = by_leader(group, [&] { return file_table(*mount).view_to_write(number); });
  return view.error != 0 ? view.error : simt::call_cold(&flush<Group>, group, mount, written(view));
}

// What fsync does.
template <class Group>
GPUFS_DEVICE int sync_file(Group group, const file_mount* mount, file_number number, durability how) {
  file_view view;
  const int error = flush_file(group, mount, number, view);
  if (view.error != 0) return error;
  const int synced = by_leader(group, [&] { return simt::call_cold(&sync_on_host, mount, view.slot, view.handle, how); });
  return error != 0 ? error : synced;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
