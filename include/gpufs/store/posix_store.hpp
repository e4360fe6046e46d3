// SPDX-License-Identifier: Apache-2.0
// Regular files below a directory, read by host threads into pinned staging slots and written from them.
#pragma once
#include <memory>
#include <string>

#include "gpufs/store/store.hpp"

namespace gpufs::store {

class unique_fd;
// A directory that stores and their files share; files may outlive the store.
using root_directory = std::shared_ptr<const unique_fd>;

struct posix_options {
  bool writable = false;  // the store may write; else every flag that writes is -EROFS, and so is every call that changes a path
  bool direct = false;    // O_DIRECT where the file system has it; each file's info().reason says where it has not
};

// What stores of the files below a directory share: the directory, and calls on paths.
//
// Paths are relative to the root, also those that start with slashes. A path's parent is looked up below the root as open() does
// it, and the call is made on its last component there, which is never followed when it is a symbolic link (but by status() where
// asked). Errors: the kernel's own (-EEXIST, -ENOTEMPTY, -EXDEV between file systems, ...), paths as in posix_store's table, and
//   last component `.` or `..` -EINVAL              the root itself -EISDIR
// status() and read_directory() take any path that names something, the root too ("", "/", "."); -EINVAL for a position below zero.
// They work in every store, the others are -EROFS unless posix_options::writable.
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
  // Throws std::system_error when the root is not a directory that can be opened.
  rooted_store(const std::string& root, posix_options options);

  const root_directory root_;
  const std::uint64_t device_;
  const posix_options options_;
};

// Opens below the root only: openat2 with RESOLVE_NO_SYMLINKS for a path without `..`, and when that meets a link or there is a
// `..`, with RESOLVE_BENEATH and RESOLVE_NO_MAGICLINKS; or, where the kernel has none (before
// 5.6, or forbidden: ENOSYS), a walk by O_PATH descriptors that follows symbolic links itself under the same rules. Paths
// are relative to the root, also those that start with slashes.
//
// A file opened for writing is no version of itself (info().live): it is never -ESTALE, reads give what it has, short at its end.
// It is opened for reading too, since pages are read in when a part of them is written; with names::open_write_once, where that
// is not permitted, for writing only. Writing goes through the page cache, also where `direct` is set. A new file gets 0666 less
// the process's umask. O_CREAT makes the target of a dangling symbolic link if that lies below the root.
//
// Files keep a descriptor each, up to three quarters of RLIMIT_NOFILE's soft limit in the process; further ones are opened
// again, below the root and compared with what was opened, for every access (4 us). Such a file is -ESTALE once its path
// names another one or none. Files open for writing always keep theirs, and count.
//
// What open() gives beside the kernel's own errors (-EACCES, -ENOENT, -ENOTDIR, -ELOOP, -EMFILE, -ENFILE, -ENOMEM, ...):
//   empty path -ENOENT                          directory, also the root     -EISDIR
//   NUL byte inside -EINVAL                     FIFO                         -EOPNOTSUPP
//   over 4095 bytes, component over 255         socket                       -ENXIO
//     -ENAMETOOLONG                             character or block device    -ENODEV
//   `..` or symbolic link out of the root, any  flags that write, create or truncate, if not `writable`  -EROFS
//     absolute symbolic link -EXDEV             O_PATH, O_DIRECTORY, unknown flags    -EINVAL
//   O_CREAT, O_TRUNC or open_write_once without O_WRONLY or O_RDWR, O_SYNC or O_DSYNC with them (call sync)    -EINVAL
//   O_CREAT and a path that ends in a slash -EISDIR
//   a magic link (/proc/PID/fd/N) -ELOOP (openat2) or -EXDEV (walk)
// Who moves a directory out of the root while a path below it is looked up may see the look-up end where the directory went.
//
// A file is "settled" when neither mtime nor ctime lies within the last 20 ms (the kernel stamps with a coarse clock: git's
// racy-entry problem); 2 s where the stamps are whole seconds, as coarse file systems keep them. A change of an open file's
// size or mtime makes its reads -ESTALE, and so does a change of ctime alone, unless the number of links changed with it: the
// file was unlinked, linked, or another renamed over it, and the open one keeps its bytes, as POSIX has it. What a process
// changes through a writable mapping shows only when the kernel moves mtime, which can be long after.
class posix_store final : public rooted_store {
 public:
  // Throws std::system_error when the root is not a directory that can be opened.
  explicit posix_store(const std::string& root, posix_options options = {});
  ~posix_store() override;

  std::unique_ptr<open_file> open(std::string_view path, int flags, int* error) override;
  std::string_view name() const override { return "posix"; }
};

}  // namespace gpufs::store
