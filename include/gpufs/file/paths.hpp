// SPDX-License-Identifier: Apache-2.0
// Calls on paths, for a group of threads: unlink, rmdir, rename, mkdir, stat, read_directory. They follow the rules of file.hpp:
// all lanes of the group call together, with equal arguments. Each call sends a request to the host and waits for the answer. Paths
// are relative to the mount's root, and no call reaches anything outside of the root (store/posix_store.hpp).
//
// Common errors: -EFAULT, -ENOENT, -ENOTDIR, -ENAMETOOLONG, -EXDEV (the path leads out of the root), -EACCES, -EMFILE (the process
// has no descriptor left), -ETIMEDOUT. Calls that change something also give -EROFS, unless mount_options::writable is set.
#pragma once
#include "gpufs/file/detail/removed_names.hpp"
#include "gpufs/file/detail/take_listing.hpp"
#include "gpufs/file/open.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

namespace detail {

// Called after unlink, rmdir or rename. Takes the slots of the lost names out of their chains, so that later opens of these names
// do not join them. One lane calls. False: a chain's lock did not come in time (-ETIMEDOUT).
inline GPUFS_DEVICE_COLD bool forget_names(const file_mount* mount, const names::lost_names& lost, const char* path,
                                           const char* second) {
  bool forgot = lost.others_too ? simt::call_cold(&removed_names::forget_all_paths, mount)
                                : simt::call_cold(&removed_names::forget_path, mount, path) &&
                                      (second == nullptr || simt::call_cold(&removed_names::forget_path, mount, second));
  for (const names::written_place place : lost.places)
    forgot = forgot && simt::call_cold(&removed_names::forget_file, mount, place);
  return forgot;
}

// Does the work of unlink and rmdir; `flags` tells them apart. One lane calls. Returns 0 or a negative errno.
inline GPUFS_DEVICE_COLD int remove_name(const file_mount* mount, const char* path, std::uint32_t flags) {
  return removed_names::removing(mount, [&]() -> int {
    const names::lost_names lost = mount_names(*mount, ring_hint()).remove(path, flags);
    if (lost.error != 0) return lost.error;
    return forget_names(mount, lost, path, nullptr) ? 0 : -ETIMEDOUT;
  });
}

// Does the work of rename. One lane calls. Returns 0 or a negative errno.
inline GPUFS_DEVICE_COLD int rename_path(const file_mount* mount, const char* from, const char* to) {
  if (!is_writable(*mount)) {
    const std::int32_t lengths[] = {names::length_of(from), names::length_of(to)};
    return lengths[0] < 0 ? lengths[0] : lengths[1] < 0 ? lengths[1] : -EROFS;
  }
  return removed_names::removing(mount, [&]() -> int {
    const names::lost_names lost = mount_names(*mount, ring_hint()).rename(from, to);
    if (lost.error != 0 || lost.nothing) return lost.error;
    return forget_names(mount, lost, from, to) ? 0 : -ETIMEDOUT;
  });
}

inline GPUFS_DEVICE_COLD int make_directory(const file_mount* mount, const char* path, std::uint32_t mode) {
  return mount_names(*mount, ring_hint()).make_directory(path, mode);
}
inline GPUFS_DEVICE_COLD names::listing list_directory(const file_mount* mount, const char* path, std::int64_t position,
                                                       std::uint32_t nbytes) {
  return mount_names(*mount, ring_hint()).list(path, position, nbytes);
}

template <class Group>
GPUFS_DEVICE int remove(Group group, const mount_ref& mount, const char* path, std::uint32_t flags) {
  group.sync();
  const file_mount* layout = mount.get();
  return by_leader(group, [&] { return simt::call_cold(&remove_name, layout, path, flags); });
}

}  // namespace detail

// Removes a file's name, as unlink(2) does. Existing opens keep the file, and what is written through them. The next open of the
// path does not join them. Returns 0, -EISDIR, or a common error. (Opens for reading find each other by the spelling of the path.
// So an open with another spelling may still get the removed file, while somebody has the file open with that spelling.)
template <simt::group Group>
GPUFS_DEVICE int unlink(Group group, const mount_ref& mount, const char* path) {
  const simt::group_call call(group, "unlink(mount, path)", mount.get(), path);
  return detail::remove(group, mount, path, 0);
}

// Removes an empty directory. Returns 0, -ENOTEMPTY, or a common error.
template <simt::group Group>
GPUFS_DEVICE int rmdir(Group group, const mount_ref& mount, const char* path) {
  const simt::group_call call(group, "rmdir(mount, path)", mount.get(), path);
  return detail::remove(group, mount, path, names::unlink_directory);
}

