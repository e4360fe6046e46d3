// SPDX-License-Identifier: Apache-2.0
// The papers' names (GPUfs, CACM'14; SYSTOR'16, section 4.2; ActivePointers, ISCA'16, section V) over gpufs. As in the papers, all
// threads of a block call gopen and its siblings with equal arguments, and all lanes of a warp call the _warp forms. Unlike there,
// the mount is an argument (there are no process-wide device globals), and failures are negative errnos. O_GWRONCE is gpufs's.
// gmmap maps for writing if the file is open for it, by gpufs::map_page<std::byte>: so a page takes a second frame while it is
// mapped.
#pragma once
#include "gpufs/gpufs.hpp"

namespace gpufs::compat {
inline namespace GPUFS_MACHINE {

template <class T>
using APtr = ptr<T>;

namespace detail {

template <class Group>
GPUFS_DEVICE int gopen(Group group, const mount_ref& fs, const char* path, int flags) {
  return static_cast<int>(open(group, fs, path, flags).number());
}

// A mapping's address names its frame, so that gmsync and gmunmap need no more than the address. NULL if the page cannot be mapped;
// *error (if given) then says why. If the mount has the file open for writing, all mappings of it are for writing, also those by a
// number that may only read: an address does not say from which of the two it came.
template <class Group>
GPUFS_DEVICE volatile void* gmmap(Group group, const mount_ref& fs, std::size_t size, int fd, std::int64_t offset, int* error) {
  struct what {
    file_view view;
    bool written;
  };
  const file_mount* mount = fs.get();
  const what mapped = gpufs::detail::by_leader(group, [&]() -> what {
    const file_view view = file_table(*mount).view_of_any(file_number{fd});
    return {view, view.error == 0 && !has_version(view.kind)};
  });
  int result = 0;
  std::uint32_t nbytes = 0;
  std::byte* data = nullptr;
  if (mapped.written) {
    const file_number number{(fd & ~number_write_only) | number_may_write};
    const auto got = gpufs::detail::map_page_of(group, mount, mapped.view, number, offset, &nbytes);
    result = got.error;
    const cache::frames pages(fs.get()->cache);
    data = pages.data(got.frame) + (static_cast<std::uint64_t>(offset) & (pages.page_nbytes() - 1));
    if (result == 0 && nbytes < size) {  // the papers map within one page, too
      result = -EINVAL;
      gpufs::detail::unmap_written(group, mount, got.frame);
    }
  } else {
    mapped_page given = map_page(group, file(fs, file_number{fd}), offset);
    result = given.error();
    data = const_cast<std::byte*>(given.data());
    if (result == 0 && given.nbytes() < size) {
      result = -EINVAL;
      unmap_page(group, std::move(given));
    }
    given.release();  // gmunmap finds the page by its address
  }
  if (error != nullptr) *error = result;
  return result == 0 ? data : nullptr;
}

struct mapped_at {
  cache::frame_index frame;
  bool is_frame;  // false: the address is in no page of the cache
  bool written;   // mapped as a page of a file that is open for writing
};
// One lane calls.
GPUFS_DEVICE mapped_at find_mapping(const mount_ref& fs, const volatile void* address) {
  const cache::frames pages(fs.get()->cache);
  const auto at = reinterpret_cast<std::uintptr_t>(const_cast<const void*>(address));
  const auto base = reinterpret_cast<std::uintptr_t>(pages.data(cache::frame_index{0}));
  const std::uint64_t number = (at - base) >> pages.page_shift();
  const cache::frame_index frame{static_cast<std::uint32_t>(number)};
  if (at < base || number >= pages.count()) return {frame, false, false};
  if (!is_writable(*fs.get())) return {frame, true, false};
  return {frame, true, cache::dirty_pages::is_mapped(cache::dirty_pages(fs.get()->cache).twin(frame))};
}

template <class Group>
GPUFS_DEVICE int gmsync(Group group, const mount_ref& fs, const volatile void* address) {
  const mapped_at at = gpufs::detail::by_leader(group, [&] { return find_mapping(fs, address); });
  if (!at.written) return -EINVAL;
  return gpufs::detail::sync_mapped(group, fs.get(), at.frame, durability::page_cache);
}

template <class Group>
GPUFS_DEVICE int gmunmap(Group group, const mount_ref& fs, const volatile void* address) {
  gpufs::detail::finish_reads(group);
  const mapped_at at = gpufs::detail::by_leader(group, [&] { return find_mapping(fs, address); });
  if (!at.is_frame) return -EINVAL;
  if (at.written) return gpufs::detail::unmap_written(group, fs.get(), at.frame);
  return gpufs::detail::by_leader(group, [&] {
    if (!cache::frames::unpin_checked(cache::frames(fs.get()->cache).state_word(at.frame))) {
      gpufs::detail::count(fs.get()->words->unpin_errors, 1);
      return -EINVAL;
    }
    return 0;
  });
}

template <class T, class Group>
GPUFS_DEVICE APtr<T> gvmmap(Group group, const mount_ref& fs, std::size_t size, int flags, int fd, std::int64_t offset) {
  const bool permitted = (flags & O_ACCMODE) == O_RDONLY ? std::is_const_v<T> : file_table::may_write(file_number{fd});
  if (!permitted) return APtr<T>(mapping_name{-EACCES}, {}, {});
  return map<T>(group, file(fs, file_number{fd}), offset, static_cast<std::int64_t>(size / sizeof(T)));
}

}  // namespace detail

GPUFS_DEVICE int gopen(const mount_ref& fs, const char* path, int flags) { return detail::gopen(this_block(), fs, path, flags); }
GPUFS_DEVICE int gopen_warp(const mount_ref& fs, const char* path, int flags) {
  return detail::gopen(this_warp(), fs, path, flags);
}
GPUFS_DEVICE int gclose(const mount_ref& fs, int fd) { return close(this_block(), file(fs, file_number{fd})); }
GPUFS_DEVICE int gclose_warp(const mount_ref& fs, int fd) { return close(this_warp(), file(fs, file_number{fd})); }

GPUFS_DEVICE std::int64_t gread(const mount_ref& fs, int fd, std::int64_t offset, std::size_t size, void* buffer) {
  return pread(this_block(), file(fs, file_number{fd}), buffer, size, offset);
}
GPUFS_DEVICE std::int64_t gread_warp(const mount_ref& fs, int fd, std::int64_t offset, std::size_t size, void* buffer) {
  return pread(this_warp(), file(fs, file_number{fd}), buffer, size, offset);
}

GPUFS_DEVICE std::int64_t gwrite(const mount_ref& fs, int fd, std::int64_t offset, std::size_t size, const void* buffer) {
  return pwrite(this_block(), file(fs, file_number{fd}), buffer, size, offset);
}
GPUFS_DEVICE std::int64_t gwrite_warp(const mount_ref& fs, int fd, std::int64_t offset, std::size_t size, const void* buffer) {
  return pwrite(this_warp(), file(fs, file_number{fd}), buffer, size, offset);
}
// Syncs to the host's page cache, as in the paper.
GPUFS_DEVICE int gfsync(const mount_ref& fs, int fd) {
  return fsync(this_block(), file(fs, file_number{fd}), durability::page_cache);
}
GPUFS_DEVICE int gfsync_warp(const mount_ref& fs, int fd) {
  return fsync(this_warp(), file(fs, file_number{fd}), durability::page_cache);
}
GPUFS_DEVICE int gftruncate(const mount_ref& fs, int fd, std::int64_t size) {
  return ftruncate(this_block(), file(fs, file_number{fd}), size);
}
GPUFS_DEVICE int gftruncate_warp(const mount_ref& fs, int fd, std::int64_t size) {
  return ftruncate(this_warp(), file(fs, file_number{fd}), size);
}
GPUFS_DEVICE int gunlink(const mount_ref& fs, const char* path) { return unlink(this_block(), fs, path); }
GPUFS_DEVICE int gunlink_warp(const mount_ref& fs, const char* path) { return unlink(this_warp(), fs, path); }

// *error is each thread's own. Kernels may store bytes only if the number may write. The stored bytes are written by gmsync (to the
// host's page cache, as gfsync), or by gmunmap and a later gfsync or gclose.
GPUFS_DEVICE volatile void* gmmap(const mount_ref& fs, std::size_t size, int fd, std::int64_t offset, int* error = nullptr) {
  return detail::gmmap(this_block(), fs, size, fd, offset, error);
}
GPUFS_DEVICE volatile void* gmmap_warp(const mount_ref& fs, std::size_t size, int fd, std::int64_t offset, int* error = nullptr) {
  return detail::gmmap(this_warp(), fs, size, fd, offset, error);
}
GPUFS_DEVICE int gmsync(const mount_ref& fs, const volatile void* address) { return detail::gmsync(this_block(), fs, address); }
GPUFS_DEVICE int gmsync_warp(const mount_ref& fs, const volatile void* address) { return detail::gmsync(this_warp(), fs, address); }
GPUFS_DEVICE int gmunmap(const mount_ref& fs, const volatile void* address) { return detail::gmunmap(this_block(), fs, address); }
GPUFS_DEVICE int gmunmap_warp(const mount_ref& fs, const volatile void* address) {
  return detail::gmunmap(this_warp(), fs, address);
}

// A pointer for each thread to `size` bytes from `offset` on. With O_RDWR, and a file that was opened with it, T need not be const:
// written bytes are in the file after gfsync or gclose, once the pointers have left the page. There is no gvmunmap: the pointers
// that leave a page give it back. A null pointer's error() says why.
template <class T>
GPUFS_DEVICE APtr<T> gvmmap(const mount_ref& fs, std::size_t size, int flags, int fd, std::int64_t offset) {
  return detail::gvmmap<T>(this_block(), fs, size, flags, fd, offset);
}
template <class T>
GPUFS_DEVICE APtr<T> gvmmap_warp(const mount_ref& fs, std::size_t size, int flags, int fd, std::int64_t offset) {
  return detail::gvmmap<T>(this_warp(), fs, size, flags, fd, offset);
}

// *out is each thread's own.
GPUFS_DEVICE int gfstat(const mount_ref& fs, int fd, file_status* out) {
  const file_status status = fstat(this_block(), file(fs, file_number{fd}));
  if (out == nullptr) return -EFAULT;
  *out = status;
  return status.error;
}
GPUFS_DEVICE int gfstat_warp(const mount_ref& fs, int fd, file_status* out) {
  const file_status status = fstat(this_warp(), file(fs, file_number{fd}));
  if (out == nullptr) return -EFAULT;
  *out = status;
  return status.error;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs::compat
