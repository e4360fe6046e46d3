// Pages of files that kernels write by plain stores. After GPUfs (CACM'14), section 3 (gmmap, gmsync, gmunmap): what was written is
// found by a comparison with a copy, the page's twin, that is made when it is mapped. Called as what file.hpp has.
#pragma once
#include "gpufs/file/open.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

class writable_page;
template <class Group>
GPUFS_DEVICE int msync(Group group, writable_page& mapped, durability how = durability::stable);

// A page mapped for writing: it stays where it is until unmap_page. Plain loads and stores through data() are allowed. Made by
// map_page_to_write; each lane of the group has a copy, all equal.
class writable_page {
 public:
  GPUFS_DEVICE int error() const { return error_; }
  // The byte at the offset asked for, and how many bytes follow it in this page and in the file.
  GPUFS_DEVICE std::byte* data() const { return data_; }
  GPUFS_DEVICE std::uint32_t nbytes() const { return nbytes_; }

 private:
  template <class Group>
  friend GPUFS_DEVICE writable_page map_page_to_write(Group group, const file& opened, std::int64_t offset);
  template <class Group>
  friend GPUFS_DEVICE int msync(Group group, writable_page& mapped, durability how);
  template <class Group>
  friend GPUFS_DEVICE int unmap_page(Group group, writable_page& mapped);

  std::byte* data_;
  const mount_layout* mount_;
  file_number number_;
  cache::frame_index frame_, twin_;
  std::uint32_t nbytes_;
  std::int32_t error_;
};

namespace detail {

struct twinned_page {
  cache::frame_index frame, twin;
  int error;
};
template <class Group>
GPUFS_DEVICE_COLD twinned_page map_to_write(Group group, const mount_layout* mount, file_view view, std::uint64_t page_number) {
  view = group.broadcast(view);
  const mount_ref here(*mount);
  const auto got = by_leader(group, [&] { return acquire_page(group, here, view, page_number); });
  int error = got.error;
  if (got.what == decltype(got.what)::fill) {
    error = fill_page<Group, cache::page_cache<>>(group, mount, &mount->cache, view, page_number, got.frame);
  }
  if (error != 0) return {{}, {}, error};
  using pages_type = cache::page_cache<>;
  const auto twin = by_leader(group, [&] {
    return pages_type::take_frame(&mount->cache, simt::processor_id() * 29 + static_cast<std::uint32_t>(page_number),
                                  mount->frame_timeout_ns);
  });
  const cache::frames frames(mount->cache);
  if (twin.error != 0) {
    if (group.leader()) frames.unpin(got.frame);
    return {{}, {}, twin.error};
  }
  simt::copy_changing(group, frames.data(twin.frame), frames.data(got.frame), frames.page_nbytes());
  return {got.frame, twin.frame, 0};
}

// What the group has stored into the page so far is written from now on, as by pwrite; but not what lies beyond the file's end, if
// that has been cut meanwhile. All lanes call. 0 or -ETIMEDOUT, and then nothing was done.
template <class Group>
GPUFS_DEVICE_COLD int note_changes(Group group, const mount_layout* mount, file_view view, cache::frame_index frame,
                                   cache::frame_index twin) {
  view = group.broadcast(view);
  const cache::frames frames(mount->cache);
  struct start {
    std::uint32_t end;
    bool begun;
  };
  const start at = by_leader(group, [&]() -> start {
    if (!begin_changes(*mount, view.slot)) return {0, false};
    const std::uint64_t page_begin = cache::page_number_of(frames.load_key(frame)) << frames.page_shift();
    const auto size = static_cast<std::uint64_t>(file_table(*mount).nbytes_now(view.slot));
    const std::uint64_t left = size > page_begin ? size - page_begin : 0;
    return {left < frames.page_nbytes() ? static_cast<std::uint32_t>(left) : frames.page_nbytes(), true};
  });
  if (!at.begun) return -ETIMEDOUT;
  const bool changed = at.end != 0 && cache::dirty_pages(mount->cache).mark_changes(group, frame, frames.data(twin), at.end);
  group.sync();
  if (group.leader()) {
    if (changed) make_dirty(*mount, written(view), frame);
    end_changes(*mount, view.slot);
  }
  group.sync();
  return 0;
}

}  // namespace detail

