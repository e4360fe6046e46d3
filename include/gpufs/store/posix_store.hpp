// Regular files below a directory, read by host threads into pinned staging slots.
#pragma once
#include <memory>
#include <string>

#include "gpufs/store/store.hpp"

namespace gpufs::store {

class unique_fd;
// A directory that stores and their files share; files may outlive the store.
using root_directory = std::shared_ptr<const unique_fd>;

struct posix_options {
  bool direct = false;  // O_DIRECT where the file system has it; each file's info().reason says where it has not
  bool openat2 = true;  // false: resolve paths component by component even where the kernel has openat2 (for tests)
};

// Opens below the root only: openat2 with RESOLVE_NO_SYMLINKS for a path without `..`, and when that meets a link or there is a
// `..`, with RESOLVE_BENEATH and RESOLVE_NO_MAGICLINKS; or, where the kernel has none (before
// 5.6, or forbidden: ENOSYS), a walk by O_PATH descriptors that follows symbolic links itself under the same rules. Paths
// are relative to the root, also those that start with slashes. Read-only.
//
// Files keep a descriptor each, up to three quarters of RLIMIT_NOFILE's soft limit in the process; further ones are opened
// again, below the root and compared with what was opened, for every access (4 us). Such a file is -ESTALE once its path
// names another one or none.
//
// What open() gives beside the kernel's own errors (-EACCES, -ENOENT, -ENOTDIR, -ELOOP, -EMFILE, -ENFILE, -ENOMEM, ...):
//   empty path -ENOENT                          directory, also the root     -EISDIR
//   NUL byte inside -EINVAL                     FIFO                         -EOPNOTSUPP
//   over 4095 bytes, component over 255         socket                       -ENXIO
//     -ENAMETOOLONG                             character or block device    -ENODEV
//   `..` or symbolic link out of the root, any  flags that write, create or truncate  -EROFS
//     absolute symbolic link -EXDEV             O_PATH, O_DIRECTORY, unknown flags    -EINVAL
//   a magic link (/proc/PID/fd/N) -ELOOP (openat2) or -EXDEV (walk)
// Who moves a directory out of the root while a path below it is looked up may see the look-up end where the directory went.
//
// A file is "settled" when neither mtime nor ctime lies within the last 20 ms (the kernel stamps with a coarse clock: git's
// racy-entry problem); 2 s where the stamps are whole seconds, as coarse file systems keep them. A change of an open file's
// size or mtime makes its reads -ESTALE, and so does a change of ctime alone, unless the number of links changed with it: the
// file was unlinked, linked, or another renamed over it, and the open one keeps its bytes, as POSIX has it. What a process
// changes through a writable mapping shows only when the kernel moves mtime, which can be long after.
class posix_store final : public store {
 public:
  // Throws std::system_error when the root is not a directory that can be opened.
  explicit posix_store(const std::string& root, posix_options options = {});
  ~posix_store() override;
  posix_store(const posix_store&) = delete;
  posix_store& operator=(const posix_store&) = delete;

  std::unique_ptr<open_file> open(std::string_view path, int flags, int* error) override;
  std::string_view name() const override { return "posix"; }

 private:
  root_directory root_;
  posix_options options_;
};

}  // namespace gpufs::store
