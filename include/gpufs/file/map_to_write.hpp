// SPDX-License-Identifier: Apache-2.0
// Pages of files that kernels write by plain stores. After GPUfs (CACM'14), section 3 (gmmap, gmsync, gmunmap): what was written is
// found by a comparison with a copy, the page's twin, that is made when it is mapped and shared by all groups that have it mapped
// (docs/design/writing.md, "Pages mapped for writing"). Called as what file.hpp has.
#pragma once
#include "gpufs/file/open.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

namespace detail {

// Called before pages of a file get twins. When it returns 0, each write-back keeps its page's twin from then on, and all older
// write-backs have ended. One lane calls. 0 or -ETIMEDOUT.
inline GPUFS_DEVICE_COLD int begin_twins(const file_mount* mount, std::uint32_t slot) {
  const simt::atomic_ref<std::uint32_t> twinned(file_table(*mount).slot(slot).twinned);
  if ((twinned.load(std::memory_order_acquire) & twins_kept) != 0) return 0;  // meets the release below
  twinned.fetch_or(twins_soon, std::memory_order_relaxed);
  const int error = wait_for_write_backs(mount, slot);
  if (error == 0) twinned.fetch_or(twins_kept, std::memory_order_release);
  return error;
}

// Counts n more mappings to write of a page that the callers have pinned; makes its twin if there is none, and waits frame_ns for a
// frame for that. `number` is one of the file's by which it may be written. All lanes call. 0, -EBADF, -ENOMEM or -ETIMEDOUT.
template <class Group>
GPUFS_DEVICE_COLD int add_mappers(Group group, const file_mount* mount, file_number number, cache::frame_index frame,
                                  std::uint32_t n, std::uint64_t frame_ns) {
  const cache::frames frames(mount->cache);
  cache::twin_state& state = cache::dirty_pages(mount->cache).twin(frame);
  const cache::word_ref<std::uint32_t> count(state.count);
  using pages_type = cache::page_cache<>;
  struct start {
    cache::frame_index spare;
    int error;
    bool first;  // we have the lock, and no twin is there
  };
  const start at = by_leader(group, [&]() -> start {
    start mine{};
    const file_view view = file_table(*mount).view_to_write(number);
    mine.error = view.error != 0 ? view.error : begin_twins(mount, view.slot);
    if (mine.error != 0) return mine;
    const simt::deadline until(2 * mount->io_timeout_ns), frame_until(frame_ns);
    const std::uint32_t ring = simt::processor_id() * 29 + static_cast<std::uint32_t>(frame);
    bool have_spare = false;
    for (simt::backoff pause;; pause()) {
      if (!have_spare && !cache::dirty_pages::is_mapped(state)) {
        // Before the lock, as it may take a while: until somebody gives a frame back, or makes the twin.
        const auto spare = pages_type::take_frame(&mount->cache, ring, 0);
        have_spare = spare.error == 0;
        mine.spare = spare.frame;
        if (!have_spare && operation::are_there(*mount)) mount_requests(*mount).end_ahead(ring, 4);
        if (!have_spare && !frame_until.expired()) continue;
        mine.error = spare.error;
        if (!have_spare) break;
      }
      if (!cache::dirty_pages::lock_twin(state, until)) {
        mine.error = -ETIMEDOUT;
        break;
      }
      mine.first = !cache::dirty_pages::is_mapped(state);
      if (mine.first && have_spare) return mine;
      if (!mine.first) count.fetch_add(n, std::memory_order_relaxed);
      cache::dirty_pages::unlock_twin(state);
      if (!mine.first) break;
      // The others have unmapped it since we looked.
      if (until.expired()) {
        mine.error = -ETIMEDOUT;
        break;
      }
    }
    if (have_spare) frames.unpin(mine.spare);
    return mine;
  });
  if (at.error == 0 && at.first) {
    simt::copy_changing(group, frames.data(at.spare), frames.data(frame), frames.page_nbytes());
    if (group.leader()) {
      state.twin = static_cast<std::uint32_t>(at.spare);
      cache::word_ref<std::int32_t>(state.number).store(static_cast<std::int32_t>(number), std::memory_order_relaxed);
      count.store(n, std::memory_order_relaxed);
      cache::dirty_pages::unlock_twin(state);
    }
  }
  group.sync();  // nobody stores before the twin is there
  return at.error;
}

struct twinned_page {
  cache::frame_index frame;
  int error;
};
// Pins a page, and counts the group among those that write it by plain stores. All lanes call; `view` and `number` are the
// leader's.
template <class Group>
GPUFS_DEVICE_COLD twinned_page map_to_write(Group group, const file_mount* mount, file_view view, file_number number,
                                            std::uint64_t page_number) {
  view = group.broadcast(view);
  number = group.broadcast(number);
  const file_pages here(file(mount_ref(mount), file_number{static_cast<std::int32_t>(number) & ~number_write_only}));
  cache::frame_storage frames = mount->cache.frames;
  const auto got =
      complete_page(group, here, by_leader(group, [&] { return acquire_page(group, here, frames, view, page_number); }));
  if (got.error != 0) return {{}, got.error};
  const int error = simt::call_cold(&add_mappers<Group>, group, mount, number, got.frame, 1, mount->frame_timeout_ns);
  if (error != 0 && group.leader()) cache::frames(mount->cache).unpin(got.frame);
  return {got.frame, error};
}

// Maps the page that holds `offset` of the file that `view`, the leader's, tells of.
template <class Group>
GPUFS_DEVICE twinned_page map_page_of(Group group, const file_mount* mount, const file_view& view, file_number number,
                                      std::int64_t offset, std::uint32_t* nbytes) {
  struct range {
    std::int64_t left;
    int error;
  };
  const range of = by_leader(group, [&]() -> range {
    if (view.error != 0) return {0, view.error};
    return {view.nbytes - offset, offset < 0 ? -EINVAL : offset >= view.nbytes ? -ENXIO : 0};
  });
  if (of.error != 0) return {{}, of.error};
  const std::uint32_t shift = mount->cache.frames.page_shift;
  const std::uint64_t page_number = static_cast<std::uint64_t>(offset) >> shift;
  const std::uint32_t here =
      (1u << shift) - static_cast<std::uint32_t>(static_cast<std::uint64_t>(offset) - (page_number << shift));
  *nbytes = of.left < here ? static_cast<std::uint32_t>(of.left) : here;
  return simt::call_cold(&map_to_write<Group>, group, mount, view, number, page_number);
}

// The number by which the file of a page that the caller has mapped may be written.
GPUFS_DEVICE file_number number_of_mapped(const file_mount& mount, cache::frame_index frame) {
  cache::twin_state& state = cache::dirty_pages(mount.cache).twin(frame);
  return file_number{cache::word_ref<std::int32_t>(state.number).load(std::memory_order_relaxed)};
}

struct noted {
  written_file file;
  int error;
  bool open;  // whether the file is open: then `file` is valid
  bool left;  // false: those who were to leave the page count as its writers for ever, so it must stay pinned
};
// Marks all bytes that were stored into a mapped page so far as written, as by pwrite, except bytes beyond the file's end if the
// file was cut meanwhile. Then ends `nleaving` of the page's mappings; the page stays pinned. All lanes call. error: 0; or -EBADF
// (the file is not open) or -ETIMEDOUT, and then nothing was noted.
template <class Group>
GPUFS_DEVICE_COLD noted note_changes(Group group, const file_mount* mount, cache::frame_index frame, std::uint32_t nleaving) {
  group.sync();  // the group's stores
  const cache::frames frames(mount->cache);
  const cache::dirty_pages pages(mount->cache);
  cache::twin_state& state = pages.twin(frame);
  struct start {
    noted result;
    std::uint32_t end;
  };
  const start at = by_leader(group, [&]() -> start {
    file_view view = file_table(*mount).view_to_write(number_of_mapped(*mount, frame));
    // The file was closed before, and another has the number by now, or (pointers) the mapping that the number was taken from.
    if (view.error == 0 && cache::cache_id_of(frames.load_key(frame)) != view.cache_id) view.error = -EBADF;
    start mine{{written(view), view.error, view.error == 0, false}, 0};
    // The gate before the lock: a truncation, which has closed the gate, takes the lock.
    const bool passed = view.error == 0 && begin_changes(*mount, view.slot);
    if (view.error == 0 && !passed) mine.result.error = -ETIMEDOUT;
    mine.result.left = cache::dirty_pages::lock_twin(state, simt::deadline(2 * mount->io_timeout_ns));
    if (!mine.result.left) {
      mine.result.error = -ETIMEDOUT;
      if (passed) end_changes(*mount, view.slot);
    }
    if (mine.result.error != 0) return mine;
    const std::uint64_t page_begin = cache::page_number_of(frames.load_key(frame)) << frames.page_shift();
    const auto size = static_cast<std::uint64_t>(file_table(*mount).nbytes_now(view.slot));
    const std::uint64_t left = size > page_begin ? size - page_begin : 0;
    mine.end = left < frames.page_nbytes() ? static_cast<std::uint32_t>(left) : frames.page_nbytes();
    return mine;
  });
  if (!at.result.left) return at.result;
  const cache::frame_index twin{state.twin};
  const bool changed = at.end != 0 && pages.mark_changes(group, frame, frames.data(twin), at.end);
  group.sync();
  if (group.leader()) {
    // With the lock held: a caller whose stores all are noted may rely on the page's being listed.
    if (changed) enter_dirty(*mount, at.result.file, frame);
    const bool last =
        nleaving != 0 && cache::word_ref<std::uint32_t>(state.count).fetch_sub(nleaving, std::memory_order_relaxed) == nleaving;
    cache::dirty_pages::unlock_twin(state);
    if (at.result.error == 0) end_changes(*mount, at.result.file.slot);
    if (last) cache::frames::unpin_after_writes(frames.state_word(twin), 1);
  }
  group.sync();
  return at.result;
}

struct written_frame {
  const file_mount* mount;
  cache::frame_index frame;
};
// Where a page lies that is mapped for writing.
GPUFS_DEVICE written_frame frame_of(const page_handle<std::byte>& page) {
  const file_mount* mount = file_slots::mount_of(file_slots::home_of(page.entry, file_slots::index_of(file_number{page.number})));
  return {mount, cache::frames(mount->cache).frame_of(*page.state)};
}

// What msync does with a mapped page.
template <class Group>
GPUFS_DEVICE int sync_mapped(Group group, const file_mount* mount, cache::frame_index frame, durability how) {
  const file_number number = by_leader(group, [&] { return number_of_mapped(*mount, frame); });
  const noted got = simt::call_cold(&note_changes<Group>, group, mount, frame, 0);
  return got.error != 0 ? got.error : sync_file(group, mount, number, how);
}

// What unmap_page does with one.
template <class Group>
GPUFS_DEVICE int unmap_written(Group group, const file_mount* mount, cache::frame_index frame) {
  const noted got = simt::call_cold(&note_changes<Group>, group, mount, frame, 1);
  if (got.left && group.leader()) cache::frames::unpin_after_writes(cache::frames(mount->cache).state_word(frame), 1);
  if (got.open) limit_dirty(group, mount, got.file, static_cast<std::uint32_t>(frame));
  return got.error;
}

}  // namespace detail