// Renames a file or directory, as rename(2) does. The call replaces what `to` named before, or returns why it could not. If both
// paths already name one file, it does nothing. Existing opens of both files stay valid. A file that is open for writing stays the
// same file under its new name: opens by that name share what is written. Returns 0, -EISDIR, -ENOTEMPTY, -EINVAL (a directory
// would move into itself), or a common error.
template <simt::group Group>
GPUFS_DEVICE int rename(Group group, const mount_ref& mount, const char* from, const char* to) {
  const simt::group_call call(group, "rename(mount, from, to)", mount.get(), from, to);
  group.sync();
  const file_mount* layout = mount.get();
  return detail::by_leader(group, [&] { return simt::call_cold(&detail::rename_path, layout, from, to); });
}

// Makes a directory. Its mode is `mode` without the bits of the process's umask. Returns 0, -EEXIST, or a common error.
template <simt::group Group>
GPUFS_DEVICE int mkdir(Group group, const mount_ref& mount, const char* path, std::uint32_t mode = 0777) {
  const simt::group_call call(group, "mkdir(mount, path, mode)", mount.get(), path, mode);
  const file_mount* layout = mount.get();
  return detail::by_leader(group, [&] { return simt::call_cold(&detail::make_directory, layout, path, mode); });
}

// The result of stat.
struct path_status {
  std::int64_t nbytes = 0;
  std::uint64_t inode = 0;
  std::uint64_t mtime_ns = 0;
  std::uint32_t mode = 0;  // st_mode
  std::int32_t error = 0;  // 0 or a negative errno; after an error the other fields are 0
};

// The result of read_directory.
struct directory_part {
  std::int64_t nbytes;    // bytes written to `out`; 0: there are no more entries; or a negative errno
  std::int64_t position;  // where the next call goes on
};

namespace detail {

// Does the work of stat. One lane calls.
inline GPUFS_DEVICE_COLD path_status ask_status(const file_mount* mount, const char* path) {
  const mount_names all(*mount, ring_hint());
  const simt::deadline until(mount->io_timeout_ns);
  names::written_place closed = 0, once_closed = 0;  // the last ones that were found closed
  for (;;) {
    const names::status got = all.stat(path);
    if (got.error != 0) return {.error = got.error};
    bool again = false;
    // The current size of the file in the open for writing that the host names (`place`). -1: the host names none, or it is closed.
    // If it was closed after the host looked at the file, the host's size may be too old, so we ask again. All that was written is
    // in the file by now: an answer that names the same open again, or names none, has the full size.
    const auto size = [&](names::written_place place, names::written_place& seen) -> std::int64_t {
      if (place == 0) return -1;
      const std::int64_t nbytes =
          file_table::nbytes_if_written(mount, static_cast<std::uint32_t>(place >> 32), static_cast<std::uint32_t>(place));
      again |= nbytes < 0 && place != seen;
      if (nbytes < 0) seen = place;
      return nbytes;
    };
    std::int64_t nbytes = size(got.written, closed);
    const std::int64_t once = size(got.written_once, once_closed);
    if (again) {
      if (until.expired()) return {.error = -ETIMEDOUT};
      continue;
    }
    if (nbytes < 0) nbytes = got.nbytes;
    if (once > nbytes) nbytes = once;  // the file is open with O_GWRONCE: the larger size counts
    return {nbytes, got.inode, got.mtime_ns, got.mode, 0};
  }
}

}  // namespace detail

// The status of a path. If its file is open for writing, by this or another path, the size includes what kernels have written so
// far. `error` is 0 or a common error. `path` may be "." for the root.
template <simt::group Group>
GPUFS_DEVICE path_status stat(Group group, const mount_ref& mount, const char* path) {
  const simt::group_call call(group, "stat(mount, path)", mount.get(), path);
  return detail::by_leader(group, [&] { return simt::call_cold(&detail::ask_status, mount.get(), path); });
}

// Reads entries of a directory, as many as fit into one request to the host. Writes them to `out` (device memory, aligned to 8) as
// directory_entry records, one after another; entry_nbytes leads from one record to the next. It writes at most nbytes, and at most
// what a request carries (a page, at least 4 KiB). Each entry has the status of its file as the host knows it; for a file that is
// open for writing, only stat gives the current size. `position` is 0 for the first call, then the position of the last result.
// After an error, the result's nbytes is negative: -EINVAL (not even one entry fits; an entry takes 40 to 288 bytes), or a common
// error. `path` may be "." for the root.
template <simt::group Group>
GPUFS_DEVICE directory_part read_directory(Group group, const mount_ref& mount, const char* path, void* out, std::uint32_t nbytes,
                                           std::int64_t position = 0) {
  const simt::group_call call(group, "read_directory(mount, path, out, nbytes, position)", mount.get(), path,
                              simt::memory_of_all{out, out == nullptr ? 0 : nbytes}, nbytes, position);
  if (out == nullptr) return {-EFAULT, position};
  const file_mount* layout = mount.get();
  const names::listing got =
      detail::by_leader(group, [&] { return simt::call_cold(&detail::list_directory, layout, path, position, nbytes); });
  if (got.error != 0) return {got.error, position};
  return {detail::take_listing(group, mount_names(*layout, 0), got, out, nbytes), got.position};
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
