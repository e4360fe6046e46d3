// SPDX-License-Identifier: Apache-2.0
// Opening and closing files, for a group of threads. Called as what file.hpp has.
#pragma once
#include "gpufs/file/write.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

// A flag of open: the file is written and never read. No page is read in, and bytes that nobody writes keep their value in the
// file. After GPUfs (CACM'14), section 3.
inline constexpr int O_GWRONCE = static_cast<int>(names::open_write_once);

namespace detail {

// After the flush of a file that may be written. The last close tells the host in one request what was stored in place and
// that it is closed; others tell the first, while they hold it. One lane calls. 0 or a negative errno.
inline GPUFS_DEVICE_COLD int close_written(const file_mount* mount, written_file written, file_number number, std::uint32_t start) {
  const file_table::last_close last = file_table::close_if_last(mount, number, start);
  if (last.done || last.error != 0) return last.error;
  const int synced = sync_on_host(mount, written.slot, written.handle, durability::page_cache);
  const int closed = file_table::close(mount, number, start);
  return synced != 0 ? synced : closed;
}

}  // namespace detail

// Gives the open back; the last close of a path closes it on the host. Its pages stay in the cache. Of a file that is open for
// writing, first brings all that was written to it to the host's page cache, as fsync does, and tells as it does what went wrong
// with it; the file is closed nevertheless. 0, -EBADF, or fsync's. Opens of one path share a number, so nobody can tell whose is
// closed: a group that closes twice closes for another, whose calls then give -EBADF.
template <simt::group Group>
GPUFS_DEVICE int close(Group group, const file& opened) {
  const simt::group_call call(group, "close(file, mount)", opened.number(), opened.entry());
  group.sync();  // no lane still uses it
  if (opened.error() != 0) return simt::call_cold(&detail::refuse<Group>, group, opened);
  const file_mount* mount = opened.mount().get();
  const file_number number = opened.number();
  if (!file_table::may_write(number))
    return detail::by_leader(group, [&] { return simt::call_cold(&file_table::close, mount, number, detail::ring_hint()); });
  file_view view;
  const int error = detail::flush_file(group, mount, number, view);
  if (view.error != 0) return view.error;
  const int closed = detail::by_leader(
      group, [&] { return simt::call_cold(&detail::close_written, mount, detail::written(view), number, detail::ring_hint()); });
  return error != 0 ? error : closed;
}

namespace detail {

// `Cache` is the mount's, laid out at `cache`.
template <class Cache, class Group, class Path>
GPUFS_DEVICE file open_path_by(Group group, const file_mount* mount, const cache::cache_layout* cache, Path path, int flags) {
  const open_result got =
      by_leader(group, [&] { return simt::call_cold(&file_table::open<Path>, mount, path, flags, ring_hint()); });
  if (got.nbytes != 0) simt::call_cold(&enter_first_page<Group, Cache>, group, mount, cache, got);
  const file opened(mount_ref(mount), file_number{got.number});
  if (got.truncates) {
    const file_view view = by_leader(group, [&] { return file_table(*mount).view_to_write(opened.number()); });
    const int error = simt::call_cold(&truncate<Group>, group, mount, view, 0);
    if (error != 0) {
      // Does not call close, which would return errors of writes by other opens: those opens must get them.
      by_leader(group, [&] { return simt::call_cold(&file_table::close, mount, opened.number(), ring_hint()); });
      return file(mount_ref(mount), file_number{error});
    }
  }
  simt::rejoin(group);
  return opened;
}

template <class Group, class Path>
GPUFS_DEVICE file open_path(Group group, const mount_ref& fs, Path path, int flags) {
  return open_path_by<cache::page_cache<>>(group, fs.get(), &fs.get()->cache, path, flags);
}

}  // namespace detail

// Opens a file below the mount's root: `path` is relative to the root, NUL-terminated, at most 4095 bytes, in memory
// that the device can read. Waits for the host unless the path is open already.
//
// For reading: if host threads read the file, the answer to the open brings the first page into the cache. It does so only for a
// page of at most 64 KiB that lies in the host's page cache. Then reading a small file takes no further request. This never makes
// an open fail or wait.
//
// For writing (mount_options::writable): O_RDWR or O_WRONLY, or O_GWRONCE, with O_CREAT (the file gets 0666 less the process's
// umask), O_EXCL and O_TRUNC; O_APPEND is taken and changes nothing (append says where). Opens of the path from then on share what
// is written. See docs/guide/writing.md for those before, and for other names of the file. O_CLOEXEC, O_NONBLOCK, O_NOCTTY and
// O_NOATIME change nothing; neither do O_SYNC and O_DSYNC without writing.
//
// The file's error() is 0 or: -ENOENT, -EISDIR, -EACCES, -EXDEV (out of the root), -ENAMETOOLONG, -EEXIST, -EROFS (flags that
// write, in a mount or file system that is only for reading), -EINVAL (O_CREAT, O_TRUNC, O_EXCL or O_APPEND without writing;
// flags that open does not know, or does not hold, as O_SYNC to write: call fsync),
// -ENFILE (mount_options::max_open_files), -ENOMEM (the device has no memory for more open files), -EMFILE (descriptors of the
// process, RLIMIT_NOFILE: files open for writing keep theirs), -EFBIG (2^32 pages or more), -EFAULT (no path), what
// store/posix_store.hpp lists, -ETIMEDOUT.
template <simt::group Group>
GPUFS_DEVICE file open(Group group, const mount_ref& fs, const char* path, int flags = O_RDONLY) {
  const simt::group_call call(group, "open(mount, path, flags)", fs.get(), path, flags);
  return detail::open_path(group, fs, path, flags);
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