// Maps the page that holds `offset` for reading and writing: it is pinned in the cache, and does not move, until unmap_page. All
// groups that have it mapped so take one more frame together until then. Readers of the page see stores at once; msync and
// unmap_page write them, as pwrite does: every byte that has another value than it had when the first of these groups mapped the
// page, or when one of them last wrote its stores. A file that must grow does so by ftruncate before. The page's error() is 0, or
// as map_page's, and -EBADF for a file that is not open for writing. Several groups may map a page and store to different bytes of
// it.
template <class Byte, simt::group Group>
requires std::is_same_v<Byte, std::byte> GPUFS_DEVICE mapped_page<Byte> map_page(Group group, const file& opened,
                                                                                 std::int64_t offset) {
  const simt::group_call call(group, "map_page(file, mount, offset)", opened.number(), opened.entry(), offset);
  if (opened.error() != 0) return detail::not_mapped<Byte>(simt::call_cold(&detail::refuse<Group>, group, opened));
  const file_mount* mount = opened.mount().get();
  file_view view{};  // the leader's
  if (group.leader()) view = file_table(*mount).view_to_write(opened.number());
  std::uint32_t nbytes = 0;
  const detail::twinned_page got = detail::map_page_of(group, mount, view, opened.number(), offset, &nbytes);
  if (got.error != 0) return detail::not_mapped<Byte>(got.error);
  const cache::frames frames(mount->cache);
  return mapped_page<Byte>({frames.data(got.frame) + (static_cast<std::uint64_t>(offset) & (frames.page_nbytes() - 1)),
                            &frames.state_word(got.frame), opened.entry(), nbytes, static_cast<std::int32_t>(opened.number())});
}

// Brings what was stored into the page, and all else that was written to its file, to the host, as fsync does: its results; or the
// page's error(), where it is not mapped.
template <simt::group Group>
GPUFS_DEVICE int msync(Group group, const mapped_page<std::byte>& mapped, durability how = durability::stable) {
  const simt::group_call call(group, "msync(page, how)", mapped.data(), how);
  if (mapped.error() != 0) return mapped.error();
  const detail::written_frame at = detail::frame_of(mapped.handle());
  return detail::sync_mapped(group, at.mount, at.frame, how);
}

// Gives a mapped page back, as file.hpp's. What was stored is written with the next fsync or close, or earlier. 0; the page's
// error(), where it is not mapped; -EBADF when its file was closed before, and what was stored is lost; or -ETIMEDOUT, the same,
// when a truncation took too long.
template <simt::group Group>
GPUFS_DEVICE int unmap_page(Group group, mapped_page<std::byte> mapped) {
  const simt::group_call call(group, "unmap_page(page)", mapped.data());
  if (mapped.error() != 0) return mapped.error();
  const detail::written_frame at = detail::frame_of(mapped.release());
  return detail::unmap_written(group, at.mount, at.frame);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