// Maps the page that holds `offset` for reading and writing: it is pinned in the cache, and does not move, until unmap_page, and
// takes a second frame until then. Stores are seen at once by who reads the page; they are written, as by pwrite, by msync and
// unmap_page: every byte that has another value than it had when the page was mapped. A file that must grow does so by ftruncate
// before. The page's error() is 0, or as map_page's, and -EBADF for a file that is not open for writing. Several groups may map a
// page and store to different bytes of it.
template <class Group>
GPUFS_DEVICE writable_page map_page_to_write(Group group, const file& opened, std::int64_t offset) {
  const mount_layout* mount = opened.mount().layout().resident;
  const std::uint32_t shift = mount->cache.frames.page_shift;
  const std::uint64_t page_number = static_cast<std::uint64_t>(offset) >> shift;
  const auto in_page = static_cast<std::uint32_t>(static_cast<std::uint64_t>(offset) - (page_number << shift));
  file_view view = detail::by_leader(group, [&] { return file_table(*mount).view_to_write(opened.number()); });
  writable_page result{};
  result.error_ = view.error != 0 ? view.error : offset < 0 ? -EINVAL : offset >= view.nbytes ? -ENXIO : 0;
  if (result.error_ != 0) return result;
  const detail::twinned_page got = simt::call_cold(&detail::map_to_write<Group>, group, mount, view, page_number);
  result.error_ = got.error;
  if (got.error != 0) return result;
  const std::int64_t left = view.nbytes - offset;
  const std::uint32_t here = (1u << shift) - in_page;
  result.data_ = cache::frames(mount->cache).data(got.frame) + in_page;
  result.mount_ = mount;
  result.number_ = opened.number();
  result.frame_ = got.frame;
  result.twin_ = got.twin;
  result.nbytes_ = left < here ? static_cast<std::uint32_t>(left) : here;
  return result;
}

// Brings what was stored into the page, and all else that was written to its file, to the host, as fsync does: its results, and
// -EINVAL when the page is not mapped.
template <class Group>
GPUFS_DEVICE int msync(Group group, writable_page& mapped, durability how) {
  if (mapped.error_ != 0 || mapped.data_ == nullptr) return -EINVAL;
  const file_view view = detail::by_leader(group, [&] { return file_table(*mapped.mount_).view_to_write(mapped.number_); });
  if (view.error != 0) return view.error;
  const int error = simt::call_cold(&detail::note_changes<Group>, group, mapped.mount_, view, mapped.frame_, mapped.twin_);
  return error != 0 ? error : detail::sync_file(group, mapped.mount_, mapped.number_, how);
}

// Gives a mapped page back; its data() must not be used after. What was stored is written with the next fsync or close, or earlier.
// 0; -EINVAL when the page is not mapped (any more); -EBADF when its file was closed before, and what was stored is lost; or
// -ETIMEDOUT, the same, when a truncation took too long.
template <class Group>
GPUFS_DEVICE int unmap_page(Group group, writable_page& mapped) {
  if (mapped.error_ != 0 || mapped.data_ == nullptr) return -EINVAL;
  const mount_layout* mount = mapped.mount_;
  const file_view view = detail::by_leader(group, [&] { return file_table(*mount).view_to_write(mapped.number_); });
  int error = view.error;
  if (error == 0) error = simt::call_cold(&detail::note_changes<Group>, group, mount, view, mapped.frame_, mapped.twin_);
  group.sync();
  if (group.leader()) {
    const cache::page_cache<> pages(mount->cache);
    cache::frames::unpin_after_writes(pages.pages().state_word(mapped.frame_), 1);
    pages.unpin(mapped.twin_);
  }
  group.sync();
  mapped.data_ = nullptr;
  if (view.error == 0) detail::limit_dirty(group, mount, detail::written(view), static_cast<std::uint32_t>(mapped.frame_));
  return error;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
