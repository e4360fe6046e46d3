// SPDX-License-Identifier: Apache-2.0
// Calls on paths, for a group of threads: unlink, rmdir, rename, mkdir, stat, read_directory. Called as what file.hpp has; each
// asks the host and waits. Paths are relative to the mount's root, and nothing outside of it is reached (store/posix_store.hpp).
//
// Common errors: -EFAULT, -ENOENT, -ENOTDIR, -ENAMETOOLONG, -EXDEV (out of the root), -EACCES, -EMFILE (the process has no
// descriptor left), -ETIMEDOUT, and -EROFS from all that change something, unless mount_options::writable.
#pragma once
#include "gpufs/file/open.hpp"

namespace gpufs {
inline namespace GPUFS_MACHINE {

namespace detail {

struct path_answer {
  transport::reply reply;
  transport::ticket ticket;
  std::int32_t error;
  bool held;  // the ticket is ours, and must be given back: its payload is the answer
};

// A path's length, or a negative errno.
GPUFS_DEVICE std::int32_t length_of(const char* path) {
  if (path == nullptr) return -EFAULT;
  std::int32_t n = 0;
  while (path[n] != '\0') {
    if (static_cast<std::uint32_t>(++n) > service::max_path_nbytes) return -ENAMETOOLONG;
  }
  return n;
}

// One lane calls. `what` has the operation, flags, mode, offset and, but for rename, handle. The ticket is kept where `keeps` says
// so.
inline GPUFS_DEVICE_COLD path_answer ask_about_path(const file_mount* mount, const transport::request& asked, const char* path,
                                                    const char* second, bool keeps) {
  transport::request what = asked;
  path_answer got{};
  const std::int32_t length = length_of(path);
  const std::int32_t second_length = what.op == transport::opcode::rename ? length_of(second) : 0;
  got.error = length < 0 ? length : second_length < 0 ? second_length : 0;
  if (got.error != 0) return got;
  // The second path lies behind the payload, which only mounts that may write have room for.
  if (!is_writable(*mount) && what.op == transport::opcode::rename) return {{}, {}, -EROFS, false};
  const mount_requests rings(*mount);
  const simt::deadline until(mount->io_timeout_ns);
  got.ticket = rings.take(ring_hint(), until);
  if (got.ticket.index != transport::no_slot) {
    path_chains::copy_path(rings.payload(got.ticket), path, static_cast<std::uint32_t>(length));
    what.nbytes = static_cast<std::uint32_t>(length);
    if (what.op == transport::opcode::rename) {
      path_chains::copy_path(rings.behind_payload(got.ticket), second, static_cast<std::uint32_t>(second_length));
      what.handle = static_cast<std::uint32_t>(second_length);
    }
    got.held = rings.call(got.ticket, what, got.reply, until) == 0;
  }
  if (!got.held) {
    count(mount->words->io_timeouts, 1);
    got.error = -ETIMEDOUT;
    return got;
  }
  if (got.reply.result < 0) got.error = static_cast<int>(got.reply.result);
  if (!keeps || got.error != 0) {
    rings.give_back(got.ticket);
    got.held = false;
  }
  return got;
}

// unlink, rmdir and rename: asks the host, and has the slots forgotten that the paths led to. One lane calls. 0 or a negative
// errno.
inline GPUFS_DEVICE_COLD int take_name_away(const file_mount* mount, transport::opcode op, std::uint32_t flags, const char* path,
                                            const char* second) {
  transport::request what{};
  what.op = op;
  what.flags = flags;
  return file_table::removing(mount, [&]() -> int {
    const path_answer got = simt::call_cold(&ask_about_path, mount, what, path, second, false);
    if (got.error != 0) return got.error;
    const transport::reply& r = got.reply;
    const bool renames = op == transport::opcode::rename;
    if (renames && r.mode == 0) return 0;  // both paths name one file
    bool forgot = r.number != 0 ? simt::call_cold(&file_table::forget_all_paths, mount)
                                : simt::call_cold(&file_table::forget_path, mount, path) &&
                                      (!renames || simt::call_cold(&file_table::forget_path, mount, second));
    for (const std::uint64_t place :
         {r.pull_base, static_cast<std::uint64_t>(r.file_nbytes), renames ? r.inode : 0, renames ? r.mtime_ns : 0}) {
      forgot = forgot && simt::call_cold(&file_table::forget_file, mount, place);
    }
    return forgot ? 0 : -ETIMEDOUT;
  });
}

template <class Group>
GPUFS_DEVICE int remove(Group group, const mount_ref& mount, const char* path, std::uint32_t flags) {
  group.sync();
  const file_mount* layout = mount.get();
  return by_leader(group,
                   [&] { return simt::call_cold(&take_name_away, layout, transport::opcode::unlink, flags, path, nullptr); });
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
  return detail::remove(group, mount, path, service::unlink_directory);
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
  return detail::by_leader(
      group, [&] { return simt::call_cold(&detail::take_name_away, layout, transport::opcode::rename, 0u, from, to); });
}

// Makes a directory with `mode` less the process's umask. 0, -EEXIST, or one of the common errors.
template <simt::group Group>
GPUFS_DEVICE int mkdir(Group group, const mount_ref& mount, const char* path, std::uint32_t mode = 0777) {
  const simt::group_call call(group, "mkdir(mount, path, mode)", mount.get(), path, mode);
  return detail::by_leader(group, [&] {
    transport::request what{};
    what.op = transport::opcode::mkdir;
    what.mode = mode;
    return simt::call_cold(&detail::ask_about_path, mount.get(), what, path, nullptr, false).error;
  });
}

namespace detail {

struct status_answer {
  file_status status;
  int error;
};

// What stat gives. One lane calls.
inline GPUFS_DEVICE_COLD status_answer ask_status(const file_mount* mount, const char* path) {
  transport::request what{};
  what.op = transport::opcode::stat;
  const simt::deadline until(mount->io_timeout_ns);
  std::uint64_t closed = 0, once_closed = 0;  // the places, as in `reply`, that were seen closed
  for (;;) {
    const path_answer got = ask_about_path(mount, what, path, nullptr, false);
    if (got.error != 0) return {{}, got.error};
    const transport::reply& r = got.reply;
    bool again = false;
    // The size that counts in an open for writing that the host knows; -1: there is none. If it was closed after the host looked,
    // the host's size may be from before. But what was written is in the file by now: the next answer that names it, or none, has
    // all.
    const auto size = [&](std::uint64_t place, std::uint64_t& seen) -> std::int64_t {
      if (place == 0) return -1;
      const std::int64_t nbytes =
          file_table::nbytes_if_written(mount, static_cast<std::uint32_t>(place >> 32), static_cast<std::uint32_t>(place));
      again |= nbytes < 0 && place != seen;
      if (nbytes < 0) seen = place;
      return nbytes;
    };
    std::int64_t nbytes = size(r.number != 0 ? std::uint64_t{r.number - 1} << 32 | r.handle : 0, closed);
    const std::int64_t once = size(r.pull_base, once_closed);
    if (again) {
      if (until.expired()) return {{}, -ETIMEDOUT};
      continue;
    }
    if (nbytes < 0) nbytes = r.file_nbytes;
    if (once > nbytes) nbytes = once;  // open with O_GWRONCE: it ends where the farther of the two says
    return {{nbytes, r.inode, r.mtime_ns, r.mode, 0, source_kind::staged}, 0};
  }
}

}  // namespace detail

// A path's status; of a file that is open for writing, by whatever path, with the size that counts. Each lane's *out is written. 0
// or one of the common errors. `path` may be "." for the root.
template <simt::group Group>
GPUFS_DEVICE int stat(Group group, const mount_ref& mount, const char* path, file_status* out) {
  const simt::group_call call(group, "stat(mount, path)", mount.get(), path);
  const detail::status_answer got =
      detail::by_leader(group, [&] { return simt::call_cold(&detail::ask_status, mount.get(), path); });
  if (got.error != 0) return got.error;
  if (out == nullptr) return -EFAULT;
  *out = got.status;
  return 0;
}

// Entries of a directory, each with its file's status as the host has it (of files that are open for writing, stat knows the size
// that counts): one call of the host for as many as fit. Writes service::dir_entry records, one after another (entry_nbytes from
// one to the next), to `out` (device memory, aligned to 8), at most nbytes and at most what a request carries (a page, at least 4
// KiB). *position: 0 for the first ones; then the call moves it on, for each lane its own copy, all equal. Bytes written; 0: no
// more; -EINVAL: not even one fits (40 to 288 bytes); or one of the common errors. `path` may be
// "." for the root.
template <simt::group Group>
GPUFS_DEVICE std::int64_t read_directory(Group group, const mount_ref& mount, const char* path, void* out, std::uint32_t nbytes,
                                         std::int64_t* position) {
  if (out == nullptr || position == nullptr) return -EFAULT;
  const simt::group_call call(group, "read_directory(mount, path, out, nbytes, position)", mount.get(), path,
                              simt::memory_of_all{out, nbytes}, nbytes, *position);
  const file_mount* layout = mount.get();
  struct answer {
    transport::ticket ticket;
    std::int64_t nbytes, position;
    bool held;
  };
  const answer got = detail::by_leader(group, [&]() -> answer {
    transport::request what{};
    what.op = transport::opcode::read_dir;
    what.offset = *position;
    what.handle = nbytes;
    const detail::path_answer from_host = simt::call_cold(&detail::ask_about_path, layout, what, path, nullptr, true);
    if (from_host.error != 0) return {{}, from_host.error, *position, false};
    return {from_host.ticket, from_host.reply.result, from_host.reply.file_nbytes, true};
  });
  if (!got.held) return got.nbytes;
  const mount_requests rings(*layout);
  const std::int64_t fits = got.nbytes <= nbytes ? got.nbytes : nbytes;
  const int error = simt::copy_from_host(group, out, rings.payload(got.ticket), static_cast<std::size_t>(fits));
  group.sync();
  if (group.leader()) rings.give_back(got.ticket);
  *position = got.position;
  return error != 0 ? error : fits;
}

}  // namespace GPUFS_MACHINE
}  // namespace gpufs
