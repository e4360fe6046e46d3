// SPDX-License-Identifier: Apache-2.0
// What is written through pointers: in place, to pages that the pointers have pinned and that are mapped for writing meanwhile
// (file/map_to_write.hpp) or are private copies; and as pwrite does, where an element does not lie in one page.
#pragma once
#include "gpufs/file/map_to_write.hpp"
#include "gpufs/pointer/detail/patience.hpp"
#include "gpufs/pointer/detail/record.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {
namespace detail {

// The frame that has the page at this address.
GPUFS_DEVICE cache::frame_index frame_at(const mapping_entry& from, std::uint64_t address) {
  return cache::frame_index{
      static_cast<std::uint32_t>((address - reinterpret_cast<std::uint64_t>(from.hit.frames.data)) >> from.hit.frames.page_shift)};
}

// The state word of the frame that has the page at this address.
GPUFS_DEVICE std::uint64_t& state_at(const mapping_entry& from, std::uint64_t address) {
  return cache::frames(from.hit.frames).state_word(frame_at(from, address));
}

// Sets `dirty` in the state of a pinned page that is a private copy: the clock must not evict it. Such a page is in no dirty list,
// and is never written back; pages that go back to a file are made dirty by enter_dirty (file/write.hpp).
GPUFS_DEVICE_COLD inline void keep_private_copy(const mapping_entry* from, std::uint64_t address) {
  const cache::word_ref<std::uint64_t> state(state_at(*from, address));
  if ((state.load(std::memory_order_relaxed) & cache::frame_state::dirty) == 0) {
    state.fetch_or(cache::frame_state::dirty, std::memory_order_relaxed);
  }
}

// Calls work(group, from, frame, n, mine) for each frame that lanes have (`from`: its mapping). A full warp takes one frame after
// the other together; `n` lanes have the frame, and `mine` says whether the caller does. Other lanes each call for their own frame.
template <class Work>
GPUFS_DEVICE void for_each_frame(simt::some_lanes lanes, const mapping_entry* from, cache::frame_index frame, Work work) {
  if (lanes.mask() != ~0u) return work(simt::this_thread(), from, frame, 1u, true);
  const auto warp = simt::this_warp();
  for (std::uint32_t left = ~0u; left != 0;) {
    const unsigned first = simt::lowest_lane(left);
    const mapping_entry* theirs = warp.shfl(from, first);
    const cache::frame_index at = warp.shfl(frame, first);
    const std::uint32_t same = warp.ballot(from == theirs && frame == at);
    work(warp, theirs, at, simt::count_lanes(same), (same >> simt::lane_id() & 1) != 0);
    left &= ~same;
  }
}

// Maps the page at each lane's address for writing by that lane, until end_stores. The lane has pinned the page. Returns 0 or a
// negative errno.
GPUFS_DEVICE_COLD inline int begin_stores(const mapping_entry* from, std::uint64_t address) {
  struct site;
  int error = 0;
  for_each_frame(simt::lanes_together<site>(), from, frame_at(*from, address),
                 [&](auto group, const mapping_entry* theirs, cache::frame_index frame, std::uint32_t n, bool mine) {
                   const mount_layout* mount = mount_of(*theirs);
                   const patience wait(*mount, false);
                   const int got = simt::call_cold(&add_mappers<decltype(group)>, group, mount, file_number{theirs->number}, frame,
                                                   n, wait.wait_ns());
                   if (got == -ENOMEM && group.leader()) wait.note_none();
                   if (mine) error = got;
                 });
  return error;
}

// Called before these pages are given up: bytes stored there are written from now on, as by unmap_page. A loss is recorded: 0 or
// the negative errno of why. If the file was closed before, that is a mistake of the kernel's.
GPUFS_DEVICE_COLD inline int end_stores(mapping_name name, std::uint64_t address, accessed at) {
  struct site;
  const mapping_entry* from = entry_of(name);
  int error = 0;
  for_each_frame(simt::lanes_together<site>(), from, frame_at(*from, address),
                 [&](auto group, const mapping_entry* theirs, cache::frame_index frame, std::uint32_t n, bool mine) {
                   const mount_layout* mount = mount_of(*theirs);
                   const noted got = simt::call_cold(&note_changes<decltype(group)>, group, mount, frame, n);
                   if (!got.left && group.leader()) cache::frames(mount->cache).pin_more(frame, n);
                   if (got.open && got.error != 0 && group.leader()) keep_error(file_table(*mount).slot(got.file.slot), got.error);
                   if (got.open) limit_dirty(group, mount, got.file, static_cast<std::uint32_t>(frame));
                   if (mine) error = got.error;
                 });
  if (error != 0) record_access(name, at, error, fault_kind::lost_writes);
  if (error == -EBADF) {
    simt::report_misuse(
        "gives up a page that it has written to through a pointer after the file was closed: what it wrote is lost. Pointers must "
        "end, or unlink, before close");
  }
  return error;
}

// How a pointer has written the page that it is linked to.
enum class page_written : std::uint8_t {
  not_yet,
  to_copy,    // the page is a private copy, marked as changed
  to_mapped,  // it is the file's, mapped for writing
};
struct begun_writing {
  page_written how;
  std::int32_t error;  // 0, or the reason why the page must not or cannot be written, as a negative errno
};
// Before a pointer's first write to its page.
GPUFS_DEVICE_COLD inline begun_writing begin_writing(mapping_name name, std::uint64_t address) {
  mapping_entry* from = entry_of(name);
  int error = check_name(name);
  const bool copied = is_private(simt::atomic_ref<std::uint32_t>(from->cache_id).load(std::memory_order_relaxed));
  simt::fence_loads();  // the entry may be given to another mapping until it is looked at; later, note_changes finds that out
  if (error == 0 && !is_current(name)) error = -EBADF;
  if (error == 0 && copied) {
    keep_private_copy(from, address);
    return {page_written::to_copy, 0};
  }
  if (error == 0) error = stores_to_file(*from) ? simt::call_cold(&begin_stores, from, address) : -EACCES;
  return {error == 0 ? page_written::to_mapped : page_written::not_yet, error};
}

// Writes an element that does not lie in one page of a file that is open for writing. One lane calls. 0 or a negative errno.
GPUFS_DEVICE_COLD inline int store_elsewhere(mapping_name name, std::uint64_t position, const std::byte* bytes,
                                             std::uint32_t nbytes) {
  const mapping_entry* from = entry_of(name);
  if (!stores_to_file(*from)) return -EACCES;
  const mount_layout* mount = mount_of(*from);
  const file_view view = file_table(*mount).view_to_write(file_number{from->number});
  if (view.error != 0) return view.error;
  // The entry may have been given to another file meanwhile; not after this (the fence meets mapping_table's, before it fills one).
  simt::fence(std::memory_order_acquire, simt::scope::device);
  if (!is_current(name)) return -EBADF;
  for (std::uint32_t done = 0; done < nbytes;) {
    if (!begin_changes(*mount, view.slot)) return -ETIMEDOUT;
    if (position + nbytes > static_cast<std::uint64_t>(file_table(*mount).nbytes_now(view.slot))) {  // it was cut meanwhile
      end_changes(*mount, view.slot);
      return -ENXIO;
    }
    const patience wait(*mount, false);
    const std::int64_t got = write_pages(simt::this_thread(), mount, view, bytes + done, nbytes - done,
                                         static_cast<std::int64_t>(position + done), wait.frame_ns());
    if (got == -ENOMEM) wait.note_none();
    if (got < 0) return static_cast<int>(got);
    done += static_cast<std::uint32_t>(got);
  }
  return 0;
}

}  // namespace detail
}  // namespace GPUFS_MACHINE
}  // namespace gpufs
