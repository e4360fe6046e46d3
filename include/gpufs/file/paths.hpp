// SPDX-License-Identifier: Apache-2.0
// Calls on paths, for a group of threads: unlink, rmdir, rename, mkdir, stat, read_directory. Called as what file.hpp has; each
// asks the host and waits. Paths are relative to the mount's root, and nothing outside of it is reached (store/posix_store.hpp).
//
// Common errors: -EFAULT, -ENOENT, -ENOTDIR, -ENAMETOOLONG, -EXDEV (out of the root), -EACCES, -EMFILE (the process has no
// descriptor left), -ETIMEDOUT, and -EROFS from all that change something, unless mount_options::writable.
#pragma once
#include "gpufs/file/open.hpp"
#include "gpufs/file/removed_names.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

namespace detail {

// After unlink, rmdir or rename: has the slots forgotten that the names led to. One lane calls. False: -ETIMEDOUT.
inline GPUFS_DEVICE_COLD bool forget_names(const file_mount* mount, const names::lost_names& lost, const char* path,
                                           const char* second) {
  bool forgot = lost.others_too ? simt::call_cold(&removed_names::forget_all_paths, mount)
                                : simt::call_cold(&removed_names::forget_path, mount, path) &&
                                      (second == nullptr || simt::call_cold(&removed_names::forget_path, mount, second));
  for (const names::written_place place : lost.places)
    forgot = forgot && simt::call_cold(&removed_names::forget_file, mount, place);
  return forgot;
}

// unlink and rmdir. One lane calls. 0 or a negative errno.
inline GPUFS_DEVICE_COLD int remove_name(const file_mount* mount, const char* path, std::uint32_t flags) {
  return removed_names::removing(mount, [&]() -> int {
    const names::lost_names lost = mount_names(*mount, ring_hint()).remove(path, flags);
    if (lost.error != 0) return lost.error;
    return forget_names(mount, lost, path, nullptr) ? 0 : -ETIMEDOUT;
  });
}

// The same for rename.
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

// Removes a file's name, as unlink(2). Who has it open keeps it, and what they write; the path's next open is another file's. 0,
// -EISDIR, or one of the common errors. (Opens for reading know a path by its spelling: by another one they may still share the
// removed file, where somebody has that open.)
template <simt::group Group>
GPUFS_DEVICE int unlink(Group group, const mount_ref& mount, const char* path) {
  const simt::group_call call(group, "unlink(mount, path)", mount.get(), path);
  return detail::remove(group, mount, path, 0);
}

// Removes an empty directory. 0, -ENOTEMPTY, or one of the common errors.
template <simt::group Group>
GPUFS_DEVICE int rmdir(Group group, const mount_ref& mount, const char* path) {
  const simt::group_call call(group, "rmdir(mount, path)", mount.get(), path);
  return detail::remove(group, mount, path, names::unlink_directory);
}

// Renames a file or directory, as rename(2): what `to` named before is gone, or an error says why not; where both name one file
// already, nothing is done. Who has either open keeps it, and a file that is open for writing is the same one under its new name:
// opens of it share what is written. 0, -EISDIR, -ENOTEMPTY, -EINVAL (a directory into itself), or one of the common
// errors.
template <simt::group Group>
GPUFS_DEVICE int rename(Group group, const mount_ref& mount, const char* from, const char* to) {
  const simt::group_call call(group, "rename(mount, from, to)", mount.get(), from, to);
  group.sync();
  const file_mount* layout = mount.get();
  return detail::by_leader(group, [&] { return simt::call_cold(&detail::rename_path, layout, from, to); });
}

// Makes a directory with `mode` less the process's umask. 0, -EEXIST, or one of the common errors.
template <simt::group Group>
GPUFS_DEVICE int mkdir(Group group, const mount_ref& mount, const char* path, std::uint32_t mode = 0777) {
  const simt::group_call call(group, "mkdir(mount, path, mode)", mount.get(), path, mode);
  const file_mount* layout = mount.get();
  return detail::by_leader(group, [&] { return simt::call_cold(&detail::make_directory, layout, path, mode); });
}

// What stat gives.
struct path_status {
  std::int64_t nbytes = 0;
  std::uint64_t inode = 0;
  std::uint64_t mtime_ns = 0;
  std::uint32_t mode = 0;  // st_mode
  std::int32_t error = 0;  // 0, or a negative errno, and then the rest is zeros
};

// What read_directory gives.
struct directory_part {
  std::int64_t nbytes;    // that were written; 0: there is no more; or a negative errno
  std::int64_t position;  // from where the next call goes on
};

namespace detail {

// One lane calls.
inline GPUFS_DEVICE_COLD path_status ask_status(const file_mount* mount, const char* path) {
  const mount_names all(*mount, ring_hint());
  const simt::deadline until(mount->io_timeout_ns);
  names::written_place closed = 0, once_closed = 0;  // those that were seen closed
  for (;;) {
    const names::status got = all.stat(path);
    if (got.error != 0) return {.error = got.error};
    bool again = false;
    // The size that counts in an open for writing that the host knows; -1: there is none. If it was closed after the host looked,
    // the host's size may be from before. But what was written is in the file by now: the next answer that names it, or none, has
    // all.
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
    if (once > nbytes) nbytes = once;  // open with O_GWRONCE: it ends where the farther of the two says
    return {nbytes, got.inode, got.mtime_ns, got.mode, 0};
  }
}

}  // namespace detail

// A path's status; of a file that is open for writing, by whatever path, with the size that counts. Its error is 0 or one of the
// common errors. `path` may be "." for the root.
template <simt::group Group>
GPUFS_DEVICE path_status stat(Group group, const mount_ref& mount, const char* path) {
  const simt::group_call call(group, "stat(mount, path)", mount.get(), path);
  return detail::by_leader(group, [&] { return simt::call_cold(&detail::ask_status, mount.get(), path); });
}

// Entries of a directory, each with its file's status as the host has it (of files that are open for writing, stat knows the size
// that counts): one call of the host for as many as fit. Writes directory_entry records, one after another (entry_nbytes from
// one to the next), to `out` (device memory, aligned to 8), at most nbytes and at most what a request carries (a page, at least 4
// KiB). `position` is 0 for the first ones, and then what the last call gave. The result's nbytes are negative for an error:
// -EINVAL, not even one entry fits (40 to 288 bytes), or one of the common errors. `path` may be "." for the root.
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
  const mount_requests rings(*layout);
  const std::int64_t fits = got.nbytes <= nbytes ? got.nbytes : nbytes;
  const int error = simt::copy_from_host(group, out, rings.payload(got.ticket), static_cast<std::size_t>(fits));
  group.sync();
  if (group.leader()) rings.give_back(got.ticket);
  return {error != 0 ? error : fits, got.position};
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
