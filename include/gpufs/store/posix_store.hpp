// SPDX-License-Identifier: Apache-2.0
// A store of the regular files below a directory. Host threads read the files into pinned staging slots, and write them from there.
#pragma once
#include <memory>
#include <string>

#include "gpufs/store/store.hpp"

namespace gpufs {
class unique_fd;
}

namespace gpufs::store {

// The root directory of a store. The store and its open files share it, because files may outlive the store.
using root_directory = std::shared_ptr<const unique_fd>;

struct posix_options {
  bool writable = false;  // the store may write; if not, open flags that write and calls that change paths give -EROFS
  bool direct = false;    // read with O_DIRECT if the file system supports it; if not, the file's info().reason says so
};

// The common part of the stores for files below a directory: the root directory, and the calls on paths.
//
// Paths are relative to the root, even if they start with a slash. A call looks up the parent of the path below the root, by the
// rules of open(), and then acts on the last component there. It never follows a symbolic link in the last component (only status()
// does, if `link` is false). Errors: the kernel's own (-EEXIST, -ENOTEMPTY, -EXDEV between file systems, ...), those for paths in
// posix_store's table, and
//   last component `.` or `..` -EINVAL              the root itself -EISDIR
// status() and read_directory() accept any path that names something, also the root ("", "/", "."). A position below zero gives
// -EINVAL. These two calls work in every store; the others give -EROFS unless posix_options::writable is set.
class rooted_store : public store {
 public:
  ~rooted_store() override;
  rooted_store(const rooted_store&) = delete;
  rooted_store& operator=(const rooted_store&) = delete;

  int unlink(std::string_view path, bool directory) final;
  int rename(std::string_view from, std::string_view to, std::uint32_t* mode) final;
  int make_directory(std::string_view path, std::uint32_t mode) final;
  int status(std::string_view path, bool link, path_status* out) final;
  std::int64_t read_directory(std::string_view path, std::int64_t* position, std::span<std::byte> out) final;
  std::uint64_t device() const final { return device_; }

 protected:
  // Throws std::system_error if the root is not a directory, or cannot be opened.
  rooted_store(const std::string& root, posix_options options);

  const root_directory root_;
  const std::uint64_t device_;
  const posix_options options_;
};

// The store opens files below the root only. For a path without `..`, it calls openat2 with RESOLVE_NO_SYMLINKS. If the path has a
// `..`, or that call meets a symbolic link, it calls openat2 with RESOLVE_BENEATH and RESOLVE_NO_MAGICLINKS. If openat2 is missing
// (Linux before 5.6) or forbidden (ENOSYS), the store walks along the path by O_PATH descriptors, and follows symbolic links itself
// under the same rules. Paths are relative to the root, even if they start with a slash.
//
// A file that is open for writing is not tied to one version (info().live). It never becomes -ESTALE. Reads give its present bytes,
// and are short at its end. The store opens such a file for reading too, because a write of a part of a page first reads the page
// in. Only with names::open_write_once, and if reading is not permitted, it opens the file for writing alone. Writes go through the
// kernel's page cache, even if `direct` is set. A new file gets the mode 0666 without the bits of the process's umask. O_CREAT
// makes the target of a dangling symbolic link if the target lies below the root.
//
// Each open file keeps a descriptor, until the process keeps three quarters of the soft limit of RLIMIT_NOFILE. Each further file
// is opened again below the root for every access (4 us), and compared with the file that was opened first. Such a file becomes
// -ESTALE once its path names another file or none. Files that are open for writing always keep their descriptor, and count.
//
// Errors of open(), beside the kernel's own (-EACCES, -ENOENT, -ENOTDIR, -ELOOP, -EMFILE, -ENFILE, -ENOMEM, ...):
//   empty path -ENOENT                          directory, also the root     -EISDIR
//   NUL byte inside -EINVAL                     FIFO                         -EOPNOTSUPP
//   over 4095 bytes, component over 255         socket                       -ENXIO
//     -ENAMETOOLONG                             character or block device    -ENODEV
//   `..` or symbolic link out of the root, any  flags that write, create or truncate, if not `writable`  -EROFS
//     absolute symbolic link -EXDEV             O_PATH, O_DIRECTORY, unknown flags    -EINVAL
//   O_CREAT, O_TRUNC or open_write_once without O_WRONLY or O_RDWR, O_SYNC or O_DSYNC with them (call sync)    -EINVAL
//   O_CREAT and a path that ends in a slash -EISDIR
//   a magic link (/proc/PID/fd/N) -ELOOP (openat2) or -EXDEV (walk)
// If somebody moves a directory out of the root during the look-up of a path below it, the look-up may end in the directory's new
// place.
//
// A file is "settled" if neither its mtime nor its ctime lies within the last 20 ms, or within the last 2 s on file systems that
// keep whole seconds. (The kernel takes these times from a coarse clock, so a later change may leave them equal: git's racy-entry
// problem.)
//
// If the size or mtime of an open file changes, its reads give -ESTALE. A change of ctime alone has the same effect, unless the
// number of links changed with it. In that case the file was linked, unlinked, or replaced by a rename, and an open file keeps its
// bytes, as POSIX says. If a process changes the file through a writable mapping, the store notices only when the kernel updates
// mtime, which may be long after the change.
class posix_store final : public rooted_store {
 public:
  // Throws std::system_error if the root is not a directory, or cannot be opened.
  explicit posix_store(const std::string& root, posix_options options = {});
  ~posix_store() override;

  std::unique_ptr<open_file> open(std::string_view path, int flags, int* error) override;
  std::string_view name() const override { return "posix"; }
};

}  // namespace gpufs::store
